"""Brings a row of any data set into the Dolma layout: which field is the text, which the id, the rest is metadata.

    shape = Shape(text_field="content")
    shape({"content": "Hello.", "id": 5, "lang": "en"})
    # {"id": "5", "text": "Hello.", "source": ..., "added": ..., "created": None, "metadata": {"lang": "en"}}

Nothing of a row is dropped: what has no place of its own in the layout stands in `metadata`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from derivedata.corpus.strict import BadRow, check_text, kind_of

TEXT, ID = "text", "id"
_ABSENT = object()


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Makes the fields of a Dolma document of the fields of a row; callable, and the same in every process.

    Args:
        text_field: where the text is; `a.b` reaches into objects where no field has that name itself.
        id_field: where the id is; absent, null and empty ids are left for the caller to fill.
        source: the source of every document; None: the row's own, else `default_source`.
        default_source: for rows that name none.
        added: ISO 8601, for rows without a date of their own.
    """

    text_field: str = TEXT
    id_field: str = ID
    source: str | None = None
    default_source: str | None = None
    added: str | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The document's fields. Raises BadRow when the row has no text that somebody can see."""
        rest = dict(row)
        text = self._text(rest)
        identity = as_id(_take(rest, self.id_field))
        own, added, created = rest.get("source"), rest.get("added"), rest.get("created")
        if self.source is not None:
            source = self.source
            if own == source:
                del rest["source"]
        elif isinstance(own, str) and own:
            source = rest.pop("source")
        else:
            source = self.default_source
        if isinstance(added, str) and added:
            del rest["added"]
        else:
            added = self.added
        if isinstance(created, str) and created:
            del rest["created"]
        else:
            created = None
        metadata = rest.pop("metadata", None)
        if isinstance(metadata, dict):
            metadata = _joined(metadata, rest) if rest else metadata
        elif metadata is None:
            metadata = rest
        else:
            metadata = {"metadata": metadata, **rest}
        return {
            "id": identity,
            "text": text,
            "source": source,
            "added": added,
            "created": created,
            "metadata": metadata,
        }

    def _text(self, rest: dict[str, Any]) -> str:
        text = _take(rest, self.text_field)
        if type(text) is str:
            if not text[:1].isalnum():
                check_text({"text": text})
            return text
        if text is _ABSENT:
            raise BadRow("missing-text", f"no field `{self.text_field}`; the row has {_names(rest)}")
        if text is None:
            raise BadRow("null-text", f"`{self.text_field}` is null")
        raise BadRow("text-not-a-string", f"`{self.text_field}` is {kind_of(text)}")


def as_id(value: object) -> str | None:
    """An id of any type as text: strings as they are, other values as JSON; None for absent, null and empty ones."""
    if isinstance(value, str):
        return value or None
    if value is None or value is _ABSENT:
        return None
    return json.dumps(value, ensure_ascii=False)


def look(row: dict[str, Any], field: str) -> Any:
    """The value of a field, `a.b` reaching into objects; None where there is none."""
    value = row.get(field, _ABSENT)
    if value is _ABSENT and "." in field:
        first, _, rest = field.partition(".")
        inner = row.get(first)
        return look(inner, rest) if isinstance(inner, dict) else None
    return None if value is _ABSENT else value


def _take(rest: dict[str, Any], field: str) -> Any:
    """Remove a field and return it; objects on the way are copied, so that the row stays as it was."""
    if field in rest or "." not in field:
        return rest.pop(field, _ABSENT)
    first, _, inner = field.partition(".")
    if not isinstance(rest.get(first), dict):
        return _ABSENT
    copy = dict(rest[first])
    value = _take(copy, inner)
    if value is not _ABSENT:
        rest[first] = copy
    return value


def _joined(metadata: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """Metadata with the row's further fields; one that has another value there is kept as `top_level.<name>`."""
    joined = dict(metadata)
    for name, value in rest.items():
        if joined.setdefault(name, value) != value:
            joined[f"top_level.{name}"] = value
    return joined


def _names(rest: dict[str, Any]) -> str:
    names = ", ".join(f"`{name}`" for name in list(rest)[:12])
    return (names or "none") + (", ..." if len(rest) > 12 else "")


__all__ = ["Shape", "as_id", "look"]
