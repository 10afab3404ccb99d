"""Writes the list of a snapshot anew when it is lost or damaged; the files that it listed say what stood in it."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.parquet as pq

from derivedata.errors import UserError
from derivedata.store.compaction import SMALL
from derivedata.store.content import size_and_sha256
from derivedata.store.paths import Entry, Folder, Missing
from derivedata.store.snapshots import SNAPSHOTS, Snapshot, SnapshotFile, Snapshots, snapshot_path
from derivedata.store.tables import UNITS
from derivedata.store.withdraw import books_by_stage

_FILE = re.compile(rf"{SNAPSHOTS}/(\d+)/(.+)-([a-z][a-z0-9_]*)-(\d+)\.parquet")
_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError)


def restore_snapshot(folder: Folder) -> str | None:
    """Mend the list of the newest snapshot; its path, or None when nothing was wrong with it.

    A folder of a snapshot without a list is also what a compaction leaves that is under way or was killed. The parts of
    that are still there on their own, so nothing is done.
    """
    found: dict[int, dict[str, list[tuple[str, Entry]]]] = {}  # number -> stem -> (table, file)
    for entry in folder.list(f"{SNAPSHOTS}/"):
        if match := _FILE.fullmatch(entry.path):
            found.setdefault(int(match[1]), {}).setdefault(match[2], []).append((match[3], entry))
    if not found:
        return None
    number = max(found)
    path = snapshot_path(number)
    snapshots = Snapshots(folder)
    try:
        there = snapshots.read(number)
        units = sum(file.rows for file in there.of("units"))
        if folder.read(path) == there.to_json() and there.parts == units:
            return None
    except Missing:
        if _is_unfinished(folder, found[number]):
            return None
    except UserError:
        pass
    # A compaction that lost its race removes its files; should it have been killed before, any of the two is whole.
    stems = [files for _, files in sorted(found[number].items()) if any(table == "units" for table, _ in files)]
    own = stems[0] if stems else [file for files in found[number].values() for file in files]
    # Large files are only listed again by later snapshots; small ones are merged, and stay until they are removed.
    older = [
        (table, entry)
        for earlier in sorted(found)
        if earlier < number
        for files in found[earlier].values()
        for table, entry in files
        if entry.bytes >= SMALL
    ]
    files = [_look(folder, table, entry) for table, entry in (*older, *own)]
    books = [row for file in files if file.table == "books" for row in _rows(folder, file)]
    parts = sum(file.rows for file in files if file.table == "units")
    snapshot = Snapshot(number=number, parts=parts, files=tuple(files), books=books_by_stage(books))
    folder.replace(path, snapshot.to_json())
    return path


def _is_unfinished(folder: Folder, stems: dict[str, list[tuple[str, Entry]]]) -> bool:
    """Whether all parts that the files cover are there on their own."""
    names = set()
    for files in stems.values():
        for table, entry in files:
            if table == "units":
                names.update(row["name"] for row in _rows(folder, _look(folder, table, entry)))
    there = {path.rpartition("/")[2].removesuffix(".parquet") for path in folder.names(f"{UNITS}/")}
    try:
        there |= Snapshots(folder).covered()
    except UserError:
        return False
    return bool(names) and names <= there


def _look(folder: Folder, table: str, entry: Entry) -> SnapshotFile:
    """A file as a snapshot lists it; one that can't be read has 0 rows, and is found out by whoever checks it."""
    with folder.open(entry.path) as stream:
        size, sha256 = size_and_sha256(stream)
        stream.seek(0)
        try:
            rows = pq.ParquetFile(stream).metadata.num_rows
        except _UNREADABLE:
            rows = 0
    return SnapshotFile(table=table, path=entry.path, rows=rows, bytes=size, sha256=sha256)


def _rows(folder: Folder, file: SnapshotFile) -> list[dict]:
    try:
        with folder.open(file.path) as stream:
            return pq.read_table(stream).to_pylist()
    except _UNREADABLE:
        return []
