"""What two texts have in common, word for word, so that a page can mark it in both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Scripts without spaces between words count by the character.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+(?:['’.,-][^\W_]+)*")
SHORTEST = 4  # words in a row that both have: fewer are in common by chance

Span = tuple[str, bool]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two texts in pieces, each with whether the other text has it too, and the share of the second's words that do."""

    first: list[Span]
    second: list[Span]
    share: float


def overlap(first: str, second: str, *, shortest: int = SHORTEST) -> Overlap:
    """Mark runs of at least `shortest` words, whatever their case, that stand in both texts."""
    one, two = list(_WORD.finditer(first)), list(_WORD.finditer(second))
    words = [[match[0].casefold() for match in matches] for matches in (one, two)]
    of_one, of_two = (_runs(its, other, shortest) for its, other in (words, words[::-1]))
    return Overlap(
        _spans(first, one, of_one), _spans(second, two, of_two), sum(of_two) / len(of_two) if of_two else 0.0
    )


def _runs(words: Sequence[str], others: Sequence[str], shortest: int) -> list[bool]:
    """For each word whether it is part of a run that the other text has."""
    there = {tuple(others[i : i + shortest]) for i in range(len(others) - shortest + 1)}
    found = [False] * len(words)
    for i in range(len(words) - shortest + 1):
        if tuple(words[i : i + shortest]) in there:
            found[i : i + shortest] = [True] * shortest
    return found


def _spans(text: str, words: Sequence[re.Match[str]], marked: Sequence[bool]) -> list[Span]:
    """The text in pieces, marked from the first to the last word of each run."""
    spans: list[Span] = []
    at = number = 0
    while number < len(words):
        if not marked[number]:
            number += 1
            continue
        stop = number
        while stop + 1 < len(words) and marked[stop + 1]:
            stop += 1
        if words[number].start() > at:
            spans.append((text[at : words[number].start()], False))
        at = words[stop].end()
        spans.append((text[words[number].start() : at], True))
        number = stop + 1
    if at < len(text):
        spans.append((text[at:], False))
    return spans
