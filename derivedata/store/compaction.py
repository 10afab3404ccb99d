"""Compaction: parts that accumulated since the last snapshot, and its small files, become a new snapshot.

Runs beside writers and readers and may be killed at any point: until its snapshot.json is there, nothing has changed
but some files nobody reads. Of two compactions at once one wins the number, the other throws its files away.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from derivedata.errors import UserError
from derivedata.store.books import Books
from derivedata.store.content import file_sha256
from derivedata.store.journal import writer_name
from derivedata.store.parts import ReadPart, read_part, read_table_part
from derivedata.store.paths import Folder, Missing
from derivedata.store.snapshots import SNAPSHOTS, Snapshot, SnapshotFile, Snapshots, snapshot_number, snapshot_path
from derivedata.store.tables import BOOKS, MANIFEST, RESERVED, SHARDS, TABLES, UNIT_NAMES, UNITS, part_path

# Readers keep the names of files for so many seconds at most; removing waits for them.
GRACE = 900.0
# Files of a snapshot below this are merged into the next one, larger ones are only listed again.
SMALL = 32 << 20
LARGE = 256 << 20
ROW_GROUP = 1 << 17


def compact(folder: Folder, *, at_least: int = 1, grace: float = GRACE) -> int:
    """Put all parts that no snapshot covers into a new one; how many they were (0: fewer than `at_least`, or another
    compaction was faster). Then remove what snapshots older than `grace` seconds made superfluous."""
    fresh = sorted(_part_names(folder))
    base = Snapshots(folder)
    previous = base.newest()
    if previous is not None:
        covered = base.covered()
        fresh = [name for name in fresh if name not in covered]
    done = 0
    if len(fresh) >= max(1, at_least):
        try:
            done = len(fresh) if _make(folder, previous, fresh) else 0
        except Missing:
            # Another compaction covered these parts and has removed them; without one, the output is damaged.
            newest = Snapshots(folder).newest()
            if newest is None or (previous is not None and newest.number == previous.number):
                raise
    remove_superseded(folder, grace=grace)
    return done


def _part_names(folder: Folder) -> Iterator[str]:
    start, end = len(UNITS) + 1, -len(".parquet")
    return (path[start:end] for path in folder.names(f"{UNITS}/") if path.endswith(".parquet"))


def _make(folder: Folder, previous: Snapshot | None, fresh: list[str]) -> bool:
    number = previous.number + 1 if previous else 1
    stem = f"{SNAPSHOTS}/{number:08d}/{writer_name()}"
    kept = [file for file in previous.files if file.bytes >= SMALL] if previous else []
    merged = [file for file in previous.files if file.bytes < SMALL] if previous else []
    books: dict[str, Books] = dict(previous.books) if previous else {}
    made: list[SnapshotFile] = []
    with folder.scratch() as scratch:
        outputs: dict[str, Output] = {}

        def output(table: str, schema: pa.Schema) -> Output:
            if table not in outputs:
                outputs[table] = Output(folder, table, schema, scratch, stem)
            return outputs[table]

        for file in merged:
            with folder.open(file.path) as source:
                reader = pq.ParquetFile(source)
                target = output(file.table, _schema(file.table, reader.schema_arrow))
                for batch in reader.iter_batches(batch_size=ROW_GROUP):
                    target.add(pa.Table.from_batches([batch]))
        for part, tables in _read(folder, fresh):
            output("units", UNIT_NAMES).add(part.unit_table())
            output("shards", SHARDS).add(part.shards)
            output("books", BOOKS).add(part.books_table())
            books[part.stage] = books.get(part.stage, Books()) + part.books
            for table, rows in tables.items():
                output(table, _schema(table, rows.schema)).add(rows)
        for target in outputs.values():
            made += target.close()
    parts = len(fresh) + (previous.parts if previous else 0)
    snapshot = Snapshot(number=number, parts=parts, files=tuple(kept + made), books=books)
    if folder.create(snapshot_path(number), snapshot.to_json()) or Snapshots(folder).read(number) == snapshot:
        return True
    folder.remove_many([file.path for file in made])
    return False


def _read(folder: Folder, names: list[str]) -> Iterator[tuple[ReadPart, dict[str, pa.Table]]]:
    """Parts with the rows of their tables, in order; many are read at a time, for the sake of slow storage."""

    def read(name: str) -> tuple[ReadPart, dict[str, pa.Table]]:
        part = read_part(folder, name)
        return part, {table: _index_rows(folder, part, table) for table in part.rows}

    with ThreadPoolExecutor(2 if folder.is_local else 32) as pool:
        for start in range(0, len(names), 256):
            yield from pool.map(read, names[start : start + 256])


def _index_rows(folder: Folder, part: ReadPart, table: str) -> pa.Table:
    rows = read_table_part(folder, table, part.name)
    if rows.num_rows != part.rows[table]:
        where = folder.url_of(part_path(table, part.name))
        raise UserError(f"holds {rows.num_rows} rows, its unit committed {part.rows[table]}", where=where)
    return rows


def _schema(table: str, found: pa.Schema) -> pa.Schema:
    """The schema of a table: as declared, or as the file has it when its stage is not loaded here."""
    known = {"units": UNIT_NAMES, "shards": SHARDS, "books": BOOKS} | TABLES
    return known.get(table, found.remove_metadata())


class Output:
    """The files of one table of a snapshot on their way: rows are gathered into row groups, groups into files."""

    def __init__(self, folder: Folder, table: str, schema: pa.Schema, scratch: Path, stem: str) -> None:
        self.folder, self.table, self.schema, self.scratch, self.stem = folder, table, schema, scratch, stem
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._local: Path | None = None
        self._written = 0
        self._made: list[SnapshotFile] = []

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._waiting.append(_conform(rows, self.schema))
            self._rows += rows.num_rows
            if self._rows >= ROW_GROUP:
                self._write()

    def close(self) -> list[SnapshotFile]:
        if self._rows:
            self._write()
        self._finish()
        return self._made

    def _write(self) -> None:
        if self._writer is None:
            self._local = self.scratch / f"{self.table}-{len(self._made)}.parquet"
            self._writer = pq.ParquetWriter(
                self._local, self.schema, compression="zstd", compression_level=3, store_schema=False
            )
            self._written = 0
        rows = pa.concat_tables(self._waiting).combine_chunks()
        self._writer.write_table(rows, row_group_size=ROW_GROUP)
        self._written += rows.num_rows
        self._waiting, self._rows = [], 0
        if os.path.getsize(self._local) >= LARGE:
            self._finish()

    def _finish(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        path = f"{self.stem}-{self.table}-{len(self._made)}.parquet"
        size, sha256 = os.path.getsize(self._local), file_sha256(self._local)
        # The name is new; taken means an earlier try of this very put arrived although its answer did not.
        self.folder.create_from(path, self._local)
        self._local.unlink()
        self._made.append(SnapshotFile(table=self.table, path=path, rows=self._written, bytes=size, sha256=sha256))


def _conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows under the schema of today: columns that an older version did not have are null."""
    if rows.schema.equals(schema):
        return rows.replace_schema_metadata(None)
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def remove_superseded(folder: Folder, *, grace: float = GRACE) -> int:
    """Remove parts and files that a snapshot older than `grace` seconds has replaced; how many.

    Nothing is removed on the word of a snapshot whose own files are not all there.
    """
    now = time.time()
    listing = {entry.path: entry for entry in folder.list(f"{SNAPSHOTS}/")}
    numbers = {path: number for path in listing if (number := snapshot_number(path)) is not None}
    settled = [number for path, number in numbers.items() if now - (listing[path].modified or 0.0) >= grace]
    if not settled:
        return 0
    snapshots = Snapshots(folder)
    oldest_needed = max(settled)
    needed = [snapshots.read(number) for number in sorted(numbers.values()) if number >= oldest_needed]
    for file in needed[-1].files:
        entry = listing.get(file.path)
        if entry is None or entry.bytes != file.bytes:
            raise UserError(
                "a file of the newest snapshot is missing or has another size",
                where=folder.url_of(file.path),
                remedy="nothing was removed; restore the file, or let `derivedata verify` say what is lost",
            )
    referenced = {file.path for snapshot in needed for file in snapshot.files}
    doomed = []
    for path, entry in listing.items():
        number = numbers.get(path)
        if number is not None:
            doomed += [path] if number < oldest_needed else []
        elif path not in referenced:
            # A day more: a compaction that still runs has files that no snapshot lists yet.
            belongs = int(folder_number) if (folder_number := path.split("/")[2]).isdigit() else 0
            if belongs < oldest_needed or now - (entry.modified or 0.0) >= max(grace, 24 * 3600):
                doomed.append(path)
    covered = snapshots.covered_by(needed[0])
    for table, names in parts_by_table(folder).items():
        doomed += [part_path(table, name) for name in names if name in covered]
    # Units parts go last: a kill in between leaves only files of units that are still named.
    folder.remove_many(doomed)
    return len(doomed)


def parts_by_table(folder: Folder) -> dict[str, list[str]]:
    """Names of all parts there are, by table; units last."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in folder.names(f"{MANIFEST}/"):
        table, _, name = path[len(MANIFEST) + 1 :].partition("/")
        if name.endswith(".parquet") and "/" not in name and (table == "units" or table not in RESERVED):
            found[table].append(name[: -len(".parquet")])
    return dict(sorted(found.items(), key=lambda item: item[0] == "units"))
