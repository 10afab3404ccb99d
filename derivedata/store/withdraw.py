"""Takes committed parts out of a manifest again, so that their work can be done anew: what `verify --repair` rests on.

A part of its own is withdrawn by removing its files, the units part first. A part in a snapshot is withdrawn by a
newer snapshot without its rows. In both cases the one step that counts is atomic: killed before it nothing has changed,
killed after it the part is open, as if it had never been committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from derivedata.errors import UserError
from derivedata.store.books import Books
from derivedata.store.compaction import ROW_GROUP, Output, parts_by_table
from derivedata.store.journal import writer_name
from derivedata.store.paths import Folder
from derivedata.store.snapshots import SNAPSHOTS, Snapshot, SnapshotFile, Snapshots, snapshot_number, snapshot_path
from derivedata.store.tables import part_path

# Which rows of an index table belong to the parts that are withdrawn: (table, rows) -> a flag a row. Rows that look
# alike are interchangeable; where the table holds more of them than the parts brought, the rest stays.
Belongs = Callable[[str, pa.Table], Sequence[bool]]
# Columns that name a row's part, in the tables that have one.
NAMED = {"units": "name", "shards": "unit", "books": "unit"}


def withdraw(
    folder: Folder, names: Collection[str], *, belongs: Belongs, unreadable: Collection[str] = frozenset()
) -> None:
    """Make the parts `names` uncommitted. Nobody else may be writing (hold the output's lease).

    Args:
        folder: the output.
        names: units and other parts; those that are not committed lose their left-over files.
        belongs: tells the rows of the index tables that are theirs, for tables that do not say so themselves.
        unreadable: files of the newest snapshot that are lost; all parts that had rows in them must be among `names`.
    """
    wanted, found = set(names), parts_by_table(folder)
    # Units parts first: without its units part nothing of a part counts. Where a snapshot covers the part the order
    # means nothing yet, and afterwards no file may be left that would make it count again.
    doomed = [part_path("units", name) for name in found.get("units", ()) if name in wanted]
    doomed += [part_path(table, name) for table, its in found.items() for name in its if name in wanted]
    folder.remove_many(list(dict.fromkeys(doomed)))
    newest = Snapshots(folder).newest()
    if newest is not None:
        _rewrite(folder, newest, wanted, belongs, set(unreadable))


def _rewrite(folder: Folder, old: Snapshot, names: set[str], belongs: Belongs, unreadable: set[str]) -> None:
    """A snapshot after `old` without the rows of `names` and the files that are lost."""
    stem = f"{SNAPSHOTS}/{old.number + 1:08d}/{writer_name()}"
    kept: list[SnapshotFile] = []
    made: list[SnapshotFile] = []
    books: list[dict] = []
    changed = False
    with folder.scratch() as scratch:
        outputs: dict[str, Output] = {}
        for file in old.files:
            if file.path in unreadable:
                changed = True
                continue
            with folder.open(file.path) as source:
                reader = pq.ParquetFile(source)
                masks = [
                    _stays(file.table, pa.Table.from_batches([batch]), names, belongs)
                    for batch in reader.iter_batches(batch_size=ROW_GROUP)
                ]
                whole = all(pc.all(mask).as_py() is not False for mask in masks)
                if whole:
                    kept.append(file)
                if whole and file.table != "books":
                    continue
                for batch, mask in zip(reader.iter_batches(batch_size=ROW_GROUP), masks, strict=True):
                    rows = pa.Table.from_batches([batch]).filter(mask)
                    if file.table == "books":
                        books += rows.to_pylist()
                    if not whole:
                        schema = rows.schema.remove_metadata()
                        if file.table not in outputs:
                            outputs[file.table] = Output(folder, file.table, schema, scratch, stem)
                        outputs[file.table].add(rows)
            changed = changed or not whole
        if not changed:
            return
        for target in outputs.values():
            made += target.close()
    parts = sum(file.rows for file in (*kept, *made) if file.table == "units")
    files = tuple(kept + made)
    snapshot = Snapshot(number=old.number + 1, parts=parts, files=files, books=books_by_stage(books))
    if not folder.create(snapshot_path(snapshot.number), snapshot.to_json()):
        folder.remove_many([file.path for file in made])
        raise UserError(
            "the manifest was compacted meanwhile", where=folder.url, remedy="nothing was lost: run the same again"
        )
    # An older snapshot still names what is withdrawn, and may name files that are lost.
    numbers = ((path, snapshot_number(path)) for path in folder.names(f"{SNAPSHOTS}/"))
    folder.remove_many([path for path, number in numbers if number is not None and number < snapshot.number])


def _stays(table: str, rows: pa.Table, names: set[str], belongs: Belongs) -> pa.Array:
    """A flag a row: whether it belongs to no part of `names`."""
    if (column := NAMED.get(table)) is not None:
        return pa.array([name not in names for name in rows[column].to_pylist()], pa.bool_())
    return pa.array([not flag for flag in belongs(table, rows)], pa.bool_())


def books_by_stage(rows: Sequence[dict]) -> dict[str, Books]:
    """The books of rows of the table `books`, added up by stage."""
    by_stage: dict[str, list[tuple]] = {}
    for row in rows:
        by_stage.setdefault(row["stage"], []).append((row["account"], row["reason"], row["count"]))
    return {stage: Books.from_rows(its) for stage, its in by_stage.items()}
