"""The lines of a block as bytes, for what passes rows on without looking into them.

Only shards that can be read from the middle give lines: a compressed frame at a time, or plain text. `can_give_lines`
says which do; the others are rewritten once by whoever needs them.
"""

from __future__ import annotations

from collections.abc import Iterator

from derivedata.corpus.archive import Fault
from derivedata.corpus.archive import blocks as decompressed
from derivedata.corpus.blocks import CODECS, Blocks, changed
from derivedata.corpus.files import CorpusFile
from derivedata.corpus.inventory import ShardInventory
from derivedata.corpus.source import Source, is_local, open_raw
from derivedata.corpus.strict import BOM, is_blank
from derivedata.errors import UserError

MOST_SKIPPED = 4 << 20  # decompressed bytes before a block: more are too many to pass over for each block
FRAME_LIMIT = 1 << 30


def can_give_lines(file: CorpusFile, inventory: ShardInventory) -> bool:
    """Whether the blocks of a counted file can be read as lines, each without much of what comes before it."""
    positions = [span.position for span in inventory.chunks]
    if any(at.codec in ("bz2", "xz", "parquet") or at.skip > MOST_SKIPPED for at in positions):
        return False
    # A fault of the archive takes a row number and is no line; arrays have no places to start from but the first.
    faults = ("truncated-archive", "corrupt-archive", "garbage-in-archive", "unsupported-archive", "truncated-array")
    if any(reason in inventory.rejected for reason in faults):
        return False
    if len(positions) > 1 and any(at.codec is None for at in positions[1:]):
        return False
    return not _is_array(file)


def _is_array(file: CorpusFile) -> bool:
    with Source(file.url) as source:
        for piece in decompressed(source):
            if isinstance(piece, Fault):
                return True
            head = piece.data.removeprefix(BOM).lstrip()
            if head:
                return head[:1] == b"["
    return False


def block_data(blocks: Blocks, block: int) -> bytes:
    """The rows [first, stop) of a block as lines of JSON, each with its line break, blank lines left out.

    Raises:
        UserError: the file no longer holds what was counted in it.
    """
    row = blocks.table[block]
    file, wanted = blocks.files[row["file"]], int(row["stop"] - row["first"])
    if row["length"]:
        data = _frame(file, int(row["offset"]), int(row["length"]), CODECS[row["codec"]])
        if data.endswith(b"\n") and data.count(b"\n") == wanted:
            return data
        lines = [line for line in data.split(b"\n") if not is_blank(line)]
    else:
        lines = list(_streamed(blocks, block, file, wanted))
    if len(lines) != wanted:
        raise changed(file)
    return b"\n".join([*lines, b""])


def block_lines(blocks: Blocks, block: int) -> list[bytes]:
    """The same, line by line and without the breaks."""
    lines = block_data(blocks, block).split(b"\n")
    lines.pop()
    return lines


def _frame(file: CorpusFile, offset: int, length: int, codec: str) -> bytes:
    """One whole frame, decompressed at once."""
    try:
        with open_raw(file.url) as stream:
            stream.seek(offset)
            data = stream.read(length)
            while is_local(file.url) and len(data) < length and (more := stream.read(length - len(data))):
                data += more
    except FileNotFoundError:
        raise UserError(
            "no such file", where=file.url, remedy="was it moved or removed while the command ran?"
        ) from None
    except OSError as error:
        raise UserError("the file cannot be read", where=file.url, value=error.strerror) from error
    try:
        if codec == "gzip":
            from isal import isal_zlib

            return isal_zlib.decompress(data, 31)
        import zstandard

        return zstandard.ZstdDecompressor().decompress(data, max_output_size=FRAME_LIMIT)
    except Exception as error:  # isal and zstandard have classes of their own; either way the bytes are not ours
        raise changed(file) from error


def _streamed(blocks: Blocks, block: int, file: CorpusFile, wanted: int) -> Iterator[bytes]:
    at = blocks.position(block)
    skip, rest, opening = at.skip, b"", not at.offset and not at.skip
    with Source(file.url, at.offset) as source:
        for piece in decompressed(source, plain=at.codec == "plain"):
            if isinstance(piece, Fault):
                raise changed(file)
            data = piece.data
            if skip:
                data, skip = data[skip:], max(0, skip - len(data))
            if opening and data:
                data, opening = data.removeprefix(BOM), False
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not is_blank(line):
                    yield line
                    wanted -= 1
                    if not wanted:
                        return
        if not is_blank(rest):
            yield rest
