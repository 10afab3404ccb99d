"""Evaluations of one run, checked: reward against compute, and what the run was trained with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from derivedata.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """The evaluations of a run.

    Args:
        run: its name.
        C: (points,) compute at each evaluation, in rollouts unless said otherwise, rising; 0 is before training.
        reward: (points,) share in [0, 1].
        n: rollouts a problem, None where unknown.
        problems: B_p, problems a batch.
        recipe: what it is a seed of; runs of one recipe (and n and B_p) differ by seed only.
    """

    run: str
    C: NDArray
    reward: NDArray
    n: int | None = None
    problems: int | None = None
    recipe: str = ""

    def __post_init__(self) -> None:
        C, reward = np.asarray(self.C, float), np.asarray(self.reward, float)
        if C.shape != reward.shape or C.ndim != 1:
            raise ValueError(f"C and reward of {self.run} have different lengths")
        if not np.isfinite(C).all() or (C < 0).any():
            bad = C[~np.isfinite(C) | (C < 0)][0]
            raise UserError("C is a finite number of zero or more", where=f"run {self.run}", value=float(bad))
        outside = ~((reward >= 0) & (reward <= 1))
        if outside.any():
            raise UserError(
                "reward out of range: a share between 0 and 1 is wanted",
                where=f"run {self.run}, C = {C[outside][0]:g}",
                value=float(reward[outside][0]),
                remedy="for a reward of +-1 give (reward + 1)/2, for percent divide by 100",
            )
        order = np.argsort(C, kind="stable")
        C, reward = C[order], reward[order]
        twice = np.flatnonzero(np.diff(C) == 0)
        if len(twice):
            raise UserError(
                "two evaluations at one C: two runs under one name?",
                where=f"run {self.run}",
                value=f"C = {C[twice[0]]:g}",
                remedy="give each run its own name in the column run, and each evaluation one row",
            )
        object.__setattr__(self, "C", C)
        object.__setattr__(self, "reward", reward)

    @property
    def batch(self) -> int | None:
        """B = B_p n, rollouts a step."""
        return None if self.n is None or self.problems is None else self.n * self.problems

    @property
    def start_reward(self) -> float | None:
        """R_0 as measured before training; None without an evaluation at C = 0."""
        return float(self.reward[0]) if len(self.C) and self.C[0] == 0 else None

    def noise(self) -> float:
        """Standard deviation of an evaluation around a smooth curve, from second differences (0 with < 3 points)."""
        if len(self.reward) < 3:
            return 0.0
        return float(np.sqrt(np.mean(np.diff(self.reward, 2) ** 2) / 6))

    def fall(self) -> float:
        """How far the end lies below the best stretch, beyond four standard errors; 0 where it does not."""
        width = max(2, len(self.reward) // 6)
        if len(self.reward) < 2 * width + 1:
            return 0.0
        mean = np.convolve(self.reward, np.full(width, 1 / width), "valid")
        fall = float(mean.max() - mean[-1])
        return fall if fall > max(4 * self.noise() * np.sqrt(2 / width), 0.01) else 0.0
