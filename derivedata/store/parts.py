"""Reading a committed part of the manifest back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from derivedata.errors import UserError
from derivedata.store.books import Books
from derivedata.store.paths import Folder
from derivedata.store.tables import BOOKS, BOOKS_KEY, MANIFEST, UNIT_NAMES, part_path


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadPart:
    """A units part: its shards, its books, how many rows of each index table belong to it, and the sha256 of the files
    it brought beside its shards (index files too) by path."""

    name: str
    stage: str
    books: Books
    rows: Mapping[str, int]
    files: Mapping[str, str]
    shards: pa.Table

    @property
    def kept_files(self) -> dict[str, str]:
        """Those of `files` that stay when the part is compacted: all but the index files."""
        return {path: sha256 for path, sha256 in self.files.items() if not path.startswith(f"{MANIFEST}/")}

    def unit_table(self) -> pa.Table:
        """The part's row of UNIT_NAMES."""
        files = [{"path": path, "sha256": sha256} for path, sha256 in sorted(self.kept_files.items())]
        return pa.table([[self.name], [self.stage], [files]], schema=UNIT_NAMES)

    def books_table(self) -> pa.Table:
        """The books in the long form of BOOKS."""
        rows = self.books.rows()
        accounts, reasons, counts = zip(*rows, strict=True)
        return pa.table(
            [[self.name] * len(rows), [self.stage] * len(rows), accounts, reasons, counts],
            schema=BOOKS,
        )


def read_part(folder: Folder, name: str) -> ReadPart:
    """The units part `name`. Raises Missing, and UserError for a file that is damaged."""
    path = part_path("units", name)
    data = folder.read(path)
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        fields = json.loads(file.metadata.metadata[BOOKS_KEY])
        return ReadPart(
            name=name,
            stage=fields["stage"],
            books=Books.from_dict(fields["books"]),
            rows=fields["rows"],
            files=fields.get("files", {}),
            shards=file.read(use_threads=False).replace_schema_metadata(None),
        )
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise UserError("a damaged part of the manifest", where=folder.url_of(path), value=str(error)) from error


def read_table_part(folder: Folder, table: str, name: str) -> pa.Table:
    """The rows of an index table that belong to the part `name`. Raises Missing, UserError for a damaged file."""
    path = part_path(table, name)
    data = folder.read(path)
    try:
        return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).replace_schema_metadata(None)
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a flipped byte is no UTF-8
        raise UserError("a damaged part of the manifest", where=folder.url_of(path), value=str(error)) from error
