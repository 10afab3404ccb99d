"""What can be counted in a text without a model: words, numbers, names, shared n-grams, scripts. Pure and fast."""

from __future__ import annotations

import re
from collections.abc import Sequence

# A number as a reader counts them: 1,250 and 3.5 are one each, 5km is one, the 2 of H2O and of v2.0 is none.
NUMBER = re.compile(r"(?<![A-Za-zÀ-ɏ_0-9])(?<![0-9A-Za-z][.,])\d+(?:[.,]\d+)*")
# Scripts written without spaces between words: each character stands for a word.
WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
)
NAME = re.compile(r"(?<![.!?:\n|*#\-] )(?<=[a-zß-ÿ,;(] )[A-ZÀ-Þ][a-zß-ÿ]{2,}")


def words(text: str) -> list[str]:
    """The words in lower case, punctuation left out."""
    return WORD.findall(text.lower())


def count_words(text: str) -> int:
    """How many words the text has."""
    return sum(1 for _ in WORD.finditer(text))


def count_numbers(text: str) -> int:
    """How many numbers a reader sees in the text."""
    return sum(1 for _ in NUMBER.finditer(text))


def numbers(text: str) -> list[str]:
    """The numbers in a form that can be compared: 1,250 and 1250 are the same, and so are 2.50 and 2.5."""
    found = []
    for match in NUMBER.finditer(text):
        number = re.sub(r",(?=\d{3}(?:\D|$))", "", match.group()).replace(",", ".")
        found.append(number.rstrip("0").rstrip(".") if number.count(".") == 1 else number)
    return found


def names(text: str) -> set[str]:
    """Capitalised words inside sentences; a rough stand-in for proper names (of no use for German nouns)."""
    return set(NAME.findall(text))


def overlap(text: str | Sequence[str], source: str | Sequence[str], n: int = 8) -> float:
    """Share of the text's word n-grams that the source has as well.

    Args:
        text, source: texts, or their `words`.
        n: length of the n-grams; a text of fewer words is compared as one n-gram of its own length.

    Returns:
        From 0 (nothing copied) to 1; 0 for a text without words.
    """
    mine = words(text) if isinstance(text, str) else text
    theirs = words(source) if isinstance(source, str) else source
    n = min(n, len(mine))
    if n == 0:
        return 0.0
    known = {tuple(theirs[i : i + n]) for i in range(len(theirs) - n + 1)}
    return sum(tuple(mine[i : i + n]) in known for i in range(len(mine) - n + 1)) / (len(mine) - n + 1)
