"""A mix as a stream: each window takes its share of documents from every source and shuffles them together."""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
from dataclasses import replace
from typing import Any

import numpy as np

from derivedata.corpus.blocks import Blocks, open_blocks
from derivedata.corpus.document import Document, without_compression
from derivedata.corpus.stream import BlockStream, DocumentStream, Origin
from derivedata.corpus.windows import WINDOW_BYTES, base_key, row_keys
from derivedata.errors import UserError
from derivedata.store.paths import Folder

LEAST_WINDOW = 2 << 20  # of a source: two blocks, so that it is still shuffled


class KeptRows:
    """The rows of each shard of a source that a mix may use, where it may not use all; kept in files of the mix."""

    def __init__(self, folder: str):
        self.folder = folder
        self._held: tuple[str, np.ndarray] = ("", np.empty(0, np.int64))

    def holds(self, path: str, rows: np.ndarray) -> np.ndarray:
        """Whether each of these rows of a shard may be used."""
        if self._held[0] != path:
            self._held = (path, np.load(io.BytesIO(Folder(self.folder).read(rows_name(path)))))
        return np.isin(rows, self._held[1])

    def __repr__(self) -> str:
        return "KeptRows"  # goes into fingerprints: which rows they are, the counts of the blocks say


def rows_name(path: str) -> str:
    """The file of the kept rows of a shard."""
    return f"rows/{hashlib.sha256(without_compression(path).encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.npy"


class MixStream(DocumentStream):
    """Documents of several streams, mixed evenly from beginning to end.

    Args:
        streams: by the name of the source.
        seed: of the order within a window.
        bytes: text of all documents, about.
    """

    def __init__(self, streams: dict[str, BlockStream], *, seed: int, size: int, window_bytes: int = WINDOW_BYTES):
        self.streams, self.seed = streams, seed
        self.windows = max(1, -(-size // window_bytes))
        self.documents = sum(stream.documents for stream in streams.values())
        parts = [[name, stream.fingerprint] for name, stream in streams.items()]
        told = ["mix", 1, seed, self.windows, parts]
        self.fingerprint = hashlib.sha256(json.dumps(told).encode()).hexdigest()
        self._held: dict[str, tuple[int, list[tuple[Document, Origin]]]] = {}

    def span(self, name: str, window: int) -> tuple[int, int]:
        """Which documents of a source are in a window."""
        if not 0 <= window < self.windows:
            raise IndexError(f"window {window} of {self.windows}")
        documents = self.streams[name].documents
        return documents * window // self.windows, documents * (window + 1) // self.windows

    def count(self, window: int) -> int:
        return sum(stop - first for first, stop in (self.span(name, window) for name in self.streams))

    def read_with_origin(self, window: int) -> list[tuple[Document, Origin]]:
        found: list[tuple[Document, Origin]] = []
        keys = []
        for name in self.streams:
            first, stop = self.span(name, window)
            keys.append(row_keys(base_key("mix", self.seed, name), np.arange(first, stop)))
            found += [(document, origin._replace(source=name)) for document, origin in self._read(name, first, stop)]
        return [found[at] for at in np.argsort(np.concatenate(keys), kind="stable").tolist()]

    def _read(self, name: str, first: int, stop: int) -> list[tuple[Document, Origin]]:
        """Documents [first, stop) of a source. The last window read is held: the next one goes on in it."""
        stream, found = self.streams[name], []
        window, offset = stream.locate(first)
        while len(found) < stop - first:
            held = self._held.get(name)
            if held is None or held[0] != window:
                held = self._held[name] = (window, stream.read_with_origin(window))
            found += held[1][offset : offset + stop - first - len(found)]
            window, offset = window + 1, 0
        return found

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_held": {}}


def source_blocks(folder: Folder, number: int, told: dict[str, Any]) -> Blocks:
    """The blocks of source `number` of a mix, as far as it may be used."""
    place = source_folder(folder, number)
    blocks = open_blocks(told["corpus"], style=told["style"], strategy=told["strategy"], plan=place)
    if not told["selected"]:
        return blocks
    kept = np.load(io.BytesIO(place.read("blocks.npy")))
    if len(kept) != len(blocks):
        raise _changed(folder, told["source_name"])
    return keep_rows(blocks, kept, place)


def keep_rows(blocks: Blocks, documents: np.ndarray, place: Folder) -> Blocks:
    """The blocks with as many documents in each as may be used."""
    table = blocks.table.copy()
    table["bytes"] = table["bytes"] * documents // np.maximum(table["documents"], 1) + 1
    table["documents"] = documents
    rows = KeptRows(place.url)
    files = tuple(replace(file, selection=rows) for file in blocks.files)
    return replace(blocks, files=files, table=table[documents > 0], rejected={})


def source_folder(folder: Folder, number: int) -> Folder:
    """Where a mix keeps what it knows of a source."""
    return Folder(folder.url_of(posixpath.join("plan", f"source-{number:02d}")))


def source_stream(blocks: Blocks, told: dict[str, Any], window_bytes: int) -> BlockStream:
    """The stream of a source of a mix."""
    return BlockStream(
        blocks,
        seed=told["seed"],
        epochs=told["epochs"],
        extra=told["extra_documents"],
        first_epoch=told["first_epoch"],
        window_bytes=window_bytes,
    )


def window_of_sources(count: int, window_bytes: int = WINDOW_BYTES) -> int:
    """Bytes of a window of each source, so that all together hold about one window."""
    return max(min(LEAST_WINDOW, window_bytes), window_bytes // count)


def open_mix(place: str, told: dict[str, Any]) -> MixStream:
    """The stream of a virtual mix."""
    folder, streams, size = Folder(place), {}, 0
    for number, source in enumerate(told["sources"]):
        blocks = source_blocks(folder, number, source)
        if blocks.fingerprint != source["blocks"]:
            raise _changed(folder, source["source_name"])
        stream = source_stream(blocks, source, told["source_window_bytes"])
        streams[source["source_name"]] = stream
        size += text_bytes(stream)
    return MixStream(streams, seed=told["seed"], size=size, window_bytes=told["window_bytes"])


def text_bytes(stream: BlockStream) -> int:
    """Text in a stream, about."""
    blocks = stream.blocks
    return int(blocks.table["bytes"].sum()) * stream.documents // max(1, blocks.documents)


def _changed(folder: Folder, name: str | None = None) -> UserError:
    which = f"source {name} is" if name else "a source is"
    return UserError(
        f"{which} not what it was when the mix was made", where=folder.url, remedy="make it again by its command"
    )
