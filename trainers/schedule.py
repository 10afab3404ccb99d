"""Learning rates over a run: warm-up, then WSD (warm-up, stable, decay) or cosine.

WSD holds the rate until the decay begins, so that runs of several lengths share one trunk: a run of T steps equals the
trunk up to its fork at `Schedule.fork`, followed by the decay alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from derivedata.errors import UserError

KINDS = ("wsd", "cosine")


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The learning rate of each step, from 0.

    kind: wsd or cosine. peak: the highest rate. steps: of the whole run. warmup: steps of linear rise from peak /
    warmup. decay: share of the steps at the end in which WSD falls linearly. floor: share of the peak that is left at
    the end.
    """

    kind: str
    peak: float
    steps: int
    warmup: int
    decay: float = 0.2
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError("no such schedule", value=self.kind, remedy=f"there are {', '.join(KINDS)}")
        if not 0 < self.peak < 10:
            raise UserError("a learning rate lies between 0 and 10", value=self.peak)
        if self.steps < 1 or self.warmup < 0:
            raise UserError("a schedule has a step and no negative warm-up", value=(self.steps, self.warmup))
        if not 0 <= self.decay <= 1 or not 0 <= self.floor < 1:
            raise UserError("decay and floor are shares", value=(self.decay, self.floor))

    @property
    def fork(self) -> int:
        """The first step of the decay (WSD): until there the run is the same as any longer one."""
        return self.steps - math.ceil(self.decay * self.steps)

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        if step < self.warmup:
            rise = (step + 1) / self.warmup
            # A run shorter than its warm-up has both: the lower of the two counts.
            return self.peak * min(rise, self._after(step))
        return self.peak * self._after(step)

    def _after(self, step: int) -> float:
        if self.kind == "wsd":
            falling = self.steps - self.fork
            done = 0.0 if step < self.fork else (step - self.fork + 1) / (falling + 1)
            return 1 - (1 - self.floor) * done
        done = max(0, step - self.warmup) / max(1, self.steps - self.warmup)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def default_rate(n_params: float) -> float:
    """A peak rate to start from: 0.0047 (N / 108e6)^(-1/3), at most 0.01 (Porian et al. 2024, arXiv 2406.19146, as
    OLMo-core's ladder uses it)."""
    return min(0.01, 0.0047 * (n_params / 108e6) ** (-1 / 3))


def default_batch_tokens(n_params: float) -> int:
    """Tokens of a step: 160 blocks of 2,048 at 108M parameters, growing with N^(2/3) (the same source)."""
    return round(160 * 2048 * (n_params / 108e6) ** (2 / 3))
