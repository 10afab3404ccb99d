"""Documents in an order: what everything that reads a corpus for training reads it through.

    stream = open_stream("corpus")                    # or an output, a subset, a repeat or a mix, virtual or not
    for window in range(stream.windows):
        for document in stream.read(window): ...

A stream is cut into windows of about 16 MB of text. Any window can be read without the ones before it, the same ones by
everybody: readers share the work by taking windows in turn, and a place in the order is (window, offset in it).
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from derivedata.corpus.blocks import Blocks, is_output, open_blocks
from derivedata.corpus.document import Document
from derivedata.corpus.windows import WINDOW_BYTES, EpochOrder, file_key, order_blocks, row_keys, window_count
from derivedata.errors import UserError


class Origin(NamedTuple):
    """How a document came into a stream.

    Attributes:
        strategy: 'fresh', or the name of what derived it: 'repeat', 'paraphrase', ...
        style: of a paraphrase.
        epoch: how often the document has been seen with this time, 1-based; 1 where nothing repeats.
        source: the name that a mix gives its source; None outside mixes.
    """

    strategy: str = "fresh"
    style: str | None = None
    epoch: int = 1
    source: str | None = None


class DocumentStream(ABC):
    """An ordered finite sequence of documents, cut into windows.

    Attributes:
        windows: how many there are; some may be empty.
        documents: in all windows, epochs counted.
        fingerprint: sha256, hex: the same content in the same order has the same one, whatever the machine.
    """

    windows: int
    documents: int
    fingerprint: str

    @abstractmethod
    def count(self, window: int) -> int:
        """Documents in a window, without reading text."""

    @abstractmethod
    def read_with_origin(self, window: int) -> list[tuple[Document, Origin]]:
        """The documents of a window in their final order, and where each comes from.

        Raises:
            UserError: a shard is no longer what it was when its documents were counted.
        """

    def read(self, window: int) -> list[Document]:
        """The documents of a window in their final order."""
        return [document for document, _ in self.read_with_origin(window)]


class BlockStream(DocumentStream):
    """A corpus once or several times: in the order of its files, or each epoch in another order.

    Args:
        blocks: the corpus.
        seed: of the order; None reads files and rows as they stand.
        epochs: whole epochs.
        extra: documents of one further epoch, from its beginning.
        window_bytes: text in a window, about.
        first_epoch: the number of the first epoch: 2 where the corpus itself is read elsewhere.
    """

    def __init__(
        self,
        blocks: Blocks,
        *,
        seed: int | None = None,
        epochs: int = 1,
        extra: int = 0,
        window_bytes: int = WINDOW_BYTES,
        first_epoch: int = 1,
    ):
        if epochs < 0 or not 0 <= extra <= blocks.documents:
            raise ValueError(f"{epochs} epochs and {extra} documents of {blocks.documents}")
        self.blocks, self.seed, self.epochs, self.extra = blocks, seed, epochs, extra
        self.first_epoch = first_epoch
        self.epoch_windows = window_count(blocks.table["bytes"], window_bytes)
        self.order = lru_cache(2)(self._order)
        self.documents = epochs * blocks.documents + extra
        last = int(np.searchsorted(self.order(first_epoch + epochs).documents_before[1:], extra)) + 1 if extra else 0
        self.windows = epochs * self.epoch_windows + last
        told = ["blocks", 1, blocks.fingerprint, seed, epochs, extra, self.epoch_windows, first_epoch]
        self.fingerprint = hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def place(self, window: int) -> tuple[int, int]:
        """The epoch of a window, and its number in that epoch."""
        if not 0 <= window < self.windows:
            raise IndexError(f"window {window} of {self.windows}")
        return window // self.epoch_windows + self.first_epoch, window % self.epoch_windows

    def locate(self, document: int) -> tuple[int, int]:
        """The window of a document, given by its number in the stream, and its place there."""
        if document >= self.documents:
            return self.windows, 0
        epoch, place = divmod(document, self.blocks.documents)
        before = self.order(epoch + self.first_epoch).documents_before
        number = int(np.searchsorted(before, place, side="right")) - 1
        return epoch * self.epoch_windows + number, place - int(before[number])

    def count(self, window: int) -> int:
        epoch, number = self.place(window)
        first, stop = self.order(epoch).documents_before[number : number + 2]
        return int(min(stop, self.extra) - first) if epoch - self.first_epoch >= self.epochs else int(stop - first)

    def read_with_origin(self, window: int) -> list[tuple[Document, Origin]]:
        epoch, number = self.place(window)
        blocks = np.sort(self.order(epoch).blocks(number))
        documents: list[Document] = []
        of_file: list[np.ndarray] = []
        for first, stop in self.blocks.runs(blocks.tolist()):
            found = self.blocks.read(first, stop)
            documents += found
            of_file.append(np.full(len(found), self.blocks.table["file"][first]))
        files = np.concatenate(of_file) if of_file else np.empty(0, np.int64)
        rows = np.fromiter((document.row for document in documents), np.int64, len(documents))
        order = self.shuffled(epoch, files, rows)[: self.count(window)]
        origins = {number: self._origin(epoch, number) for number in np.unique(files).tolist()}
        return [(documents[at], _told(documents[at], origins[files[at]])) for at in order.tolist()]

    def shuffled(self, epoch: int, files: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The order of a window's documents, which are given by their files' numbers and rows."""
        if self.seed is None:
            return np.arange(len(rows))
        keys = np.zeros(len(self.blocks.files), np.uint64)
        for number in np.unique(files).tolist():
            keys[number] = file_key("rows", self.seed, self.blocks.files[number].path, epoch)
        return np.argsort(row_keys(keys[files], rows), kind="stable")

    def _order(self, epoch: int) -> EpochOrder:
        table, keys = self.blocks.table, None
        if self.seed is not None:
            files = [file_key("blocks", self.seed, file.path, epoch) for file in self.blocks.files]
            keys = row_keys(np.array(files, np.uint64)[table["file"]], table["first"])
        return order_blocks(keys, table["bytes"], table["documents"], self.epoch_windows)

    def _origin(self, epoch: int, file: int) -> Origin:
        strategy = "repeat" if epoch > 1 else self.blocks.strategies[file] or "fresh"
        return Origin(strategy=strategy, style=self.blocks.styles[file], epoch=epoch)

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name != "order"}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self.order = lru_cache(2)(self._order)


