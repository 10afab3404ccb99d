"""How far a job is, from the files of its output alone: `derivedata status OUT`.

Works beside a running job on any machine that sees the output, and on one that died or ended: what is committed comes
from the ledger and the manifest, who lives from the leases, the pace from progress/, failures from the logs.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from derivedata.corpus.inventory import ShardInventory
from derivedata.errors import UserError
from derivedata.pipelines.executor import read_failures
from derivedata.pipelines.progress import RANKS
from derivedata.pipelines.source import INPUT, INVENTORY, keyed
from derivedata.store import journal as journals
from derivedata.store.books import Books
from derivedata.store.lease import ROOM as LEASES
from derivedata.store.lease import is_live
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.masking import mask_command
from derivedata.store.paths import Folder
from derivedata.store.runs import RunRecord, current_run
from derivedata.store.units import Unit, missing

RUNNING, KILLED = "running", "killed"
SILENT_S = 60.0  # a living rank writes every second locally, every half minute to object storage
SLOW = 0.5  # of the median pace of all ranks
MOST_SEGMENTS = 256  # of journals that are read for what they hold; more are estimated from these
STAGES = {"paraphrase": "generation", "difficulty": "rollouts"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """One task: what it has done, and how it stands beside the others."""

    rank: int
    done: int  # outcomes
    units: int  # committed
    silent: float  # seconds since it last wrote
    pace: float  # outcomes a second
    ended: bool
    trouble: str | None = None  # silent | slow


@dataclass(kw_only=True, slots=True)
class Status:
    """What can be said of an output; None: not known.

    state: running | killed | done | stopped | failed. writers: host and process of each that lives.
    chunks, chunks_done, chunks_begun: of the input, in whole. wanted: requests in all; planned: of committed units;
    waiting: finished requests that are not committed yet. rate: new tokens a second, while it runs or when it stopped.
    left: seconds, while it runs.
    """

    output: str
    job: str
    state: str
    run_id: str
    started: str
    ended: str | None
    command: list[str]
    model: str | None = None
    writers: list[str] = field(default_factory=list)
    chunks: int | None = None
    chunks_done: int | None = None
    chunks_begun: int | None = None
    documents: int = 0
    tokens: int | None = None
    tokens_wanted: int | None = None
    wanted: int | None = None
    planned: int = 0
    waiting: int = 0
    rate: float | None = None
    left: float | None = None
    books: Mapping[str, Books] = field(default_factory=dict)
    ranks: list[Rank] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        told = {name: getattr(self, name) for name in self.__slots__}
        told["books"] = {stage: books.to_dict() for stage, books in self.books.items()}
        told["ranks"] = [{name: getattr(rank, name) for name in Rank.__slots__} for rank in self.ranks]
        return told


def read_status(output: str) -> Status:
    """Look at an output. Raises UserError where there is none of ours."""
    folder = Folder(output)
    record = current_run(folder)
    if record is None:
        raise UserError("no run has begun here", where=folder.url, remedy="name an output folder of derivedata")
    writers = _writers(folder)
    state = RUNNING if writers else KILLED if record.status == RUNNING else record.status
    status = Status(
        output=folder.url,
        job=str(record.identity.get("job", "unknown")),
        state=state,
        run_id=record.run_id,
        started=record.started,
        ended=record.ended,
        command=mask_command(record.command),
        model=record.identity.get("model"),
        writers=writers,
    )
    _count_committed(status, folder)
    _count_wanted(status, folder, record)
    _look_at_ranks(status, folder)
    status.failures = read_failures(_logs(folder, record), record.run_id)
    return status


def _writers(folder: Folder) -> list[str]:
    """Who writes the output now."""
    found = []
    for path in folder.names(f"{LEASES}/"):
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            content = json.loads(folder.read(path))
            if is_live(content):
                found.append(f"process {content['pid']} on {content['host']}")
    return found


def _logs(folder: Folder, record: RunRecord) -> Folder:
    """Where the run's tasks log."""
    place = record.config.execution.get("logging_dir")
    return Folder(place) if place else Folder(folder.url_of("logs"))


def _count_committed(status: Status, folder: Folder) -> None:
    with contextlib.suppress(UserError):  # nothing is committed yet
        summary = Manifest(folder).summary()
        status.books, status.documents, status.tokens = summary.books, summary.documents, summary.tokens
    if (stage := STAGES.get(status.job)) in status.books:
        status.planned = status.books[stage].planned


