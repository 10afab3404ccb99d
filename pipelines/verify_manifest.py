"""Reads a manifest file by file, so that a damaged one is named and the rest can still be checked."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from derivedata.errors import UserError
from derivedata.store.content import size_and_sha256
from derivedata.store.kinds import ROOM as KINDS
from derivedata.store.manifest import ALWAYS, Manifest, View
from derivedata.store.parts import ReadPart, read_part
from derivedata.store.paths import Folder, Missing
from derivedata.store.snapshots import Snapshot, SnapshotFile, Snapshots, snapshot_path
from derivedata.store.tables import (
    BOOKS_KEY,
    MANIFEST,
    RESERVED,
    SHARDS,
    TABLES,
    UNIT_NAMES,
    UNITS,
    part_path,
    write_parquet,
)
from derivedata.store.units import is_unit_name, kinds_hash

Found = tuple[str, str]  # where, and what is wrong there
UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError)
# Columns that are never null, without which a row can't be looked at.
NEEDED = {"shards": ("path", "sha256", "bytes", "documents", "unit", "format", "frames"), "units": ("name", "stage")}
OTHER_CONTENT = "has other content than was committed"


@dataclass(frozen=True, kw_only=True)
class Sound:
    """What of a manifest can be read.

    view: the manifest without its damaged files. unread: tables that lack rows therefore. lost: committed parts whose
    units part is damaged. names: all parts that are committed, the lost ones too.
    """

    view: View
    unread: frozenset[str]
    lost: frozenset[str]
    names: frozenset[str]

    def all_of(self, *tables: str) -> bool:
        """Whether nothing of these tables is missing."""
        return not self.lost and self.unread.isdisjoint(tables)


def read_manifest(folder: Folder) -> tuple[Sound, list[Found]]:
    """The sound rest of a manifest, and what is wrong with it. Raises UserError when a snapshot has no readable list of
    its files, or neither that nor its books say what it covers."""
    view, covered = _view(folder)
    found: list[Found] = []
    bad: dict[str, str] = {}  # path of an index file -> its table
    lost = set()
    with ThreadPoolExecutor(1 if folder.is_local else 16) as pool:
        parts = pool.map(partial(_part, folder), view.fresh)
        for name, (part, wrong, unread) in zip(view.fresh, parts, strict=True):
            found += wrong
            bad |= unread
            if part is None:
                lost.add(name)
                bad |= {path: table for table, paths in view.files.items() if (path := part_path(table, name)) in paths}
    for file in view.snapshot.files if view.snapshot else ():
        wrong, readable = _snapshot_file(folder, file)
        found += ((folder.url_of(file.path), what) for what in wrong)
        if not readable:
            bad[file.path] = file.table
    if view.snapshot:
        path = snapshot_path(view.snapshot.number)
        units = sum(file.rows for file in view.snapshot.of("units"))
        if units != view.snapshot.parts or folder.read(path) != view.snapshot.to_json():
            found.append((folder.url_of(path), OTHER_CONTENT))
    names = frozenset(view.fresh) | covered
    found += _orphans(folder, names)
    found += _kinds(folder, names)
    sound = View(
        folder=folder,
        snapshot=view.snapshot,
        fresh=tuple(name for name in view.fresh if name not in lost),
        files={table: left for table, paths in view.files.items() if (left := tuple(p for p in paths if p not in bad))},
    )
    return Sound(view=sound, unread=frozenset(bad.values()), lost=frozenset(lost), names=names), found


def _view(folder: Folder) -> tuple[View, frozenset[str]]:
    """The manifest as it is, and the parts that its snapshot covers."""
    try:
        view = Manifest(folder).view()
        return view, Snapshots(folder).covered_by(view.snapshot) if view.snapshot else frozenset()
    except UserError:
        snapshot = Snapshots(folder).newest()
        if snapshot is None:
            raise
        covered = _covered_by_books(folder, snapshot)
        if not covered:
            raise
    listing = folder.names(f"{MANIFEST}/")
    names = (path[len(UNITS) + 1 : -len(".parquet")] for path in listing if path.startswith(f"{UNITS}/"))
    fresh = tuple(name for name in names if name not in covered)
    files: dict[str, list[str]] = {}
    for file in snapshot.files:
        files.setdefault(file.table, []).append(file.path)
    own = {f"{name}.parquet" for name in fresh}
    for path in listing:
        table, _, name = path[len(MANIFEST) + 1 :].partition("/")
        if table not in RESERVED and name in own:
            files.setdefault(table, []).append(path)
    frozen = {table: tuple(paths) for table, paths in files.items()}
    return View(folder=folder, snapshot=snapshot, fresh=fresh, files=frozen), covered


def _covered_by_books(folder: Folder, snapshot: Snapshot) -> frozenset[str]:
    """What a snapshot covers, by its books: where the list of names itself is lost."""
    names: set[str] = set()
    for file in snapshot.of("books"):
        with contextlib.suppress(*UNREADABLE), folder.open(file.path) as stream:
            names.update(pq.read_table(stream, columns=["unit"])["unit"].to_pylist())
    return frozenset(names)


def _part(folder: Folder, name: str) -> tuple[ReadPart | None, list[Found], dict[str, str]]:
    """A units part with what is wrong with it and its index files, and those that can't be read."""
    where = folder.url_of(part_path("units", name))
    try:
        part = read_part(folder, name)
        rows = part.shards.select(SHARDS.names).cast(SHARDS)
        _check_values(rows, "shards")
        found, unread = [(where, what) for what in _account(part)], {}
        if not _is_canonical(folder.read(part_path("units", name)), rows):
            found.append((where, OTHER_CONTENT))
    except UserError as error:
        return None, [(where, _told(error))], {}
    except UNREADABLE as error:
        return None, [(where, f"is damaged: {_line(error)}")], {}
    for table, rows in part.rows.items():
        path = part_path(table, name)
        wrong, readable = _index_file(folder, table, path, rows, part.files.get(path))
        found += ((folder.url_of(path), what) for what in wrong)
        if not readable:
            unread[path] = table
    return part, found, unread


