"""Least squares with Huber loss and bounds for many problems at once: Levenberg-Marquardt over a batch.

One problem is a start and a vector of weights over the same runs. A bootstrap refit, a fold, a profile point and a start
are all such problems; solved together, 400 refits of 370 runs take about a second on one core.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from derivedata.scaling.model import Model


@dataclass(frozen=True, slots=True)
class Solution:
    """Parameters (K, p), objectives (K,), whether each problem met the tolerance (K,), iterations spent."""

    theta: NDArray
    objective: NDArray
    converged: NDArray
    iterations: int


def huber(residual: NDArray, delta: float) -> NDArray:
    """r^2/2 inside delta, delta (|r| - delta/2) outside."""
    size = np.abs(residual)
    inside = np.minimum(size, delta)
    return inside * (size - inside / 2)


def solve(
    model: Model,
    start: NDArray,
    free: NDArray,
    delta: float,
    weight: NDArray,
    *,
    iterations: int = 300,
    tolerance: float = 1e-10,
) -> Solution:
    """Minimise sum of weight * Huber(ln L - ln loss) from each start.

    Args:
        model: predictions and Jacobians.
        start: (K, p) start vectors; entries that are not free stay as they are.
        free: (p,) mask of what may move.
        delta: where the Huber loss turns linear, in units of ln L.
        weight: (runs,) or (K, runs) weights.
        tolerance: relative decrease of the objective over three accepted steps at which a problem is done.
    """
    theta = np.array(np.atleast_2d(start), float)
    count, which = len(theta), np.flatnonzero(free)
    weight = np.broadcast_to(np.asarray(weight, float), (count, len(model.n)))
    low, high = model.parameters.low[which], model.parameters.high[which]
    theta[:, which] = np.clip(theta[:, which], low, high)
    residual, jacobian = model.value_and_jacobian(theta)
    residual = residual - model.lnloss
    best = (weight * huber(residual, delta)).sum(-1)
    damping, growth = np.full(count, 1e-3), np.full(count, 2.0)
    calm, active = np.zeros(count, int), np.arange(count)
    spent = 0
    jacobian, eye = jacobian[:, which], np.eye(len(which))
    for spent in range(1, iterations + 1):  # noqa: B007
        w = weight[active]
        # IRLS weights keep the quadratic model above the Huber loss, so that each full step descends.
        irls = w * (delta / np.maximum(np.abs(residual), delta))
        weighted = jacobian * irls[:, None]
        gradient = (weighted @ residual[..., None])[..., 0]
        normal = weighted @ jacobian.swapaxes(1, 2)
        x = theta[active][:, which]
        # A parameter at its bound that the gradient pushes outwards rests for this step.
        stuck = ((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0))
        gradient[stuck] = 0.0
        moves = ~stuck
        normal *= moves[:, :, None] & moves[:, None, :]
        scale = np.maximum(np.einsum("kii->ki", normal), 1e-12)
        damped = normal + (damping[active, None] * scale)[..., None] * eye
        damped += (stuck * 1.0)[..., None] * eye
        step = -np.linalg.solve(damped, gradient[..., None])[..., 0]
        moved = np.clip(x + step, low, high)
        trial = theta[active]
        trial[:, which] = moved
        value, new_jacobian = model.value_and_jacobian(trial)
        value = value - model.lnloss
        objective = (w * huber(value, delta)).sum(-1)
        objective = np.where(np.isfinite(objective), objective, np.inf)
        better = objective <= best[active]
        gain = (best[active] - objective) / np.maximum(best[active], 1e-300)
        ids = active[better]
        theta[ids], best[ids] = trial[better], objective[better]
        residual = np.where(better[:, None], value, residual)
        jacobian = np.where(better[:, None, None], new_jacobian[:, which], jacobian)
        damping[active] = np.where(better, np.maximum(damping[active] / 5, 1e-12), damping[active] * growth[active])
        growth[active] = np.where(better, 2.0, growth[active] * 2)
        calm[active] = np.where(better, np.where(gain < tolerance, calm[active] + 1, 0), calm[active])
        done = (calm[active] >= 3) | (damping[active] > 1e12)
        if done.any():
            keep = ~done
            active, residual, jacobian = active[keep], residual[keep], jacobian[keep]
            if not len(active):
                break
    converged = np.ones(count, bool)
    converged[active] = False
    return Solution(theta, best, converged, spent)
