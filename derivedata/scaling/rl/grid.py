"""ScaleRL's own fit: A and C_mid on a grid, B fitted in every cell, all cells and bootstrap draws at once.

Khatri et al. 2025 (arXiv 2510.13786) take A = .450, .455, ... .800 and 100 values of C_mid and call `curve_fit` for B
in each of the 7,100 cells. For a given (C_mid, B) the squared error is a parabola in A whose coefficients are sums over
points, linear in their weights: so two matrix products give the errors of all cells for all draws. B runs over a fine
grid and a parabola; the best cells are then solved exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from derivedata.scaling.rl.solver import LN_B, LN_C_MID, A, Curves, solve

_STEEP = (0.2, 10.0)
_STEPS = 56
_FINALISTS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The values of A and of C_mid."""

    A: NDArray
    C_mid: NDArray

    @classmethod
    def of(cls, C: NDArray, *, low: float = 0.45, high: float = 0.80, step: float = 0.005, count: int = 100) -> Grid:
        """Their asymptotes, and C_mid evenly in ln C from the least C to four times the largest."""
        values = low + step * np.arange(round((high - low) / step) + 1)
        return cls(A=values, C_mid=np.geomspace(C[C > 0].min(), 4 * C.max(), count))

    @property
    def cells(self) -> int:
        """How many pairs of A and C_mid there are."""
        return len(self.A) * len(self.C_mid)


def fit_grid(C: NDArray, reward: NDArray, *, r0: float, grid: Grid, weight: NDArray | None = None) -> NDArray:
    """The best cell with its B for each weighting of the points.

    Args:
        C, reward: (points,), C > 0.
        r0: R_0, known.
        weight: (draws, points), ones for one plain fit.

    Returns:
        (draws, 4) vectors (R_0, A, ln C_mid, ln B).
    """
    weight = np.ones((1, len(C))) if weight is None else np.atleast_2d(weight)
    x, mid, lift = np.log(C), np.log(grid.C_mid), reward - r0
    steep = np.linspace(*np.log(_STEEP), _STEPS)
    s = expit(np.exp(steep)[None, :, None] * (x - mid[:, None])[:, None, :])
    flat = s.reshape(-1, len(C))
    cross = (flat @ (weight * lift).T).T.reshape(len(weight), len(mid), _STEPS)
    square = ((flat * flat) @ weight.T).T.reshape(len(weight), len(mid), _STEPS)
    gain = (grid.A - r0)[:, None, None]
    chosen = np.empty((len(weight), _FINALISTS, 4))
    for draw in range(len(weight)):
        # Up to a constant the error of every cell (A, C_mid) at every B.
        error = gain * (gain * square[draw] - 2 * cross[draw])
        best, where = _least(error)
        cells = np.argpartition(best.ravel(), _FINALISTS)[:_FINALISTS]
        a, m = np.unravel_index(cells, best.shape)
        chosen[draw] = np.column_stack([np.full(len(a), r0), grid.A[a], mid[m], steep[where[a, m]]])
    theta = chosen.reshape(-1, 4)
    which = np.repeat(np.arange(len(weight)), _FINALISTS)
    curves = Curves.of(np.tile(x, (len(theta), 1)), np.tile(reward, (len(theta), 1)), weight[which])
    curves.low[:, LN_B], curves.high[:, LN_B] = np.log(_STEEP)
    free = np.zeros(theta.shape, bool)
    free[:, LN_B] = True
    theta = solve(curves, theta, free)
    error = curves.error(theta).reshape(len(weight), -1)
    return theta.reshape(len(weight), -1, 4)[np.arange(len(weight)), np.argmin(error, 1)]


def _least(error: NDArray) -> tuple[NDArray, NDArray]:
    """The least over the last axis by a parabola through the lowest three, and the place of the lowest."""
    where = np.argmin(error, -1)
    inner = np.clip(where, 1, error.shape[-1] - 2)[..., None]
    left, here, right = (np.take_along_axis(error, inner + i, -1)[..., 0] for i in (-1, 0, 1))
    bend = left - 2 * here + right
    with np.errstate(divide="ignore", invalid="ignore"):
        drop = (left - right) ** 2 / (8 * bend)
    lowest = np.take_along_axis(error, where[..., None], -1)[..., 0]
    return np.where((bend > 0) & (where == inner[..., 0]), here - drop, lowest), where


def at_edge(theta: NDArray, grid: Grid) -> tuple[bool, bool]:
    """Whether A, and whether C_mid, lies at an end of the grid."""
    a, mid = float(theta[A]), float(theta[LN_C_MID])
    ends = np.log(grid.C_mid[[0, -1]])
    return bool(np.isclose(a, grid.A[[0, -1]]).any()), bool(np.isclose(mid, ends).any())
