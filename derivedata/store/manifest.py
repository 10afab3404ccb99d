"""The manifest: what an output holds, as tables without text, and the summary people read.

    from derivedata.store.manifest import Manifest
    Manifest("out").summary().styles        # a Polars frame: documents, tokens, bytes by strategy and style

Everything is read from one consistent view: each committed part once, from the newest snapshot or on its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from derivedata.errors import UserError
from derivedata.store import compaction
from derivedata.store.books import Books
from derivedata.store.kinds import Kinds
from derivedata.store.parts import ReadPart, read_part
from derivedata.store.paths import Folder, Missing
from derivedata.store.snapshots import Snapshot, Snapshots
from derivedata.store.summary import Summary, summarise
from derivedata.store.tables import BOOKS, MANIFEST, RESERVED, SHARDS, TABLES, UNIT_NAMES, UNITS, part_path
from derivedata.store.units import Unit, is_unit_name

if TYPE_CHECKING:
    import polars as pl
    import pyarrow.dataset as ds
    from pyarrow import fs

Result = TypeVar("Result")

# Tables every output has, though they may be empty; a stage's own tables are found in the output.
ALWAYS = {"shards": SHARDS, "documents": TABLES["documents"], "rejected": TABLES["rejected"], "books": BOOKS}


@dataclass(frozen=True)
class View:
    """One consistent look at a manifest: the newest snapshot and the committed parts it does not cover.

    files: paths of the Parquet files of each table that stands in files.
    """

    folder: Folder
    snapshot: Snapshot | None
    fresh: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]]

    @cached_property
    def parts(self) -> list[ReadPart]:
        """The fresh units parts, read (many at a time where each costs a round trip)."""
        if self.folder.is_local or len(self.fresh) < 4:
            return [read_part(self.folder, name) for name in self.fresh]
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda name: read_part(self.folder, name), self.fresh))

    def schema(self, table: str) -> pa.Schema:
        """The schema of a table: as declared, or as its files have it."""
        known = ALWAYS | TABLES | {"units": UNIT_NAMES}
        if table in known:
            return known[table]
        import pyarrow.parquet as pq

        if table not in self.files:
            raise UserError("no such table", value=table, remedy=f"there are {', '.join(sorted(self.tables))}")
        with self.folder.open(self.files[table][-1]) as file:
            return pq.read_schema(file).remove_metadata()

    @property
    def tables(self) -> set[str]:
        """Names of all tables of this output."""
        return set(ALWAYS) | (set(self.files) - {"units"})

    def dataset(self, table: str) -> ds.Dataset:
        """A lazy dataset over the files of a table: columns and filters are pushed down to Parquet."""
        import pyarrow.dataset as ds

        schema = self.schema(table)
        rest = self.rest(table)
        files = self.files.get(table, ())
        datasets = []
        if files:
            system, paths = _arrow_files(self.folder, files)
            datasets.append(ds.dataset(paths, schema=schema, format="parquet", filesystem=system))
        if rest is not None:
            datasets.append(ds.dataset(rest))
        if not datasets:
            return ds.dataset(schema.empty_table())
        return datasets[0] if len(datasets) == 1 else ds.dataset(datasets)

    def table(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A whole table in memory."""
        return self.dataset(table).to_table(columns=list(columns) if columns else None)

    def rest(self, table: str) -> pa.Table | None:
        """What a table holds beside its files: the rows that stand in the fresh units parts."""
        if not self.fresh or table not in ("shards", "units", "books"):
            return None
        if table == "shards":
            return pa.concat_tables([part.shards.select(SHARDS.names) for part in self.parts]).cast(SHARDS)
        if table == "units":
            return pa.concat_tables([part.unit_table() for part in self.parts])
        return pa.concat_tables([part.books_table() for part in self.parts])

    def books(self) -> dict[str, Books]:
        """The sum of the books by stage."""
        total = dict(self.snapshot.books) if self.snapshot else {}
        for part in self.parts:
            total[part.stage] = total.get(part.stage, Books()) + part.books
        return total


