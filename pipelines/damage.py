"""From what `verify` found wrong to what has to be done again: which parts, which files, which records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from derivedata.errors import UserError
from derivedata.pipelines.source import INPUT, INVENTORY
from derivedata.pipelines.verify import Problem
from derivedata.pipelines.verify_manifest import Sound
from derivedata.pipelines.verify_records import CARD
from derivedata.store.kinds import ROOM as KINDS
from derivedata.store.ledger import Ledger
from derivedata.store.paths import Folder, Missing
from derivedata.store.runs import CURRENT, HISTORY
from derivedata.store.snapshots import SNAPSHOTS
from derivedata.store.tables import MANIFEST, RESERVED

QUARANTINE = "quarantine"
# Rooms of files that belong to a part, which is in their names.
ROOMS = ("documents/", "rejected/", "rollouts/")
_SUFFIX = re.compile(r"\.(jsonl\.zst|jsonl\.gz|parquet)$")
_UNIT = re.compile(r"\d{6,}\.\d{6,}-\d{6,}\.r\d+-\d+\.[0-9a-f]{8}")
_INPUT = re.compile(rf"{INPUT}(-[0-9a-f]{{32}})?")


@dataclass(kw_only=True, slots=True)
class Damage:
    """What has to be done again or put in order.

    parts: names of parts to make anew. snapshot_files: files of the newest snapshot that can't be read.
    strays: files that belong to nothing. kinds, runs, card, inventory: whether these are damaged.
    whole: problems that show over the whole output only. beyond: problems that no repair of the output mends.
    """

    parts: set[str] = field(default_factory=set)
    snapshot_files: set[str] = field(default_factory=set)
    strays: set[str] = field(default_factory=set)
    kinds: bool = False
    runs: bool = False
    card: bool = False
    inventory: bool = False
    whole: list[Problem] = field(default_factory=list)
    beyond: list[Problem] = field(default_factory=list)


def part_of(path: str) -> str | None:
    """The part that a file of the output belongs to, by its name; None for files that belong to none."""
    stem = _SUFFIX.sub("", path.rpartition("/")[2])
    if match := _UNIT.search(stem):
        return match[0] if stem.endswith(match[0]) else None
    return stem if _INPUT.fullmatch(stem) else None


def is_input(name: str) -> bool:
    """Whether a part says what the rows of the input became."""
    return _INPUT.fullmatch(name) is not None


def assess(folder: Folder, problems: Iterable[Problem], sound: Sound) -> Damage:
    """Sort problems by what cures them."""
    damage, root = Damage(), folder.url.rstrip("/")
    names = committed_names(folder, sound)
    for problem in problems:
        where = problem.where.rstrip("/")
        if where == root:
            damage.whole.append(problem)
        elif where.startswith(f"{root}/"):
            _sort(damage, where[len(root) + 1 :], problem, names)
        else:
            damage.beyond.append(problem)
    if damage.snapshot_files:
        damage.parts.update(_short(sound, damage.snapshot_files, names))
    return damage


def _sort(damage: Damage, path: str, problem: Problem, names: frozenset[str]) -> None:
    """Sort a problem of a file of the output."""
    room = path.split("/", maxsplit=1)[0]
    if path.startswith(f"{SNAPSHOTS}/") and path.endswith(".parquet"):
        damage.snapshot_files.add(path)
    elif path.startswith(ROOMS) or (room == MANIFEST and path.endswith(".parquet")):
        _sort_file(damage, path, problem, names)
    elif path.startswith(f"{KINDS}/"):
        damage.kinds = True
    elif path == CURRENT or path.startswith(f"{HISTORY}/"):
        damage.runs = True
    elif path in (CARD, INVENTORY):
        damage.card, damage.inventory = damage.card or path == CARD, damage.inventory or path == INVENTORY
    elif room in (MANIFEST, "rejected"):
        damage.whole.append(problem)
    else:
        damage.beyond.append(problem)


def _sort_file(damage: Damage, path: str, problem: Problem, names: frozenset[str]) -> None:
    """Sort a problem of a file that should belong to a part."""
    name, stem = part_of(path), _SUFFIX.sub("", path.rpartition("/")[2])
    if name is None and stem in names:
        damage.beyond.append(problem)  # a part of another command, which makes it again
    elif name is None or (name not in names and _clashes(name, names)):
        damage.strays.add(path)
    else:
        damage.parts.add(name)


def _clashes(name: str, names: frozenset[str]) -> bool:
    """Whether a unit that is not committed shares its chunk with committed ones that it can't stand beside: what a
    writer left that lost a race. Boxes of one chunk that differ are told apart by the stage that fills them."""
    if is_input(name):
        return False
    chunk, span, rewrites, kinds = name.split(".")
    first, stop = map(int, span.split("-"))
    low, high = map(int, rewrites[1:].split("-"))
    for other in names:
        if other.startswith(f"{chunk}.") and other.endswith(f".{kinds}"):
            _, its_span, its_rewrites, _ = other.split(".")
            its_first, its_stop = map(int, its_span.split("-"))
            its_low, its_high = map(int, its_rewrites[1:].split("-"))
            if first < its_stop and its_first < stop and low < its_high and its_low < high:
                return True
    return False


def committed_names(folder: Folder, sound: Sound) -> frozenset[str]:
    """Names of all parts that are committed, as far as the manifest can be read: the snapshot's own list, or else what
    its books and shards name."""
    try:
        return frozenset(Ledger(folder).committed_names()) | sound.lost
    except (UserError, Missing):
        view = sound.view
        names = set(view.fresh) | sound.lost
        for table, column in (("units", "name"), ("shards", "unit"), ("books", "unit")):
            names.update(view.table(table, [column])[column].to_pylist())
        return frozenset(names)


def _short(sound: Sound, lost: set[str], names: frozenset[str]) -> Iterator[str]:
    """Compacted parts that had rows in the lost files; all that may have had some, where that can't be told."""
    covered = names - set(sound.view.fresh) - sound.lost
    tables = {re.sub(r"-\d+\.parquet$", "", path).rpartition("-")[2] for path in lost}
    if tables != {"documents"}:
        yield from (name for name in covered if part_of(name) is not None)
        return
    view = sound.view
    there = Counter(view.table("documents", ["shard"])["shard"].to_pylist())
    for row in view.table("shards", ["path", "unit", "documents"]).to_pylist():
        if row["unit"] in covered and there[row["path"]] != row["documents"]:
            yield row["unit"]


def all_parts(folder: Folder, sound: Sound) -> set[str]:
    """Every part that the output has or had, by the manifest and by the names of its files."""
    found = set(committed_names(folder, sound))
    for room in (*ROOMS, f"{MANIFEST}/"):
        for path in folder.names(room):
            if room != f"{MANIFEST}/" or path.split("/")[1] not in RESERVED - {"units"}:
                name = part_of(path)
                if name is not None and (name in found or not _clashes(name, frozenset(found))):
                    found.add(name)
    return found
