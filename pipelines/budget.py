"""A budget of derived tokens, met by the shortest prefix of documents in the seeded order.

Which documents belong to a budgeted corpus must not depend on who finished first, so the cut is made in the order of
the documents, from decided outcomes alone. How far to generate ahead of the cut is a guess, and only costs time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class ChunkTokens:
    """What is known of a chunk's derived tokens."""

    documents: int  # in the chunk, as far as the run may use them
    frontier: int = 0  # positions before this are committed
    tokens: int = 0  # of the committed positions
    decided: int | None = None  # tokens of the rest, when all of it is decided but not committed

    @property
    def known(self) -> bool:
        """Whether the tokens of the whole chunk are settled."""
        return self.frontier >= self.documents or self.decided is not None

    @property
    def total(self) -> int:
        return self.tokens + (self.decided or 0)


@dataclass(slots=True, kw_only=True)
class Budget:
    """Tokens wanted, and what each chunk (in the seeded order) holds of them."""

    target: int
    chunks: list[ChunkTokens]
    mean: float  # expected tokens a document before anything is known
    _seen: list[float] = field(default_factory=lambda: [0.0, 0.0])  # documents, tokens finished in this run

    def before(self, chunk: int) -> int | None:
        """Tokens in the chunks before this one; None while one of them is open."""
        total = 0
        for earlier in self.chunks[:chunk]:
            if not earlier.known:
                return None
            total += earlier.total
        return total

    def learn(self, documents: int, tokens: int) -> None:
        """Take finished documents into the expected tokens a document."""
        self._seen[0] += documents
        self._seen[1] += tokens

    @property
    def rate(self) -> float:
        """Expected accepted tokens a document."""
        documents, tokens = self._seen
        # The first guess weighs as much as two documents, so that a lucky first one can't start a flood.
        return (2 * self.mean + tokens) / (2 + documents)

    def expected_before(self, chunk: int, mine: Mapping[int, float]) -> float:
        """Guess of the tokens before a chunk; `mine` are this rank's open chunks and their own guesses."""
        total = 0.0
        for index, earlier in enumerate(self.chunks[:chunk]):
            if earlier.known:
                total += earlier.total
            elif index in mine:
                total += earlier.tokens + mine[index]
            else:
                total += earlier.tokens + self.rate * (earlier.documents - earlier.frontier)
        return total

    def reached(self) -> bool:
        """Whether the committed prefix holds the tokens wanted."""
        total = 0
        for chunk in self.chunks:
            total += chunk.tokens
            if total >= self.target:
                return True
            if chunk.frontier < chunk.documents:
                return False
        return False


def cut(outcomes: Iterable[tuple[int, int]], *, first: int, stop: int, missing: int) -> int | None:
    """The end of the shortest prefix of positions that holds `missing` tokens.

    Args:
        outcomes: (position, accepted tokens) in any order, several a position.
        first, stop: the positions there are.
        missing: tokens still wanted, above 0.

    Returns:
        The position after the last one needed; None where all of them together hold fewer.
    """
    per_position = [0] * (stop - first)
    for position, tokens in outcomes:
        per_position[position - first] += tokens
    return _end_of_prefix(per_position, first, missing)


def _end_of_prefix(per_position: Sequence[int], first: int, missing: int) -> int | None:
    total = 0
    for offset, tokens in enumerate(per_position):
        total += tokens
        if total >= missing:
            return first + offset + 1
    return None