class Manifest:
    """The manifest of one output folder. Frames are Polars frames; tables with many rows are better scanned."""

    def __init__(self, folder: Folder | str | os.PathLike) -> None:
        self.folder = folder if isinstance(folder, Folder) else Folder(folder)
        self._snapshots = Snapshots(self.folder)

    def view(self) -> View:
        """A consistent view of what is committed now. Raises UserError where there is no manifest."""
        # Units before the snapshot: a snapshot is there before the parts it covers are removed.
        start, end = len(UNITS) + 1, -len(".parquet")
        for _ in range(10):
            units = [path[start:end] for path in self.folder.names(f"{UNITS}/") if path.endswith(".parquet")]
            snapshot = self._snapshots.newest()
            try:
                covered = self._snapshots.covered_by(snapshot) if snapshot and units else frozenset()
            except Missing:  # there is a newer one by now, or damage, which `newest` or the last try says
                continue
            fresh = tuple(name for name in units if name not in covered)
            # Units before their tables: those are written first. They are only removed after a newer snapshot.
            listing = set(self.folder.names(f"{MANIFEST}/")) if fresh or snapshot is None else set()
            if not fresh or self._snapshots.newest() == snapshot:
                break
        else:
            raise UserError("a snapshot of the manifest is damaged, or changes without end", where=self.folder.url)
        if snapshot is None and not listing:
            raise UserError("no manifest", where=self.folder.url, remedy="name an output folder of derivedata")
        files: dict[str, list[str]] = {}
        for file in snapshot.files if snapshot else ():
            files.setdefault(file.table, []).append(file.path)
        tables = {path.split("/")[1] for path in listing if path.count("/") == 2} - RESERVED if fresh else set()
        for table in sorted(tables):
            found = [path for name in fresh if (path := part_path(table, name)) in listing]
            if found:
                files.setdefault(table, []).extend(found)
        frozen = {table: tuple(paths) for table, paths in files.items()}
        return View(folder=self.folder, snapshot=snapshot, fresh=fresh, files=frozen)

    def consistently(self, look: Callable[[View], Result]) -> Result:
        """`look` at a view; again at a newer one when compaction removes its files meanwhile.

        Raises:
            UserError: a file of the manifest is damaged.
        """
        for attempt in range(6):
            try:
                return look(self.view())
            except FileNotFoundError:
                if attempt == 5:
                    raise
            except pa.ArrowInvalid as error:
                if "Parquet" not in str(error):
                    raise
                remedy = "`derivedata verify` names all that is wrong, with --repair it mends what it can"
                what = "the manifest is damaged"
                raise UserError(what, where=self.folder.url, value=str(error), remedy=remedy) from error
        raise AssertionError("unreachable")

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table (shards, documents, rejected, books, units, or a stage's own) as Arrow."""
        return self.consistently(lambda view: view.table(name, columns))

    def frame(self, name: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """A table as a Polars frame."""
        import polars as pl

        return pl.from_arrow(self.table(name, columns))

    def scan(self, name: str) -> pl.LazyFrame:
        """A table as a lazy Polars frame, for what is larger than memory."""
        import polars as pl

        return pl.scan_pyarrow_dataset(self.view().dataset(name))

    def shards(self) -> pl.DataFrame:
        """One row a file of documents (columns: tables.SHARDS)."""
        return self.frame("shards")

    def documents(self) -> pl.DataFrame:
        """One row a document, without text (columns: tables.DOCUMENTS)."""
        return self.frame("documents")

    def rejected(self) -> pl.DataFrame:
        """One row a rejected input row or generation (columns: tables.REJECTED)."""
        return self.frame("rejected")

    def units(self) -> pl.DataFrame:
        """One row a committed part: name, stage, and the files it brought beside its shards."""
        return self.frame("units")

    def books(self) -> dict[str, Books]:
        """The books by stage."""
        return self.consistently(lambda view: view.books())

    def tokens_by_unit(self, stage: str = "generation") -> dict[Unit, int | None]:
        """Tokens in the shards of each committed unit of a stage: 0 without shards, None with an uncounted one."""
        units, rows = self.consistently(
            lambda view: (view.table("units", ["name", "stage"]), view.table("shards", ["unit", "tokens"]))
        )
        found: dict[str, int | None] = {
            name: 0
            for name, its in zip(units["name"].to_pylist(), units["stage"].to_pylist(), strict=True)
            if its == stage and is_unit_name(name)
        }
        for name, tokens in zip(rows["unit"].to_pylist(), rows["tokens"].to_pylist(), strict=True):
            if name in found:
                known = found[name]
                found[name] = None if tokens is None or known is None else known + tokens
        kinds = Kinds(self.folder)
        return {kinds.unit(name): tokens for name, tokens in found.items()}

    def summary(self) -> Summary:
        """What the output holds, by strategy and style, with rejects by reason and the books."""
        return self.consistently(summarise)

    def compact(self, *, at_least: int = 1, grace: float = compaction.GRACE) -> int:
        """See `compaction.compact`."""
        return compaction.compact(self.folder, at_least=at_least, grace=grace)


def _arrow_files(folder: Folder, paths: Sequence[str]) -> tuple[fs.FileSystem, list[str]]:
    """Arrow's file system for the folder, and the paths as it wants them."""
    from pyarrow import fs

    if folder.is_local:
        return fs.LocalFileSystem(), [folder.full(path) for path in paths]
    return fs.PyFileSystem(fs.FSSpecHandler(folder.fs)), [folder.full(path) for path in paths]
