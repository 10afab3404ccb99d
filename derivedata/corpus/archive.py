"""From the bytes of a file to decompressed blocks, frame by frame, whatever the file's name claims.

What a file is, its first bytes say: plain text, gzip, zstd, bz2 or xz, each with any number of members or frames. A
block never exceeds a few MB, however much the archive swells. Where an archive is cut or damaged, everything that can
still be decoded comes out, then a `Fault` says what is wrong, and reading goes on at the next frame that can be read.
"""

from __future__ import annotations

import bz2
import lzma
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from derivedata.corpus.source import Source
from derivedata.corpus.zstdframes import ZstdDecoder, ZstdError
from derivedata.errors import UserError

BLOCK_BYTES = 1 << 20
SEEK_BYTES = 1 << 18
MAGICS = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bz2": b"BZh", "xz": b"\xfd7zXZ\x00"}
UNSUPPORTED = {
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf": "7z",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
}
LONGEST_MAGIC = 10
# A frame that swells beyond both is taken for a bomb. Text comes to 3-10 times its compressed size, logs to some 100.
BOMB_BYTES = 64 << 20
EXPANSION = 500  # DERIVEDATA_MAX_EXPANSION overrides it; 0 lets everything through
FRAME_START = re.compile(rb"\x1f\x8b\x08|\x28\xb5\x2f\xfd|BZh[1-9]1AY|\xfd7zXZ\x00", re.DOTALL)


class Block(NamedTuple):
    """Decompressed bytes, and where they are: `skip` bytes into the frame that starts at byte `frame` of the file.

    For plain text the "frame" is the block itself: `skip` is 0.
    """

    data: bytes
    frame: int
    skip: int


@dataclass(slots=True)
class Fault:
    """Something wrong with the archive as a whole, or with one frame of it: a reason of strict.REASONS, and words."""

    reason: str
    detail: str


def detect(head: bytes) -> str | None:
    """The codec that starts with these bytes: a key of MAGICS, 'skippable' (zstd), or None: not compressed."""
    for codec, magic in MAGICS.items():
        if head.startswith(magic):
            # Two or three letters are weak evidence; the next byte of a real header leaves no doubt.
            if codec == "gzip" and len(head) > 3 and (head[2] != 8 or head[3] & 0xE0):
                continue
            if codec == "bz2" and len(head) > 3 and head[3:4] not in b"123456789":
                continue
            return codec
    if len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50:
        return "skippable"
    return None


def blocks(source: Source, *, plain: bool = False) -> Iterator[Block | Fault]:
    """Everything in the file from where the source stands, which must be the start of a frame.

    Args:
        source: the raw bytes.
        plain: the file is known to be plain text, whatever its first bytes look like.
    """
    head = source.peek(LONGEST_MAGIC)
    for magic, name in UNSUPPORTED.items():
        if head.startswith(magic) and not plain:
            yield Fault("unsupported-archive", f"{name} is not read here; unpack it or compress it with zstd or gzip")
            return
    if plain or detect(head) is None:
        while data := source.read():
            yield Block(data, source.offset - len(data), 0)
        return
    while head := source.peek(LONGEST_MAGIC):
        kind = detect(head)
        if kind == "skippable":
            yield from _skip_frame(source)
        elif kind is not None:
            for item in _frame(source, kind):
                yield item
                if isinstance(item, Fault) and item.reason == "exploding-archive":
                    return  # the next frame can't be found without unpacking the rest of this one
        elif _only_zeros_follow(source):
            return  # padding, as tapes and block devices leave it
        else:
            yield Fault("garbage-in-archive", f"no frame starts at byte {source.offset}")
            if not _seek_frame(source):
                return


def _frame(source: Source, codec: str) -> Iterator[Block | Fault]:
    """One member or frame; afterwards the source stands behind it, or at the next frame if this one is damaged."""
    start, delivered, expansion = source.offset, 0, _expansion()
    decoder = DECODERS[codec]()
    while not decoder.eof:
        data = source.read()
        if not data:
            for rest in decoder.rest():
                yield Block(rest, start, delivered)
                delivered += len(rest)
            yield Fault("truncated-archive", f"the {codec} archive ends inside the frame at byte {start}")
            return
        try:
            for out in decoder.decode(data):
                yield Block(out, start, delivered)
                delivered += len(out)
                if delivered > BOMB_BYTES and expansion and delivered > expansion * (source.offset - start):
                    told = f"the {codec} frame at byte {start} comes to {delivered >> 20} MiB out of"
                    told += f" {(source.offset - start) >> 10} KiB; if it is meant, raise DERIVEDATA_MAX_EXPANSION"
                    yield Fault("exploding-archive", f"{told} (now {expansion:g})")
                    return
        except DAMAGED as error:
            # One call loses what it had decoded before the damage: decode the frame again in small steps.
            before = source.offset - len(data)
            for out in _salvage(source, codec, start, before, delivered):
                yield Block(out, start, delivered)
                delivered += len(out)
            yield Fault("corrupt-archive", f"the {codec} frame at byte {start} is damaged: {error}")
            source.push_back(data)
            if source.offset == start:
                source.skip(1)
            _seek_frame(source)
            return
    source.push_back(decoder.unused)


