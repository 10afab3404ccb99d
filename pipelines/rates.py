"""What runs on this machine measured: new tokens a second and tokens a generation, kept for later forecasts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from derivedata.generation.embedded import cache_folder

FILE = "rates.json"
LEAST_TOKENS = 2_000  # a shorter run measures its own beginning and end


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """What is known of a model on this machine."""

    rate: float | None = None  # new tokens a second
    lengths: Mapping[str, float] = field(default_factory=dict)  # style -> new tokens a generation


def known_rate(model: str) -> Rate:
    """What earlier runs measured with a model."""
    try:
        entry = _all()[model]
        return Rate(rate=float(entry["rate"]), lengths=dict(entry["lengths"]))
    except (LookupError, TypeError, ValueError):
        return Rate()


def remember_rate(model: str, *, tokens: int, seconds: float, lengths: Mapping[str, float]) -> None:
    """Keep what a run measured; one of few tokens is forgotten."""
    if tokens < LEAST_TOKENS or seconds <= 0:
        return
    known = _all()
    known[model] = {"rate": tokens / seconds, "lengths": {**known_rate(model).lengths, **lengths}}
    path = cache_folder() / FILE
    with suppress(OSError):  # a forecast is worth less than the run that has just ended
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(known, indent=1))
        partial.replace(path)


def _all() -> dict:
    with suppress(OSError, ValueError):
        known = json.loads((cache_folder() / FILE).read_text())
        return known if isinstance(known, dict) else {}
    return {}
