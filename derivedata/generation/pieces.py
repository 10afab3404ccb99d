"""Cuts a document that is too long for the model's context: at paragraphs, else sentences, lines, words, tokens."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from typing import Literal

from derivedata.errors import UserError
from derivedata.generation.tokenizer import Tokenizer

OnLong = Literal["split", "window", "truncate", "skip"]

# Where a piece may end, best first; a match's end is the place, so white space stays with what is before it.
_BOUNDARIES = (
    re.compile(r"\n[^\S\n]*\n\s*"),
    re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？][」』”’）]*\s*"),
    re.compile(r"\n\s*"),
    re.compile(r"\s+"),
)
_LEAST = 16  # tokens: below that a piece holds no sentence, and one character can need several tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a document that fits the model's context."""

    index: int  # from 0
    text: str
    tokens: list[int]


def split_document(
    tokenizer: Tokenizer, text: str, max_tokens: int, on_long: OnLong = "split", *, draw: float = 0.0
) -> list[Piece]:
    """The pieces of a document, each at most `max_tokens` tokens; a document that fits is one piece.

    Args:
        tokenizer: the model's.
        text: the document's text.
        max_tokens: tokens a piece may have.
        on_long: what to do with a longer document: `split` it (the pieces joined are the text again), take a random
            `window`, `truncate` it (keep the beginning), or `skip` it (no pieces).
        draw: where the window begins, a number in [0, 1); take it from `seeds.unit_interval`.

    Raises:
        UserError: `max_tokens` is too small to hold a sentence.
    """
    if max_tokens < _LEAST:
        raise UserError("the context leaves no room for a sentence of the document", value=max_tokens)
    tokens, starts = tokenizer.encode_with_starts(text)
    if len(tokens) <= max_tokens:
        return [Piece(0, text, tokens)]
    if on_long == "skip":
        return []
    cutter = _Cutter(tokenizer, text, starts, max_tokens)
    if on_long == "truncate":
        return [cutter.piece(0, 0)[0]]
    if on_long == "window":
        return [cutter.piece(0, cutter.window_begin(draw))[0]]
    pieces, begin = [], 0
    while begin < len(text):
        piece, begin = cutter.piece(len(pieces), begin, even=True)
        pieces.append(piece)
    return pieces


class _Cutter:
    """One document with its possible cuts. Places are indices of characters."""

    def __init__(self, tokenizer: Tokenizer, text: str, starts: list[int], max_tokens: int):
        self.tokenizer, self.text, self.starts, self.max_tokens = tokenizer, text, starts, max_tokens
        self.boundaries = [[match.end() for match in pattern.finditer(text)] for pattern in _BOUNDARIES]

    def piece(self, index: int, begin: int, *, even: bool = False) -> tuple[Piece, int]:
        """The piece that begins at `begin` and where it ends.

        Args:
            index: its number.
            begin: where it begins.
            even: aim at pieces of like size instead of a full one followed by a scrap.
        """
        first = bisect.bisect_left(self.starts, begin)
        left = len(self.starts) - first
        allowed = self.max_tokens
        while True:
            # A part alone can have more tokens than within the whole: what was one token across its edge is several.
            wanted = -(-left // -(-left // allowed)) if even and left > allowed else allowed
            end = self._cut(begin, first, wanted, allowed)
            tokens = self.tokenizer.encode(self.text[begin:end])
            if len(tokens) <= self.max_tokens or end - begin <= 1:
                return Piece(index, self.text[begin:end], tokens), end
            allowed -= max(1, min(allowed - 1, len(tokens) - self.max_tokens))

    def _cut(self, begin: int, first: int, wanted: int, allowed: int) -> int:
        """The best place to end: of the best kind that has one in the upper half, the nearest to `wanted` tokens."""
        if first + allowed >= len(self.starts):
            return len(self.text)
        latest = max(self.starts[first + allowed], begin + 1)
        earliest = self.starts[first + max(1, wanted // 2)]
        aim = self.starts[min(first + wanted, len(self.starts) - 1)]
        for places in self.boundaries:
            low, high = bisect.bisect_left(places, max(earliest, begin + 1)), bisect.bisect_right(places, latest)
            if low < high:
                return min(places[low:high], key=lambda place: abs(place - aim))
        return latest

    def window_begin(self, draw: float) -> int:
        """Where a window begins: uniform over the tokens at which a full one can, moved on to a boundary close by."""
        number = int(draw * (len(self.starts) - self.max_tokens + 1))
        begin = self.starts[number] if number else 0
        close = self.starts[min(number + self.max_tokens // 8, len(self.starts) - self.max_tokens)]
        if number:
            for places in self.boundaries:
                low = bisect.bisect_left(places, begin)
                if low < len(places) and places[low] <= close:
                    return places[low]
        return begin
