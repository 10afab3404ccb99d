"""Least squares with Huber loss and bounds for many problems at once: Levenberg-Marquardt over a batch.

One problem is a start and a vector of weights over the same runs. A bootstrap refit, a fold, a profile point and a
start are all such problems; solved together, 400 refits of 370 runs take about a second on one core.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from derivedata.scaling.model import Model

CHUNK = 200  # problems solved at once: keeps the Jacobians of a chunk below some 30 MB


@dataclass(frozen=True, slots=True)
class Solution:
    """Parameters (K, p), objectives (K,) and whether each problem met the tolerance (K,)."""

    theta: NDArray
    objective: NDArray
    converged: NDArray

    @property
    def best(self) -> int:
        """Index of the least objective."""
        return int(np.argmin(self.objective))


def huber(residual: NDArray, delta: float) -> NDArray:
    """r^2/2 inside delta, delta (|r| - delta/2) outside."""
    size = np.abs(residual)
    inside = np.minimum(size, delta)
    return inside * (size - inside / 2)


def solve(
    model: Model,
    start: NDArray,
    *,
    free: NDArray,
    delta: float,
    weight: NDArray,
    iterations: int = 400,
    tolerance: float = 1e-10,
) -> Solution:
    """Minimise sum of weight * Huber(ln L - ln loss) from each start.

    Args:
        model: predictions and Jacobians.
        start: (K, p) start vectors; entries that are not free stay as they are in each.
        free: (p,) mask of what may move.
        delta: where the Huber loss turns linear, in units of ln L.
        weight: (runs,) or (K, runs) weights.
        iterations: steps tried at most.
        tolerance: relative decrease of the objective below which three accepted steps in a row end a problem.
    """
    start = np.atleast_2d(np.asarray(start, float))
    weight = np.broadcast_to(np.asarray(weight, float), (len(start), len(model.n)))
    parts = []
    for first in range(0, len(start), CHUNK):
        batch = _Batch(model, start[first : first + CHUNK], free, delta, weight[first : first + CHUNK])
        for _ in range(iterations):
            if not batch.step(tolerance):
                break
        parts.append((batch.theta, batch.best, batch.done))
    return Solution(*(np.concatenate(pieces) for pieces in zip(*parts, strict=True)))


class _Batch:
    def __init__(self, model: Model, start: NDArray, free: NDArray, delta: float, weight: NDArray):
        self.model, self.delta, self.weight = model, delta, weight
        self.which = np.flatnonzero(free)
        self.low, self.high = model.parameters.low[self.which], model.parameters.high[self.which]
        self.theta = start.copy()
        self.theta[:, self.which] = np.clip(self.theta[:, self.which], self.low, self.high)
        count = len(start)
        self.damping, self.growth = np.full(count, 1e-3), np.full(count, 2.0)
        self.calm, self.done = np.zeros(count, int), np.zeros(count, bool)
        # Residuals and Jacobians of the problems that still move; `active` says which those are.
        self.active = np.arange(count)
        self.residual, self.jacobian = self._evaluate(self.theta)
        self.best = (weight * huber(self.residual, delta)).sum(-1)

    def _evaluate(self, theta: NDArray) -> tuple[NDArray, NDArray]:
        value, jacobian = self.model.value_and_jacobian(theta)
        return value - self.model.lnloss, jacobian[:, self.which]

    def _trial(self, weight: NDArray) -> NDArray:
        """The next point of each active problem."""
        at = self.theta[self.active][:, self.which]
        # IRLS weights keep the quadratic model above the Huber loss, so that every undamped step descends.
        irls = weight * (self.delta / np.maximum(np.abs(self.residual), self.delta))
        weighted = self.jacobian * irls[:, None]
        gradient = (weighted @ self.residual[..., None])[..., 0]
        normal = weighted @ self.jacobian.swapaxes(1, 2)
        # A parameter at its bound that the gradient pushes outwards rests for this step.
        stuck = ((at <= self.low) & (gradient > 0)) | ((at >= self.high) & (gradient < 0))
        gradient[stuck] = 0.0
        normal *= ~stuck[:, :, None] & ~stuck[:, None, :]
        diagonal = np.maximum(np.einsum("kii->ki", normal), 1e-12)
        extra = self.damping[self.active, None] * diagonal + stuck
        index = np.arange(len(self.which))
        normal[:, index, index] += extra
        moved = self.theta[self.active]
        moved[:, self.which] = np.clip(at - np.linalg.solve(normal, gradient[..., None])[..., 0], self.low, self.high)
        return moved

    def step(self, tolerance: float) -> bool:
        """One step of every active problem; whether any is left."""
        active, weight = self.active, self.weight[self.active]
        trial = self._trial(weight)
        residual, jacobian = self._evaluate(trial)
        objective = (weight * huber(residual, self.delta)).sum(-1)
        objective = np.where(np.isfinite(objective), objective, np.inf)
        before = self.best[active]
        better = objective <= before
        gain = (before - objective) / np.maximum(before, 1e-300)
        self.theta[active[better]], self.best[active[better]] = trial[better], objective[better]
        self.residual = np.where(better[:, None], residual, self.residual)
        self.jacobian = np.where(better[:, None, None], jacobian, self.jacobian)
        damping, growth, calm = self.damping[active], self.growth[active], self.calm[active]
        self.damping[active] = np.where(better, np.maximum(damping / 5, 1e-12), damping * growth)
        self.growth[active] = np.where(better, 2.0, growth * 2)
        self.calm[active] = np.where(better, np.where(gain < tolerance, calm + 1, 0), calm)
        finished = (self.calm[active] >= 3) | (self.damping[active] > 1e12)
        if finished.any():
            self.done[active[finished]] = True
            keep = ~finished
            self.active, self.residual, self.jacobian = active[keep], self.residual[keep], self.jacobian[keep]
        return len(self.active) > 0
