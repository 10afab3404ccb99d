"""Trains a language model on fresh and derived tokens: `python -m derivedata.trainers.pretrain --data MIX --size 14M`.

The same as `derivedata train lm`; under torchrun the processes share each step. An output holds run.json, tokens/ and
held-out/ (token stores), metrics.jsonl, checkpoints/, and when it is done model/ and summary.json.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from derivedata.errors import UserError
from derivedata.scaling.law import Law
from derivedata.store.fingerprint import RunConfig
from derivedata.store.paths import Folder, Missing
from derivedata.store.runs import new_run, open_run, save_run
from derivedata.trainers.checkpoints import Checkpoints, Metrics
from derivedata.trainers.course import Course, Diverged
from derivedata.trainers.effective import account
from derivedata.trainers.heldout import HeldOut, Scores
from derivedata.trainers.learner import Learner
from derivedata.trainers.options import TrainOptions
from derivedata.trainers.packing import Packed
from derivedata.trainers.plan import Plan, make_plan
from derivedata.trainers.ranks import Ranks, join, leave
from derivedata.trainers.reporting import Reporter, open_reporter
from derivedata.trainers.summary import summarise

SUMMARY = "summary.json"


class Quiet:
    """Tells nobody."""

    def say(self, text: str) -> None:
        """Nothing happens."""

    @contextmanager
    def track(self, title: str, look: Callable[[], tuple[float, float | None, str] | None]):
        """Nothing is shown."""
        yield


def train_lm(options: TrainOptions, law: Law, narrator: Any = None) -> dict[str, Any]:
    """Train, or go on training, and say what came out.

    Args:
        options: what is asked for.
        law: values the tokens while it trains.
        narrator: `say(text)` and `track(title, look)`; silent by default.

    Returns:
        The summary that stands in summary.json.

    Raises:
        UserError: data too short, another vocabulary, no held-out text, a changed configuration, no space left.
        Diverged: the loss is not finite; the last good state is in checkpoints/.
    """
    ranks = join(options.device)
    try:
        return _train(options, law, ranks, narrator if narrator is not None and ranks.is_first else Quiet())
    finally:
        leave(ranks)


def _train(options: TrainOptions, law: Law, ranks: Ranks, narrator: Any) -> dict[str, Any]:
    import torch

    folder = Folder(options.output)
    if options.restart and ranks.is_first:
        for name in ("checkpoints", "model", "manifest", "tokens", "held-out"):
            folder.remove_tree(name)
        folder.remove_many([SUMMARY, "run.json", "metrics.jsonl"])
    ranks.wait()
    plan = make_plan(options, folder, ranks, narrator)
    record = new_run(RunConfig(identity=plan.identity, execution=_execution(options, ranks)))
    if ranks.is_first:
        record = open_run(folder, record)
    ranks.wait()
    done = _read_summary(folder)
    if done is not None:
        narrator.say(f"{folder.url}: this run is complete already")
        return done
    torch.manual_seed(options.seed)
    model = options.size.model(plan.vocabulary, options.length, plan.tokenizer.end_of_text)
    learner = Learner(model, options.recipe, ranks, compile=options.compile)
    course = Course(learner, Packed(plan.trained, options.length), plan.batch)
    run = _Run(options, plan, law, course, folder, narrator)
    try:
        summary = run.train()
    except (KeyboardInterrupt, UserError) as error:
        if ranks.is_first:
            # What stopped the run may keep this from being written too: the run's own error is the one to tell.
            with contextlib.suppress(UserError):
                save_run(folder, record.finished("stopped" if isinstance(error, KeyboardInterrupt) else "failed"))
        raise
    if ranks.is_first:
        save_run(folder, record.finished())
    return summary


class _Run:
    """One run from its first or latest step to its end."""

    def __init__(self, options: TrainOptions, plan: Plan, law: Law, course: Course, folder: Folder, narrator: Any):
        self.options, self.plan, self.law, self.course = options, plan, law, course
        self.folder, self.narrator, self.ranks = folder, narrator, course.learner.ranks
        self.held_out = HeldOut(plan.held_out, options.length, options.eval_tokens)
        self.checkpoints, self.metrics = Checkpoints(folder, options.keep), Metrics(folder)
        every = options.eval_every or max(options.length, plan.blocks * options.length // 10)
        self.eval_steps = max(1, every // (plan.batch * options.length))
        self.scores: Scores | None = None
        self.stop = False
        self.words = ""

    def train(self) -> dict[str, Any]:
        state = self.checkpoints.latest()
        if state is not None:
            self.course.restore(state)
            self.narrator.say(f"going on from step {self.course.step:,} of {self.plan.steps:,}")
        if self.ranks.is_first:
            self.metrics.rewind(self.course.step if state is not None else -1)
        reporter = self._reporter()
        began, first = time.perf_counter(), self.course.seen.tokens
        with self._between_steps(), self.narrator.track(f"training {self.options.size.name}", self._look):
            self._steps(reporter)
        seconds = time.perf_counter() - began
        if self.scores is None:
            self.scores = self.held_out.score(self.course.learner)
        summary = self._summary(seconds, self.course.seen.tokens - first)
        if self.ranks.is_first:
            self._save_model()
            self.metrics.settle()
            self.folder.replace(SUMMARY, json.dumps(summary, indent=1).encode() + b"\n")
        self.ranks.wait()
        reporter.close()
        return summary

    def _steps(self, reporter: Reporter) -> None:
        plan, course = self.plan, self.course
        saved = logged = time.perf_counter()
        before = course.seen.tokens
        while course.step < plan.steps:
            try:
                taken = course.take(plan.schedule, plan.blocks)
            except Diverged as error:
                raise self._kept(error) from None
            last = course.step == plan.steps
            self.scores = None
            if course.step % self.options.log_every == 0 or last:
                now = time.perf_counter()
                speed = (course.seen.tokens - before) / (now - logged)
                before, logged = course.seen.tokens, now
                self._log(reporter, "train", loss=taken.loss, rate=taken.rate, norm=taken.norm, tokens_per_second=speed)
            if course.step % self.eval_steps == 0 or last:
                self.scores = self.held_out.score(course.learner)
                by = {"by": dict(self.scores.by), "bits_per_byte": dict(self.scores.bits_per_byte)}
                self._log(reporter, "eval", loss=self.scores.loss, **by)
                logged = time.perf_counter()
            if time.perf_counter() - saved >= 60 * self.options.checkpoint_minutes or self.stop:
                self._save()
                saved = time.perf_counter()
            if self.stop:
                raise KeyboardInterrupt

    def _log(self, reporter: Reporter, kind: str, **values: Any) -> None:
        row = {
            "kind": kind,
            "step": self.course.step,
            **account(self.course.seen, self.law, self.plan.n_params),
            **values,
        }
        star = "*" if row["extrapolated"] else ""
        effective = "" if row["effective_tokens"] is None else f"  {row['effective_tokens']:,.0f}{star} effective"
        self.words = f"loss {values['loss']:.4f}  {row['tokens']:,} tokens{effective}"
        if self.ranks.is_first:
            self.metrics.add(row)
            reporter.log(row)

    def _save(self) -> str | None:
        if not self.ranks.is_first:
            return None
        self.metrics.keep()
        return self.checkpoints.save(self.course.step, self.course.state())

    def _kept(self, error: Diverged) -> Diverged:
        path = self._save()
        kept = f"the state before it is kept in {path}; {error.remedy}"
        return Diverged(error.what, where=error.where, value=error.value, remedy=kept)

    @contextmanager
    def _between_steps(self):
        """A signal to stop waits for the end of a step, so that what is saved is whole."""

        def asked(number: int, frame: object) -> None:
            self.stop = True

        try:
            earlier = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # in a thread there are no signals
            earlier = {}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    def _look(self) -> tuple[float, float, str]:
        return self.course.step, self.plan.steps, self.words

    def _reporter(self) -> Reporter:
        kind = self.options.report_to if self.ranks.is_first else "none"
        place = self.folder.url_of("tensorboard")
        return open_reporter(kind, name=Path(self.folder.url).name, place=place, config=self.plan.identity)

    def _summary(self, seconds: float, tokens: int) -> dict[str, Any]:
        plan = self.plan
        told = summarise(self.course.seen, self.law, self.options, plan, self.scores)
        told["eval_tokens"] = self.held_out.tokens
        told["tokens_per_second"] = tokens / seconds if tokens else None
        told["loading_share"] = self.course.loading / seconds if tokens else None
        return told

    def _save_model(self) -> None:
        from transformers.utils import logging

        # Its bar for one file would tear our own line.
        logging.disable_progress_bar()
        with self.folder.scratch() as place:
            self.course.learner.model.save_pretrained(place)
            for pattern in ("tokenizer*", "special_tokens_map.json"):
                for file in getattr(self.plan.tokenizer, "path", place).glob(pattern):
                    (place / file.name).write_bytes(file.read_bytes())
            for file in sorted(place.iterdir()):
                self.folder.replace(f"model/{file.name}", file.read_bytes())


def _execution(options: TrainOptions, ranks: Ranks) -> dict[str, Any]:
    return {
        "data": list(options.data),
        "eval_data": list(options.eval_data),
        "micro_batch": options.recipe.micro_batch,
        "device": ranks.device,
        "ranks": ranks.world,
        "compile": options.compile,
    }


def _read_summary(folder: Folder) -> dict[str, Any] | None:
    try:
        return json.loads(folder.read(SUMMARY))
    except Missing:
        return None


if __name__ == "__main__":
    import sys

    from derivedata.cli import main

    main(["train", "lm", *sys.argv[1:]])
