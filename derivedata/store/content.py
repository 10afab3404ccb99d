"""What a file holds, as far as checks need it: its size and hash, and whether other bytes mean the same rows."""

from __future__ import annotations

import hashlib
import os
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard


def size_and_sha256(stream: IO[bytes]) -> tuple[int, str]:
    """Bytes of a stream, and their SHA-256 in hex; reads it to the end in constant memory."""
    digest, size = hashlib.sha256(), 0
    while block := stream.read(1 << 20):
        digest.update(block)
        size += len(block)
    return size, digest.hexdigest()


def file_sha256(path: str | os.PathLike) -> str:
    """The SHA-256 of a file on this machine, in hex."""
    with open(path, "rb") as file:
        return size_and_sha256(file)[1]


def same_rows(path: str, one: bytes, other: bytes) -> bool:
    """Whether two contents of a Parquet table or of zstd JSON lines mean the same; damaged ones never do."""
    try:
        if path.endswith(".parquet"):
            tables = (pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False) for data in (one, other))
            first, second = (table.replace_schema_metadata(None) for table in tables)
            return first.equals(second)
        if path.endswith(".zst"):
            return _decompressed(one) == _decompressed(other)
    except (pa.ArrowException, OSError, ValueError, zstandard.ZstdError):
        return False
    return one == other


def _decompressed(data: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
        return stream.read()
