"""Dolma's attributes, which stand in files of their own, joined to the documents by id.

Attribute files are written in the order of their documents, so reading both side by side finds nearly every pair at
once; rows that are out of order wait in memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from derivedata.corpus.document import COMPRESSION_SUFFIXES, Document, RejectedRow, without_compression
from derivedata.corpus.files import CorpusFile
from derivedata.corpus.reader import RowReader
from derivedata.corpus.shape import as_id
from derivedata.corpus.source import is_local
from derivedata.corpus.strict import BadRow
from derivedata.errors import UserError

ROOM = "/documents/"


def attribute_file(file: CorpusFile, attribute: str) -> tuple[str, str]:
    """(name, address) of the attributes of a shard.

    Args:
        file: the shard of documents.
        attribute: a name, for `attributes/NAME/` beside `documents/`; or the folder itself, where the files have the
            paths that the shards have in the corpus.

    Raises:
        UserError: there is none.
    """
    name = os.path.basename(attribute.rstrip("/"))
    before, room, after = file.url.rpartition(ROOM)
    if "/" in attribute or os.path.isdir(attribute):
        stem = f"{attribute.rstrip('/')}/{without_compression(file.path)}"
    elif room:
        stem = f"{before}/attributes/{attribute}/{without_compression(after)}"
    else:
        remedy = "name the folder of the attributes: --attributes PATH"
        raise UserError("does not lie in a documents/ folder", where=file.url, remedy=remedy)
    for suffix in ("", *COMPRESSION_SUFFIXES):
        if _exists(stem + suffix):
            return name, stem + suffix
    raise UserError(f"has no attributes {name}", where=file.url, value=f"no {stem}, nor a compressed one")


def _exists(address: str) -> bool:
    if is_local(address):
        return os.path.isfile(address.removeprefix("file://"))
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(address)
    return filesystem.isfile(path)


class AttributeJoin:
    """Gives documents their attributes, in `metadata.attributes`.

    Attributes:
        joined: documents that got any; missing: documents of which a file has no row; left: attribute rows whose
            document did not come (known after `close`).
    """

    def __init__(self, sources: Sequence[tuple[str, str]]):
        self._files = [_Attributes(name, address) for name, address in sources]
        self.joined = self.missing = self.left = 0

    def add_to(self, document: Document) -> None:
        """Look up the document's attributes; those of a name that another file has given too are kept as
        `<file>.<name>`."""
        found: dict[str, Any] = {}
        for file in self._files:
            values = file.find(document.fields["id"])
            if values is None:
                self.missing += 1
                continue
            for name, value in values.items():
                if found.setdefault(name, value) != value:
                    found[f"{file.name}.{name}"] = value
        self.joined += bool(found)
        if found:
            metadata = document.fields["metadata"]
            if "attributes" in metadata:
                metadata = {**metadata, "top_level.attributes": metadata["attributes"]}
            document.fields["metadata"] = {**metadata, "attributes": found}

    def close(self) -> None:
        """Count what is left."""
        self.left = sum(file.rest() for file in self._files)


class _Attributes:
    """One file of attributes."""

    def __init__(self, name: str, address: str):
        self.name, self._address = name, address
        self._rows = self._read()
        self._waiting: dict[str, deque[dict[str, Any]]] = {}

    def find(self, identity: str | None) -> dict[str, Any] | None:
        """The next attributes of an id; None when there are no more."""
        if identity is None:
            return None
        if identity in self._waiting:
            return self._take(identity)
        for given, values in self._rows:
            if given == identity:
                return values
            self._waiting.setdefault(given, deque()).append(values)
        return None

    def rest(self) -> int:
        return sum(map(len, self._waiting.values())) + sum(1 for _ in self._rows)

    def _take(self, identity: str) -> dict[str, Any]:
        queue = self._waiting[identity]
        values = queue.popleft()
        if not queue:
            del self._waiting[identity]
        return values

    def _read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        file = CorpusFile(self._address, self._address, 0, "", "jsonl")
        for row in RowReader(file, shape=_attributes):
            if isinstance(row, RejectedRow):
                where = f"{self._address}, line {row.line}"
                raise UserError("is no row of attributes", where=where, value=f"{row.reason}: {row.detail}")
            yield row.fields["id"], row.fields["attributes"]


def _attributes(fields: dict[str, Any]) -> dict[str, Any]:
    identity, values = as_id(fields.get("id")), fields.get("attributes")
    if identity is None:
        raise BadRow("value-not-json", "no id")
    if not isinstance(values, dict):
        raise BadRow("value-not-json", "no object `attributes`")
    return {"id": identity, "attributes": values}
