"""Difficulty's side of `verify --repair`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from derivedata.errors import UserError
from derivedata.generation.asking import CHAT, PLAIN
from derivedata.pipelines.damage import part_of
from derivedata.pipelines.difficulty import DifficultyStage
from derivedata.pipelines.difficulty_card import difficulty_card
from derivedata.pipelines.difficulty_config import DifficultyConfig, read_set
from derivedata.pipelines.difficulty_options import DifficultyOptions
from derivedata.pipelines.difficulty_run import measure_difficulty
from derivedata.pipelines.measured import read_measured, read_pilot
from derivedata.pipelines.problem_set import ProblemSet, publish_input
from derivedata.pipelines.repair_job import OnlyUnits, RepairJob, Salvaged
from derivedata.pipelines.salvage import Witness, read_lines
from derivedata.pipelines.scored import FAILED, REFINE, RESCORE, ROLLOUT_STAGE, ROLLOUTS, SAMPLE, TABLES, Tally
from derivedata.pipelines.serving import ENDPOINT, Listener, Serve
from derivedata.pipelines.source import INPUT
from derivedata.pipelines.splits import write_problems
from derivedata.problems.workers import WorkerLimits
from derivedata.store.paths import Missing
from derivedata.store.private import private_folder
from derivedata.store.units import Unit
from derivedata.store.withdraw import Belongs

PURPOSES = (SAMPLE, REFINE, RESCORE)
_MODE = re.compile(r"derivedata-([a-z-]+)/")


class DifficultyAgain(OnlyUnits, DifficultyStage):
    """Makes units of a measurement again."""

    def __init__(self, *, units: Sequence[Unit], **kwargs: Any):
        super().__init__(**kwargs)
        self.units = list(units)


class DifficultyRepair(RepairJob):
    """See RepairJob."""

    @cached_property
    def sources(self) -> list[str]:
        return list(self.given.source) or list(self.extent["problems"])

    @cached_property
    def options(self) -> DifficultyOptions:
        identity = self.identity
        mode = _MODE.match(identity["extractor"])
        return DifficultyOptions(
            problems=tuple(self.sources),
            output=self.folder.url,
            samples=identity["samples"],
            bands=identity["bands"],
            early_stop=identity["early_stop"],
            answers=mode[1] if mode else "lenient",
            verifier=None if mode else identity["extractor"],
            refine_borderline=self.extent["refine_borderline"],
            rescore=self.extent["rescore"],
            validation=self.extent["validation"],
            temperature=identity["temperature"],
            top_p=identity["top_p"],
            max_tokens=identity["max_new"],
            prompt_suffix=identity["prompt_suffix"],
            system=identity["system"],
            chunk_problems=identity["chunk_problems"],
            **self.model_options,
        )

    @cached_property
    def config(self) -> DifficultyConfig:
        template = self.identity["template"]
        self.find(self.options, [self.options.sampling], plain=template != CHAT)
        config = self.options.config(self.model, self.connection)
        return replace(config, template=template, extractor=self.identity["extractor"])

    @cached_property
    def problems(self) -> ProblemSet:
        problems = read_set(self.config, self.sources, None)
        if problems.sha256 != self.identity["problems_sha256"]:
            raise UserError(
                "the problems are not those that this output was made from",
                where=", ".join(self.sources),
                remedy="name where they are with --source",
            )
        return problems

    @cached_property
    def inputs(self) -> Mapping[str, str]:
        return {INPUT: INPUT}

    def stages(
        self, units: Sequence[Unit], outside: Mapping[str, int], endpoint_file: str, window: int
    ) -> list[DifficultyAgain]:
        return [
            self._stage(purpose, its, endpoint_file, window)
            for purpose in PURPOSES
            if (its := [unit for unit in units if unit.kinds == (purpose,)])
        ]

    def _stage(self, purpose: str, units: Sequence[Unit], endpoint_file: str, window: int) -> DifficultyAgain:
        pilot, selected = read_pilot(self.folder), None
        if purpose != SAMPLE:
            with contextlib.suppress(Missing):
                selected = json.loads(self.folder.read(f"plan/{purpose}.json"))
        stage = DifficultyAgain(
            units=units,
            config=self.config,
            sources=self.sources,
            purpose=purpose,
            selected=selected,
            samples=max((unit.high for unit in units), default=None),
            prior=pilot.prior if pilot and purpose == SAMPLE else None,
            verify_workers=max(1, WorkerLimits().count),
            output=self.folder.url,
            endpoint_file=endpoint_file,
            window=window,
            run_id=self.run_id,
        )
        if selected is None:
            stage.problems = self.problems  # read once, and checked
        return stage

    @cached_property
    def planners(self) -> Mapping[str, DifficultyAgain]:
        return {purpose: self._stage(purpose, (), ENDPOINT, 1) for purpose in PURPOSES}

    # What is sound.

    def salvage(self, witness: Witness, unit: Unit, paths: Sequence[str]) -> Salvaged:
        import pyarrow.compute as pc

        (purpose,) = unit.kinds
        stage = self.planners[purpose]
        items = stage.load(unit)
        texts: dict[tuple[str, int], dict[str, Any]] = {}
        for path in paths:
            whole = witness.is_whole(path)
            rows = witness.rows("rollouts", unit.name, pc.field("file") == path)
            by_row = {row["row"]: row for row in rows or ()}
            for number, row in enumerate(read_lines(self.folder, path)):
                if whole or _is_indexed(row, by_row.get(number)):
                    texts[row.get("uid"), row.get("sample")] = row
        records: list[dict[str, Any]] = []
        rule, missing = stage.rule(unit.chunk), 0
        for planned in stage.plan(unit, items, unit.first):
            base = {"position": planned.position, **planned.info}
            if planned.outcome is not None:
                records.append({"key": planned.key, **base, "tokens": 0, **planned.outcome, "run_id": self.run_id})
                continue
            tally = Tally(unit.high)
            for sample in range(unit.low, unit.high):
                row = texts.get((planned.info["uid"], sample))
                if row is not None and row.get("seed") is not None:
                    records.append({"key": f"{planned.key}/{sample}", **base, **_record(row)})
                    tally.verdicts[row["verdict"]] += 1
            missing += tally.done < unit.rewrites and tally.may_send(rule) > 0
        # How many samples a problem needs shows with their outcomes; that some are missing is all that can be said.
        return Salvaged(records=records, keys=len(records) + missing)

    def belongs(self, witness: Witness, units: Collection[Unit], inputs: Collection[str]) -> Belongs:
        names = {unit.name for unit in units}
        uids: dict[str, set[tuple[str, int]]] = {table: set() for table in TABLES.values()}
        carried: set[str] = set()
        for unit in units:
            (purpose,) = unit.kinds
            for problem in self.planners[purpose].load(unit):
                uids[TABLES[purpose]].add((problem.uid, unit.high))
                carried.update([problem.uid] if purpose == SAMPLE else [])
        failed = self._failed(witness, names)

        def is_failed(row: Mapping[str, Any]) -> bool:
            if row["stage"] == INPUT:
                return INPUT in inputs
            key = (row["source_uid"], row["rewrite"], row["reason"], row["run_id"])
            failed[key] -= row["stage"] == ROLLOUT_STAGE
            return row["stage"] == ROLLOUT_STAGE and failed[key] >= 0

        def flags(table: str, rows: pa.Table) -> list[bool]:
            if table == "rollouts":
                return [part_of(path) in names for path in rows["file"].to_pylist()]
            if table in uids:
                return [(row["uid"], row["k"]) in uids[table] for row in rows.select(["uid", "k"]).to_pylist()]
            if table == "carried":
                return [uid in carried for uid in rows["uid"].to_pylist()]
            if table == "rejected":
                wanted = ["stage", "source_uid", "rewrite", "reason", "run_id"]
                return [is_failed(row) for row in rows.select(wanted).to_pylist()]
            return [False] * rows.num_rows

        return flags

    def _failed(self, witness: Witness, names: set[str]) -> Counter:
        """The rollouts of these units that failed, as the index of rejects names them."""
        rows = witness.view.table("rollouts", ["uid", "sample", "verdict", "run_id", "file"]).to_pylist()
        return Counter(
            (row["uid"], row["sample"], row["verdict"], row["run_id"])
            for row in rows
            if row["verdict"] in FAILED and part_of(row["file"]) in names
        )

    # The rest of the output.

    def count_input(self, names: Collection[str] | None) -> None:
        publish_input(self.folder, self.problems, self.run_id)

    def go_on(self, serve: Serve | None, listener: Listener) -> None:
        with private_folder() as folder:
            template, file = self.config.template, Path(folder) / "template.txt"
            if template not in (CHAT, PLAIN):
                file.write_text(template, "utf-8")
                template = str(file)
            measure_difficulty(replace(self.options, template=template), listener, serve=serve)

    def close(self) -> None:
        measured = read_measured(self.folder)
        asked = [self.config.asked(problem) for problem in self.problems.problems]
        counts = write_problems(
            self.folder, asked, measured, validation=self.extent["validation"], seed=self.config.seed
        )
        name = Path(self.folder.url.rstrip("/")).name
        self.folder.replace("README.md", difficulty_card(name, measured, counts).encode())


def _is_indexed(row: Mapping[str, Any], indexed: Mapping[str, Any] | None) -> bool:
    """Whether the index has this very rollout."""
    if indexed is None or not isinstance(row.get("text"), str):
        return False
    sha256 = hashlib.sha256(row["text"].encode("utf-8", "surrogatepass")).hexdigest()
    told = ("uid", "sample", "verdict", "seed", "run_id", "finish_reason")
    return sha256 == indexed["text_sha256"] and all(row.get(name) == indexed[name] for name in told)


def _record(row: Mapping[str, Any]) -> dict[str, Any]:
    """The journal record that a kept rollout was made from."""
    kept = {name: row[name] for name in ROLLOUTS.names if name in row and name != "purpose"}
    outcome = "rejected" if row["verdict"] in FAILED else "accepted"
    tokens = row.get("completion_tokens") or 0 if outcome == "accepted" else 0
    return {**kept, "outcome": outcome, "reason": row["verdict"], "text": row["text"], "tokens": tokens}
