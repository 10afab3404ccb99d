"""Snapshots: many small parts of the manifest compacted into a few large files, while others commit and read.

`manifest/snapshots/<n>/snapshot.json`, created if absent, is the commit point of snapshot n: it lists the files of each
table and covers every part that snapshot n - 1 covered. A part named in the newest snapshot counts there and not on its
own. So readers list the parts first and read the newest snapshot afterwards: whatever compaction removes in between is
in that snapshot, and nothing is seen twice. Files are removed only some time after the snapshot that replaces them, for
the sake of readers that still hold their names.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from derivedata.errors import UserError
from derivedata.store.books import Books
from derivedata.store.paths import Folder, Missing
from derivedata.store.tables import MANIFEST

SNAPSHOTS = f"{MANIFEST}/snapshots"


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotFile:
    """A Parquet file of a snapshot: its table, path relative to the output, rows, bytes, sha256 of the bytes."""

    table: str
    path: str
    rows: int
    bytes: int
    sha256: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """What snapshot `number` holds. parts: how many it covers. books: the sum of theirs by stage."""

    number: int
    parts: int
    files: tuple[SnapshotFile, ...]
    books: Mapping[str, Books] = field(default_factory=dict)

    def of(self, table: str) -> list[SnapshotFile]:
        return [file for file in self.files if file.table == table]

    def to_json(self) -> bytes:
        files = [{name: getattr(file, name) for name in SnapshotFile.__slots__} for file in self.files]
        books = {stage: books.to_dict() for stage, books in self.books.items()}
        fields = {"version": 1, "number": self.number, "parts": self.parts, "files": files, "books": books}
        return json.dumps(fields, sort_keys=True, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Snapshot:
        try:
            fields = json.loads(data)
            return cls(
                number=fields["number"],
                parts=fields["parts"],
                files=tuple(SnapshotFile(**file) for file in fields["files"]),
                books={stage: Books.from_dict(books) for stage, books in fields["books"].items()},
            )
        except (ValueError, KeyError, TypeError) as error:
            raise UserError("not a snapshot of a manifest", where=where) from error


def snapshot_path(number: int) -> str:
    return f"{SNAPSHOTS}/{number:08d}/snapshot.json"


def snapshot_number(path: str) -> int | None:
    """The number of the snapshot whose snapshot.json `path` is; None for other files."""
    folder, _, name = path[len(SNAPSHOTS) + 1 :].partition("/")
    return int(folder) if name == "snapshot.json" and folder.isdigit() else None


class Snapshots:
    """The snapshots of an output. Keeps the newest one it has read: a snapshot never changes."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._newest: Snapshot | None = None
        self._covered: tuple[int, frozenset[str], list[str]] = (0, frozenset(), [])

    def newest(self) -> Snapshot | None:
        """The newest snapshot there is now; None when nothing was compacted yet."""
        for _ in range(10):
            numbers = [snapshot_number(path) for path in self.folder.names(f"{SNAPSHOTS}/")]
            number = max((n for n in numbers if n is not None), default=None)
            if number is None:
                return None
            if self._newest is None or self._newest.number != number:
                try:
                    self._newest = self.read(number)
                except Missing:  # removed since the listing, so there is a newer one
                    continue
            return self._newest
        raise UserError("the manifest changes faster than it can be read", where=self.folder.url)

    def read(self, number: int) -> Snapshot:
        path = snapshot_path(number)
        return Snapshot.from_json(self.folder.read(path), self.folder.url_of(path))

    def covered_under(self, prefix: str) -> list[str]:
        """Names of the parts in the newest snapshot that begin with `prefix`, sorted."""
        self.covered()
        names = self._covered[2]
        return names[bisect_left(names, prefix) : bisect_left(names, prefix + "\U0010ffff")]

    def covered(self) -> frozenset[str]:
        """Names of all parts in the newest snapshot."""
        for _ in range(10):
            newest = self.newest()
            if newest is None:
                self._covered = (0, frozenset(), [])
                return frozenset()
            try:
                return self.covered_by(newest)
            except Missing:  # removed since it was read, so there is a newer one
                continue
        raise UserError("a file of the newest snapshot is missing", where=self.folder.url_of(SNAPSHOTS))

    def covered_by(self, snapshot: Snapshot) -> frozenset[str]:
        """Names of all parts in `snapshot`. Raises Missing when its files are gone, UserError for a damaged one."""
        if self._covered[0] != snapshot.number:
            names: list[str] = []
            for file in snapshot.of("units"):
                names += self._names(file)
            self._covered = (snapshot.number, frozenset(names), sorted(names))
        return self._covered[1]

    def _names(self, file: SnapshotFile) -> list[str]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with self.folder.open(file.path) as source:
                return pq.read_table(source, columns=["name"])["name"].cast(pa.string()).to_pylist()
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise UserError(
                "a damaged file of a snapshot", where=self.folder.url_of(file.path), value=str(error)
            ) from error