def _count_wanted(status: Status, folder: Folder, record: RunRecord) -> None:
    """Chunks and requests of the whole job, and what of them is begun."""
    ledger = Ledger(folder)
    if status.job == "paraphrase":
        sizes = _paraphrase_sizes(folder, record)
    elif status.job == "difficulty" and INPUT in status.books:
        sizes = _difficulty_sizes(status.books[INPUT].planned, record.identity)
    else:
        return
    extent, identity = record.config.extent, record.identity
    kinds = tuple(extent.get("styles") or ("sample",))
    rewrites = extent.get("rewrites") or identity.get("samples") or 1
    status.tokens_wanted = extent.get("tokens")
    status.chunks = len(sizes)
    by_chunk: dict[int, list[Unit]] = {}
    for unit in ledger.committed():
        by_chunk.setdefault(unit.chunk, []).append(unit)
    status.chunks_done = sum(
        not missing(by_chunk.get(chunk, ()), chunk=chunk, documents=size, kinds=kinds, rewrites=rewrites)
        for chunk, size in enumerate(sizes)
    )
    started = ledger.started()
    status.chunks_begun = len({unit.chunk for unit in started})
    status.waiting = _journalled(folder, started)
    each = 1 if identity.get("style_mix") else len(kinds)
    status.wanted = sum(sizes) * rewrites * each


def _paraphrase_sizes(folder: Folder, record: RunRecord) -> list[int]:
    """Documents of each chunk that the run may use, in the seeded order."""
    try:
        inventories = [ShardInventory.from_dict(row) for row in json.loads(folder.read(INVENTORY))]
    except FileNotFoundError:
        return []  # the input is being counted
    seed, left = record.identity["seed"], record.config.extent.get("documents")
    spans = [
        (keyed(seed, f"{one.path}\n{span.first_row}"), span.documents) for one in inventories for span in one.chunks
    ]
    sizes = [documents for _, documents in sorted(spans)]
    if left is None:
        return sizes
    usable = []
    for documents in sizes:
        usable.append(min(documents, left))
        left -= usable[-1]
    return [documents for documents in usable if documents]


def _difficulty_sizes(problems: int, identity: Mapping[str, Any]) -> list[int]:
    size = identity["chunk_problems"]
    return [min(size, problems - first) for first in range(0, problems, size)]


def _journalled(folder: Folder, units: list[Unit]) -> int:
    """Finished requests in the journals of units that are not committed; of many segments only some are read."""
    paths = [path for unit in units for path in journals.segments(folder, unit.name)]
    counted = 0
    for path in paths[:MOST_SEGMENTS]:
        with contextlib.suppress(FileNotFoundError):
            counted += len(journals.read_segment(folder, path) or ())
    read = min(len(paths), MOST_SEGMENTS)
    return round(counted * len(paths) / read) if read else 0


def _look_at_ranks(status: Status, folder: Folder) -> None:
    """The tasks of the last pass, its pace, and how long the rest takes at it."""
    states, now = {}, time.time()
    for path in folder.names(f"{RANKS}/"):
        with contextlib.suppress(FileNotFoundError, ValueError):
            states[int(path.rpartition("/")[2].removesuffix(".json"))] = json.loads(folder.read(path))
    if not states:
        return
    counts: Counter[str] = Counter()
    for state in states.values():
        counts.update({name: value for name, value in state.items() if isinstance(value, (int, float))})
    began, last = min(one["started"] for one in states.values()), max(one["written"] for one in states.values())
    seconds = max(1e-3, last - began)
    status.rate = counts["generated"] / seconds if counts["generated"] else None
    status.ranks = _ranks(states, now, running=status.state == RUNNING)
    if status.state != RUNNING:
        return
    if status.tokens_wanted is not None and counts["fresh_tokens"]:
        left = max(0, status.tokens_wanted - (status.tokens or 0))
        status.left = left / (counts["fresh_tokens"] / seconds)
    elif status.wanted is not None and counts["fresh"]:
        left = max(0, status.wanted - status.planned - status.waiting)
        status.left = left / (counts["fresh"] / seconds)


def _ranks(states: Mapping[int, Mapping[str, Any]], now: float, *, running: bool) -> list[Rank]:
    paces = {
        rank: one.get("fresh", 0) / max(1e-3, one["written"] - one["started"]) for rank, one in sorted(states.items())
    }
    median = statistics.median(paces.values())
    found = []
    for rank, state in sorted(states.items()):
        silent, ended = max(0.0, now - state["written"]), bool(state.get("ended"))
        trouble = None
        if running and not ended:
            if silent > SILENT_S:
                trouble = "silent"
            elif len(states) > 2 and paces[rank] < SLOW * median:
                trouble = "slow"
        found.append(
            Rank(
                rank=rank,
                done=state.get("done", 0),
                units=state.get("units", 0),
                silent=silent,
                pace=paces[rank],
                ended=ended,
                trouble=trouble,
            )
        )
    return found
