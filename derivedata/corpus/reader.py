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

from collections.abc import Iterator

import orjson

from derivedata.corpus.archive import LONGEST_MAGIC, Fault, blocks, detect
from derivedata.corpus.arrays import ArrayScanner
from derivedata.corpus.document import Document, RejectedRow
from derivedata.corpus.files import CorpusFile
from derivedata.corpus.frames import START, Position
from derivedata.corpus.source import Source
from derivedata.corpus.strict import BOM, BadRow, is_blank, is_plain, parse_row, shown

MAX_LINE_BYTES = 64 << 20


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
    ):
        self._file, self._path = file, file.path
        self._at = at or START
        self._first = max(first_row, self._at.row)
        self._stop = -1 if stop_row is None else stop_row
        self._limit, self._digest = max_line_bytes, digest
        self._codec, self._window, self._groups = self._at.codec, None, None

    def __iter__(self) -> Iterator[Document | RejectedRow]:
        if 0 <= self._stop <= self._first:
            return
        if self._codec == "parquet":
            yield from self._parquet()
            return
        with Source(self._file.url, self._at.offset, self._digest) as source:
            head = source.peek(LONGEST_MAGIC)
            if self._codec is None:
                self._codec = "parquet" if head.startswith(b"PAR1") else detect(head) or "plain"
            if self._codec == "parquet":
                source.drain()
            else:
                yield from self._text(source)
                if self._digest is not None:
                    source.drain()
        if self._codec == "parquet":
            yield from self._parquet()

    def position(self, row: int) -> Position:
        """Where `row` stands; `row` must be the last row that came out, or the one after it.

        A JSON array has no places to start from but its beginning.
        """
        if self._groups is not None:
            return self._groups.position(row)
        if self._window is None:
            return START
        lines, line, at_row, (frame, skip), (frame_of_rest, skip_of_rest) = self._window
        for number, data in enumerate(lines):
            if not is_blank(data):
                if at_row == row:
                    break
                at_row += 1
            if number == 0:
                frame, skip = frame_of_rest, skip_of_rest
            else:
                skip += len(data) + 1
        else:
            number = len(lines)
        if skip < 0:
            return START
        if self._codec == "plain":
            frame, skip = frame + skip, 0
        return Position(row=row, line=line + number, offset=frame, skip=skip, codec=self._codec)

    def _parquet(self) -> Iterator[Document | RejectedRow]:
        from derivedata.corpus.parquet import ParquetRows

        self._groups = ParquetRows(self._file, self._at)
        for item in self._groups:
            if item.row == self._stop:
                return
            if item.row >= self._first:
                yield item

    def _text(self, source: Source) -> Iterator[Document | RejectedRow]:
        """JSON lines and JSON arrays: decides which it is at the first byte that tells."""
        first, stop, path = self._first, self._stop, self._path
        loads, new = orjson.loads, Document.__new__
        row, line = self._at.row, self._at.line  # of the next line
        skip = self._at.skip
        opening: bytes | None = b"" if self._at.offset == 0 and skip == 0 else None
        array: ArrayScanner | None = None
        held = _Held(self._limit)
        tail_at = (self._at.offset, skip)

        for block in blocks(source, codec="plain" if self._codec == "plain" else None):
            if block.__class__ is Fault:
                for number, data, too_long in array.flush() if array else held.flush(line):
                    if row >= first and (too_long or not is_blank(data)):
                        yield self._row(data, number, row, too_long=too_long, cut=True)
                    row += too_long or not is_blank(data)
                    if row == stop:
                        return
                if row >= first:
                    yield RejectedRow(path, 0, block.reason, block.detail, "", row)
                row += 1
                if row == stop:
                    return
                continue
            data, frame, at_byte = block
            if skip:
                if skip >= len(data):
                    skip -= len(data)
                    continue
                data, at_byte, skip = data[skip:], at_byte + skip, 0

            while data:
                if opening is not None:
                    opening, line = _trim(opening + data, line)
                    is_array = _starts_array(opening)
                    if is_array is None and len(opening) <= self._limit:
                        break
                    at_byte += len(data) - len(opening)
                    data, opening, tail_at = opening, None, (frame, at_byte)
                    if is_array:
                        array, self._window = ArrayScanner(line, self._limit), None
                if array is None:
                    break
                for number, element, too_long in array.feed(data):
                    if row >= first:
                        yield self._row(element, number, row, too_long=too_long)
                    row += 1
                    if row == stop:
                        return
                data = b""
                if array.closed:
                    data, line, opening, array = array.rest, array.line, b"", None
            if array is not None or opening is not None or not data:
                continue

            lines = data.split(b"\n")
            before = len(lines[0]) + 1
            tail = lines.pop()
            if not lines:
                if not held.pieces:
                    tail_at = (frame, at_byte)
                held.add(tail)
                continue
            if held.pieces:
                lines[0], too_long = held.finish(lines[0])
            else:
                too_long = False
            self._window = (lines, line, row, tail_at, (frame, at_byte + before))
            if tail:
                held.add(tail)
            tail_at = (frame, at_byte + len(data) - len(tail))

            if row < first:
                passed = 0
                for data in lines:
                    if row == first:
                        break
                    row += not is_blank(data)
                    passed += 1
                lines, line = lines[passed:], line + passed
                too_long = too_long and not passed
            if too_long:
                yield self._row(lines[0], line, row, too_long=True)
                lines, line, row = lines[1:], line + 1, row + 1
                if row == stop:
                    return

            for data in lines:
                # Nearly all rows take the short way: a sound object whose text starts with a letter or digit.
                try:
                    fields = loads(data)
                except ValueError:
                    if is_blank(data):
                        line += 1
                        continue
                    fields = None
                if (
                    fields.__class__ is dict
                    and (text := fields.get("text")).__class__ is str
                    and text[:1].isalnum()
                    and is_plain(fields.values())
                    and len(data) <= self._limit
                ):
                    document = new(Document)
                    document.fields, document.path, document.row, document._uid = fields, path, row, None
                    yield document
                else:
                    yield self._row(data, line, row, too_long=len(data) > self._limit)
                line += 1
                row += 1
                if row == stop:
                    return

        if opening:
            held.add(opening)
        for number, data, too_long in array.flush() if array else held.flush(line):
            if too_long or not is_blank(data):
                if row >= first:
                    yield self._row(data, number, row, too_long=too_long, cut=True)
                row += 1
                array = None
        if array is not None and row >= first and row != stop:
            yield RejectedRow(path, 0, "truncated-array", "the file ends before the array is closed", "", row)

    def _row(self, data: bytes, line: int, row: int, *, too_long: bool = False, cut: bool = False):
        """A row by the slow way: a document, or the reject with its reason."""
        try:
            if too_long:
                raise BadRow("line-too-long", f"longer than {self._limit} bytes")
            return Document.from_fields(parse_row(data), self._path, row)
        except BadRow as bad:
            reason = "half-line" if cut and bad.reason in ("bad-json", "not-utf8") else bad.reason
            return RejectedRow(self._path, line, reason, bad.detail, shown(data), row)


