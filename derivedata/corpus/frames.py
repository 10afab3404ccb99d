"""Where rows stand inside a shard, so that a chunk is reached without reading what comes before it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple


class Frame(NamedTuple):
    """A part of a shard that can be read alone: a zstd frame, a gzip member, a Parquet row group.

    `length` bytes at byte `offset` of the file, holding `rows` rows from row `first_row` on.
    """

    offset: int
    length: int
    first_row: int
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """The place of one row.

    Attributes:
        row: the row, 0-based.
        line: its line, 1-based.
        offset: byte of the file where the frame starts that holds the row's first byte (Parquet: number of row group).
        skip: decompressed bytes of that frame before the row (Parquet: rows of the group before it).
        codec: 'plain', 'gzip', 'zstd', 'bz2', 'xz' or 'parquet'.
    """

    row: int = 0
    line: int = 1
    offset: int = 0
    skip: int = 0
    codec: str | None = None

    def to_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> Position:
        return cls(**values)


START = Position()


def position_of_row(frames: Sequence[Sequence[int]], row: int, *, format: str) -> Position:
    """Where to start reading for `row` in a shard of our own making.

    Args:
        frames: the shard's frames (offset, length, first_row, rows), in order, as `ShardFile` and the manifest hold
            them.
        row: the row wanted.
        format: the shard's format: 'jsonl.zst', 'jsonl.gz' or 'parquet'.

    Returns:
        The start of the frame that holds the row; `read_rows(file, first_row=row, at=position)` begins there.
    """
    number = bisect_right([frame[2] for frame in frames], row) - 1
    if number < 0:
        return START
    offset, _, first_row, _ = frames[number]
    if format == "parquet":
        return Position(row=first_row, line=first_row + 1, offset=number, codec="parquet")
    codec = {"jsonl.zst": "zstd", "jsonl.gz": "gzip"}[format]
    return Position(row=first_row, line=first_row + 1, offset=offset, codec=codec)
