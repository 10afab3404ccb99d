"""Writes one shard: compressed JSON lines in frames that stand alone, or Parquet in row groups.

The same rows give the same bytes: no times, no names, no threads in them. Hash and frame offsets are worked out while
writing, and the file is on the disk when close() returns.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from derivedata.corpus.frames import Frame
from derivedata.corpus.strict import BadRow, check_values, is_plain
from derivedata.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from derivedata.store.tables import ShardEntry

DEFAULT_LEVELS = {"jsonl.zst": 3, "jsonl.gz": 2, "parquet": 3}
LEVELS = {"jsonl.zst": range(1, 23), "jsonl.gz": range(4), "parquet": range(1, 23)}
FRAME_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A finished shard on the local disk.

    Attributes:
        path: where it is.
        bytes: size of the file.
        sha256: of the file's bytes, hex.
        documents: rows in it.
        frames: its parts that can be read alone, in order.
    """

    path: Path
    bytes: int
    sha256: str
    documents: int
    frames: list[Frame] = field(default_factory=list)

    def entry(self, path: str, **told: Any) -> ShardEntry:
        """The entry of this file in a manifest under `path`; `told` is what the file itself doesn't know."""
        from derivedata.store.tables import ShardEntry

        return ShardEntry(
            path=path,
            local=self.path,
            sha256=self.sha256,
            bytes=self.bytes,
            documents=self.documents,
            frames=self.frames,
            **told,
        )


