"""Numbers as people write them: 1.2B parameters, 30M tokens, 1e22 FLOPs."""

from __future__ import annotations

import math

_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def parse_quantity(text: str) -> float:
    """The value of '1.2B', '30M', '512k', '2T' or '1e22' (suffixes in either case, powers of a thousand).

    Raises:
        ValueError: when the text is no positive finite number of that kind.
    """
    bare = text.strip().replace("_", "").replace(",", "")
    suffix = bare[-1:].lower() if bare[-1:].isalpha() else ""
    if suffix not in _SUFFIXES:
        raise ValueError(f"{text!r} is no number such as 1.2B, 30M, 512k or 1e22")
    try:
        value = float(bare[: len(bare) - len(suffix)]) * _SUFFIXES[suffix]
    except ValueError:
        raise ValueError(f"{text!r} is no number such as 1.2B, 30M, 512k or 1e22") from None
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{text!r} is not a positive finite number")
    return value
