"""The inputs of an ingestion: shards, Arrow files, text files and streams, each read row by row from any place on.

for row in open_rows(entry, shape): ...         # a Document or a RejectedRow, as from the reader
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from derivedata.corpus.archive import Fault, blocks
from derivedata.corpus.document import Document, RejectedRow
from derivedata.corpus.files import FORMATS, CorpusFile
from derivedata.corpus.frames import START, Position
from derivedata.corpus.parquet import document_of, mappings, open_parquet
from derivedata.corpus.reader import MAX_LINE_BYTES, RowReader
from derivedata.corpus.source import Source
from derivedata.corpus.strict import BOM, BadRow, shown

ARROW, TEXT, STREAM = "arrow", "text", "stream"
INPUT_FORMATS = FORMATS | {".arrow": ARROW, ".txt": TEXT, ".text": TEXT}
# Text files are taken together: one commit a file would be a million commits.
BUNDLE_FILES, BUNDLE_BYTES = 10_000, 64 << 20
ARROW_FILE = b"ARROW1"  # the format with a footer; save_to_disk writes the one without

Shaping = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What is ingested as one: a file, a bundle of text files, or a share of a stream.

    Attributes:
        number: its place in the plan.
        kind: 'rows' (JSON or Parquet, whichever the bytes are), 'arrow', 'text' or 'stream'.
        path: how its rows are known (of a bundle: of its first file).
        files: what it is read from; none for a stream.
        stream: what `hub.open_stream` needs.
        origin: what it belongs to, for documents that name no source.
        attributes: (name, address) of the files of Dolma attributes that are joined to it.
    """

    number: int
    kind: str
    path: str
    files: tuple[CorpusFile, ...] = ()
    stream: Mapping[str, Any] | None = None
    origin: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Entry:
        files = tuple(CorpusFile(**file) for file in values["files"])
        return cls(**{**values, "files": files, "attributes": tuple(map(tuple, values["attributes"]))})


class Rows(Protocol):
    """Rows in order, and where to start again for the row after the last."""

    def __iter__(self) -> Iterator[Document | RejectedRow]: ...

    def position(self, row: int) -> Position: ...


def entries(files: Sequence[CorpusFile], *, origin: str | None, first: int = 0) -> list[Entry]:
    """The entries that files make: one each, text files in bundles. Numbers count from `first`."""
    made: list[Entry] = []
    bundle: list[CorpusFile] = []
    held = 0

    def close() -> None:
        if bundle:
            made.append(_entry(first + len(made), TEXT, tuple(bundle), origin))
            bundle.clear()

    for file in files:
        if file.format != TEXT:
            close()
            made.append(_entry(first + len(made), ARROW if file.format == ARROW else "rows", (file,), origin))
            continue
        if len(bundle) == BUNDLE_FILES or held + file.bytes > BUNDLE_BYTES:
            close()
        held = file.bytes + (held if bundle else 0)
        bundle.append(file)
    close()
    return made


def _entry(number: int, kind: str, files: tuple[CorpusFile, ...], origin: str | None) -> Entry:
    return Entry(number=number, kind=kind, path=files[0].path, files=files, origin=origin)


def open_rows(
    entry: Entry, shape: Shaping, *, first_row: int = 0, at: Position | None = None, digest: Any = None
) -> Rows:
    """The rows of an entry from `first_row` on.

    Args:
        entry: what to read.
        shape: makes a document's fields of a row's.
        first_row: the first row wanted.
        at: a position at or before it, as `position` gave it.
        digest: a hashlib object that is fed the file's bytes, where it is one file and read from its start.
    """
    if entry.kind == TEXT:
        return TextFiles(entry.files, shape, first=first_row)
    if entry.kind == ARROW:
        return ArrowRows(entry.files[0], shape, first=first_row, at=at or START)
    if entry.kind == STREAM:
        from derivedata.corpus.hub import StreamRows

        return StreamRows(entry, shape, first=first_row)
    return RowReader(entry.files[0], first_row=first_row, at=at, digest=digest, shape=shape)


class TextFiles:
    """One document a file: its whole text, without a byte order mark. Rows are counted over the files, though each
    document is row 0 of its own."""

    def __init__(self, files: Sequence[CorpusFile], shape: Shaping, *, first: int = 0):
        self._files, self._shape, self._first = files, shape, first

    def __iter__(self) -> Iterator[Document | RejectedRow]:
        for file in self._files[self._first :]:
            yield self._read(file)

    def position(self, row: int) -> Position:
        return Position(row=row, line=row + 1)

    def _read(self, file: CorpusFile) -> Document | RejectedRow:
        pieces, size = [], 0
        with Source(file.url) as source:
            for item in blocks(source):
                if type(item) is Fault:
                    return RejectedRow(file.path, 0, item.reason, item.detail, shown(b"".join(pieces)))
                pieces.append(item.data)
                size += len(item.data)
                if size > MAX_LINE_BYTES:
                    told = f"longer than {MAX_LINE_BYTES} bytes"
                    return RejectedRow(file.path, 1, "line-too-long", told, shown(pieces[0]))
        data = b"".join(pieces).removeprefix(BOM)
        try:
            try:
                text = data.decode()
            except UnicodeDecodeError as error:
                raise BadRow("not-utf8", f"no UTF-8 at byte {error.start} of the file") from None
            return Document.from_fields(self._shape({"text": text}), file.path, 0)
        except BadRow as bad:
            return RejectedRow(file.path, 1, bad.reason, bad.detail, shown(data))


class ArrowRows:
    """The rows of an Arrow file, as `Dataset.save_to_disk` writes it, batch by batch."""

    def __init__(self, file: CorpusFile, shape: Shaping, *, first: int, at: Position):
        self._file, self._shape, self._first, self._at = file, shape, first, at
        self._starts: list[tuple[int, int]] = []  # (first row, batch)

    def __iter__(self) -> Iterator[Document | RejectedRow]:
        import pyarrow as pa

        row = self._at.row
        with open_parquet(self._file.url) as handle:
            try:
                for number, batch in enumerate(self._batches(handle)):
                    if number < self._at.offset:
                        continue
                    self._starts.append((row, number))
                    for at in range(0, batch.num_rows, 256):
                        for fields in mappings(batch.slice(at, 256)):
                            if row >= self._first:
                                yield document_of(fields, self._file.path, row, shape=self._shape)
                            row += 1
            except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
                told = " ".join(f"no Arrow data from here on: {error}".split())[:500]
                yield RejectedRow(self._file.path, 0, "corrupt-archive", told, "", row)

    def position(self, row: int) -> Position:
        number = bisect_right(self._starts, row, key=lambda start: start[0]) - 1
        if number < 0:
            return START
        first, batch = self._starts[number]
        return Position(row=first, line=first + 1, offset=batch, codec=ARROW)

    def _batches(self, handle: Any) -> Iterator[Any]:
        import pyarrow as pa

        magic = handle.read(len(ARROW_FILE))
        handle.seek(0)
        if magic != ARROW_FILE:
            with pa.ipc.open_stream(handle) as reader:
                yield from reader
            return
        with pa.ipc.open_file(handle) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
