"""A zstd file as a stream that notices when the file is cut off (the package's own reader ends there in silence)."""

from __future__ import annotations

import io
from typing import BinaryIO


class ZstdStream(io.RawIOBase):
    """The decompressed bytes of all frames of a file.

    Raises:
        EOFError: on reading, when the last frame is not complete.
        OSError: when the file is damaged.
    """

    def __init__(self, file: BinaryIO):
        self._file = file
        self._frame = None
        self._ready = b""

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer) -> int:
        """Fill `buffer` as far as one step of decompression goes."""
        while not self._ready:
            data = self._file.read(1 << 17)
            if not data:
                if self._frame is not None:
                    raise EOFError("the last zstd frame is not complete")
                return 0
            self._ready = self._decompress(data)
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _decompress(self, data: bytes) -> bytes:
        import zstandard

        parts = []
        while data:
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            try:
                parts.append(self._frame.decompress(data))
            except zstandard.ZstdError as error:
                raise OSError(f"damaged zstd data: {error}") from None
            if not self._frame.eof:
                break
            data, self._frame = self._frame.unused_data, None
        return b"".join(parts)
