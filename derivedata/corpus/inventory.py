"""What a shard holds, found in one streaming pass: rows, documents, rejects, bytes of text, hash, and its chunks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from derivedata.corpus.document import RejectedRow
from derivedata.corpus.files import CorpusFile
from derivedata.corpus.frames import Position
from derivedata.corpus.reader import RowReader


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkSpan:
    """A run of rows [first_row, stop_row) that is worked on as one.

    `read_rows(file, first_row=chunk.first_row, stop_row=chunk.stop_row, at=chunk.position)` reads it.
    `text_bytes` counts the UTF-8 bytes of its documents' texts.
    """

    first_row: int
    stop_row: int
    documents: int
    text_bytes: int
    position: Position


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardInventory:
    """What one input shard holds; rows = documents + the sum of rejected, always.

    The chunks cover all rows in order; a shard without documents has none.
    """

    path: str
    url: str
    bytes: int
    version: str
    sha256: str
    rows: int
    documents: int
    text_bytes: int
    rejected: dict[str, int] = field(default_factory=dict)
    chunks: list[ChunkSpan] = field(default_factory=list)

    def to_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> ShardInventory:
        chunks = [
            ChunkSpan(**(chunk | {"position": Position.from_dict(chunk["position"])})) for chunk in values["chunks"]
        ]
        return cls(**(values | {"chunks": chunks}))


def take_inventory(
    file: CorpusFile, *, chunk_bytes: int, on_rejected: Callable[[RejectedRow], None] | None = None
) -> ShardInventory:
    """Read a shard once, from end to end.

    Args:
        file: the shard.
        chunk_bytes: a chunk ends with the document that brings its text to this many UTF-8 bytes.
        on_rejected: called with each rejected row, in order.

    Raises:
        UserError: when the file system fails.
    """
    if chunk_bytes < 1:
        raise ValueError("chunk_bytes must be positive")
    digest = hashlib.sha256()
    reader = RowReader(file, digest=digest)
    rejected: Counter[str] = Counter()
    chunks: list[ChunkSpan] = []
    rows = documents = text_bytes = stop = 0
    first, first_at, chunk_documents, chunk_text = 0, Position(), 0, 0

    def close_chunk(stop: int) -> None:
        chunks.append(
            ChunkSpan(
                first_row=first, stop_row=stop, documents=chunk_documents, text_bytes=chunk_text, position=first_at
            )
        )

    for item in reader:
        rows += 1
        stop = item.row + 1  # of a subset not all rows come
        if item.__class__ is RejectedRow:
            rejected[item.reason] += 1
            if on_rejected is not None:
                on_rejected(item)
            continue
        text = item.fields["text"]
        size = len(text) if text.isascii() else len(text.encode())
        documents += 1
        text_bytes += size
        chunk_documents += 1
        chunk_text += size
        if chunk_text >= chunk_bytes:
            close_chunk(stop)
            first, first_at, chunk_documents, chunk_text = stop, reader.position(stop), 0, 0
    if chunk_documents:
        close_chunk(stop)
    elif chunks and chunks[-1].stop_row < stop:  # rejects behind the last document belong to its chunk
        last = chunks.pop()
        chunks.append(
            ChunkSpan(
                first_row=last.first_row,
                stop_row=stop,
                documents=last.documents,
                text_bytes=last.text_bytes,
                position=last.position,
            )
        )
    return ShardInventory(
        path=file.path,
        url=file.url,
        bytes=file.bytes,
        version=file.version,
        sha256=digest.hexdigest(),
        rows=rows,
        documents=documents,
        text_bytes=text_bytes,
        rejected=dict(sorted(rejected.items())),
        chunks=chunks,
    )
