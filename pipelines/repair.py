"""Mends an output: `derivedata verify OUT --repair` makes anew what is missing or damaged, and adds nothing else.

What is sound of a damaged unit goes into its journal, the unit is taken out of the manifest, its damaged files are
moved to quarantine/, and the stage that made it makes it again: from the journal alone where that is whole, with a
model where something is lost. Killed anywhere, the output is one whose run was interrupted: the same command goes on.

    from derivedata.pipelines.repair import repair_corpus
    repaired = repair_corpus("out")
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from derivedata.errors import UserError
from derivedata.pipelines.damage import (
    QUARANTINE,
    ROOMS,
    Damage,
    all_parts,
    assess,
    committed_names,
    is_input,
    part_of,
)
from derivedata.pipelines.executor import run_locally
from derivedata.pipelines.repair_job import Given, RepairJob, Salvaged, outside_of
from derivedata.pipelines.salvage import Witness
from derivedata.pipelines.serving import ENDPOINT, Listener, Serve, Silence
from derivedata.pipelines.verify import Verified, verify_corpus
from derivedata.pipelines.verify_manifest import Sound, read_manifest
from derivedata.pipelines.verify_records import Records, read_records
from derivedata.store.books import Books, BooksError
from derivedata.store.fingerprint import RunConfig
from derivedata.store.kinds import ROOM as KINDS
from derivedata.store.lease import Lease
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder, Missing
from derivedata.store.private import private_folder
from derivedata.store.restore import restore_snapshot
from derivedata.store.runs import HISTORY, RunRecord, new_run, new_run_id, save_run
from derivedata.store.units import Unit, is_unit_name, kinds_hash
from derivedata.store.withdraw import books_by_stage, withdraw

ROUNDS = 3  # each starts from what verify still finds
STAGES = {"paraphrase": "generation", "difficulty": "rollouts"}


@dataclass(kw_only=True, slots=True)
class Repaired:
    """What a repair did and left.

    parts: units and parts of the input that were made anew. asked: requests of theirs that were lost and made again.
    kept: requests whose outcome was still sound. quarantined: files that were moved away. restored: records and lists
    that were written anew. verified: the output as it is now. unfinished: the job itself never came to its end.
    """

    parts: list[str] = field(default_factory=list)
    asked: int = 0
    kept: int = 0
    quarantined: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    verified: Verified | None = None
    unfinished: bool = False


def repair_corpus(
    output: str,
    *,
    given: Given = Given(),  # noqa: B008 (frozen)
    count_tokens: bool = True,
    tasks: int = 1,
    workers: int = 1,
    listener: Listener | None = None,
    serve: Serve | None = None,
) -> Repaired:
    """Mend an output of paraphrase or difficulty.

    Args:
        output: the output folder or URL.
        given: where source, styles and model are now; by default where the run record says.
        count_tokens: count the tokens of every document again when looking for damage.
        tasks, workers: Datatrove tasks, and how many at a time.
        listener: hears about progress.
        serve: gives the endpoint to use, where something has to be asked for again; by default as the run had it.

    Raises:
        UserError: it can't be mended; in one line, with the file.
    """
    looking = {"source": given.source, "count_tokens": count_tokens, "tasks": tasks, "workers": workers}
    return _Repair(output, given, looking, listener or Silence(), serve).run()


class _Repair:
    def __init__(self, output: str, given: Given, looking: dict, listener: Listener, serve: Serve | None):
        self.output, self.given, self.looking = output, given, looking
        self.listener, self.serve = listener, serve
        self.folder = Folder(output)
        self.run_id = new_run_id()
        self.done = Repaired()
        self._job: RepairJob | None = None
        self._all_over = False  # whether all parts were made anew

    def run(self) -> Repaired:
        if not self.folder.names("manifest/") and not self.folder.names("documents/"):
            raise UserError("no manifest", where=self.folder.url, remedy="name an output folder of derivedata")
        with Lease(self.folder, self.run_id):
            if path := restore_snapshot(self.folder):
                self.done.restored.append(path)
            verified = self._verify()
            for _ in range(ROUNDS):
                if not verified.problems or not self._mend(verified):
                    break
                verified = self._verify()
        if self._is_short(verified):
            # A run that ended left more than there is now: parts are gone without a trace, and only the job knows them.
            self._open(read_records(self.folder)[0]).go_on(self.serve, self.listener)
            verified = self._verify()
        self.done.verified = verified
        return self.done

    def _is_short(self, verified: Verified) -> bool:
        """Whether all that is wrong is that a job which came to its end left more than there is."""
        records, _ = read_records(self.folder)
        history = self.folder.url_of(HISTORY)
        return (
            bool(verified.problems)
            and _job_is_done(records)
            and all(problem.where.startswith(history) for problem in verified.problems)
        )

    def _verify(self) -> Verified:
        with self.listener.track("looking for damage", lambda: None):
            return verify_corpus(self.output, **self.looking)

    def _mend(self, verified: Verified) -> bool:
        """Mend what was found; whether anything was done about it."""
        records, _ = read_records(self.folder)
        if records.current is None:
            raise UserError(
                "without a run record nobody knows how this output was made",
                where=self.folder.url_of("run.json"),
                remedy="put it back; until then nothing can be repaired",
            )
        before = len(self.done.restored)
        self._mend_records(records)
        self._mend_kinds(records.current)
        sound, _ = read_manifest(self.folder)
        damage = assess(self.folder, verified.problems, sound)
        if not (damage.parts or damage.strays or damage.card or damage.inventory):
            if len(self.done.restored) > before:
                return True
            if not damage.whole or self._all_over:
                self._refuse_others(records)
                return False
            # What only shows over the whole output is traced to no part: all are made anew, from what is sound.
            self._all_over = True
            damage.parts |= all_parts(self.folder, sound)
        job = self._open(records)
        self._quarantine(sorted(damage.strays))
        if damage.inventory:
            job.count_input(None)
            self.done.restored.append("plan/inventory.json")
        if damage.parts:
            self._make_again(job, damage, sound, records)
        if damage.card or damage.parts:
            job.close()
            self.done.restored += ["README.md"] if damage.card else []
        return True

    def _open(self, records: Records) -> RepairJob:
        if self._job is None:
            # Imported here: both bring what their whole job needs.
            from derivedata.pipelines.repair_difficulty import DifficultyRepair
            from derivedata.pipelines.repair_paraphrase import ParaphraseRepair

            jobs = {"paraphrase": ParaphraseRepair, "difficulty": DifficultyRepair}
            self._refuse_others(records)
            self._job = jobs[records.current.identity["job"]](self.folder, records.current, self.given, self.run_id)
        return self._job

    def _refuse_others(self, records: Records) -> None:
        name = records.current.identity.get("job")
        if name not in STAGES:
            remedy = f"`derivedata verify` names what is wrong; run `derivedata {name}` again with --restart"
            raise UserError(f"outputs of {name} are not repaired", where=self.folder.url, remedy=remedy)

    # Records and lists.

    def _mend_records(self, records: Records) -> None:
        """Write the record that can be believed to both its places."""
        for path in ("run.json", f"manifest/runs/{records.current.run_id}.json"):
            data = None
            with contextlib.suppress(Missing):
                data = self.folder.read(path)
            if data is None or not _is_same(data, records.current):
                save_run(self.folder, records.current)
                self.done.restored.append(path)

    def _mend_kinds(self, record: RunRecord) -> None:
        """Write what the hashes in the units' names stand for, where it can be found out."""
        names = sorted({*record.identity.get("styles", ()), "sample", "refine", "rescore"})
        known = {
            kinds_hash(kinds): kinds for n in range(1, len(names) + 1) for kinds in itertools.combinations(names, n)
        }
        wanted = {name.rpartition(".")[2] for name in map(part_of, self._all_files()) if name and is_unit_name(name)}
        for key in sorted(wanted & known.keys()):
            path, data = f"{KINDS}/{key}.json", json.dumps(list(known[key])).encode()
            with contextlib.suppress(Missing):
                if self.folder.read(path) == data:
                    continue
            self.folder.replace(path, data)
            self.done.restored.append(path)

    def _all_files(self) -> Iterator[str]:
        for room in (*ROOMS, "manifest/"):
            yield from self.folder.names(room)

    def _quarantine(self, paths: Sequence[str]) -> None:
        """Move files away; nothing that a person may want to look at is deleted."""
        for path in paths:
            with contextlib.suppress(Missing):
                self.folder.replace(f"{QUARANTINE}/{self.run_id}/{path}", self.folder.read(path))
                self.folder.remove(path)
                self.done.quarantined.append(path)

    # Parts.

    def _make_again(self, job: RepairJob, damage: Damage, sound: Sound, records: Records) -> None:
        ledger, witness = Ledger(self.folder), Witness(self.folder, sound)
        inputs = {name for name in damage.parts if is_input(name)}
        units = [ledger.kinds.unit(name) for name in sorted(damage.parts - inputs)]
        files: dict[str, list[str]] = {}
        for path in itertools.chain.from_iterable(self.folder.names(room) for room in ROOMS):
            if (name := part_of(path)) in damage.parts:
                files.setdefault(name, []).append(path)
        committed = committed_names(self.folder, sound)
        # What an interrupted run has decided is committed from its journal, without a model.
        decided: set[Unit] = set()
        with contextlib.suppress(UserError):  # a manifest whose list of names is lost says nothing of decisions
            decided = set(ledger.decisions())
        units = [unit for unit in units if unit.name in committed or unit not in decided]
        told = records.current.books.get(STAGES[records.current.identity["job"]])
        outside = outside_of(
            _unit_books(sound),
            Books.from_dict(told) if told else None,
            [unit.name for unit in units],
            STAGES[records.current.identity["job"]],
        )
        left: dict[Unit, Salvaged] = {}
        look = lambda: (len(left), len(units), "units")  # noqa: E731
        with self.listener.track("saving what is sound", look):
            for unit in units:
                left[unit] = salvaged = job.salvage(witness, unit, files.get(unit.name, ()))
                ledger.discard(unit)
                with ledger.journal(unit) as journal:
                    for record in salvaged.records:
                        journal.append(record)
                left[unit] = replace(salvaged, records=range(len(salvaged.records)))
        belongs = job.belongs(witness, units, inputs)
        self._record(records, len(damage.parts))
        damaged = [path for paths in files.values() for path in paths if not witness.is_whole(path)]
        withdraw(self.folder, damage.parts, belongs=belongs, unreadable=damage.snapshot_files)
        self._quarantine(damaged)
        if inputs:
            job.count_input(inputs)
        self.done.parts += sorted(damage.parts)
        self.done.kept += sum(len(one.records) for one in left.values())
        self.done.asked += sum((one.keys or 0) - len(one.records) for one in left.values())
        self._commit_whole(job, left, outside)
        self._ask(job, [unit for unit in units if not left[unit].complete], outside)
        self._record(records, len(damage.parts), ended=True)

    def _commit_whole(self, job: RepairJob, left: Mapping[Unit, Salvaged], outside: Mapping[str, int]) -> None:
        """Commit the units of which everything was sound; no model is needed for them, nor for decided ones."""
        ledger = Ledger(self.folder)
        for stage in job.stages(list(left), outside, ENDPOINT, 1):
            stage.finish_decided(ledger)
            for unit in stage.missing(ledger):
                if left[unit].complete:
                    records = ledger.journal(unit).records()
                    tokens = sum(record["tokens"] for record in records if record["outcome"] == "accepted")
                    totals = {"tokens": tokens, "fed": unit.stop}
                    decision = ledger.decide(unit, totals, keys=len(left[unit].records))
                    if decision is not None:
                        stage.commit(ledger, unit, decision)

    def _ask(self, job: RepairJob, units: Sequence[Unit], outside: Mapping[str, int]) -> None:
        """Make the rest with a model."""
        if not units:
            return
        tasks, workers = self.looking["tasks"], min(self.looking["tasks"], self.looking["workers"])
        logs = self.folder.url_of(f"logs/{self.run_id}/repair")
        serve = job.serve(self.serve)
        with private_folder() as private, serve(job.serving(Path(private), self.listener)) as window:
            endpoint_file = str(Path(private) / ENDPOINT)
            for stage in job.stages(units, outside, endpoint_file, max(2, window // workers)):
                with self.listener.track("making the rest again", lambda: None):
                    run_locally([stage], tasks=tasks, workers=workers, logging_dir=logs)

    def _record(self, records: Records, parts: int, *, ended: bool = False) -> None:
        """Keep a record of this run: documents made now name it, and its books are what the output has from now on."""
        previous = records.current
        config = RunConfig(
            identity=previous.identity,
            extent=previous.config.extent,
            execution={**previous.config.execution, "repaired": parts},
        )
        record = new_run(config, run_id=self.run_id)
        self.done.unfinished = not _job_is_done(records)
        status = "stopped" if self.done.unfinished else "done"
        save_run(self.folder, record.finished(status, books=Manifest(self.folder).books()) if ended else record)


def _job_is_done(records: Records) -> bool:
    """Whether the job itself came to its end, whatever became of repairs since."""
    runs = {run_id: run for run_id, run in records.history.items() if "repaired" not in run.config.execution}
    return (runs[max(runs)] if runs else records.current).status == "done"


def _is_same(data: bytes, record: RunRecord) -> bool:
    try:
        return json.loads(data) == json.loads(json.dumps(record.to_dict()))
    except ValueError:
        return False


def _unit_books(sound: Sound) -> dict[str, Books]:
    """The books of each unit, where they can be read and balance."""
    by_unit: dict[str, list[dict]] = {}
    for row in sound.view.table("books").to_pylist():
        by_unit.setdefault(row["unit"], []).append(row)
    found = {}
    for name, rows in by_unit.items():
        for books in books_by_stage(rows).values():
            with contextlib.suppress(BooksError):
                found[name] = books.balance()
    return found
