"""The logs that the planner reads, written during a run of any GRPOTrainer.

    log = RolloutLogCallback("RUN")
    GRPOTrainer(model, reward_funcs=log.watch(math_reward), args=args, train_dataset=data, callbacks=[log]).train()

RUN/steps.jsonl, a line an optimizer step: step, B_p, n, rollouts (C so far), tokens (new tokens so far), reward,
entropy, kl, length, truncated, zero_variance, dropped, retired. RUN/problems.jsonl: step, problem, k right of n, and
policy (the optimizer steps behind the weights that answered). RUN/evaluations.jsonl: step, rollouts, avg, best and
worst at k, k, problems. What was not measured is null.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from derivedata.errors import UserError

STEPS, PROBLEMS, EVALUATIONS = "steps.jsonl", "problems.jsonl", "evaluations.jsonl"


class LogFiles:
    """The three files of a run: lines are appended, and what a kill made void is cut off."""

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def append(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """Write rows at the end of a file."""
        with open(self.folder / name, "a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """The whole lines of a file; the half line that a kill leaves at the end is none."""
        path = self.folder / name
        if not path.exists():
            return
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield json.loads(line)

    def cut(self, step: int) -> int:
        """Take out what lies behind an optimizer step, as a run does that goes on from there; steps taken out."""
        lost = 0
        for name in (STEPS, PROBLEMS, EVALUATIONS):
            path = self.folder / name
            if not path.exists():
                continue
            rows = list(self.rows(name))
            # From the start everything is done again, the evaluation at C = 0 too.
            kept = [row for row in rows if 0 < step >= row["step"]]
            lost += len(rows) - len(kept) if name == STEPS else 0
            temporary = path.with_suffix(".tmp")
            temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
            os.replace(temporary, path)
        return lost


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled answer as the reward function saw it."""

    problem: str
    reward: float | None
    length: int  # new tokens
    truncated: bool


