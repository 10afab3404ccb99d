r"""Gold answers as they stand in people's files: strings, numbers, lists, JSON lists, doubled backslashes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

_BACKSLASHES = re.compile(r"\\+")
_DOUBLED_COMMAND = re.compile(r"\\\\[a-zA-Z%$&#{}!,;:|]")


def unescape(text: str) -> str:
    r"""Halve doubled backslashes (`\\frac{1}{2}`), the mark of a file that was escaped once too often.

    Only where every run of backslashes is even and one stands before a command: a matrix's `\\` beside a single
    `\begin` is left alone.
    """
    if "\\\\" not in text or not _DOUBLED_COMMAND.search(text):
        return text
    if any(len(run) % 2 for run in _BACKSLASHES.findall(text)):
        return text
    return _BACKSLASHES.sub(lambda run: run.group()[: len(run.group()) // 2], text)


def gold_answers(value: object) -> tuple[str, ...]:
    """The gold answers that a value holds, each a right answer by itself; empty when it holds none.

    A list, or a string that is a JSON list of strings, holds alternatives, as verl's scorers read it. `[0, 1]` is a
    closed interval and no list.
    """
    if isinstance(value, str):
        items = _json_list(value)
        if items is not None:
            return gold_answers(items)
        return (unescape(value),) if value.strip() else ()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (repr(value),) if math.isfinite(value) else ()
    if isinstance(value, Sequence):
        return tuple(gold for item in value for gold in gold_answers(item))
    return ()


def _json_list(text: str) -> list[str] | None:
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]") and '"' in text):
        return None
    try:
        items = json.loads(text)
    except ValueError:
        return None
    return items if isinstance(items, list) and all(isinstance(item, str) for item in items) else None
