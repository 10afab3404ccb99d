"""Rows that others derived, in the layouts they published them in, as one thing: generations and what they are of.

FinePhrase   `text` is the source, `rollout_results[i].text` a generation; a folder a style, Parquet
Nemotron-CC  folders quality=/kind=/kind2=, .jsonl.zstd; `text` is the generation, kind2 the style
Cosmopedia   prompt, text, seed_data, format, audience; `format` is the style, the source is not named
plain rows   `text` is the generation, a field holds the id of its source
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from derivedata.corpus.shape import TEXT, as_id, look
from derivedata.corpus.strict import BadRow, kind_of

ROLLOUTS = "rollout_results"
HIVE = re.compile(r"([A-Za-z0-9_]+)=([^/]+)")
COSMOPEDIA = ("prompt", "seed_data", "format")
# Where rows name their source, first found first.
SOURCE_IDS = ("source_id", "metadata.source_id", "metadata.derivedata.source_id")
NEMOTRON_IDS = ("warc_record_id", "url", "id")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignShape:
    """Makes of a row `generations` (text, finish_reason, prompt_tokens, completion_tokens), `style`, `source_id`,
    `source_text`, `source`, `created` and `rest`, which is all that has no place among these.

    Args:
        address: of the file, whose folders may say the style.
        strategy: also the style, where neither the row nor its folder has one.
        style: of all rows; None: the row's own.
        text_field: of plain rows and Nemotron-CC's.
        source_id_field: where the id of the source is; None: where the layout has it.
    """

    address: str
    strategy: str
    style: str | None = None
    text_field: str = TEXT
    source_id_field: str | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Raises BadRow for a row that holds no generation."""
        hive = hive_keys(self.address)
        if ROLLOUTS in row:
            made = self._finephrase(row)
        elif "kind" in hive:
            made = self._nemotron(row, hive)
        elif all(name in row for name in COSMOPEDIA):
            made = self._plain(row, style=row["format"], ids=())
        else:
            made = self._plain(row, style=look(row, "style"), ids=SOURCE_IDS)
        for name in ("source", "created"):
            value = made["rest"].get(name)
            made[name] = made["rest"].pop(name) if isinstance(value, str) and value else None
        return made

    def _finephrase(self, row: dict[str, Any]) -> dict[str, Any]:
        rollouts = row[ROLLOUTS]
        if not isinstance(rollouts, list) or not rollouts:
            raise BadRow("missing-text", f"`{ROLLOUTS}` holds no generation")
        generations = [_rollout(rollout) for rollout in rollouts]
        text = row.get("text")
        if text is not None and not isinstance(text, str):
            raise BadRow("text-not-a-string", f"`text` is {kind_of(text)}")
        folder = self.address.rstrip("/").rpartition("/")[0].rpartition("/")[2]
        rest = {name: value for name, value in row.items() if name not in (ROLLOUTS, "text")}
        return self._made(row, generations, folder, ("id",), rest, source_text=text)

    def _nemotron(self, row: dict[str, Any], hive: Mapping[str, str]) -> dict[str, Any]:
        made = self._plain(row, style=hive.get("kind2") or hive["kind"], ids=NEMOTRON_IDS)
        made["rest"] = {**hive, **made["rest"]}
        return made

    def _plain(self, row: dict[str, Any], *, style: object, ids: tuple[str, ...]) -> dict[str, Any]:
        text = look(row, self.text_field)
        if text is None:
            raise BadRow("missing-text", f"no field `{self.text_field}`; the row has {', '.join(list(row)[:12])}")
        if not isinstance(text, str):
            raise BadRow("text-not-a-string", f"`{self.text_field}` is {kind_of(text)}")
        rest = {name: value for name, value in row.items() if name != self.text_field}
        return self._made(row, [_generation(text)], style, ids, rest)

    def _made(
        self,
        row: dict[str, Any],
        generations: list[dict[str, Any]],
        style: object,
        ids: tuple[str, ...],
        rest: dict[str, Any],
        *,
        source_text: str | None = None,
    ) -> dict[str, Any]:
        ids = (self.source_id_field,) if self.source_id_field else ids
        found = (as_id(look(row, field)) for field in ids)
        return {
            "generations": generations,
            "style": style_name(self.style or style) or self.strategy,
            "source_id": next((one for one in found if one is not None), None),
            "source_text": source_text,
            "rest": rest,
        }


def hive_keys(address: str) -> dict[str, str]:
    """The keys that the folders of an address name: `quality=high/kind=synthetic/x.jsonl` -> quality, kind."""
    return {match[1]: match[2] for part in address.split("/")[:-1] if (match := HIVE.fullmatch(part))}


def style_name(value: object) -> str | None:
    """A style as a name of a folder; None where there is none."""
    if not isinstance(value, str):
        return None
    return _UNFIT.sub("-", value).strip("-.")[:60] or None


def _rollout(rollout: object) -> dict[str, Any]:
    if not isinstance(rollout, dict):
        return _generation(None)
    usage = rollout.get("usage") if isinstance(rollout.get("usage"), dict) else {}
    return _generation(
        rollout.get("text"),
        finish_reason=rollout.get("finish_reason"),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
    )


def _generation(
    text: object, *, finish_reason: object = None, prompt_tokens: object = None, completion_tokens: object = None
) -> dict[str, Any]:
    return {
        "text": text,
        "finish_reason": finish_reason if isinstance(finish_reason, str) else None,
        "prompt_tokens": _count(prompt_tokens),
        "completion_tokens": _count(completion_tokens),
    }


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 31 else None
