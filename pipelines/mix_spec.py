"""What a user asks of a mix: a YAML file in OLMo-core's words.

    requested_tokens: 10B
    sources:
    - source_name: web
      target_ratio: 0.5
      paths: [corpus]
    - source_name: faq
      target_ratio: 0.5
      paths: [derived]
      style: faq
      max_repetition_ratio: 2

`target_ratio`, `max_repetition_ratio`, `max_source_fraction` and `requested_tokens` mean what they mean in OLMo-core's
SourceMixtureConfig and SourceMixtureDatasetConfig; `paths` are corpora here, token files there.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from derivedata.errors import UserError
from derivedata.generation.yamlfile import YamlFile, read_yaml

FRESH_PART, ANYTHING = "fresh part", "anything"


@dataclass(frozen=True, kw_only=True, slots=True)
class MixSource:
    """One source of a mix."""

    source_name: str
    target_ratio: float  # of the mix's tokens
    paths: tuple[str, ...]  # corpora, outputs of ours, subsets, or one virtual repeat
    max_repetition_ratio: float = 1.0  # how often its tokens may come, on average
    max_source_fraction: float = 1.0  # how much of it may be used at all
    style: str | None = None  # of an output of ours, only these
    strategy: str | None = None
    derived_from: str = FRESH_PART  # derived documents: only those of documents in the fresh part, or anything
    token_paths: tuple[str, ...] = ()  # its token files, for --export


@dataclass(frozen=True, kw_only=True, slots=True)
class MixSpec:
    """A whole mix. requested_tokens None: as many as ratios and limits allow."""

    sources: tuple[MixSource, ...]
    requested_tokens: int | None = None
    seed: int = 0
    tokenizer: str | None = None
    decontaminate: tuple[str, ...] = ()  # evaluation files: documents that hold text of theirs are left out


def read_spec(path: str | Path) -> MixSpec:
    """Read and check a mixture file; unknown fields are refused with the nearest known one.

    Raises:
        UserError: with file, line and field.
    """
    file = read_yaml(path)
    base = Path(path).resolve().parent
    _known(file, "", file.content, MixSpec)
    raw = file.content.get("sources")
    if not isinstance(raw, list) or not raw:
        raise UserError("must be a list of sources", where=file.where("sources"))
    sources = tuple(_source(file, f"sources[{number}]", one, base) for number, one in enumerate(raw))
    names = [source.source_name for source in sources]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UserError("is there twice", where=file.where(f"sources[{number}].source_name"), value=name)
    _apart(file, sources)
    total = math.fsum(source.target_ratio for source in sources)
    if abs(total - 1) > 1e-6:
        told = " + ".join(f"{source.target_ratio:g}" for source in sources)
        raise UserError(f"the target_ratios add up to {total:g}, not to 1", where=file.where("sources"), value=told)
    return MixSpec(
        sources=sources,
        requested_tokens=_tokens(file, "requested_tokens"),
        seed=_whole(file, "seed"),
        tokenizer=_text(file, "tokenizer", file.content.get("tokenizer")),
        decontaminate=(
            _paths(file, "decontaminate", file.content["decontaminate"], base)
            if "decontaminate" in file.content
            else ()
        ),
    )


def _apart(file: YamlFile, sources: Sequence[MixSource]) -> None:
    """Refuse two sources with the same documents: they would come twice, and count as other ones each time."""
    for number, one in enumerate(sources):
        for other in sources[:number]:
            shared = set(one.paths) & set(other.paths)
            pairs = ((one.style, other.style), (one.strategy, other.strategy))
            if shared and all(a is None or b is None or a == b for a, b in pairs):
                raise UserError(
                    f"has documents of source {other.source_name}, too",
                    where=file.where(f"sources[{number}].paths"),
                    value=min(shared),
                    remedy="name them in one source, with max_repetition_ratio to have them more than once",
                )


def _source(file: YamlFile, where: str, raw: Any, base: Path) -> MixSource:
    if not isinstance(raw, dict):
        raise UserError("must be a mapping of fields", where=file.where(where), value=str(raw))
    _known(file, where, raw, MixSource)
    for name in ("source_name", "target_ratio", "paths"):
        if raw.get(name) is None:
            raise UserError(f"needs {name}", where=file.where(where))
    name = _text(file, f"{where}.source_name", raw["source_name"])
    if "/" in name or name.startswith("."):
        raise UserError("must be a plain name", where=file.where(f"{where}.source_name"), value=name)
    derived_from = raw.get("derived_from", FRESH_PART)
    if derived_from not in (FRESH_PART, ANYTHING):
        remedy = f"write {FRESH_PART} or {ANYTHING}"
        raise UserError("no such choice", where=file.where(f"{where}.derived_from"), value=derived_from, remedy=remedy)
    return MixSource(
        source_name=name,
        target_ratio=_number(file, f"{where}.target_ratio", raw["target_ratio"], 0, 1),
        paths=_paths(file, f"{where}.paths", raw["paths"], base),
        max_repetition_ratio=_number(
            file, f"{where}.max_repetition_ratio", raw.get("max_repetition_ratio", 1), 1, math.inf, included=True
        ),
        max_source_fraction=_number(file, f"{where}.max_source_fraction", raw.get("max_source_fraction", 1), 0, 1),
        style=_text(file, f"{where}.style", raw.get("style")),
        strategy=_text(file, f"{where}.strategy", raw.get("strategy")),
        derived_from=derived_from,
        token_paths=tuple(map(str, raw.get("token_paths") or ())),
    )


def _known(file: YamlFile, where: str, raw: Mapping[str, Any], kind: type) -> None:
    known = [one.name for one in fields(kind)]
    for key in raw:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise UserError(
                "no such field", where=file.where(f"{where}.{key}" if where else key), value=key, remedy=remedy
            )


def _paths(file: YamlFile, where: str, raw: Any, base: Path) -> tuple[str, ...]:
    """Places; relative ones are meant from the folder of the file."""
    listed = [raw] if isinstance(raw, str) else raw
    if not isinstance(listed, list) or not listed or not all(isinstance(one, str) and one for one in listed):
        raise UserError("must be a path or a list of paths", where=file.where(where), value=str(raw))
    return tuple(one if "://" in one else str(base / Path(one).expanduser()) for one in listed)


def _number(file: YamlFile, where: str, raw: Any, low: float, high: float, *, included: bool = False) -> float:
    good = isinstance(raw, (int, float)) and not isinstance(raw, bool)
    if not good or not (low <= raw <= high if included else low < raw <= high):
        bounds = f"{low:g} or more" if included else f"above {low:g} and at most {high:g}"
        raise UserError(f"must be a number {bounds}", where=file.where(where), value=str(raw))
    return float(raw)


def _text(file: YamlFile, where: str, raw: Any) -> str | None:
    if raw is not None and not (isinstance(raw, str) and raw):
        raise UserError("must be text", where=file.where(where), value=str(raw), remedy="put it in quotes")
    return raw


def _whole(file: YamlFile, name: str) -> int:
    raw = file.content.get(name, 0)
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise UserError("must be a whole number", where=file.where(name), value=str(raw))
    return raw


def _tokens(file: YamlFile, name: str) -> int | None:
    from derivedata.quantity import parse_quantity

    raw = file.content.get(name)
    if raw is None:
        return None
    try:
        return math.ceil(parse_quantity(str(raw)))
    except ValueError as error:
        raise UserError(str(error), where=file.where(name)) from None
