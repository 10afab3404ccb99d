"""Drives a measurement of difficulty from its options to a finished output.

From Python:

    from derivedata.pipelines.difficulty_options import DifficultyOptions
    from derivedata.pipelines.difficulty_run import measure_difficulty
    measured = measure_difficulty(DifficultyOptions(problems=("train.parquet",), output="measured"))
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from derivedata.errors import UserError
from derivedata.generation.model import resolve_model
from derivedata.pipelines.difficulty import DifficultyStage
from derivedata.pipelines.difficulty_card import difficulty_card
from derivedata.pipelines.difficulty_config import read_set
from derivedata.pipelines.difficulty_options import DifficultyOptions
from derivedata.pipelines.executor import run_locally
from derivedata.pipelines.measured import Measured, measure_pilot, read_measured, read_pilot
from derivedata.pipelines.problem_set import ProblemSet, publish_input
from derivedata.pipelines.progress import RANKS, read_progress
from derivedata.pipelines.scored import REFINE, RESCORE
from derivedata.pipelines.serving import (
    ENDPOINT,
    Listener,
    Serve,
    Serving,
    Silence,
    check_output,
    own_server,
    recorded,
    start_over,
)
from derivedata.pipelines.splits import write_problems
from derivedata.problems.read import find_sources
from derivedata.problems.workers import WorkerLimits
from derivedata.store.fingerprint import RunConfig
from derivedata.store.lease import Lease
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder, Missing
from derivedata.store.runs import new_run_id

JOB = "difficulty"
ROOMS = ("rollouts", "problems", "splits", "mixes", "rejected", "manifest", "plan", "ledger", "journal", "logs", RANKS)
COMPACT_AT = 64


def measure_difficulty(
    options: DifficultyOptions, listener: Listener | None = None, *, serve: Serve = own_server
) -> Measured:
    """Measure problems into `options.output`, going on from whatever is there.

    Args:
        options: what to do.
        listener: hears about progress.
        serve: gives the endpoint to use; by default a vLLM server is started here and ended afterwards.

    Raises:
        UserError: in one line, whatever can be expected to go wrong; what is finished is kept.
    """
    return _Run(options, listener or Silence(), serve).run()


class _Run:
    def __init__(self, options: DifficultyOptions, listener: Listener, serve: Serve):
        self.options, self.listener, self.serve = options, listener, serve
        self.folder = Folder(options.output)
        self.run_id = new_run_id()
        self.workers = min(options.workers or options.tasks, options.tasks)

    def run(self) -> Measured:
        # Everything that can be wrong with the options shows before a model is loaded.
        self.options.choice  # noqa: B018
        places = [source.url.removeprefix("file://") for source in find_sources(self.options.problems)]
        if inside := check_output(self.folder, JOB, places):
            raise UserError("the output folder holds problems to measure", where=self.folder.url, value=min(inside))
        self.model = resolve_model(self.options.model, progress=self.listener.say)
        self.config = self.options.config(self.model)
        self.problems: ProblemSet = read_set(self.config, self.options.problems, self.options.choice)
        self._tell_input()
        with Lease(self.folder, self.run_id):
            if self.options.restart:
                start_over(self.folder, ROOMS)
            with recorded(self.folder, self._run_config(), self.run_id):
                publish_input(self.folder, self.problems, self.run_id)
                self._roll_out()
                return self._close()

    def _tell_input(self) -> None:
        counts = self.problems.counts()
        layouts = ", ".join(f"{name} {count:,}" for name, count in sorted(counts["layouts"].items()))
        told = f"input: {counts['rows']:,} problems ({layouts})"
        if counts["unscored"]:
            told += "; unscored: " + ", ".join(f"{why} {n:,}" for why, n in sorted(counts["unscored"].items()))
        if counts["repaired_backslashes"]:
            told += f"; doubled backslashes repaired in {counts['repaired_backslashes']:,} answers"
        if counts["repeated_texts"]:
            told += f"; {counts['repeated_texts']:,} repeat the text of another, and are measured on their own"
        self.listener.say(told)

    def _run_config(self) -> RunConfig:
        config, options = self.config, self.options
        return RunConfig(
            identity={
                "job": JOB,
                "problems_sha256": self.problems.sha256,
                "model": config.model_name,
                "model_revision": config.model_revision,
                "samples": config.samples,
                "temperature": config.temperature,
                "top_p": config.top_p,
                "max_new": config.max_tokens,
                "context": config.context,
                "seed": config.seed,
                "bands": config.bands,
                "early_stop": config.early_stop,
                "extractor": config.extractor,
                "template": config.template,
                "prompt_suffix": config.prompt_suffix,
                "system": config.system,
                "chunk_problems": config.chunk_problems,
            },
            extent={
                "problems": list(options.problems),
                "refine_borderline": options.refine_borderline,
                "rescore": options.rescore,
                "validation": options.validation,
            },
            execution={
                "model_folder": config.model,
                "tasks": options.tasks,
                "workers": self.workers,
                "verify_workers": options.verify_workers,
                "tensor_parallel": options.tensor_parallel,
                "data_parallel": options.data_parallel,
                "max_num_seqs": options.max_num_seqs,
                "vllm_args": [list(pair) for pair in options.vllm_args],
            },
        )

    # With the model.

    def _roll_out(self) -> None:
        Ledger(self.folder).sweep()
        with tempfile.TemporaryDirectory(prefix="derivedata-") as private, contextlib.ExitStack() as stack:
            self._private, self._stack, self._window = Path(private), stack, None
            config, problems = self.config, self.problems
            if config.needs_prior:
                if read_pilot(self.folder) is None:
                    self._phase("measuring the pilot")
                    uids = [problem.uid for problem in problems.problems[: problems.edges[problems.pilot_chunks]]]
                    measure_pilot(self.folder, uids)
                self._phase("measuring", prior=read_pilot(self.folder).prior)
            else:
                self._phase("measuring")
            if self.options.refine_borderline:
                chosen = self._selection("refine", lambda: read_measured(self.folder).borderline())
                self.listener.say(
                    f"borderline: {len(chosen):,} problems get {self.options.refine_borderline} more samples"
                )
                self._phase("refining", purpose=REFINE, selected=chosen, samples=self.options.refine_borderline)
            if self.options.rescore:
                chosen = self._selection("rescore", self._in_bands)
                self._phase("rescoring", purpose=RESCORE, selected=chosen)

    def _selection(self, name: str, choose: Callable[[], list[str]]) -> list[str]:
        """The problems of a later phase, chosen once: what comes later must not change who belongs to it."""
        path = f"plan/{name}.json"
        with contextlib.suppress(Missing):
            return json.loads(self.folder.read(path))
        self.folder.create(path, json.dumps(choose()).encode())
        return json.loads(self.folder.read(path))

    def _in_bands(self) -> list[str]:
        measured = read_measured(self.folder)
        names = [band.name for band in measured.bands_rule.bands]
        return measured.problems.filter(pl.col("band").is_in(names))["uid"].to_list()

    def _phase(self, title: str, **settings: Any) -> None:
        """Sample what a purpose still lacks."""
        if settings.get("selected") == []:
            return
        ledger = Ledger(self.folder)
        driver = self._stage(1, **settings)
        if driver.selected is None:
            driver.problems = self.problems  # not read again
        driver.finish_decided(ledger)
        if not (wanted := driver.missing(ledger)):
            return
        done = sum(unit.documents for unit in ledger.committed() if unit.kinds == (driver.purpose,))
        waiting = len(driver._by_chunk(ledger.started()))
        if done or waiting:
            told = f" and the journals of {waiting:,} unfinished chunks" if waiting else ""
            self.listener.say(f"going on from {done:,} problems{told}")
        window = self._serve()
        share = max(2, window // self.workers)
        while wanted:
            self.folder.remove_tree(RANKS)
            total = sum(unit.documents for unit in wanted)
            with self.listener.track(title, lambda total=total: self._look(total)):
                logging_dir = self.folder.url_of(f"logs/{self.run_id}/{title.replace(' ', '-')}")
                stage = self._stage(share, **settings)
                run_locally([stage], tasks=self.options.tasks, workers=self.workers, logging_dir=logging_dir)
            driver.finish_decided(ledger)
            wanted = driver.missing(ledger)

    def _serve(self) -> int:
        if self._window is None:
            logs = Path(self.folder.url_of(f"logs/{self.run_id}")) if self.folder.is_local else self._private
            serving = Serving(
                model=self.model,
                settings=self.options.server_settings(self.config.context),
                private=self._private,
                log=logs / "vllm.log",
                listener=self.listener,
            )
            self._window = self._stack.enter_context(self.serve(serving))
        return self._window

    def _stage(self, window: int, **settings: Any) -> DifficultyStage:
        return DifficultyStage(
            config=self.config,
            sources=self.options.problems,
            choice=self.options.choice,
            verify_workers=self.options.verify_workers or max(1, WorkerLimits().count // self.workers),
            output=self.options.output,
            endpoint_file=str(self._private / ENDPOINT),
            window=window,
            run_id=self.run_id,
            **settings,
        )

    def _look(self, total: int) -> tuple[float, float, str]:
        seen = read_progress(self.folder)
        if not seen:
            return 0, total, "waiting for the first answer"
        seconds = max(1e-3, seen["written"] - seen["started"])
        verified = sum(n for name, n in seen.items() if name.startswith("verdict:")) - seen.get("journalled", 0)
        bands = ", ".join(
            f"{name.removeprefix('band:')} {n:,}" for name, n in sorted(seen.items()) if name.startswith("band:")
        )
        problems = seen.get("problems", 0)
        words = (
            f"{problems:,} problems, {seen.get('answered', 0) / seconds:,.1f} rollouts/s, "
            f"{verified / seconds:,.1f} verified/s" + (f", {bands}" if bands else "")
        )
        return problems, total, words

    # After the model.

    def _close(self) -> Measured:
        Manifest(self.folder).compact(at_least=COMPACT_AT)
        measured = read_measured(self.folder)
        asked = [self.config.asked(problem) for problem in self.problems.problems]
        counts = write_problems(self.folder, asked, measured, validation=self.options.validation, seed=self.config.seed)
        short = [
            f"{band.name} {counts[f'{band.name}-validation']:,}"
            for band in measured.bands_rule.bands
            if self.options.validation and counts[f"{band.name}-validation"] < self.options.validation
        ]
        if short:
            self.listener.say(
                f"fewer than {self.options.validation:,} validation problems (at most half of a band): "
                + ", ".join(short)
            )
        name = Path(self.options.output.rstrip("/")).name
        self.folder.replace("README.md", difficulty_card(name, measured, counts).encode())
        return measured
