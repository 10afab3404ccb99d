"""A shard that is already there under the name we want to give: the same documents in other bytes, or a stranger?

The bytes of a compressed file depend on the version of the compressor, its documents do not. A file that a killed or
faster writer left is adopted when it holds the same documents in the same order, with its own hash and frames.
"""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

import zstandard

from derivedata.errors import UserError
from derivedata.store.paths import Folder
from derivedata.store.tables import ShardEntry


def adopt(folder: Folder, entry: ShardEntry) -> ShardEntry:
    """The entry for the file that stands at `entry.path`. Raises UserError, naming it, if it holds other documents."""
    data = folder.read(entry.path)
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 == entry.sha256:
        return entry
    where = folder.url_of(entry.path)
    try:
        with open(entry.local, "rb") as file:
            pairs = zip_longest(identities(data, entry.format), identities(file.read(), entry.format))
            same = all(one == other for one, other in pairs)
        frames = frame_index(data, entry.format)
    except (ValueError, zstandard.ZstdError, zlib.error, EOFError, OSError) as error:
        raise UserError("the file is damaged", where=where, value=str(error), remedy=_REMEDY) from error
    if not same:
        raise UserError("a file of this name holds other documents", where=where, remedy=_REMEDY)
    return replace(entry, sha256=sha256, bytes=len(data), frames=frames or entry.frames)


_REMEDY = "move it away and run the same command again"


def identities(data: bytes, format: str) -> Iterator[tuple[object, str]]:
    """(id, sha256 of the text) of each document of a shard of our own formats, in order."""
    if format == "parquet":
        import pyarrow.parquet as pq

        table = pq.read_table(io.BytesIO(data), columns=["id", "text"])
        for identity, text in zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True):
            yield identity, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return
    for _, _, content in decompressed_frames(data, format):
        for line in content.split(b"\n"):
            if line:
                row = json.loads(line)
                yield row.get("id"), hashlib.sha256(row["text"].encode("utf-8", "surrogatepass")).hexdigest()


def frame_index(data: bytes, format: str) -> list[tuple[int, int, int, int]]:
    """(offset, length, first row, rows) of each compressed frame; [] for Parquet, which has its own."""
    if format == "parquet":
        return []
    frames, first = [], 0
    for offset, length, content in decompressed_frames(data, format):
        rows = content.count(b"\n")
        frames.append((offset, length, first, rows))
        first += rows
    return frames


def decompressed_frames(data: bytes, format: str) -> Iterator[tuple[int, int, bytes]]:
    """(offset, length, content) of each zstd frame or gzip member. Our writer ends every frame with a line break."""
    offset = 0
    while offset < len(data):
        if format == "jsonl.zst":
            engine = zstandard.ZstdDecompressor().decompressobj()
        elif format == "jsonl.gz":
            engine = zlib.decompressobj(wbits=31)
        else:
            raise ValueError(f"no such format: {format}")
        content = engine.decompress(data[offset:])
        if not engine.eof:
            raise ValueError("the last frame is cut off")
        length = len(data) - offset - len(engine.unused_data)
        yield offset, length, content
        offset += length
