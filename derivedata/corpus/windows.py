"""The one order: blocks permuted by a key, consecutive blocks cut into windows, documents shuffled within a window.

Everything follows from (seed, epoch, path of the shard, row), never from what was read before, so any window of any
epoch is found without reading another. NumPy only, no I/O; a million blocks take a quarter of a second.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from derivedata.corpus.document import without_compression

WINDOW_BYTES = 16 << 20  # of text, about: what is held and shuffled at once
_STEP = np.uint64(0x9E3779B97F4A7C15)


def base_key(*parts: object) -> int:
    """64 bits that stand for these parts."""
    text = "\n".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


def row_keys(base: int | np.ndarray, rows: np.ndarray) -> np.ndarray:
    """A pseudo-random 64-bit key a row (SplitMix64, Steele et al. 2014): sorting by it is a permutation.

    Args:
        base: the key of the file (from `file_key`), or one for each row.
        rows: physical row numbers.
    """
    with np.errstate(over="ignore"):
        z = np.asarray(base, np.uint64) + (rows.astype(np.uint64) + np.uint64(1)) * _STEP
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def file_key(purpose: str, seed: int, path: str, epoch: int = 0) -> int:
    """The key of a file for one purpose ('blocks', 'rows', 'global'); compression does not change it."""
    return base_key(purpose, seed, epoch, without_compression(path))


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The documents whose key, in one seeded order of all documents, lies in [low, high).

    A larger interval from the same `low` contains a smaller one, so prefixes of the order are nested.
    """

    seed: int
    low: int
    high: int

    def holds(self, path: str, rows: np.ndarray) -> np.ndarray:
        """Whether each of these rows of a shard is selected."""
        keys = global_keys(self.seed, path, rows)
        return (keys >= np.uint64(self.low)) & (keys <= np.uint64(self.high - 1)) if self.high > self.low else keys < 0


def global_keys(seed: int, path: str, rows: np.ndarray) -> np.ndarray:
    """The places of rows of a shard in the one order of all documents."""
    return row_keys(file_key("global", seed, path), rows)


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order of the blocks in one epoch and where it is cut.

    Attributes:
        order: numbers of the blocks, in reading order.
        starts: for each window the place in `order` where it begins; one more at the end. Windows may be empty.
        before: documents before each place of `order`; one more at the end.
    """

    order: np.ndarray
    starts: np.ndarray
    before: np.ndarray

    def blocks(self, window: int) -> np.ndarray:
        """The blocks of a window, in reading order."""
        return self.order[self.starts[window] : self.starts[window + 1]]

    @property
    def documents_before(self) -> np.ndarray:
        """Documents before each window; one more at the end."""
        return self.before[self.starts]


def window_count(sizes: np.ndarray, window_bytes: int = WINDOW_BYTES) -> int:
    """Windows of an epoch: the same number in each, so that a window is found without looking at other epochs."""
    return max(1, -(-int(sizes.sum()) // window_bytes))


def order_blocks(keys: np.ndarray | None, sizes: np.ndarray, documents: np.ndarray, windows: int) -> EpochOrder:
    """Put blocks in order and cut the order into `windows` windows of about equal size.

    Args:
        keys: what to sort the blocks by; None keeps them as they are.
        sizes: bytes of each block, about.
        documents: documents in each block.
        windows: how many windows.
    """
    order = np.arange(len(sizes)) if keys is None else np.argsort(keys, kind="stable")
    ordered = sizes[order]
    total = int(ordered.sum())
    ahead = np.cumsum(ordered) - ordered  # bytes before each block
    # In Python's floats 2^53 bytes stay exact; beyond that a window may be a block longer.
    of_window = np.floor(ahead * (windows / total) if total else ahead * 0.0).astype(np.int64)
    starts = np.searchsorted(np.minimum(of_window, windows - 1), np.arange(windows + 1), side="left")
    before = np.concatenate([[0], np.cumsum(documents[order])])
    return EpochOrder(order=order, starts=starts, before=before)


@dataclass(frozen=True, slots=True)
class Mixing:
    """How well an order mixes.

    Attributes:
        neighbours: chance that two documents next to each other come from one block.
        ideal: the same after a full shuffle of all documents.
        together: chance that two documents of one window meet in one window of the next epoch again.
        windows: windows of an epoch.
        blocks: blocks of the corpus.
    """

    neighbours: float
    ideal: float
    together: float
    windows: int
    blocks: int


def measure_mixing(documents: np.ndarray, first: EpochOrder, second: EpochOrder) -> Mixing:
    """Measure an order by its blocks alone; `first` and `second` are the orders of two epochs."""
    total = float(documents.sum())
    windows = len(first.starts) - 1
    if not total:
        return Mixing(neighbours=0.0, ideal=0.0, together=0.0, windows=windows, blocks=len(documents))
    window_of = [np.empty(len(documents), np.int64) for _ in range(2)]
    for found, one in zip(window_of, (first, second), strict=True):
        found[one.order] = np.repeat(np.arange(windows), np.diff(one.starts))
    in_window = np.bincount(window_of[0], weights=documents, minlength=windows)
    square = np.bincount(window_of[0], weights=documents.astype(float) ** 2, minlength=windows)
    held = in_window > 0
    neighbours = float((square[held] / in_window[held]).sum() / total)
    meeting = np.bincount(_dense(window_of[0] * windows + window_of[1]), weights=documents)
    together = float((meeting**2).sum() / (in_window**2).sum())
    return Mixing(
        neighbours=neighbours,
        ideal=float(((documents / total) ** 2).sum()),
        together=together,
        windows=windows,
        blocks=len(documents),
    )


def _dense(values: np.ndarray) -> np.ndarray:
    return np.unique(values, return_inverse=True)[1]
