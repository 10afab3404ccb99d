"""One cell of a sweep: a model on D fresh tokens with one recipe, and all derived tokens on top of it.

    python -m derivedata.trainers.cell RUNS CELL        # what `derivedata sweep` starts, a process a cell

With WSD the runs of a cell share a trunk at the full learning rate. A run of T steps leaves it where its decay begins
and is then the same, number for number, as a run of T steps on its own. The trunk is kept in a file at each fork, so
that after a kill only what was under way is done again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from derivedata.errors import UserError
from derivedata.store.paths import Folder
from derivedata.trainers.checkpoints import load_state, save_state
from derivedata.trainers.course import Course, Diverged
from derivedata.trainers.heldout import HeldOut
from derivedata.trainers.ladder import LADDER
from derivedata.trainers.learner import Learner, Recipe
from derivedata.trainers.packing import Chain
from derivedata.trainers.passes import Passes, Prefix
from derivedata.trainers.ranks import Ranks, join
from derivedata.trainers.schedule import Schedule
from derivedata.trainers.summary import run_row
from derivedata.trainers.tokens import open_store

SHARED = "shared"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What all cells of a sweep have in common.

    derived: token stores by strategy, relative to the sweep's folder. scored: of other text, by name.
    """

    length: int
    batch_blocks: dict[str, int]
    warmup_share: float
    decay: float
    eval_tokens: int
    recipe: dict[str, Any]
    vocabulary: int
    device: str | None
    derived: dict[str, str]
    scored: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, runs: Path) -> Settings:
        return cls(**json.loads((runs / "settings.json").read_text()))

    def write(self, runs: Path) -> None:
        Folder(runs).replace("settings.json", json.dumps(asdict(self), indent=1).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a cell: passes of a strategy after D; none for the run on D alone."""

    strategy: str
    passes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A trunk and its branches. fresh_tokens: D as asked for. runs: what branches off."""

    size: str
    fresh_tokens: int
    seed: int
    lr: float
    weight_decay: float
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """For files: N.044M-D88000-s0-lr0.01-wd0.1."""
        return f"N{self.size}-D{self.fresh_tokens}-s{self.seed}-lr{self.lr:g}-wd{self.weight_decay:g}"

    def row_path(self, run: Run) -> str:
        """Where the row of a run stands when it is done."""
        return f"rows/{self.name}/{run.strategy or 'fresh'}-{run.passes}.json"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Cell:
        return cls(**{**values, "runs": tuple(Run(**run) for run in values["runs"])})


class Layout:
    """Numbers of steps of a cell's runs."""

    def __init__(self, cell: Cell, settings: Settings, passes: Passes):
        self.cell, self.settings, self.passes = cell, settings, passes
        self.batch = settings.batch_blocks[cell.size]
        self.prefix: Prefix = passes.prefix(cell.fresh_tokens)
        alone = -(-self.prefix.blocks // self.batch)
        self.warmup = max(1, round(settings.warmup_share * alone))
        # Until here a step holds blocks of D alone: what follows differs by strategy.
        self.shared = self.prefix.blocks // self.batch

    def chain(self, run: Run) -> Chain:
        """The blocks of a run."""
        return self.passes.chain(self.prefix, run.strategy, run.passes, self.cell.seed)

    def schedule(self, blocks: int) -> Schedule:
        """The learning rates of a run over so many blocks."""
        return Schedule(
            kind="wsd",
            peak=self.cell.lr,
            steps=-(-blocks // self.batch),
            warmup=self.warmup,
            decay=self.settings.decay,
        )

    def paths(self, runs: Sequence[Run]) -> Iterator[tuple[str, list[tuple[Run, Schedule, int]]]]:
        """By strategy its runs with schedule and blocks, in the order in which they leave the trunk."""
        strategies = sorted({run.strategy for run in runs if run.passes}) or [""]
        for strategy in strategies:
            mine = [run for run in runs if run.strategy == strategy and run.passes]
            # The run on D alone leaves the part of the trunk that all have in common.
            mine += [run for run in runs if not run.passes] if strategy == strategies[0] else []
            counted = [(run, self.chain(run).blocks) for run in mine]
            yield (
                strategy,
                sorted(
                    ((run, self.schedule(blocks), blocks) for run, blocks in counted), key=lambda each: each[1].fork
                ),
            )

    def work(self, runs: Sequence[Run]) -> int:
        """Steps that these runs take, trunk and branches."""
        total, shared = 0, 0
        for _, found in self.paths(runs):
            last = found[-1][1].fork
            total += max(0, last - shared) + sum(schedule.steps - schedule.fork for _, schedule, _ in found)
            shared = min(self.shared, last)
        return total


def run_cell(runs: Path, cell: Cell, settings: Settings, tell=lambda **values: None) -> None:
    """Train what is missing of a cell, and leave a row for each run.

    Args:
        runs: the sweep's folder, local.
        tell: called with progress: steps=, run= (a finished one).
    """
    import torch

    fresh = open_store(runs / "tokens" / "fresh")
    passes = Passes(fresh, {name: open_store(runs / path) for name, path in settings.derived.items()}, settings.length)
    layout = Layout(cell, settings, passes)
    folder = Folder(runs)
    missing = [run for run in cell.runs if not folder.exists(cell.row_path(run))]
    if not missing:
        return
    ranks = Ranks(rank=0, world=1, device=join(settings.device).device)
    size, recipe = LADDER[cell.size], Recipe(**{**settings.recipe, "weight_decay": cell.weight_decay})
    torch.manual_seed(cell.seed)
    learner = Learner(size.model(settings.vocabulary, settings.length, fresh.end_of_text), recipe, ranks)
    held_out = HeldOut(open_store(runs / "tokens" / "held-out"), settings.length, settings.eval_tokens)
    scored = {
        name: HeldOut(open_store(runs / path), settings.length, settings.eval_tokens)
        for name, path in settings.scored.items()
    }
    _Trunk(runs, folder, cell, layout, learner, held_out, scored, tell).grow(missing)


class _Trunk:
    """The trunk of a cell and what branches off it."""

    def __init__(
        self,
        runs: Path,
        folder: Folder,
        cell: Cell,
        layout: Layout,
        learner: Learner,
        held_out: HeldOut,
        scored: dict[str, HeldOut],
        tell,
    ):
        self.folder, self.cell, self.layout, self.learner = folder, cell, layout, learner
        self.held_out, self.scored, self.tell = held_out, scored, tell
        self.room = f"trunks/{cell.name}"
        self.parent = os.getppid()
        # The tensors of a state are the model's own and change with it: a copy is what can be gone back to.
        self.beginning = load_state(save_state({"step": 0, "seen": [], "learner": learner.state(), "curve": []}))

    def grow(self, missing: Sequence[Run]) -> None:
        for strategy, found in self.layout.paths(missing):
            longest = max(found, key=lambda each: each[2])[0]
            course = Course(self.learner, self.layout.chain(longest), self.layout.batch)
            curve = self._go_back(course, strategy, found[0][1].fork)
            behind = None
            for run, schedule, blocks in found:
                here = self._path(schedule.fork, strategy)
                try:
                    self._advance(course, strategy, schedule, blocks)
                    curve = self._keep(course, strategy, curve)
                    # Nothing leaves the trunk there any more, unless it is where other strategies begin.
                    if behind not in (None, here) and not Path(behind).name.startswith(SHARED):
                        self.folder.remove(behind)
                    behind = here
                except Diverged as error:
                    # What is longer diverges at the same step.
                    for lost, *_ in found[found.index((run, schedule, blocks)) :]:
                        self._write(lost, course, None, curve, schedule, str(error))
                    break
                self._branch(course, run, schedule, blocks, curve)
                course.restore(load_state(self.folder.read(here)))
        self.folder.remove_tree(self.room)

    def _advance(self, course: Course, strategy: str, schedule: Schedule, blocks: int) -> None:
        """Take the trunk to where a run leaves it, keeping the place where strategies part."""
        while course.step < schedule.fork:
            course.take(schedule, blocks)
            self._alive()
            if course.step == self.layout.shared:
                self._keep(course, strategy, [])

    def _branch(self, course: Course, run: Run, schedule: Schedule, blocks: int, curve: list) -> None:
        """Take a run to its end. Its blocks are the first of the trunk's: no pass depends on how many follow."""
        try:
            while course.step < schedule.steps:
                course.take(schedule, blocks)
                self._alive()
            self._write(run, course, self.held_out.score(self.learner), curve, schedule, None)
        except Diverged as error:
            self._write(run, course, None, curve, schedule, str(error))

    def _alive(self) -> None:
        """A step was taken; without the process that started it a cell has nobody to work for."""
        self.tell(steps=1)
        if os.getppid() != self.parent:
            raise SystemExit("the sweep that started this is gone")

    def _path(self, step: int, strategy: str) -> str:
        return f"{self.room}/{SHARED if step <= self.layout.shared else strategy or 'fresh'}-{step:08d}.pt"

    def _keep(self, course: Course, strategy: str, curve: list) -> list:
        """Keep the trunk as it is, unless it is kept already; the curve with the loss here."""
        path = self._path(course.step, strategy)
        if self.folder.exists(path):
            return load_state(self.folder.read(path))["curve"]
        curve = [*curve, [course.seen.tokens, self.held_out.score(self.learner).loss]]
        self.folder.replace(path, save_state({**course.state(), "curve": curve}))
        return curve

    def _go_back(self, course: Course, strategy: str, fork: int) -> list:
        """Restore the latest kept place of this trunk before its first fork; the curve up to there."""
        places = []
        for name in self.folder.names(f"{self.room}/"):
            owner, _, step = name.rsplit("/", 1)[1].removesuffix(".pt").rpartition("-")
            if owner in (SHARED, strategy or "fresh") and int(step) <= fork:
                places.append((int(step), name))
        state = load_state(self.folder.read(max(places)[1])) if places else self.beginning
        course.restore(state)
        return state["curve"]

    def _write(self, run: Run, course: Course, scores, curve: list, schedule: Schedule, failure: str | None) -> None:
        size, layout = LADDER[self.cell.size], self.layout
        n_params = size.count(layout.settings.vocabulary).N
        loss = None if scores is None else scores.loss
        row = run_row(course.seen, n_params=n_params, n_nominal=size.nominal, loss=loss, seed=self.cell.seed)
        tokens = course.seen.tokens
        row |= {
            # The name in the design, whatever strategy its documents were derived by.
            "strategy": run.strategy,
            "passes": run.passes,
            "lr": self.cell.lr,
            "weight_decay": self.cell.weight_decay,
            "size": self.cell.size,
            "asked_fresh_tokens": self.cell.fresh_tokens,
            "vocabulary": layout.settings.vocabulary,
            "sequence_length": layout.settings.length,
            "batch_tokens": layout.batch * layout.settings.length,
            "steps": schedule.steps,
            "flops": 6.0 * n_params * tokens,
            "eval_tokens": self.held_out.tokens,
            "bits_per_byte": None if scores is None else scores.bits_per_byte.get("all"),
            "losses": {} if scores is None else dict(scores.by),
            "by_style": course.seen.styles(),
            "curve": [*curve, [tokens, loss]],
            "failure": failure,
        }
        for name, text in self.scored.items():
            other = None if scores is None else text.score(self.learner)
            row[f"loss_on_{name}"] = None if other is None else other.loss
            row[f"bits_per_byte_on_{name}"] = None if other is None else other.bits_per_byte.get("all")
        self.folder.replace(self.cell.row_path(run), json.dumps(row).encode())
        self.tell(run=self.cell.row_path(run))


def main(arguments: Sequence[str]) -> int:
    """Run a cell as a process of its own: progress as JSON lines on stdout, an expected failure as one on stderr."""
    runs, name = Path(arguments[0]), arguments[1]
    pending, told = 0, time.monotonic()

    def tell(steps: int = 0, run: str | None = None) -> None:
        nonlocal pending, told
        pending += steps
        if run is not None or time.monotonic() - told > 0.5:
            print(json.dumps({"steps": pending, "run": run}), flush=True)
            pending, told = 0, time.monotonic()

    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        cell = Cell.from_dict(json.loads((runs / "cells" / f"{name}.json").read_text()))
        run_cell(runs, cell, Settings.read(runs), tell)
    except UserError as error:
        print(error.line, file=sys.stderr)
        return 1
    tell(run="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
