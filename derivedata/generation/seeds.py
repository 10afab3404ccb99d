"""Every random draw of generation comes from here: a pure function of the run's seed and of what is drawn for.

Nothing depends on the order of work, the number of tasks or the engine, so a restarted or resized run draws the same.
"""

from __future__ import annotations

import hashlib
import json
import random


def _digest(run_seed: int, purpose: str, *parts: str | int) -> bytes:
    # JSON of a list is unambiguous: ("ab", "c") and ("a", "bc") differ, and so do 1 and "1".
    return hashlib.sha256(json.dumps([run_seed, purpose, *parts], ensure_ascii=True).encode()).digest()


def request_seed(run_seed: int, uid: str, style: str, rewrite: int, piece: int, *, attempt: int = 0) -> int:
    """The sampling seed of one request, an integer in [0, 2**63): what vLLM takes (a signed 64-bit integer).

    Args:
        run_seed: the seed of the run.
        uid: the document's uid.
        style: name of the style (or of whatever else is drawn for).
        rewrite: number of the rewrite (or sample), from 0.
        piece: number of the piece of a split document, from 0.
        attempt: number of the attempt, from 0, when a generation is drawn again; a retried HTTP request is no new one.
    """
    return int.from_bytes(_digest(run_seed, "request", uid, style, rewrite, piece, attempt)[:8], "big") >> 1


def unit_interval(run_seed: int, purpose: str, *parts: str | int) -> float:
    """A number in [0, 1), uniform over `parts`; `purpose` keeps draws for different ends independent."""
    return (int.from_bytes(_digest(run_seed, purpose, *parts)[:8], "big") >> 11) * 2.0**-53


def generator(run_seed: int, purpose: str, *parts: str | int) -> random.Random:
    """A generator for draws that need more than one number (a permutation, a window)."""
    return random.Random(int.from_bytes(_digest(run_seed, purpose, *parts), "big"))
