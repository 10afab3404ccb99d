"""Least squares of many sigmoids at once: a coarse search, then Levenberg-Marquardt over the batch.

A problem is a curve (its own points and weights) with a mask of what is free. Seeds, bootstrap draws, points of a
profile and forecasts are all such problems; 2,000 curves of 60 points take about a second on one core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

# Order of a parameter vector; C_mid and B are kept as logarithms.
R0, A, LN_C_MID, LN_B = range(4)
STEEPNESS = (0.15, 15.0)
_CHUNK = 2000
_START_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Curves:
    """K curves of n points: x = ln C, y = reward, weight (0 pads short curves); low and high bounds (K, 4)."""

    x: NDArray
    y: NDArray
    weight: NDArray
    low: NDArray
    high: NDArray

    @classmethod
    def of(
        cls, x: NDArray, y: NDArray, weight: NDArray | None = None, *, least: float = 0.0, most: float = 1.0
    ) -> Curves:
        """Bounds: R_0 and A in [least, most], C_mid within a factor of 30 of the points, B in `STEEPNESS`."""
        x, y = np.atleast_2d(np.asarray(x, float)), np.atleast_2d(np.asarray(y, float))
        x, y = np.broadcast_arrays(x, y)
        weight = np.ones(x.shape) if weight is None else np.broadcast_to(np.asarray(weight, float), x.shape)
        used = np.where(weight > 0, x, np.nan)
        low = np.empty((len(x), 4))
        high = np.empty((len(x), 4))
        low[:, :2], high[:, :2] = least, most
        low[:, LN_C_MID], high[:, LN_C_MID] = np.nanmin(used, 1) - np.log(30), np.nanmax(used, 1) + np.log(30)
        low[:, LN_B], high[:, LN_B] = np.log(STEEPNESS)
        return cls(x, y, weight, low, high)

    def take(self, which: NDArray) -> Curves:
        """Some of the curves, repeated as the index repeats them."""
        return Curves(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    def with_point(self, x: NDArray, y: NDArray, weight: float) -> Curves:
        """The curves with one more point each: a heavy one holds the curve there."""
        more = (np.asarray(x, float), np.asarray(y, float), np.full(len(self.x), weight))
        names = ("x", "y", "weight")
        return replace(self, **{n: np.column_stack([getattr(self, n), m]) for n, m in zip(names, more, strict=True)})

    def error(self, theta: NDArray) -> NDArray:
        """Weighted sums of squares (K,)."""
        return (self.weight * (predict(theta, self.x) - self.y) ** 2).sum(1)


def predict(theta: NDArray, x: NDArray) -> NDArray:
    """Rewards (K, n) of K parameter vectors at x = ln C."""
    r0, a, mid, steep = (theta[:, i : i + 1] for i in range(4))
    return r0 + (a - r0) * expit(np.exp(steep) * (x - mid))


def fit_many(curves: Curves, *, r0: NDArray | float | None = None) -> NDArray:
    """Vectors (K, 4) of least squares; `r0` (K,) or one number where it is known, else it is fitted."""
    known = None if r0 is None else np.broadcast_to(np.asarray(r0, float), len(curves.x))
    start = _starts(curves, known)
    free = np.ones((len(start), 4), bool)
    free[:, R0] = known is None
    return solve(curves, start, free)


def _starts(curves: Curves, r0: NDArray | None) -> NDArray:
    """The best of a grid over (C_mid, B); R_0 and A are linear, and solved."""
    steep = np.log([0.4, 0.7, 1.1, 1.6, 2.3, 3.5, 6.0])
    found = []
    for first in range(0, len(curves.x), _START_CHUNK):
        part = curves.take(np.arange(first, min(first + _START_CHUNK, len(curves.x))))
        low, high = part.low[:, LN_C_MID], part.high[:, LN_C_MID]
        mid = low[:, None] + (high - low)[:, None] * np.linspace(0.05, 0.95, 28)
        mids, steeps = np.repeat(mid, len(steep), axis=1), np.tile(steep, (len(low), mid.shape[1]))
        s = expit(np.exp(steeps)[..., None] * (part.x[:, None] - mids[..., None]))
        w, y = part.weight[:, None], part.y[:, None]
        if r0 is None:
            base, gain = _line(s, y, w)
        else:
            base = np.broadcast_to(r0[first : first + len(low), None], mids.shape)
            gain = (w * s * (y - base[..., None])).sum(-1) / np.maximum((w * s * s).sum(-1), 1e-12)
        base = np.clip(base, part.low[:, :1], part.high[:, :1])
        top = np.clip(base + gain, part.low[:, 1:2], part.high[:, 1:2])
        error = (w * (base[..., None] + (top - base)[..., None] * s - y) ** 2).sum(-1)
        best = np.argmin(error, 1)[:, None]
        found.append(np.column_stack([np.take_along_axis(v, best, 1)[:, 0] for v in (base, top, mids, steeps)]))
    return np.concatenate(found)


def _line(s: NDArray, y: NDArray, w: NDArray) -> tuple[NDArray, NDArray]:
    """Least squares of y = base + gain s along the last axis."""
    total = w.sum(-1)
    ms, my = (w * s).sum(-1) / total, (w * y).sum(-1) / total
    square = (w * (s - ms[..., None]) ** 2).sum(-1)
    gain = (w * (s - ms[..., None]) * y).sum(-1) / np.maximum(square, 1e-12)
    gain = np.where(square > 1e-9 * total, gain, 0.0)
    return my - gain * ms, gain


def solve(curves: Curves, start: NDArray, free: NDArray, *, iterations: int = 200, tolerance: float = 1e-11) -> NDArray:
    """Minimise each curve's weighted sum of squares from its start vector.

    Args:
        start: (K, 4); what is not free stays.
        free: (K, 4) mask.
        tolerance: relative gain below which three accepted steps in a row end a problem.
    """
    theta = np.clip(np.array(start, float), np.where(free, curves.low, -np.inf), np.where(free, curves.high, np.inf))
    for first in range(0, len(theta), _CHUNK):
        which = np.arange(first, min(first + _CHUNK, len(theta)))
        theta[which] = _Batch(curves.take(which), theta[which], free[which]).run(iterations, tolerance)
    return theta


class _Batch:
    def __init__(self, curves: Curves, theta: NDArray, free: NDArray):
        self.theta, self.active = theta, np.arange(len(theta))
        self.curves, self.free = curves, free
        self.damping, self.growth = np.full(len(theta), 1e-3), np.full(len(theta), 2.0)
        self.calm = np.zeros(len(theta), int)
        self.residual, self.jacobian = self._evaluate(theta)
        self.error = (curves.weight * self.residual**2).sum(1)

    def run(self, iterations: int, tolerance: float) -> NDArray:
        for _ in range(iterations):
            if not self._step(tolerance):
                break
        return self.theta

    def _evaluate(self, theta: NDArray) -> tuple[NDArray, NDArray]:
        """Residuals (k, n) and Jacobian (k, 4, n) of the active problems; rows that are not free are 0."""
        gain, B = theta[:, 1:2] - theta[:, :1], np.exp(theta[:, 3:4])
        away = self.curves.x - theta[:, 2:3]
        s = expit(B * away)
        slope = gain * B * s * (1 - s)
        jacobian = np.stack([1 - s, s, -slope, slope * away], axis=1) * self.free[..., None]
        return theta[:, :1] + gain * s - self.curves.y, jacobian

    def _step(self, tolerance: float) -> bool:
        active, curves = self.active, self.curves
        at = self.theta[active]
        weighted = self.jacobian * curves.weight[:, None]
        gradient = (weighted @ self.residual[..., None])[..., 0]
        normal = weighted @ self.jacobian.swapaxes(1, 2)
        # A parameter at its bound that the gradient pushes outwards rests for this step, as does what is held.
        rests = ~self.free | ((at <= curves.low) & (gradient > 0)) | ((at >= curves.high) & (gradient < 0))
        gradient[rests] = 0.0
        normal *= ~rests[:, :, None] & ~rests[:, None, :]
        diagonal = np.maximum(np.einsum("kii->ki", normal), 1e-12)
        index = np.arange(4)
        normal[:, index, index] += self.damping[:, None] * diagonal + rests
        step = np.linalg.solve(normal, gradient[..., None])[..., 0]
        trial = np.where(self.free, np.clip(at - step, curves.low, curves.high), at)
        residual, jacobian = self._evaluate(trial)
        error = (curves.weight * residual**2).sum(1)
        better = error <= self.error
        gain = (self.error - error) / np.maximum(self.error, 1e-300)
        self.theta[active[better]] = trial[better]
        self.error = np.where(better, error, self.error)
        self.residual = np.where(better[:, None], residual, self.residual)
        self.jacobian = np.where(better[:, None, None], jacobian, self.jacobian)
        self.damping = np.where(better, np.maximum(self.damping / 5, 1e-12), self.damping * self.growth)
        self.growth = np.where(better, 2.0, self.growth * 2)
        self.calm = np.where(better, np.where(gain < tolerance, self.calm + 1, 0), self.calm)
        keep = ~((self.calm >= 3) | (self.damping > 1e12) | (self.error < 1e-24))
        if not keep.all():
            self.curves = curves.take(np.flatnonzero(keep))
            for name in ("active", "free", "error", "residual", "jacobian", "damping", "growth", "calm"):
                setattr(self, name, getattr(self, name)[keep])
        return len(self.active) > 0
