"""A JSON array of objects taken apart as it streams by: `[{...}, {...}, ...]`, never held as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

OUTSIDE = re.compile(rb'["{}\[\]]')
INSIDE = re.compile(rb'(?:[^"\\\n]++|\\[^\n])*+')
BETWEEN = re.compile(rb"[\s,]*+")
JUNK = re.compile(rb"[^\n,{\]]++")


class ArrayScanner:
    """Finds the elements of one array in the bytes fed to it.

    An element that is no object (a number, a stray word) is handed over like any other, for the row parser to reject.
    A string that runs over a line end is broken, so the element ends there and the rest of the array is not lost.

    Args:
        line: line of the first byte that will be fed.
        limit: an element longer than this many bytes is handed over cut, marked too long.
    """

    def __init__(self, line: int, limit: int):
        self.line, self._limit = line, limit
        self.closed, self.rest = False, b""
        self._buffer, self._opened = b"", False
        self._reset()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes, bool]]:
        """Yields (line, element, too long) for each element that these bytes complete; then see `closed` and `rest`."""
        self._buffer = self._buffer + data if self._buffer else data
        while not self.closed:
            if self._depth == 0 and not self._too_long:
                found, element = self._next_start()
            else:
                found, element = self._next_end()
            if element is not None:
                yield element
            if not found:
                return

    def flush(self) -> Iterator[tuple[int, bytes, bool]]:
        """The element that the end of the input cuts off, if there is one; the scanner is then between elements."""
        self._drop(BETWEEN.match(self._buffer).end() if self._depth == 0 else 0)
        if self._buffer or self._too_long:
            yield self.line, self._buffer, self._too_long
        self._drop(len(self._buffer))
        self._reset()

    def _next_start(self):
        """Between elements: move to the next one. Returns (whether there is more to do, element or None)."""
        at = BETWEEN.match(self._buffer).end()
        if not self._opened and self._buffer[at : at + 1] == b"[":
            self._opened, at = True, BETWEEN.match(self._buffer, at + 1).end()
        self._drop(at)
        if not self._buffer:
            return False, None
        if self._buffer[:1] == b"]":
            self.closed, self.rest, self._buffer = True, self._buffer[1:], b""
            return True, None
        if self._buffer[:1] == b"{":
            self._depth, self._at = 1, 1
            return True, None
        junk = JUNK.match(self._buffer)
        end = junk.end() if junk else 1
        if end == len(self._buffer) and end <= self._limit:
            return False, None  # it may go on
        return True, self._take(end)

    def _next_end(self):
        """Inside an element: scan on from where the last bytes ended."""
        buffer = self._buffer
        while True:
            if self._in_string:
                at = INSIDE.match(buffer, self._at).end()
                stop = buffer[at : at + 1]
                if stop == b'"':
                    self._in_string, self._at = False, at + 1
                elif stop == b"\n" or buffer[at + 1 : at + 2] == b"\n":
                    return True, self._take(at)
                else:  # the bytes end inside the string, perhaps behind a backslash
                    self._at = at
                    self._check_length()
                    return False, None
                continue
            token = OUTSIDE.search(buffer, self._at)
            if token is None:
                self._at = len(buffer)
                self._check_length()
                return False, None
            self._at = token.end()
            kind = token.group()
            if kind == b'"':
                self._in_string = True
            elif kind in b"{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    return True, self._take(self._at)

    def _check_length(self) -> None:
        """Keep what is held of an element bounded: beyond the limit only its beginning stays."""
        if not self._too_long and len(self._buffer) > self._limit:
            self._too_long, self._kept, self._kept_line = True, self._buffer[: min(self._limit, 1 << 14)], self.line
        if self._too_long:
            self._drop(self._at)
            self._at = 0

    def _take(self, end: int) -> tuple[int, bytes, bool]:
        line, element = self.line, self._buffer[:end]
        too_long = self._too_long or len(element) > self._limit
        if self._too_long:
            line, element = self._kept_line, self._kept
        self._drop(end)
        self._reset()
        return line, element, too_long

    def _drop(self, size: int) -> None:
        self.line += self._buffer.count(b"\n", 0, size)
        self._buffer = self._buffer[size:]

    def _reset(self) -> None:
        self._depth, self._at, self._in_string = 0, 0, False
        self._too_long, self._kept, self._kept_line = False, b"", 0
