"""Zstandard frames walked block by block, so that a hostile frame cannot swell beyond a few MB at a time.

The library's streaming decompressor has no output limit. But a zstd block holds at most 128 KiB, and where each block
ends stands in its three-byte header (RFC 8878, 3.1.1.2), so feeding a few whole blocks at a time bounds the output.
"""

from __future__ import annotations

from collections.abc import Iterator

import zstandard
from zstandard import ZstdError

BLOCK_LIMIT = 1 << 17
BLOCKS_AT_ONCE = 4


class ZstdDecoder:
    """One zstd frame: decode() yields what the bytes hold, then eof and unused are set."""

    def __init__(self):
        self._inner = zstandard.ZstdDecompressor().decompressobj()
        self._buffer = b""
        self._header_done = False
        self._checksum = 0
        self.eof, self.unused = False, b""

    def decode(self, data: bytes, *, careful: bool = False) -> Iterator[bytes]:
        """Yields blocks of at most 1 MiB; careful: block by block, so that all that precedes damage comes out.

        Raises:
            ZstdError: where the frame is damaged.
        """
        self._buffer = self._buffer + data if self._buffer else data
        while not self.eof:
            end, last = self._whole_blocks(1 if careful else BLOCKS_AT_ONCE)
            if not end:
                return
            fed, self._buffer = self._buffer[:end], self._buffer[end:]
            out = self._inner.decompress(fed)
            if out:
                yield out
            if last:
                if not self._inner.eof:
                    raise ZstdError("the frame does not end where its last block ends")
                self.eof, self.unused, self._buffer = True, self._buffer, b""

    def rest(self) -> Iterator[bytes]:
        """Nothing: a block that is not whole holds nothing that can be decoded."""
        return iter(())

    def _whole_blocks(self, count: int) -> tuple[int, bool]:
        """Bytes of the buffer that make up to `count` whole blocks (0: not one yet); whether the frame ends there."""
        buffer, at = self._buffer, 0
        if not self._header_done:
            at = self._header_bytes()
            if not at:
                return 0, False
        done = 0
        for _ in range(count):
            if len(buffer) < at + 3:
                break
            header = int.from_bytes(buffer[at : at + 3], "little")
            last, kind, size = header & 1, header >> 1 & 3, header >> 3
            if kind == 3 or size > BLOCK_LIMIT:
                raise ZstdError(f"a block of type {kind} with {size} bytes")
            end = at + 3 + (1 if kind == 1 else size) + (self._checksum if last else 0)
            if len(buffer) < end:
                break
            at = done = end
            if last:
                self._header_done = True
                return done, True
        if done:
            self._header_done = True
        return done, False

    def _header_bytes(self) -> int:
        """Length of the frame header, 0 while it is not complete."""
        if len(self._buffer) < 5:
            return 0
        descriptor = self._buffer[4]
        single = descriptor >> 5 & 1
        size_field = (1, 2, 4, 8)[descriptor >> 6] if single or descriptor >> 6 else 0
        length = 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3] + size_field
        self._checksum = 4 if descriptor & 4 else 0
        return length if len(self._buffer) >= length else 0
