"""The ledger: from finished requests to a committed unit, exactly once, whoever is killed and whoever races.

    journal segments -> decision (create-if-absent) -> files (create-if-absent) -> units part (create-if-absent)

The decision settles which journalled outcome of each request counts, so that everything after it is a function of the
decision alone and may be done by anyone, any number of times. The units part is the commit point.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

from derivedata.errors import UserError
from derivedata.store import journal as journals
from derivedata.store.adopt import adopt
from derivedata.store.compaction import compact
from derivedata.store.content import file_sha256, same_rows
from derivedata.store.decision import ROOM, Decision, decision_path
from derivedata.store.journal import Journal
from derivedata.store.kinds import Kinds
from derivedata.store.paths import Folder, Missing
from derivedata.store.snapshots import Snapshots
from derivedata.store.tables import (
    BOOKS_KEY,
    SHARDS,
    UNITS,
    Part,
    ShardEntry,
    part_path,
    rows_to_table,
    write_parquet,
)
from derivedata.store.units import Unit, is_unit_name

# After so many commits of one writer the manifest is compacted, so that listings stay short however long a run is.
COMPACT_EVERY = 500
AT_ONCE = 8  # files of a commit that are on their way to object storage together


class AlreadyCommitted(Exception):
    """Another writer committed the unit while we worked on it: drop what we have and go on with the next."""


class Ledger:
    """The progress of one output folder, as one writer sees and changes it. Holds no locks and needs none."""

    def __init__(self, folder: Folder, writer: str | None = None) -> None:
        self.folder = folder
        self.writer = writer or journals.writer_name()
        self.snapshots = Snapshots(folder)
        self.kinds = Kinds(folder)
        self._commits = 0

    # -- what is there ------------------------------------------------------------------------------------------

    def committed(self) -> list[Unit]:
        """All committed units, sorted: one listing of the parts, the newest snapshot's names, the kinds files."""
        units = [self.kinds.unit(name) for name in self.committed_names() if is_unit_name(name)]
        # The same order as the units' own, in a third of the time.
        return sorted(units, key=attrgetter(*Unit.__slots__))

    def committed_names(self, prefix: str = "") -> set[str]:
        """Names of all parts that count (units and the parts of other stages) that begin with `prefix`."""
        # Parts first: one that compaction removes between the two listings is in the snapshot read afterwards.
        start, end = len(UNITS) + 1, -len(".parquet")
        names = {path[start:end] for path in self.folder.names(f"{UNITS}/{prefix}") if path.endswith(".parquet")}
        return names.union(self.snapshots.covered_under(prefix))

    def is_committed(self, name: str) -> bool:
        """Whether the part `name` (a unit's name) counts."""
        # In this order: compaction makes the snapshot durable before it removes the part.
        path = part_path("units", name)
        # To object storage a listing is one request, and a look for what is not there two.
        there = self.folder.exists(path) if self.folder.is_local else path in self.folder.names(path)
        return there or name in self.snapshots.covered()

    def started(self) -> list[Unit]:
        """Units with a journal or a decision that are not committed: give them to `units.missing`, and finish those
        of `decisions()` first."""
        names = {path.split("/")[1] for path in self.folder.names(f"{journals.ROOM}/")}
        names |= set(self._decided_names())
        names -= self.committed_names()
        return sorted(self.kinds.unit(name) for name in names if is_unit_name(name))

    def decisions(self) -> dict[Unit, Decision]:
        """Decided units that are not committed; they need no model, only materialising. A decision that overlaps a
        committed unit in part (two commands with unlike extents were killed) can't be committed and is forgotten."""
        found = {}
        committed = self.committed_names()
        for name in self._decided_names():
            if name in committed:
                continue
            decision = self._read_decision(name)
            if decision is not None:
                if self._overlapping(decision.unit, committed):
                    self._clear(decision.unit)
                else:
                    found[decision.unit] = decision
        return found

    # -- the protocol -------------------------------------------------------------------------------------------

    def journal(self, unit: Unit, **settings: object) -> Journal:
        """The unit's journal, for this writer. Settings: seconds, max_bytes."""
        self.kinds.publish(unit)
        return Journal(self.folder, unit.name, self.writer, **settings)

    def decide(self, unit: Unit, totals: Mapping | None = None, *, keys: int | None = None) -> Decision | None:
        """Settle the outcome of a unit whose every request has a flushed record; None when it (or what a
        budget leaves of it) is committed already.

        keys: how many keys the unit must have at least (an earlier run may have gone further than this one, before a
        budget ended it). The loser of a race gets the winner's decision.
        Raises UserError when records are missing, or when another command works on documents of this unit.
        """
        if self._is_settled(unit):
            self._clear(unit)
            return None
        self.kinds.publish(unit)
        path = decision_path(unit.name)
        segments, found = self._useful_segments(unit)
        if keys is not None and found < keys:
            if self._is_settled(unit):
                return None
            decision = self._read_decision(unit.name)
            if decision is None:
                raise UserError(
                    f"unit {unit.name} has {found} finished requests of {keys}",
                    where=self.folder.url_of(journals.ROOM),
                    remedy="run the same command again",
                )
            return self._undisputed(decision)
        decision = Decision(unit=unit, segments=segments, keys=found, totals=totals or {}, writer=self.writer)
        created = self.folder.create(path, decision.to_json())
        # The winner of an earlier race may have committed and cleared away between our look and our decision.
        if self._is_settled(unit):
            self._clear(unit)
            return None
        if not created:
            settled = self._read_decision(unit.name)
            if settled is None:
                return None if self._is_settled(unit) else self.decide(unit, totals, keys=keys)
            decision = settled
        return self._undisputed(decision)

    def records(self, decision: Decision) -> Iterator[dict]:
        """The decided records, one a key. Raises AlreadyCommitted when another writer has finished the unit, UserError
        when a decided segment is lost or torn."""
        seen: set[str] = set()
        for path in decision.segments:
            try:
                records = journals.read_segment(self.folder, path)
            except Missing:
                records = None
            if records is None:
                if self._is_settled(decision.unit):
                    raise AlreadyCommitted(decision.unit.name)
                raise UserError(
                    "a decided journal segment is lost or torn",
                    where=self.folder.url_of(path),
                    remedy=f"remove {ROOM}/{decision.unit.name}.json to have its requests made again",
                )
            for record in records:
                if record["key"] not in seen:
                    seen.add(record["key"])
                    yield record
        if len(seen) != decision.keys:
            raise UserError(
                f"decided segments hold {len(seen)} keys instead of {decision.keys}",
                where=self.folder.url_of(decision_path(decision.unit.name)),
                remedy="remove that file to have its requests made again",
            )

    def commit(self, unit: Unit, part: Part, decision: Decision | None = None) -> bool:
        """Create the unit's files and, last, its units part; then clear journal and decision away.

        True: this call committed it. False: it was committed already. A stage whose result needs no journal commits
        without a decision. The unit may be the part of the decided one that a budget leaves; the rest is then open.
        Raises UserError when a file of the unit's name holds other documents.
        """
        if decision is not None and not unit.within(decision.unit):
            raise ValueError(f"decision of {decision.unit.name} for {unit.name}")
        self.kinds.publish(unit)
        other = self._overlapping(unit, self.committed_names(f"{unit.chunk:06d}."))
        if other:
            raise self._overlap(unit, other)
        created = self.publish(unit.name, part)
        self._clear(decision.unit if decision else unit)
        self._commits += created
        if created and self._commits % COMPACT_EVERY == 0:
            try:
                compact(self.folder, at_least=COMPACT_EVERY)
            except UserError as error:  # the commit stands; whoever reads or verifies the manifest meets this again
                warnings.warn(error.line, stacklevel=2)
        return created

    def publish(self, name: str, part: Part) -> bool:
        """Commit a part under any name (input inventories, stages without units); see `commit`."""
        if self.is_committed(name):
            return False
        try:
            shards, files = self._create_all(name, part)
        except UserError:
            if self.is_committed(name):
                return False
            raise
        rows = rows_to_table([entry.row(name) for entry in shards], SHARDS)
        account = {BOOKS_KEY: part.account(files)}
        return self.folder.create(part_path("units", name), write_parquet(rows, metadata=account))

    def discard(self, unit: Unit) -> None:
        """Forget a unit's finished requests and decision (never a commit)."""
        self._clear(unit)

    def sweep(self) -> int:
        """Remove journals and decisions that committed units left because a writer was killed or late; how many."""
        committed = self.committed_names()
        names = {path.split("/")[1] for path in self.folder.names(f"{journals.ROOM}/")} | set(self._decided_names())
        left = [
            n for n in names if n in committed or (is_unit_name(n) and self._overlapping(self.kinds.unit(n), committed))
        ]
        for name in left:
            self.folder.remove(decision_path(name))
            self.folder.remove_tree(f"{journals.ROOM}/{name}")
        return len(left)

    # -- inside -------------------------------------------------------------------------------------------------

    def _useful_segments(self, unit: Unit) -> tuple[tuple[str, ...], int]:
        """Segments that hold the first record of at least one key, and the number of keys."""
        seen: set[str] = set()
        useful = []
        for path in journals.segments(self.folder, unit.name):
            try:
                records = journals.read_segment(self.folder, path)
            except Missing:
                continue
            fresh = {record["key"] for record in records or ()} - seen
            if fresh:
                useful.append(path)
                seen |= fresh
        return tuple(useful), len(seen)

    def _is_settled(self, unit: Unit) -> bool:
        """Whether the unit, or a part of it that a budget left, is committed: its decision has been carried out."""
        names = self.committed_names(f"{unit.chunk:06d}.")
        return unit.name in names or any(is_unit_name(n) and self.kinds.unit(n).within(unit) for n in names)

    def _undisputed(self, decision: Decision) -> Decision:
        """The decision, unless a unit that overlaps it in part is decided or committed: then two commands with unlike
        extents write one output. Both write first and look afterwards, so at least one of them sees the other."""
        unit = decision.unit
        chunk = f"{unit.chunk:06d}."
        other = self._overlapping(unit, self.committed_names(chunk) | set(self._decided_names(chunk)))
        if other:
            if decision.writer == self.writer:
                self.folder.remove(decision_path(unit.name))
            raise self._overlap(unit, other)
        return decision

    def _overlapping(self, unit: Unit, names: set[str]) -> str | None:
        """One of `names` that shares keys with the unit and is not the unit itself."""
        chunk = f"{unit.chunk:06d}."
        for name in names:
            if (
                name.startswith(chunk)
                and name != unit.name
                and is_unit_name(name)
                and self.kinds.unit(name).overlaps(unit)
            ):
                return name
        return None

    def _overlap(self, unit: Unit, other: str) -> UserError:
        return UserError(
            f"unit {unit.name} overlaps {other}, which another command made",
            where=self.folder.url,
            remedy="stop the other command and run this one again",
        )

    def _decided_names(self, prefix: str = "") -> list[str]:
        start, end = len(ROOM) + 1, -len(".json")
        return [p[start:end] for p in self.folder.names(f"{ROOM}/{prefix}") if p.endswith(".json")]

    def _read_decision(self, name: str) -> Decision | None:
        path = decision_path(name)
        try:
            return Decision.from_json(self.folder.read(path))
        except Missing:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                "not a decision",
                where=self.folder.url_of(path),
                remedy="remove the file to have the unit decided again",
            ) from error

    def _create_all(self, name: str, part: Part) -> tuple[list[ShardEntry], dict[str, str]]:
        """The part's shards as they stand afterwards, and the hash of each other file; in any order, since none of
        them counts before the units part does."""
        tables = {part_path(table, name): rows for table, rows in sorted(part.tables.items()) if rows.num_rows}
        paths = [*sorted(part.files), *tables]
        # On object storage each takes a round trip, and they take it together.
        with ThreadPoolExecutor(1 if self.folder.is_local else AT_ONCE, "put") as pool:
            shards = pool.map(self._create_shard, part.shards)
            files = pool.map(self._create_file, *zip(*sorted(part.files.items()), strict=True)) if part.files else ()
            made = pool.map(lambda path: self._create_table(path, write_parquet(tables[path])), tables)
            return list(shards), dict(zip(paths, [*files, *made], strict=True))

    def _create_shard(self, entry: ShardEntry) -> ShardEntry:
        if self.folder.create_from(entry.path, entry.local):
            return entry
        return adopt(self.folder, entry)

    def _create_file(self, path: str, local: os.PathLike) -> str:
        """The sha256 of what stands at `path` afterwards."""
        if self.folder.create_from(path, local):
            return file_sha256(local)
        with open(local, "rb") as file:
            return self._settle(path, file.read())

    def _create_table(self, path: str, data: bytes) -> str:
        return hashlib.sha256(data).hexdigest() if self.folder.create(path, data) else self._settle(path, data)

    def _settle(self, path: str, data: bytes) -> str:
        # Nothing is committed yet, so a differing file is the same rows of another version, which stays, since its
        # writer may be about to commit its hash; or a leftover of a decision that was withdrawn, which goes, since ours
        # follows from the decision that stands.
        there = self.folder.read(path)
        if there != data and not same_rows(path, there, data):
            self.folder.replace(path, data)
            there = data
        return hashlib.sha256(there).hexdigest()

    def _clear(self, unit: Unit) -> None:
        # The decision goes first: a decision without its segments would look like lost work.
        self.folder.remove(decision_path(unit.name))
        self.folder.remove_tree(f"{journals.ROOM}/{unit.name}")