def _is_canonical(data: bytes, rows: pa.Table) -> bool:
    """Whether these are the bytes in which we write the part: the hash of a units part stands nowhere, but its bytes
    follow from its content. Unknown, and so True, for one that another version of Arrow wrote."""
    metadata = pq.read_metadata(pa.BufferReader(data))
    again = write_parquet(rows, metadata={BOOKS_KEY: metadata.metadata[BOOKS_KEY]})
    return again == data or pq.read_metadata(pa.BufferReader(again)).created_by != metadata.created_by


def _check_values(rows: pa.Table | pa.RecordBatch, table: str) -> None:
    """Raises ValueError or ArrowException for rows of another schema than declared, or with values that can't be."""
    rows.validate(full=True)
    for field in (ALWAYS | TABLES | {"units": UNIT_NAMES}).get(table, rows.schema):
        column = rows.column(field.name)
        if column.type != field.type:
            raise ValueError(f"column {field.name} is of type {column.type}")
        if column.null_count and field.name in NEEDED.get(table, ()):
            raise ValueError(f"column {field.name} has nulls")


def _account(part: ReadPart) -> Iterator[str]:
    """What a units part says of itself, against itself."""
    try:
        part.books.balance(part.stage)
    except UserError as error:
        yield error.what
    documents, rejected = part.rows.get("documents", 0), part.rows.get("rejected", 0)
    shards = sum(part.shards["documents"].to_pylist())
    if shards != documents:
        yield f"its shards hold {shards} documents, its index {documents}"
    if part.shards.num_rows and part.books.accepted != documents:
        yield f"its books accept {part.books.accepted} documents, its index holds {documents}"
    if sum(part.books.rejected.values()) != rejected:
        yield f"its books reject {sum(part.books.rejected.values())}, its index {rejected}"


def _index_file(folder: Folder, table: str, path: str, rows: int, sha256: str | None) -> tuple[list[str], bool]:
    """What is wrong with an index file of a part, and whether its rows can be read."""
    try:
        data = folder.read(path)
    except Missing:
        return ["is missing"], False
    wrong = [OTHER_CONTENT] if hashlib.sha256(data).hexdigest() != sha256 else []
    try:
        found = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        if wrong:
            _check_values(found, table)
    except UNREADABLE as error:
        return [*wrong, f"is damaged: {_line(error)}"], False
    if found.num_rows != rows:
        wrong.append(f"holds {found.num_rows} rows, its unit committed {rows}")
    return wrong, True


def _snapshot_file(folder: Folder, file: SnapshotFile) -> tuple[list[str], bool]:
    """What is wrong with a file of a snapshot, and whether its rows can be read."""
    try:
        with folder.open(file.path) as stream:
            size, sha256 = size_and_sha256(stream)
            if (size, sha256) == (file.bytes, file.sha256):
                return [], True
            stream.seek(0)
            rows = 0
            for batch in pq.ParquetFile(stream).iter_batches():
                _check_values(batch, file.table)
                rows += batch.num_rows
    except Missing:
        return ["is missing"], False
    except UNREADABLE as error:
        return [f"is damaged: {_line(error)}"], False
    return [f"has other content than its snapshot says ({rows} rows instead of {file.rows})"], True


def _orphans(folder: Folder, names: frozenset[str]) -> Iterator[Found]:
    for path in folder.names(f"{MANIFEST}/"):
        table, _, name = path[len(MANIFEST) + 1 :].partition("/")
        if table not in RESERVED and name.removesuffix(".parquet") not in names:
            yield folder.url_of(path), "belongs to no committed part"


def _kinds(folder: Folder, names: Iterable[str]) -> Iterator[Found]:
    """The files that say what the hashes in the units' names stand for."""
    for key in sorted({name.rpartition(".")[2] for name in names if is_unit_name(name)}):
        path = f"{KINDS}/{key}.json"
        try:
            if kinds_hash(json.loads(folder.read(path))) != key:
                yield folder.url_of(path), "names other kinds than its hash stands for"
        except Missing:
            yield folder.url_of(path), "is missing"
        except (ValueError, TypeError) as error:
            yield folder.url_of(path), f"is damaged: {_line(error)}"


def _told(error: UserError) -> str:
    return error.what if error.value is None else f"{error.what} ({_line(error.value)})"


def _line(error: object) -> str:
    """The first line of an error, short."""
    return str(error).strip().split("\n")[0][:200]