def _expansion() -> float:
    """How many times its compressed size a frame may have; 0: any."""
    given = os.environ.get("DERIVEDATA_MAX_EXPANSION", "")
    try:
        limit = float(given) if given else EXPANSION
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise UserError("must be a number, 0 for no limit", where="DERIVEDATA_MAX_EXPANSION", value=given)
    return limit


def _salvage(source: Source, codec: str, start: int, suspect: int, delivered: int) -> Iterator[bytes]:
    """What the damaged frame at `start` still holds past the `delivered` bytes; the damage is at or after `suspect`."""
    decoder, done = DECODERS[codec](), 0
    with source.reopened(start) as again:
        while data := again.read(min(1 << 16, suspect - again.offset) if again.offset < suspect else 1 << 16):
            careful = again.offset > suspect
            try:
                for out in decoder.decode(data, careful=careful):
                    done += len(out)
                    if done > delivered:
                        fresh = out[max(0, len(out) - (done - delivered)) :]
                        yield fresh
                        delivered = done
            except DAMAGED:
                return


def _skip_frame(source: Source) -> Iterator[Fault]:
    head = source.read_exactly(8)
    length = int.from_bytes(head[4:8], "little")
    if len(head) < 8 or source.skip(length) < length:
        yield Fault("truncated-archive", "the archive ends inside a skippable zstd frame")


def _only_zeros_follow(source: Source) -> bool:
    """Whether nothing but NUL bytes follows; the source then is at its end, otherwise at the first other byte."""
    while data := source.read():
        other = data.lstrip(b"\0")
        if other:
            source.push_back(other)
            return False
    return True


def _seek_frame(source: Source) -> bool:
    """Move to the next place where a frame starts that can be read; False (and at the end) when there is none."""
    while window := source.peek(SEEK_BYTES):
        found = FRAME_START.search(window)
        if found:
            source.skip(found.start())
            if detect(source.peek(LONGEST_MAGIC)) and _decodes(source):
                return True
            source.skip(1)
        elif len(window) < SEEK_BYTES:
            source.skip(len(window))
        else:
            source.skip(len(window) - 6)  # a start may lie across two windows
    return False


def _decodes(source: Source) -> bool:
    """Whether a frame that can be read starts here, judged by its first bytes; the source does not move."""
    head = source.peek(1 << 16)
    decoder = DECODERS[detect(head)]()
    try:
        return any(decoder.decode(head, careful=True)) or decoder.eof
    except DAMAGED:
        return False


class GzipDecoder:
    """One gzip member. Decoders share this face: decode() yields what the bytes hold, then eof and unused are set."""

    def __init__(self):
        from isal import isal_zlib

        self._inflate = isal_zlib.decompressobj(31)
        self.eof, self.unused = False, b""

    def decode(self, data: bytes, *, careful: bool = False) -> Iterator[bytes]:
        """Yields blocks of at most BLOCK_BYTES; careful: byte by byte, so that all that precedes damage comes out."""
        for step in (data[i : i + 1] for i in range(len(data))) if careful else (data,):
            while True:
                out = self._inflate.decompress(step, BLOCK_BYTES)
                if out:
                    yield out
                if self._inflate.eof:
                    self.eof, self.unused = True, self._inflate.unused_data
                    return
                step = self._inflate.unconsumed_tail
                if not step and len(out) < BLOCK_BYTES:
                    break

    def rest(self) -> Iterator[bytes]:
        """What is still inside when the input ends too early."""
        return iter(())


class _StandardDecoder:
    """bz2 and xz through the standard library."""

    def __init__(self, inner):
        self._inner, self.eof, self.unused = inner, False, b""

    def decode(self, data: bytes, *, careful: bool = False) -> Iterator[bytes]:
        for step in (data[i : i + 1] for i in range(len(data))) if careful else (data,):
            while True:
                out = self._inner.decompress(step, BLOCK_BYTES)
                if out:
                    yield out
                if self._inner.eof:
                    self.eof, self.unused = True, self._inner.unused_data
                    return
                if self._inner.needs_input:
                    break
                step = b""

    def rest(self) -> Iterator[bytes]:
        return iter(())


def _isal_error() -> type[Exception]:
    from isal import isal_zlib

    return isal_zlib.error


DECODERS = {
    "gzip": GzipDecoder,
    "zstd": ZstdDecoder,
    "bz2": lambda: _StandardDecoder(bz2.BZ2Decompressor()),
    "xz": lambda: _StandardDecoder(lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=256 << 20)),
}
DAMAGED = (_isal_error(), ZstdError, lzma.LZMAError, OSError, ValueError, EOFError)
