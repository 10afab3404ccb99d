"""Parquet shards: rows of any file with a `text` column, and our own fixed schema."""

from __future__ import annotations

import datetime
import decimal
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from derivedata.corpus.document import DOLMA_FIELDS, Document, RejectedRow
from derivedata.corpus.files import CorpusFile
from derivedata.corpus.frames import Frame, Position
from derivedata.corpus.source import open_raw
from derivedata.corpus.strict import BadRow, check_text, check_values, parse_row, shown
from derivedata.errors import UserError

if TYPE_CHECKING:
    import numpy as np

BATCH_ROWS = 256
COLUMNS = ("text", "id", "source", "added", "created", "metadata", "extra")
OURS = {b"derivedata.layout": b"dolma-1"}


class ParquetRows:
    """The rows of a Parquet file, row group by row group.

    Columns outside the Dolma layout go to the document's extra fields; a null is an absent field. `metadata` may be a
    struct or a string that holds a JSON object. Times become ISO 8601 strings, decimals strings. Row groups that cannot
    be decoded are one reject each.
    """

    def __init__(
        self,
        file: CorpusFile,
        at: Position,
        *,
        first: int,
        stop: int,
        shape: Callable[[dict], dict] | None = None,
    ):
        self._file, self._at, self._first, self._stop, self._shape = file, at, first, stop, shape
        self._starts: list[tuple[int, int]] = []  # (first row, row group)

    def __iter__(self) -> Iterator[Document | RejectedRow]:
        for item in self._all():
            if item.row >= self._first:
                yield item
            if item.row + 1 == self._stop:
                return

    def _all(self) -> Iterator[Document | RejectedRow]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        row = self._at.row
        with open_parquet(self._file.url) as handle:
            try:
                table = pq.ParquetFile(handle)
                ours = dict(table.schema_arrow.metadata or {}).items() >= OURS.items()
            except (pa.ArrowException, OSError, ValueError) as error:
                yield self._fault(row, f"no Parquet footer that can be read: {error}")
                return
            for group in range(self._at.offset, table.num_row_groups):
                self._starts.append((row, group))
                try:
                    for batch in table.iter_batches(BATCH_ROWS, row_groups=[group], use_threads=False):
                        for fields in mappings(batch):
                            yield self._row(fields, row, ours)
                            row += 1
                except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
                    yield self._fault(row, f"row group {group} is damaged: {error}")
                    row += 1

    def position(self, row: int) -> Position:
        number = bisect_right(self._starts, row, key=lambda start: start[0]) - 1
        first, group = self._starts[number]
        return Position(row=first, line=first + 1, offset=group, codec="parquet")

    def _fault(self, row: int, detail: str) -> RejectedRow:
        return RejectedRow(self._file.path, 0, "corrupt-archive", " ".join(detail.split())[:500], "", row)

    def _row(self, fields: dict | BadRow, row: int, ours: bool) -> Document | RejectedRow:
        return document_of(fields, self._file.path, row, ours=ours, shape=self._shape)


def document_of(
    fields: dict | BadRow, path: str, row: int, *, ours: bool = False, shape: Callable[[dict], dict] | None = None
) -> Document | RejectedRow:
    """The document that a row of columns holds, or the reject.

    Args:
        fields: the columns by name, as Arrow gives them; a BadRow where they could not be had.
        path, row: where it stands.
        ours: whether the columns are those of our own Parquet layout.
        shape: see `strict.parse_row`.
    """
    try:
        if isinstance(fields, BadRow):
            raise fields
        fields = {key: _plain(value) for key, value in fields.items() if value is not None}
        if isinstance(fields.get("metadata"), str):
            fields["metadata"] = _parsed(fields["metadata"], ours)
        if ours:
            fields |= _parsed(fields.pop("extra", "{}"), True)
        if shape is None:
            check_text(fields)
        else:
            fields = shape(fields)
        check_values(fields)
    except BadRow as bad:
        text = "" if isinstance(fields, BadRow) else json.dumps(fields, default=repr, ensure_ascii=False)
        return RejectedRow(path, row + 1, bad.reason, bad.detail, shown(text.encode("utf-8", "replace")), row)
    return Document.from_fields(fields, path, row)


def open_parquet(url: str):
    try:
        return open_raw(url)
    except Exception as error:  # remote file systems raise classes of their own
        raise UserError("the file cannot be read", where=url, value=f"{type(error).__name__}: {error}") from error


def mappings(batch) -> Iterator[dict | BadRow]:
    """The rows of a record batch; one with a string that is no UTF-8 is a BadRow."""
    try:
        yield from batch.to_pylist()
        return
    except UnicodeDecodeError:
        pass
    for number in range(batch.num_rows):
        try:
            yield batch.slice(number, 1).to_pylist()[0]
        except UnicodeDecodeError as error:
            yield BadRow("not-utf8", f"a string column is no UTF-8: {error.reason}")


def _plain(value: object) -> object:
    """A Parquet value as JSON knows it."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise BadRow("value-not-json", "a binary column that is no UTF-8") from None
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _parsed(text: str, ours: bool) -> object:
    """A JSON column; in files that are not ours a string that holds no object is just a string."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if ours or isinstance(value, dict) else text


class ParquetFrames:
    """Rows collected to row groups of our fixed schema: strings only, `metadata` and `extra` as JSON."""

    def __init__(self, sink, level: int, frame_bytes: int):
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = pa.schema(
            [(name, pa.large_string() if name == "text" else pa.string()) for name in COLUMNS], OURS
        )
        self._sink = sink
        self._writer = pq.ParquetWriter(sink, self._schema, compression="zstd", compression_level=level)
        self._frame_bytes, self._rows, self._size = frame_bytes, [], 0
        self._groups: list[tuple[int, int, int]] = []  # offset, first row, rows
        self._first_row = 0

    def add(self, row: Mapping) -> None:
        columns = _columns(row)
        self._rows.append(columns)
        self._size += sum(len(value) for value in columns if value is not None)
        if self._size >= self._frame_bytes:
            self._flush()

    def add_rows(self, data: memoryview, ends: np.ndarray) -> None:
        begin = 0
        for end in ends.tolist():
            self.add(parse_row(bytes(data[begin:end])))
            begin = end

    def finish(self) -> list[Frame]:
        if self._rows:
            self._flush()
        ends = [offset for offset, _, _ in self._groups[1:]] + [self._sink.bytes]
        self._writer.close()
        return [Frame(at, end - at, first, rows) for (at, first, rows), end in zip(self._groups, ends, strict=False)]

    def stop(self) -> None:
        """Let go of the file: pyarrow would write its footer once more when it is collected."""
        self._writer.is_open = False

    def _flush(self) -> None:
        import pyarrow as pa

        rows, self._rows, self._size = self._rows, [], 0
        arrays = [
            pa.array(values, type=field.type)
            for values, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        offset = self._sink.bytes
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=len(rows))
        self._groups.append((offset, self._first_row, len(rows)))
        self._first_row += len(rows)


def _columns(row: Mapping) -> tuple[str | None, ...]:
    from derivedata.corpus.writer import encode_row

    def as_json(value: object) -> str:
        return encode_row({"": value})[4:-1].decode()

    known = []
    for name in DOLMA_FIELDS:
        value = row.get(name)
        if value is not None and (name == "metadata" or not isinstance(value, str)):
            value = as_json(value)
        known.append(value)
    extra = {key: value for key, value in row.items() if key not in DOLMA_FIELDS}
    by_name = dict(zip(DOLMA_FIELDS, known, strict=True)) | {"extra": as_json(extra) if extra else None}
    return tuple(by_name[name] for name in COLUMNS)
