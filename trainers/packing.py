"""Blocks of a fixed length cut from documents laid end to end, and what kind of tokens each block holds.

The seam between data and training: whatever has `blocks`, `read` and `kinds` can be trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from derivedata.trainers.tokens import FRESH, REPEAT, TokenStore

# (strategy, style): fresh tokens are ("fresh", None).
Kind = tuple[str, str | None]


class Blocks(Protocol):
    """An ordered, finite sequence of blocks. length: tokens of a block. blocks: how many there are."""

    length: int
    blocks: int

    def read(self, first: int, count: int) -> np.ndarray:
        """Ids of `count` blocks from `first` on: int64 of shape (count, length)."""

    def kinds(self, first: int, count: int) -> Mapping[Kind, int]:
        """Tokens by kind in those blocks; they add up to count x length."""


class Packed:
    """Blocks of the documents of a store in some order; the tokens that fill no whole block at the end are left out.

    Args:
        store: the tokens.
        length: tokens of a block.
        order: documents by index, and their epochs; by default those of the store. A fresh document in an epoch after
            the first counts as `repeat`, a derived one as its strategy whatever the epoch.
    """

    def __init__(self, store: TokenStore, length: int, order: np.ndarray | None = None, epochs: int | np.ndarray = 1):
        self.store, self.length = store, length
        self.order = store.order if order is None else np.asarray(order)
        self.epochs = store.epochs if order is None else np.broadcast_to(epochs, self.order.shape)
        self._starts = np.asarray(store.starts)
        lengths = np.diff(self._starts)[self.order]
        self.ends = np.cumsum(lengths)
        self.tokens = int(self.ends[-1]) if len(self.ends) else 0
        self.blocks = self.tokens // length
        self._kinds = [_kind(store, label, again) for label in range(len(store.labels)) for again in (False, True)]

    def read(self, first: int, count: int) -> np.ndarray:
        start, stop = first * self.length, (first + count) * self.length
        out = np.empty(stop - start, np.int64)
        at = start
        p = int(np.searchsorted(self.ends, start, side="right"))
        while at < stop:
            d = self.order[p]
            end = int(self.ends[p])
            upto = min(end, stop)
            # Counted from the end of the document, where `at` may lie anywhere inside it.
            last = int(self._starts[d + 1])
            out[at - start : upto - start] = self.store.tokens[last - (end - at) : last - (end - upto)]
            at, p = upto, p + 1
        return out.reshape(count, self.length)

    def kinds(self, first: int, count: int) -> Counter[Kind]:
        start, stop = first * self.length, (first + count) * self.length
        low = int(np.searchsorted(self.ends, start, side="right"))
        high = int(np.searchsorted(self.ends, stop, side="left")) + 1
        edges = np.concatenate([[start], np.minimum(self.ends[low:high], stop)])
        which = 2 * np.asarray(self.store.label[self.order[low:high]]) + (np.asarray(self.epochs[low:high]) > 1)
        sums = np.bincount(which, np.diff(edges), len(self._kinds))
        found: Counter[Kind] = Counter()
        for i in np.flatnonzero(sums):
            found[self._kinds[i]] += int(sums[i])
        return found


def _kind(store: TokenStore, label: int, again: bool) -> Kind:
    strategy, style = store.labels[label].strategy, store.labels[label].style
    if strategy == FRESH:
        return (REPEAT, None) if again else (FRESH, None)
    return (strategy, style)


class Chain:
    """Blocks one after the other: the passes over a corpus, each of which ends with a whole block."""

    def __init__(self, passes: Sequence[Blocks]):
        self.passes = list(passes)
        self.length = self.passes[0].length
        self.ends = np.cumsum([each.blocks for each in self.passes])
        self.blocks = int(self.ends[-1])

    def _parts(self, first: int, count: int):
        stop = first + count
        i = int(np.searchsorted(self.ends, first, side="right"))
        while first < stop:
            begin = int(self.ends[i]) - self.passes[i].blocks
            upto = min(stop, int(self.ends[i]))
            if upto > first:
                yield self.passes[i], first - begin, upto - first
            first, i = upto, i + 1

    def read(self, first: int, count: int) -> np.ndarray:
        return np.concatenate([part.read(at, n) for part, at, n in self._parts(first, count)])

    def kinds(self, first: int, count: int) -> Counter[Kind]:
        return sum((Counter(part.kinds(at, n)) for part, at, n in self._parts(first, count)), Counter())
