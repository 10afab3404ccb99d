"""Starts of a fit by variable projection: for given exponents and R*, ln-weighted E, A, B are a linear problem."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from derivedata.scaling.model import Model, Parameters
from derivedata.scaling.solver import huber

_EXPONENTS = np.linspace(0.12, 0.72, 7)
_LN_R = (0.0, 2.0, 4.0)
_LN_R_N = (0.5, 2.0)


def starts(model: Model, default: NDArray, *, free: NDArray, delta: float, weight: NDArray, count: int = 8) -> NDArray:
    """The most promising start vectors, (count, p) at most, best first.

    A grid over (alpha, beta), one ln R* for all strategies and R_N; E, A, B of each point by weighted least squares of
    the relative error, negative ones cut to a small share. Where the backbone is frozen only R* and R_N are gridded.
    """
    parameters = model.parameters
    grid = _grid(parameters, default, free)
    if free[:3].any():
        grid = _with_linear_part(model, grid, free, weight)
    objective = (weight * huber(model.value(grid) - model.lnloss, delta)).sum(-1)
    return grid[np.argsort(objective, kind="stable")[:count]]


def _grid(parameters: Parameters, default: NDArray, free: NDArray) -> NDArray:
    at = [parameters.where[f"ln R[{s}]"] for s in parameters.strategies]
    axes = [
        _EXPONENTS if free[3] else default[3:4],
        _EXPONENTS if free[4] else default[4:5],
        np.array(_LN_R if at and free[at].any() else (np.nan,)),
        np.array(_LN_R_N if free[-1] else default[-1:]),
    ]
    alpha, beta, lnR, lnR_N = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    grid = np.repeat(default[None], len(alpha), axis=0)
    grid[:, 3], grid[:, 4], grid[:, -1] = alpha, beta, lnR_N
    for i in at:
        if free[i]:
            grid[:, i] = lnR
    return grid


def _with_linear_part(model: Model, grid: NDArray, free: NDArray, weight: NDArray) -> NDArray:
    """E, A0 and B0 of each grid point, from L/loss = E u + A v + B w regressed on 1."""
    loss = np.exp(model.lnloss)
    columns = []
    for own in range(3):
        # One term at a time: ln L with the two others switched off is ln of that term.
        alone = grid.copy()
        alone[:, :3] = -700.0
        alone[:, own] = 0.0
        columns.append(np.exp(model.value(alone)) / loss)
    design = np.stack(columns, axis=1) * np.sqrt(weight)
    if not free[1]:
        design[:, 1] = 0.0
    normal = design @ design.swapaxes(1, 2)
    normal[:, range(3), range(3)] += 1e-12 * np.einsum("kii->k", normal)[:, None]
    target = (design * np.sqrt(weight)).sum(-1)
    solution = np.linalg.solve(normal, target[..., None])[..., 0]
    floor = 0.02 * loss.min()
    solved = grid.copy()
    for own in range(3):
        if free[own]:
            solved[:, own] = np.log(np.maximum(solution[:, own], floor))
    return solved
