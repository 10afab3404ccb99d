"""Drives a measurement of difficulty from its options to a finished output.

From Python:

    from derivedata.pipelines.difficulty_options import DifficultyOptions
    from derivedata.pipelines.difficulty_run import measure_difficulty
    measured = measure_difficulty(DifficultyOptions(problems=("train.parquet",), output="measured"))
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from derivedata.errors import UserError
from derivedata.pipelines.difficulty import DifficultyStage
from derivedata.pipelines.difficulty_card import difficulty_card
from derivedata.pipelines.difficulty_config import read_set
from derivedata.pipelines.difficulty_options import DifficultyOptions
from derivedata.pipelines.job import Job, check_context
from derivedata.pipelines.measured import Measured, measure_pilot, read_measured, read_pilot
from derivedata.pipelines.pace import in_words
from derivedata.pipelines.problem_set import ProblemSet, publish_input
from derivedata.pipelines.progress import RANKS, read_progress
from derivedata.pipelines.scored import REFINE, RESCORE
from derivedata.pipelines.serving import Listener, Serve, Silence, check_output
from derivedata.pipelines.splits import write_problems
from derivedata.problems.read import find_sources
from derivedata.problems.workers import WorkerLimits
from derivedata.store.fingerprint import RunConfig
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Missing

JOB = "difficulty"
ROOMS = ("rollouts", "problems", "splits", "mixes", "rejected", "manifest", "plan", "ledger", "journal", "logs", RANKS)
COMPACT_AT = 64


def measure_difficulty(
    options: DifficultyOptions, listener: Listener | None = None, *, serve: Serve | None = None
) -> Measured:
    """Measure problems into `options.output`, going on from whatever is there.

    Args:
        options: what to do.
        listener: hears about progress.
        serve: gives the endpoint to use; by default those of the options, or a vLLM server that is started here and
            ended afterwards.

    Raises:
        UserError: in one line, whatever can be expected to go wrong; what is finished is kept.
    """
    return DifficultyJob(options, listener or Silence(), serve).run()


class DifficultyJob(Job):
    """One run of `measure_difficulty`."""

    name, rooms = JOB, ROOMS
    options: DifficultyOptions

    def __init__(self, options: DifficultyOptions, listener: Listener, serve: Serve | None):
        super().__init__(options, options.output, listener, serve)

    def run(self) -> Measured:
        """The whole job."""
        # Everything that can be wrong with the options shows before a model is loaded.
        self.options.choice  # noqa: B018
        places = [source.url.removeprefix("file://") for source in find_sources(self.options.problems)]
        if inside := check_output(self.folder, JOB, places):
            raise UserError("the output folder holds problems to measure", where=self.folder.url, value=min(inside))
        self.find_model([self.options.sampling], plain=self.options.plain)
        self.config = self.options.config(self.model, self.connection)
        check_context(self.config.context, self.connection)
        self.problems: ProblemSet = read_set(self.config, self.options.problems, self.options.choice)
        self._tell_input()
        with self.opened():
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

    def run_config(self) -> RunConfig:
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
                **self.connection_identity,
            },
            extent={
                "problems": list(options.problems),
                "refine_borderline": options.refine_borderline,
                "rescore": options.rescore,
                "validation": options.validation,
            },
            execution=self.execution(verify_workers=options.verify_workers),
        )

    # With the model.

    def _roll_out(self) -> None:
        Ledger(self.folder).sweep()
        with self.working():
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
        share = self.share(self.config.context)
        while wanted:
            self.folder.remove_tree(RANKS)
            total = sum(unit.documents for unit in wanted)
            with self.listener.track(title, lambda total=total: self._look(total)):
                self.execute([self._stage(share, **settings)], title.replace(" ", "-"))
            driver.finish_decided(ledger)
            wanted = driver.missing(ledger)

    def _stage(self, window: int, **settings: Any) -> DifficultyStage:
        return DifficultyStage(
            config=self.config,
            sources=self.options.problems,
            choice=self.options.choice,
            verify_workers=self.options.verify_workers or max(1, WorkerLimits().count // self.workers),
            output=self.options.output,
            endpoint_file=self.endpoint_file,
            window=window,
            run_id=self.run_id,
            **settings,
        )

    def _look(self, total: int) -> tuple:
        seen = read_progress(self.folder)
        if not seen:
            return 0, total, "waiting for the first answer"
        seconds = max(1e-3, seen["written"] - seen["started"])
        verified = sum(n for name, n in seen.items() if name.startswith("verdict:")) - seen.get("journalled", 0)
        bands = ", ".join(
            f"{name.removeprefix('band:')} {n:,}" for name, n in sorted(seen.items()) if name.startswith("band:")
        )
        problems, answered = seen.get("problems", 0), seen.get("answered", 0)
        rate = self.pace.tokens_per_second(seen)
        # By the server's counter of tokens, since the rollouts that finish first are the short ones.
        rollouts = rate * answered / seen["generated"] if rate and seen.get("generated") else answered / seconds
        words = (
            f"{problems:,} problems, {rollouts:,.1f} rollouts/s{in_words(rate)}, "
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