def _told(document: Document, origin: Origin) -> Origin:
    """The origin, with what a document of a materialised repeat or mix says of itself."""
    derivation = (document.metadata or {}).get("derivedata")
    if origin.epoch > 1 or not isinstance(derivation, dict):
        return origin
    return Origin(
        strategy=derivation.get("strategy") or origin.strategy,
        style=derivation.get("style") or origin.style,
        epoch=derivation.get("epoch") or origin.epoch,
        source=origin.source,
    )


def open_stream(
    place: str | Sequence[str], *, style: str | None = None, strategy: str | None = None, seed: int | None = None
) -> DocumentStream:
    """The documents of a place in their order.

    Args:
        place: a plain Dolma corpus (files in path order, rows in row order), an output of ours, a subset, a repeat or a
            mix, virtual or materialised.
        style, strategy: of an output of ours, only these documents.
        seed: shuffle a place that has no order of its own; None leaves it as it is.

    Raises:
        UserError: nothing is there, a style that isn't, or a shard that has changed.
    """
    from derivedata.corpus.stream_virtual import open_virtual, read_virtual

    places = [os.fspath(place)] if isinstance(place, (str, os.PathLike)) else list(place)
    told = read_virtual(places[0]) if len(places) == 1 else None
    if told is not None:
        for name, value in (("style", style), ("strategy", strategy), ("seed", seed)):
            if value is not None:
                raise UserError(f"a virtual {told['kind']} is read as it is, without a {name}", where=places[0])
        return open_virtual(places[0], told)
    return BlockStream(open_blocks(places, style=style, strategy=strategy), seed=seed)


__all__ = ["BlockStream", "DocumentStream", "Origin", "is_output", "open_stream"]
