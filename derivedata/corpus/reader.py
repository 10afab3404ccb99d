"""The strict reader: every row of a shard comes out, as a document or as a reject that says what is wrong with it.

It streams with constant memory, trusts the bytes and not the file's name (see archive.py), and never raises on any
content: a bad row costs that row. JSON lines, JSON arrays of objects and Parquet are read. Blank lines are no rows; a
fault of the archive as a whole is a reject of line 0 and takes a row number like any other row.

    for row in read_rows(file):
        match row:
            case Document(): ...
            case RejectedRow(): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from derivedata.corpus.archive import LONGEST_MAGIC, blocks, detect
from derivedata.corpus.document import Document, RejectedRow
from derivedata.corpus.files import CorpusFile
from derivedata.corpus.frames import START, Position
from derivedata.corpus.source import Source
from derivedata.corpus.textrows import TextRows

MAX_LINE_BYTES = 64 << 20
AT_ONCE = 4096  # rows of a subset that are looked up in one go
PARQUET_MAGIC = b"PAR1"


def read_rows(
    file: CorpusFile,
    *,
    first_row: int = 0,
    stop_row: int | None = None,
    at: Position | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[Document | RejectedRow]:
    """Rows [first_row, stop_row) of a shard, in order.

    Args:
        file: the shard.
        first_row: the first row wanted; those before it are passed over without being parsed.
        stop_row: the row to stop before; None reads to the end.
        at: a position at or before `first_row` (from the inventory or `position_of_row`) to start from.
        max_line_bytes: a longer line is rejected as `line-too-long`, and never held whole.

    Yields:
        A `Document` or a `RejectedRow` for each row.

    Raises:
        UserError: when the file system fails; never because of what the file holds.
    """
    return iter(RowReader(file, first_row=first_row, stop_row=stop_row, at=at, max_line_bytes=max_line_bytes))


class RowReader:
    """One pass over a shard that can also say where a row stands.

    Args:
        digest: a hashlib object that is fed every byte of the file (only for a pass from the start to the end).
        shape: makes the document's fields of a row's own, where that is no document as it stands; raises BadRow.
        other arguments: as for `read_rows`.
    """

    def __init__(
        self,
        file: CorpusFile,
        *,
        first_row: int = 0,
        stop_row: int | None = None,
        at: Position | None = None,
        max_line_bytes: int = MAX_LINE_BYTES,
        digest=None,
        shape: Callable[[dict], dict] | None = None,
    ):
        if first_row < 0 or max_line_bytes < 1:
            raise ValueError("first_row must not be negative, max_line_bytes must be positive")
        self._file, self._at = file, at or START
        self._first = max(first_row, self._at.row)
        self._stop = -1 if stop_row is None else max(stop_row, 0)
        self._limit, self._digest, self._shape = max_line_bytes, digest, shape
        self._rows = None

    def __iter__(self) -> Iterator[Document | RejectedRow]:
        if 0 <= self._stop <= self._first:
            return
        codec = self._at.codec
        with Source(self._file.url, self._at.offset if codec != "parquet" else 0, self._digest) as source:
            if codec is None:
                head = source.peek(LONGEST_MAGIC)
                codec = "parquet" if head.startswith(PARQUET_MAGIC) else detect(head) or "plain"
            if codec == "parquet":
                if self._digest is not None:
                    source.drain()
                from derivedata.corpus.parquet import ParquetRows

                self._rows = ParquetRows(self._file, self._at, first=self._first, stop=self._stop, shape=self._shape)
            else:
                self._rows = TextRows(
                    # An archive is recognised again at each frame; plain text may look like anything in the middle.
                    blocks(source, plain=codec == "plain" and self._at.codec is not None),
                    self._file.path,
                    at=self._at,
                    first=self._first,
                    stop=self._stop,
                    limit=self._limit,
                    codec=codec,
                    shape=self._shape,
                )
            yield from self._rows if self._file.selection is None else self._selected()
            if self._digest is not None:
                source.drain()

    def _selected(self) -> Iterator[Document | RejectedRow]:
        """Those rows that belong to the subset."""
        import numpy as np

        first, kept = 0, np.empty(0, bool)
        for row in self._rows:
            if not first <= row.row < first + len(kept):
                first = row.row
                kept = self._file.selection.holds(self._file.path, np.arange(first, first + AT_ONCE))
            if kept[row.row - first]:
                yield row

    def position(self, row: int) -> Position:
        """Where to start for `row`, which must be the last row that came out, or the one after it.

        A JSON array has no places to start from but its beginning.
        """
        return START if self._rows is None else self._rows.position(row)


__all__ = ["MAX_LINE_BYTES", "RowReader", "read_rows"]
