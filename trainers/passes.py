"""Fresh prefixes and the passes over them: D, then one epoch or one rewrite of every document in it, again and again.

D is a prefix of one order of the fresh corpus, so that a larger D contains every smaller one; the derived documents of
a pass are those of exactly the documents in D (as in Qin et al. 2026, arXiv 2607.25271). A pass ends with a whole
block, and branches of a sweep end with a pass, so that D' is measured in whole passes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from derivedata.errors import UserError
from derivedata.trainers.packing import Chain, Packed
from derivedata.trainers.tokens import REPEAT, TokenStore


@dataclass(frozen=True, slots=True)
class Prefix:
    """The documents of D. documents: their indices in the fresh store. blocks: whole blocks they fill."""

    documents: np.ndarray
    blocks: int


class Passes:
    """The passes of a sweep.

    Args:
        fresh: the fresh documents in the order of which prefixes are taken.
        derived: a store by strategy, with the documents that derive from the fresh ones.
        length: tokens of a block.
    """

    def __init__(self, fresh: TokenStore, derived: dict[str, TokenStore], length: int):
        self.fresh, self.derived, self.length = fresh, derived, length
        self._ends = np.cumsum(fresh.lengths[fresh.order])
        self._known: dict[tuple[str, int], tuple[np.ndarray, np.ndarray]] = {}
        self._turns = {strategy: _turns(store) for strategy, store in derived.items()}

    def prefix(self, tokens: int, where: object = None) -> Prefix:
        """The shortest prefix with so many whole blocks of tokens. Raises UserError when there are not so many."""
        blocks = max(1, tokens // self.length)
        count = int(np.searchsorted(self._ends, blocks * self.length)) + 1
        if count > len(self._ends):
            have = int(self._ends[-1]) if len(self._ends) else 0
            raise UserError(
                f"the fresh corpus is shorter than D: {tokens / max(1, have):.3g} of it would be needed",
                where=where,
                value=f"{tokens:,} tokens of {have:,}",
                remedy="give more fresh documents, or a smaller D; repeats are not fresh",
            )
        documents = np.asarray(self.fresh.order[:count])
        # Another order cuts the last block elsewhere: as many blocks as the documents fill, in any order.
        return Prefix(documents, int(self._ends[count - 1]) // self.length)

    def available(self, prefix: Prefix, strategy: str) -> int | None:
        """How many passes of a strategy there can be over a prefix; None: as many as one likes."""
        if strategy == REPEAT:
            return None
        if strategy not in self.derived:
            raise UserError(
                "no corpus for this strategy",
                value=strategy,
                remedy=f"add --derived {strategy}=CORPUS; there are {', '.join(['repeat', *self.derived])}",
            )
        _, turns = self._mine(prefix, strategy)
        return int(turns.max()) + 1 if len(turns) else 0

    def one(self, prefix: Prefix, strategy: str, number: int, seed: int) -> Packed:
        """A pass: 0 is D itself, number k the k-th epoch or rewrite after it, in an order of its own."""
        if number == 0 or strategy == REPEAT:
            order = _shuffled(prefix.documents, seed, REPEAT, number)
            return Packed(self.fresh, self.length, order, number + 1)
        documents, turns = self._mine(prefix, strategy)
        order = _shuffled(documents[turns == number - 1], seed, strategy, number)
        return Packed(self.derived[strategy], self.length, order)

    def chain(self, prefix: Prefix, strategy: str, count: int, seed: int) -> Chain:
        """D and `count` passes after it."""
        return Chain([self.one(prefix, strategy, number, seed) for number in range(count + 1)])

    def count_for(self, prefix: Prefix, strategy: str, x: float, where: object = None) -> int:
        """The number of passes, at least one, whose tokens come nearest to x D.

        Raises:
            UserError: the derived corpus does not reach that far.
        """
        if strategy == REPEAT:
            return max(1, round(x))
        most = self.available(prefix, strategy)
        documents, turns = self._mine(prefix, strategy)
        lengths = self.derived[strategy].lengths[documents]
        tokens = np.bincount(turns, lengths, most) if most else np.zeros(0)
        reached = np.cumsum(tokens // self.length * self.length) / (prefix.blocks * self.length)
        if not most or x > reached[-1] + 0.5 * tokens[-1] / (prefix.blocks * self.length):
            raise UserError(
                f"the rewrites of these documents reach x = {reached[-1] if most else 0:.3g}",
                where=where,
                value=f"x = {x:.3g} of {strategy}",
                remedy="ask for a smaller x, or derive with more --rewrites",
            )
        return int(np.argmin(np.abs(reached - x))) + 1

    def _mine(self, prefix: Prefix, strategy: str) -> tuple[np.ndarray, np.ndarray]:
        """The derived documents of a prefix, and the pass (from 0) each belongs to."""
        key = strategy, len(prefix.documents)  # prefixes of one order: the length says which
        if key not in self._known:
            parents = np.asarray(self.derived[strategy].parents)
            documents = np.flatnonzero(np.isin(parents, np.asarray(self.fresh.uids)[prefix.documents]))
            self._known[key] = documents, self._turns[strategy][documents]
        return self._known[key]


def _turns(store: TokenStore) -> np.ndarray:
    """For each derived document its pass: the k-th (rewrite, style) of its source is in pass k.

    The pieces of a long document go together. Which style comes first differs from document to document, so that every
    pass holds all styles.
    """
    groups: dict[bytes, dict[tuple[int, int, int], list[int]]] = {}
    for d in range(len(store.label)):
        parent = bytes(store.parents[d])
        label, rewrite = int(store.label[d]), int(store.rewrite[d])
        draw = _draw(parent.hex(), store.labels[label].style)
        groups.setdefault(parent, {}).setdefault((rewrite, draw, label), []).append(d)
    turns = np.zeros(len(store.label), np.int64)
    for of_parent in groups.values():
        for turn, key in enumerate(sorted(of_parent)):
            turns[of_parent[key]] = turn
    return turns


def _shuffled(documents: np.ndarray, *parts: object) -> np.ndarray:
    return np.random.default_rng(_draw(*parts)).permutation(documents)


def _draw(*parts: object) -> int:
    """64 bits that these parts alone decide."""
    return int.from_bytes(hashlib.blake2b("\n".join(map(str, parts)).encode(), digest_size=8).digest(), "big")
