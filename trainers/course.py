"""A learner on its way through blocks, step by step; what both the trainer and the sweep drive."""

from __future__ import annotations

import time
from dataclasses import dataclass

from derivedata.errors import UserError
from derivedata.trainers.effective import Seen
from derivedata.trainers.learner import Learner
from derivedata.trainers.packing import Blocks
from derivedata.trainers.schedule import Schedule


class Diverged(UserError):
    """The loss or its gradient is not finite; the weights are those before that step."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A step that was taken: its number from 0, mean loss in nats a token, learning rate, norm of the gradient."""

    step: int
    loss: float
    rate: float
    norm: float


class Course:
    """Steps over blocks in their order; the last may hold fewer blocks than the others.

    Args:
        learner: what learns.
        blocks: the data.
        batch: blocks of a step.

    Attributes:
        step: the next step, from 0. seen: tokens by kind so far. loading: seconds spent on reading blocks.
    """

    def __init__(self, learner: Learner, blocks: Blocks, batch: int):
        self.learner, self.blocks, self.batch = learner, blocks, batch
        self.step, self.seen, self.loading = 0, Seen(), 0.0

    def take(self, schedule: Schedule, upto: int) -> Taken:
        """Take the next step, on no blocks beyond the first `upto`. Raises Diverged."""
        began = time.perf_counter()
        first = self.step * self.batch
        count = min(self.batch, upto - first)
        ids, kinds = self.blocks.read(first, count), self.blocks.kinds(first, count)
        self.loading += time.perf_counter() - began
        rate = schedule.rate(self.step)
        loss, norm = self.learner.step(ids, rate)
        if not (loss < float("inf") and norm < float("inf")):
            raise Diverged(
                "the loss is not finite any more",
                where=f"step {self.step}, after {self.seen.tokens:,} tokens",
                value=f"loss {loss}, gradient norm {norm}, learning rate {rate:.3g}",
                remedy="try a lower learning rate, or a longer warm-up",
            )
        self.seen.add(kinds)
        self.step += 1
        return Taken(self.step - 1, loss, rate, norm)

    def state(self) -> dict:
        """For `restore`: the learner's state, the step, and what was seen."""
        return {"step": self.step, "seen": self.seen.to_list(), "learner": self.learner.state()}

    def restore(self, state: dict) -> None:
        """Go on from a state that `state` gave; the blocks must be the same."""
        self.learner.restore(state["learner"])
        self.step, self.seen = state["step"], Seen.from_list(state["seen"])