class ShardWriter:
    """Writes rows to a new file; a context manager that removes the file again when its block fails.

    Args:
        path: the file; its folder must exist, what is there is replaced.
        format: 'jsonl.zst', 'jsonl.gz' or 'parquet'.
        level: compression level: 1-22 for zstd and Parquet (zstd inside), 0-3 for gzip (ISA-L's levels).
        frame_bytes: a frame (gzip member, row group) ends with the row that brings it to this many uncompressed bytes.
        ahead: compress in a thread of its own, while the caller makes the next rows (not Parquet).

    Raises:
        UserError: an unknown format or level, a row that JSON cannot hold, or a disk that fails.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        format: str = "jsonl.zst",
        level: int | None = None,
        frame_bytes: int = FRAME_BYTES,
        ahead: bool = False,
    ):
        if format not in LEVELS:
            raise UserError("unknown shard format", value=format, remedy=f"use one of {', '.join(LEVELS)}")
        level = DEFAULT_LEVELS[format] if level is None else level
        if level not in LEVELS[format]:
            levels = LEVELS[format]
            raise UserError(
                f"no such compression level for {format}", value=level, remedy=f"use {levels[0]} to {levels[-1]}"
            )
        self.path = Path(path)
        self.shard: ShardFile | None = None
        try:
            self._sink = _HashedFile(self.path)
        except OSError as error:
            raise self._failure(error) from error
        if format == "parquet":
            from derivedata.corpus.parquet import ParquetFrames

            self._frames = ParquetFrames(self._sink, level, frame_bytes)
        else:
            frames = _AheadFrames if ahead else _JsonFrames
            self._frames = frames(self._sink, format, level, frame_bytes)

    def write(self, row: Mapping) -> None:
        """Add a row: a mapping with string keys, as `Document.to_dolma()` gives it."""
        if self.shard is not None:
            raise ValueError("the shard is closed")
        try:
            self._frames.add(row)
        except OSError as error:
            raise self._failure(error) from error

    def write_rows(self, data: memoryview, ends: np.ndarray) -> None:
        """Add rows that are JSON already: lines one after the other, each with its break, that end at these bytes of
        `data`; the first begins at byte 0. They go into the file as they are."""
        if self.shard is not None:
            raise ValueError("the shard is closed")
        try:
            self._frames.add_rows(data, ends)
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> ShardFile:
        """Write what is left, make it durable, and return what the file is. Calling it again changes nothing."""
        if self.shard is None:
            try:
                frames = self._frames.finish()
                self._sink.sync()
            except OSError as error:
                raise self._failure(error) from error
            rows = sum(frame.rows for frame in frames)
            self.shard = ShardFile(self.path, self._sink.bytes, self._sink.sha256, rows, frames)
        return self.shard

    def discard(self) -> None:
        """Stop and remove the file."""
        self._frames.stop()
        self._sink.close()
        if self.path.is_file():  # a device (/dev/stdout) is not ours to remove
            self.path.unlink()

    def _failure(self, error: OSError) -> UserError:
        return UserError("the shard cannot be written", where=self.path, value=error.strerror)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind, *exc) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self.close()
        except BaseException:
            self.discard()
            raise


def encode_row(row: Mapping) -> bytes:
    """A row as one line of JSON in UTF-8, without the line end; every value reads back the same.

    Raises:
        UserError: a value that JSON cannot hold (NaN, a lone surrogate, a type of Python's).
    """
    try:
        line = orjson.dumps(row, option=STRICT)
    except TypeError:
        pass
    else:
        if is_plain(row.values()):
            return line
    try:
        check_values(row)
    except BadRow as bad:
        raise UserError("the row cannot be written as JSON", where=bad.reason, value=bad.detail) from None
    # An integer beyond 64 bits, or a subclass that counts as its base.
    return json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


# Types that JSON does not know are refused, not turned into strings behind the caller's back.
DUMPS = orjson.dumps
STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
LINE = STRICT | orjson.OPT_APPEND_NEWLINE


class _JsonFrames:
    """JSON lines, collected to frames and compressed one frame at a time."""

    def __init__(self, sink: _HashedFile, format: str, level: int, frame_bytes: int):
        self._sink, self._compress, self._frame_bytes = sink, _compressor(format, level), frame_bytes
        # One buffer for all frames, not a list of lines: many objects coming and going would scatter the heap.
        self._buffer, self._rows = io.BytesIO(), 0
        self._frames: list[Frame] = []
        self._first_row = 0

    def add(self, row: Mapping) -> None:
        # encode_row's short way, written out: this runs for every document.
        try:
            line = DUMPS(row, None, LINE)
        except TypeError:
            line = encode_row(row) + b"\n"
        else:
            if not is_plain(row.values()):
                line = encode_row(row) + b"\n"
        self._buffer.write(line)
        self._rows += 1
        if self._buffer.tell() >= self._frame_bytes:
            self._flush()

    def add_rows(self, data: memoryview, ends: np.ndarray) -> None:
        first = begin = 0
        while first < len(ends):
            # The row that brings the frame to its size ends it.
            last = int(ends.searchsorted(begin + self._frame_bytes - self._buffer.tell()))
            stop = min(last + 1, len(ends))
            end = int(ends[stop - 1])
            self._rows += stop - first
            if last < len(ends) and not self._buffer.tell():
                self._store(data[begin:end])
            else:
                self._buffer.write(data[begin:end])
                if last < len(ends):
                    self._flush()
            first, begin = stop, end

    def finish(self) -> list[Frame]:
        # An empty shard is one empty frame: a valid archive, not a file of zero bytes.
        if self._rows or not self._begun:
            self._flush()
        return self._frames

    @property
    def _begun(self) -> bool:
        return bool(self._frames)

    def stop(self) -> None:
        """Nothing to let go of."""

    def _flush(self) -> None:
        with self._buffer.getbuffer() as lines:
            self._store(lines[: self._buffer.tell()])
        self._buffer.seek(0)

    def _store(self, lines: memoryview) -> None:
        """Compress the lines of a frame and write them."""
        self._put(self._compress(lines), self._rows)
        self._rows = 0

    def _put(self, data: bytes, rows: int) -> None:
        self._frames.append(Frame(self._sink.bytes, len(data), self._first_row, rows))
        self._first_row += rows
        self._sink.write(data)


class _AheadFrames(_JsonFrames):
    """The same frames, compressed in a thread: at most three are on their way."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._pool, self._waiting = ThreadPoolExecutor(1, "compress"), deque()

    def finish(self) -> list[Frame]:
        super().finish()
        while self._waiting:
            self._take()
        self._pool.shutdown()
        return self._frames

    @property
    def _begun(self) -> bool:
        return bool(self._frames or self._waiting)

    def stop(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _store(self, lines: memoryview) -> None:
        self._waiting.append((self._pool.submit(self._compress, bytes(lines)), self._rows))
        self._rows = 0
        if len(self._waiting) > 2:
            self._take()

    def _take(self) -> None:
        future, rows = self._waiting.popleft()
        self._put(future.result(), rows)


def _compressor(format: str, level: int):
    if format == "jsonl.gz":
        from isal import isal_zlib

        return lambda data: isal_zlib.compress(data, level, 31)
    import zstandard

    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)

    def compress(data) -> bytes:
        # As fast as compress() at once, and made of small pieces: large ones, made anew each time, scatter the heap.
        pieces = compressor.chunker(size=len(data), chunk_size=1 << 16)
        return b"".join([*pieces.compress(data), *pieces.finish()])

    return compress


class _HashedFile:
    """The file being written, hashed as the bytes pass; enough of a file for pyarrow."""

    def __init__(self, path: Path):
        self._file = path.open("wb", buffering=0)
        self._digest = hashlib.sha256()
        self.bytes = 0
        self.closed = False

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, data) -> int:
        view = memoryview(data)
        self._digest.update(view)
        while view:
            view = view[self._file.write(view) :]
        self.bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        pass

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        self.close()

    def close(self) -> None:
        self._file.close()
        self.closed = True