class _Held:
    """The beginning of a line whose end has not come yet; of an overlong one only the beginning is kept."""

    def __init__(self, limit: int):
        self.pieces: list[bytes] = []
        self._limit, self._size = limit, 0

    def add(self, piece: bytes) -> None:
        if self._size <= self._limit:
            self.pieces.append(piece)
            self._size += len(piece)
            if self._size > self._limit:
                self.pieces = [b"".join(self.pieces)[: min(self._limit, 1 << 14)]]

    def finish(self, end: bytes) -> tuple[bytes, bool]:
        """The whole line, and whether it is too long (then only its beginning)."""
        self.add(end)
        line, too_long = b"".join(self.pieces), self._size > self._limit
        self.pieces, self._size = [], 0
        return line, too_long

    def flush(self, line: int) -> Iterator[tuple[int, bytes, bool]]:
        if self.pieces:
            yield (line, *self.finish(b""))


def _trim(opening: bytes, line: int) -> tuple[bytes, int]:
    """Without leading blank space and byte order marks; and the line that what is left starts on."""
    while True:
        rest = opening.lstrip()
        line += opening.count(b"\n", 0, len(opening) - len(rest))
        if not rest.startswith(BOM):
            return rest, line
        opening = rest[len(BOM) :]


def _starts_array(opening: bytes) -> bool | None:
    """Whether an array of objects starts here; None: more bytes are needed to tell."""
    if not opening or (len(opening) < len(BOM) and BOM.startswith(opening)):
        return None
    if opening[:1] != b"[":
        return False
    inner = opening[1:].lstrip()
    return inner[:1] in (b"{", b"]") if inner else None


__all__ = ["MAX_LINE_BYTES", "RowReader", "read_rows"]
