"""The options of `derivedata train rl`, checked, and what they mean: recipe, budget, problems."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from derivedata.errors import UserError
from derivedata.problems.extract import MODES
from derivedata.problems.problem import Problem
from derivedata.problems.read import read_problems
from derivedata.trainers.rl_budget import RolloutBudget, resolve_budget
from derivedata.trainers.rl_recipes import RECIPES, Recipe

REPORTS = ("none", "wandb", "tensorboard")


@dataclass(frozen=True, kw_only=True, slots=True)
class RLOptions:
    """One run of the RL trainer. Lengths are in tokens, evaluations and checkpoints in optimizer steps."""

    problems: tuple[str, ...]  # files of problems, e.g. OUT/splits/easy.parquet
    model: str  # name or folder
    output: str  # RUN, a local folder
    recipe: str = "easy"
    problems_per_batch: int | None = None  # B_p
    rollouts: int | None = None  # n
    iterations: int | None = None  # M
    budget: int | None = None  # C
    lr_at_1024: float | None = None  # None: the recipe's
    kl: float | None = None
    entropy: float | None = None
    staleness: int | None = None
    temperature: float | None = None
    thinking_tokens: int | None = None  # None: the recipe's share of max_tokens; 0: never forced
    max_tokens: int = 2048  # new tokens of a rollout
    answers: str = "lenient"
    validation: str | None = None  # None: the file `<name>-validation.parquet` beside the problems, if there is one
    validation_problems: int | None = None  # at most so many of it
    eval_samples: int = 4  # k of avg@k, best@k, worst@k
    eval_every: int | None = None  # None: ten times in the run
    save_every: int | None = None  # None: as often as it evaluates
    micro_batch: int | None = None  # rollouts of one forward and backward pass; None: all of a step
    peft: bool = False  # train a LoRA adapter
    report_to: str = "none"
    seed: int = 0
    cpu: bool = False  # on the CPU even where there is a GPU

    def __post_init__(self):
        if not isinstance(self.model, str):
            raise UserError(
                "the model is loaded twice (the KL needs the one that training starts with), so it must be saved first",
                where="model",
                value=type(self.model).__name__,
                remedy="save it with its tokenizer (save_pretrained) and name the folder",
            )
        if self.recipe not in RECIPES:
            raise UserError("unknown recipe", value=self.recipe, remedy=f"use one of {', '.join(RECIPES)}")
        if self.answers not in MODES:
            raise UserError("unknown way to find answers", value=self.answers, remedy=f"use one of {', '.join(MODES)}")
        if self.report_to not in REPORTS:
            raise UserError("unknown report", value=self.report_to, remedy=f"use one of {', '.join(REPORTS)}")
        if "://" in os.fspath(self.output):
            raise UserError("a run of the trainer needs a local folder", where="-o", value=self.output)
        for name in ("max_tokens", "eval_samples", "eval_every", "save_every", "micro_batch", "validation_problems"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1", value=value)

    def resolved_recipe(self) -> Recipe:
        """The recipe with what the options change in it."""
        changes = {
            name: getattr(self, name)
            for name in ("lr_at_1024", "kl", "entropy", "staleness", "temperature")
            if getattr(self, name) is not None
        }
        return replace(RECIPES[self.recipe], **changes)

    def resolved_budget(self) -> RolloutBudget:
        """(B_p, n, M), from any three of the four numbers."""
        return resolve_budget(
            problems=self.problems_per_batch,
            rollouts=self.rollouts,
            iterations=self.iterations,
            budget=self.budget,
            step=self.resolved_recipe().staleness + 1,
        )

    def thinking_at(self) -> int | None:
        """New tokens after which thinking is ended by force; None: never."""
        if self.thinking_tokens is not None:
            return self.thinking_tokens or None
        share = self.resolved_recipe().thinking_share
        return None if share is None else int(self.max_tokens * share)

    def every(self, given: int | None, budget: RolloutBudget) -> int:
        """A number of optimizer steps as it is used: rounded up to whole rounds of generation, ten in a run if None.

        A checkpoint between two steps of a round would throw away rollouts that were made.
        """
        step = self.resolved_recipe().staleness + 1
        wanted = given if given is not None else max(1, budget.iterations // 10)
        return min(-(-wanted // step) * step, budget.iterations)


def micro_batch(options: RLOptions, budget: RolloutBudget) -> int:
    """Rollouts that one process of those that torchrun or accelerate started takes at a time.

    Raises:
        UserError: a step's rollouts can't be split so.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if budget.batch % world:
        raise UserError("a step's rollouts don't divide among the processes", value=f"{budget.batch} over {world}")
    share = budget.batch // world
    chosen = options.micro_batch or share
    if share % chosen:
        fitting = max(size for size in range(1, chosen + 1) if share % size == 0)
        raise UserError(
            f"a step's {share} rollouts don't divide into such parts",
            where="--micro-batch",
            value=chosen,
            remedy=f"take {fitting}",
        )
    return chosen


def training_rows(problems: list[Problem]) -> list[dict[str, Any]]:
    """The problems as rows for TRL: `prompt` (messages), `answer`, `uid`.

    Raises:
        UserError: one of them has no answer that can be checked.
    """
    bad = [problem for problem in problems if problem.unscored or not problem.golds]
    if bad:
        raise UserError(
            f"{len(bad)} of {len(problems)} problems have no checkable answer ({bad[0].unscored or 'no_answer'})",
            where=f"{bad[0].path}:{bad[0].row + 1}",
            remedy="train on a split that `derivedata difficulty` wrote, which holds none",
        )
    uids = [_uid(problem) for problem in problems]
    if len(set(uids)) < len(uids):
        uids = [problem.uid for problem in problems]
    return [
        {"prompt": [dict(m) for m in problem.prompt], "answer": problem.ground_truth, "uid": uid}
        for problem, uid in zip(problems, uids, strict=True)
    ]


def _uid(problem: Problem) -> str:
    """The key that the problem had when `derivedata difficulty` measured it, so that its counts can be joined."""
    known = problem.extra_info.get("uid")
    return known if isinstance(known, str) and known else problem.uid


def validation_rows(options: RLOptions) -> tuple[str | None, list[dict[str, Any]]]:
    """The file of held-out problems (given, or written by `difficulty --validation` beside a split) and its rows.

    Raises:
        UserError: the given file holds none, or a problem without a checkable answer.
    """
    file = options.validation
    if file is None and len(options.problems) == 1 and options.problems[0].endswith(".parquet"):
        beside = options.problems[0].removesuffix(".parquet") + "-validation.parquet"
        file = beside if os.path.exists(beside) else None
    if file is None:
        return None, []
    problems = list(read_problems([file]))
    # A band may be too small to hold any out; then its file is there and empty.
    if not problems and options.validation is not None:
        raise UserError("the validation set is empty", where="--validation", value=file)
    return file, training_rows(problems)


def plain_prompt(messages: list[dict[str, str]]) -> str:
    """The prompt of a model without a chat template, as `derivedata difficulty --template plain` writes it."""
    return "\n\n".join(message["content"] for message in messages) + "\n\n"
