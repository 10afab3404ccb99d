"""Whole studies on the toy: a grid of n is trained, planned from, and compared with the optimum that is known."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from derivedata.scaling.rl.plan import Plan, plan
from derivedata.scaling.rl.points import Curve
from derivedata.scaling.rl.simulate import WORLDS, measured, train, true_optimum

NS = (4, 8, 16, 32, 64, 128, 256)
REPEATS = 8


@dataclass(frozen=True, slots=True)
class Study:
    """A plan, the true best n, and true rewards by n at the budget."""

    plan: Plan
    best: int
    rewards: dict[int, float]

    @property
    def is_right(self) -> bool:
        """Within one power of two of the optimum."""
        return abs(np.log2(self.plan.n.value / self.best)) <= 1.001


def studies(
    count: int, *, budget: float, kind: str = "hard", ns: tuple[int, ...] = NS, known: tuple[int, ...] = NS,
    points: str = "all", draws: int = 60, seed: int = 0,
) -> list[Study]:  # fmt: skip
    """Plan from `count` toy worlds with one run for each n; the optimum is that of REPEATS more runs of the same world.

    ns: what the studies try; known: where the true optimum is looked for.
    """
    worlds = [replace(WORLDS[kind], seed=1000 * seed + i) for i in range(count)]
    traces = {n: train(worlds * (1 + REPEATS), n=n, problems_per_batch=16, budget=budget, seed=seed) for n in known}
    evaluations = {n: measured(traces[n], seed=seed)["avg"] for n in ns}
    found = []
    for i in range(count):
        curves = [Curve(run=f"n{n}", C=traces[n].C, reward=evaluations[n][i], n=n, problems=16) for n in ns]
        rewards = {n: (trace.C, trace.reward[count + i :: count].mean(0)) for n, trace in traces.items()}
        best, at_budget = true_optimum(rewards, 0.99 * budget)
        found.append(Study(plan(curves, budget=budget, points=points, draws=draws), best, at_budget))
    return found