class RolloutLogCallback(TrainerCallback):
    """Logs rollouts by step and problem; give the reward function through `watch`.

    Args:
        folder: the run's folder, on a local disk.
        right_above: rewards above this count as right answers (k of n, avg@k, best@k, worst@k).
        dropping: the trainer drops zero-variance groups.
        retired: tells how many prompts are retired by now.
        overwrite: a run that starts from its first step may throw away the logs of another.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        right_above: float = 0.5,
        dropping: bool = False,
        retired: Callable[[], int] | None = None,
        overwrite: bool = False,
    ):
        self.files = LogFiles(folder)
        self.right_above, self.dropping, self.retired, self.overwrite = right_above, dropping, retired, overwrite
        self._model: Any = None
        self._args: Any = None
        self._ends: frozenset[int] = frozenset()
        self._steps: dict[int, list[Rollout]] = defaultdict(list)
        self._policy: dict[int, int] = {}
        self._evaluation: dict[str, list[Rollout]] = defaultdict(list)
        self._pending: dict[str, Any] | None = None
        self.current: dict[str, Any] | None = None  # the last line of steps.jsonl
        self.evaluated: dict[str, Any] | None = None  # the last line of evaluations.jsonl
        self._rollouts, self._tokens = 0, 0
        self.lost_steps = 0

    def watch(self, reward: Callable[..., list[float]]) -> Callable[..., list[float]]:
        """The same reward function, whose rewards are logged; problems are told by a column `uid`, or by the prompt."""

        @functools.wraps(reward)
        def watched(prompts, completions, completion_ids=None, **columns):
            rewards = reward(prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
            if self._model is not None:
                self._take(prompts, completion_ids, rewards, columns)
            return rewards

        return watched

    def _take(self, prompts, completion_ids, rewards, columns) -> None:
        names = columns.get("uid") or [_prompt_name(prompt) for prompt in prompts]
        longest = self._args.max_completion_length
        rollouts = [
            Rollout(name, reward, len(ids), len(ids) > 0 and len(ids) >= longest and ids[-1] not in self._ends)
            for name, ids, reward in zip(names, completion_ids, rewards, strict=True)
        ]
        world = self._args.world_size
        if world > 1:
            from accelerate.utils import gather_object

            rollouts = gather_object(rollouts)
        if not self._model.training:
            for rollout in rollouts:
                self._evaluation[rollout.problem].append(rollout)
            return
        n = self._args.num_generations
        done = columns["trainer_state"].global_step
        rounds = steps_of_a_round(self._args)
        if len(rollouts) % (n * rounds):
            raise UserError(f"the rollouts are not in groups of {n}", value=f"{len(rollouts)} rollouts")
        for later, rows in enumerate(step_rows(len(rollouts), rounds, world)):
            step = done + 1 + later
            self._policy[step] = done
            self._steps[step] += [rollouts[row] for row in rows]

    # -- what the trainer calls --------------------------------------------------------------------------------

    def on_train_begin(self, args, state, control, model=None, processing_class=None, **_):
        self._model, self._args = model, args
        ends = getattr(model.generation_config, "eos_token_id", None)
        ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
        self._ends = frozenset([*ends, processing_class.eos_token_id, processing_class.pad_token_id])
        if state.is_world_process_zero:
            if state.global_step == 0 and not self.overwrite and any(self.files.rows(STEPS)):
                raise UserError(
                    "the folder holds the logs of another run",
                    where=self.files.folder,
                    remedy="name another folder, or resume from that run's checkpoint",
                )
            self.lost_steps = self.files.cut(state.global_step)
        last = next(iter(deque(self.files.rows(STEPS), maxlen=1)), {})
        self._rollouts, self._tokens = last.get("rollouts", 0), last.get("tokens", 0)

    def on_step_end(self, args, state, control, **_):
        self._flush(state)
        step = state.global_step
        rollouts = self._steps.pop(step, [])
        policy = self._policy.pop(step, None)
        groups = [rollouts[i : i + args.num_generations] for i in range(0, len(rollouts), args.num_generations)]
        self._rollouts += len(rollouts)
        self._tokens += sum(rollout.length for rollout in rollouts)
        same = sum(len({rollout.reward for rollout in group}) == 1 for group in groups)
        self._pending = self.current = {
            "step": step,
            "B_p": len(groups),
            "n": args.num_generations,
            "rollouts": self._rollouts,
            "tokens": self._tokens,
            "reward": _mean([r.reward for r in rollouts if _scored(r.reward)]),
            "entropy": None,
            "kl": None,
            "length": _mean([r.length for r in rollouts]),
            "truncated": _mean([r.truncated for r in rollouts]),
            "zero_variance": same / len(groups) if groups else None,
            "dropped": same if self.dropping else 0,
            "retired": self.retired() if self.retired else 0,
        }
        if state.is_world_process_zero:
            self.files.append(
                PROBLEMS,
                [
                    {"step": step, "problem": group[0].problem, "k": self._right(group), "n": len(group)}
                    | {"policy": policy}
                    for group in groups
                ],
            )

    def on_log(self, args, state, control, logs=None, **_):
        if self._pending and logs and self._pending["step"] == state.global_step and "entropy" in logs:
            self._pending["entropy"], self._pending["kl"] = logs["entropy"], logs.get("kl")
            self._flush(state)

    def on_step_begin(self, args, state, control, **_):
        self._flush(state)

    def on_save(self, args, state, control, **_):
        # The checkpoint's steps must be in the files before a kill can follow it.
        self._flush(state)

    def on_evaluate(self, args, state, control, **_):
        self._flush(state)
        if not self._evaluation:
            return
        k = args.num_generations_eval or args.num_generations
        # Several processes may be handed the same problem to fill up their last batch.
        counts = [(self._right(group[:k]), len(group[:k])) for group in self._evaluation.values() if len(group) >= k]
        self._evaluation.clear()
        if not state.is_world_process_zero or not counts:
            return
        self.evaluated = {
            "step": state.global_step,
            "rollouts": self._rollouts,
            "avg": _mean([right / n for right, n in counts]),
            "best": _mean([right > 0 for right, n in counts]),
            "worst": _mean([right == n for right, n in counts]),
            "k": k,
            "problems": len(counts),
        }
        self.files.append(EVALUATIONS, [self.evaluated])

    def on_train_end(self, args, state, control, **_):
        self._flush(state)

    def _flush(self, state) -> None:
        if self._pending is not None and state.is_world_process_zero:
            self.files.append(STEPS, [self._pending])
        self._pending = None

    def _right(self, group: Sequence[Rollout]) -> int:
        return sum(_scored(rollout.reward) and rollout.reward > self.right_above for rollout in group)


def steps_of_a_round(args) -> int:
    """How many optimizer steps one round of generation serves: k + 1 at staleness k."""
    return max(1, args.steps_per_generation // args.gradient_accumulation_steps)


def step_rows(rollouts: int, steps: int, world: int = 1) -> np.ndarray:
    """(steps, rollouts / steps) positions of each optimizer step's rollouts in what all processes gathered.

    Gathered rollouts stand by process, and in a process by step.
    """
    return np.arange(rollouts).reshape(world, steps, -1).swapaxes(0, 1).reshape(steps, -1)


def _scored(reward: float | None) -> bool:
    return reward is not None and not math.isnan(reward)


def _mean(values: Sequence[float]) -> float | None:
    return round(float(np.mean(values)), 6) if len(values) else None


def _prompt_name(prompt: object) -> str:
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
