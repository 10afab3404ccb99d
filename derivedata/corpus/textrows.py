"""Rows of a text shard, JSON lines or a JSON array, from decompressed blocks: where the reader must be fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import orjson

from derivedata.corpus.archive import Block, Fault
from derivedata.corpus.arrays import ArrayScanner
from derivedata.corpus.document import Document, RejectedRow
from derivedata.corpus.frames import START, Position
from derivedata.corpus.strict import BOM, BadRow, is_blank, is_plain, parse_row, shown

SHOWN_BYTES = 1 << 14  # what is kept of a line or element that is too long


class TextRows:
    """One pass over the blocks of a shard.

    Args:
        stream: what `archive.blocks` yields from `at.offset` on.
        path: the shard's path, for the rows.
        at: where the stream starts.
        first: the first row to yield; rows before it are counted, not parsed.
        stop: the row to stop before; -1 reads to the end.
        limit: a longer line or array element, in bytes, is a reject.
        codec: what the stream was decompressed from ('plain', 'gzip', ...), for positions.
        shape: see `strict.parse_row`.
    """

    def __init__(
        self,
        stream: Iterable[Block | Fault],
        path: str,
        *,
        at: Position,
        first: int,
        stop: int,
        limit: int,
        codec: str,
        shape: Callable[[dict], dict] | None = None,
    ):
        self._stream, self._path, self._codec, self._shape = stream, path, codec, shape
        self._first, self._stop, self._limit = first, stop, limit
        self._row, self._line, self._skip = at.row, at.line, at.skip  # of the next line
        # Bytes that do not tell yet whether lines or an array follow; None once it is lines. A position inside a shard
        # is only ever given for lines.
        self._opening: bytes | None = None if at.offset or at.skip else b""
        self._array: ArrayScanner | None = None
        self._held = _Held(limit)
        self._held_at = (at.offset, at.skip)
        self._window = None

    def __iter__(self) -> Iterator[Document | RejectedRow]:
        for block in self._stream:
            if type(block) is Fault:
                yield from self._fault(block)
            else:
                yield from self._block(*block)
            if self._row == self._stop:
                return
        yield from self._end()

    def position(self, row: int) -> Position:
        """Where to start for `row`, the last row that came out or the one after it.

        That is the row itself, or an earlier row: for a fault of the archive, which stands nowhere, the line before it;
        in an array the start of the shard.
        """
        if self._window is None:
            return START
        lines, line, at_row, (frame, skip), (frame_of_second, skip_of_second) = self._window
        number = 0
        for number, data in enumerate(lines):
            if not is_blank(data):
                if at_row == row:
                    break
                at_row += 1
            frame, skip = (frame_of_second, skip_of_second) if number == 0 else (frame, skip + len(data) + 1)
        else:
            number = len(lines)
        if self._codec == "plain":
            frame, skip = frame + skip, 0
        return Position(row=at_row, line=line + number, offset=frame, skip=skip, codec=self._codec)

    def _block(self, data: bytes, frame: int, at: int) -> Iterator[Document | RejectedRow]:
        """The rows that end in a block, which starts `at` bytes into the frame."""
        if self._skip >= len(data):
            self._skip -= len(data)
            return
        data, at, self._skip = data[self._skip :], at + self._skip, 0
        end = at + len(data)
        while data:
            if self._opening is not None:
                self._opening, self._line = _trim(self._opening + data, self._line)
                is_array = _starts_array(self._opening)
                if is_array is None and len(self._opening) <= self._limit:
                    return
                data, self._opening = self._opening, None
                self._held_at = (frame, end - len(data))
                if is_array:
                    self._array, self._window = ArrayScanner(self._line, self._limit), None
            if self._array is None:
                yield from self._lines(data, frame, end - len(data))
                return
            yield from self._elements(self._array.feed(data))
            data = b""
            if self._array.closed and self._row != self._stop:
                data, self._line, self._opening = self._array.rest, self._array.line, b""
                self._array = None

    def _lines(self, data: bytes, frame: int, at: int) -> Iterator[Document | RejectedRow]:
        lines = data.split(b"\n")
        tail = lines.pop()
        if not lines:
            if not self._held:
                self._held_at = (frame, at)
            self._held.add(tail)
            return
        second_at = at + len(lines[0]) + 1
        too_long = False
        if self._held:
            lines[0], too_long = self._held.finish(lines[0])
        else:
            self._held_at = (frame, at)
        self._window = (lines, self._line, self._row, self._held_at, (frame, second_at))
        if tail:
            self._held.add(tail)
        self._held_at = (frame, at + len(data) - len(tail))

        if self._row < self._first:
            passed = self._pass_over(lines)
            lines, too_long = lines[passed:], too_long and not passed
        if too_long and self._row != self._stop:
            yield self._parsed(lines[0], self._line, self._row, too_long=True)
            lines = lines[1:]
            self._line += 1
            self._row += 1
        if self._row != self._stop:
            yield from self._documents(lines) if self._shape is None else self._shaped(lines)

    def _shaped(self, lines: list[bytes]) -> Iterator[Document | RejectedRow]:
        """The rows of whole lines where each is brought into shape; sound objects take the short way here too."""
        loads, new, shape, path = orjson.loads, Document.__new__, self._shape, self._path
        limit, stop, line, row = self._limit, self._stop, self._line, self._row
        for data in lines:
            try:
                fields = loads(data)
                fields = shape(fields) if type(fields) is dict and is_plain(fields.values()) else None
            except ValueError:
                if is_blank(data):
                    line += 1
                    continue
                fields = None
            except BadRow:
                fields = None  # said by the slow way
            if fields is not None and len(data) <= limit:
                document = new(Document)
                document.fields, document.path, document.row, document._uid = fields, path, row, None
                yield document
            else:
                yield self._parsed(data, line, row, too_long=len(data) > limit)
            line += 1
            row += 1
            if row == stop:
                break
        self._line, self._row = line, row

    def _documents(self, lines: list[bytes]) -> Iterator[Document | RejectedRow]:
        """The rows of whole lines. Nearly all take the short way: a sound object whose text starts with a letter."""
        loads, new, path, limit, stop = orjson.loads, Document.__new__, self._path, self._limit, self._stop
        line, row = self._line, self._row
        for data in lines:
            try:
                fields = loads(data)
            except ValueError:
                if is_blank(data):
                    line += 1
                    continue
                fields = None
            if (
                type(fields) is dict
                and type(text := fields.get("text")) is str
                and text[:1].isalnum()
                and is_plain(fields.values())
                and len(data) <= limit
            ):
                document = new(Document)
                document.fields, document.path, document.row, document._uid = fields, path, row, None
                yield document
            else:
                yield self._parsed(data, line, row, too_long=len(data) > limit)
            line += 1
            row += 1
            if row == stop:
                break
        self._line, self._row = line, row

    def _pass_over(self, lines: list[bytes]) -> int:
        """Count lines up to the first row wanted; returns how many that are."""
        for passed, data in enumerate(lines):
            if self._row == self._first:
                return passed
            self._row += not is_blank(data)
            self._line += 1
        return len(lines)

    def _elements(self, elements: Iterable[tuple[int, bytes, bool]], *, cut: bool = False):
        """Rows that come one by one: array elements, or what an end cuts off."""
        for line, data, too_long in elements:
            if not too_long and is_blank(data):
                continue
            if self._row >= self._first:
                yield self._parsed(data, line, self._row, too_long=too_long, cut=cut)
            self._row += 1
            if self._row == self._stop:
                return

    def _cut_off(self) -> Iterator[tuple[int, bytes, bool]]:
        """What is held of a row that has not ended."""
        if self._array is not None:
            yield from self._array.flush()
            return
        if self._opening:
            self._held.add(self._opening)
            self._opening = b""
        if self._held:
            yield (self._line, *self._held.finish(b""))

    def _fault(self, fault: Fault) -> Iterator[Document | RejectedRow]:
        yield from self._elements(self._cut_off(), cut=True)
        if self._row != self._stop:
            if self._row >= self._first:
                yield RejectedRow(self._path, 0, fault.reason, fault.detail, "", self._row)
            self._row += 1

    def _end(self) -> Iterator[Document | RejectedRow]:
        before = self._row
        yield from self._elements(self._cut_off(), cut=True)
        if self._array is not None and before == self._row != self._stop:
            if self._row >= self._first:
                detail = "the file ends before the array is closed"
                yield RejectedRow(self._path, 0, "truncated-array", detail, "", self._row)
            self._row += 1

    def _parsed(self, data: bytes, line: int, row: int, *, too_long: bool = False, cut: bool = False):
        """A row by the slow way: a document, or the reject with its reason."""
        try:
            if too_long:
                raise BadRow("line-too-long", f"longer than {self._limit} bytes")
            return Document.from_fields(parse_row(data, self._shape), self._path, row)
        except BadRow as bad:
            reason = "half-line" if cut and bad.reason in ("bad-json", "not-utf8") else bad.reason
            return RejectedRow(self._path, line, reason, bad.detail, shown(data), row)


class _Held:
    """The beginning of a line whose end has not come yet; of an overlong one only the beginning is kept."""

    def __init__(self, limit: int):
        self._pieces: list[bytes] = []
        self._limit, self._size = limit, 0

    def __bool__(self) -> bool:
        return self._size > 0

    def add(self, piece: bytes) -> None:
        if self._size <= self._limit:
            self._pieces.append(piece)
            if self._size + len(piece) > self._limit:
                self._pieces = [b"".join(self._pieces)[: min(self._limit, SHOWN_BYTES)]]
        self._size += len(piece)

    def finish(self, end: bytes) -> tuple[bytes, bool]:
        """The whole line, and whether it is too long (then only its beginning)."""
        self.add(end)
        line, too_long = b"".join(self._pieces), self._size > self._limit
        self._pieces, self._size = [], 0
        return line, too_long


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
