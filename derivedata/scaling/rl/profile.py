"""Profile-likelihood intervals of many sigmoids at once: of R_0, A, C_mid, B, and of the reward at a compute.

The interval of a quantity holds every value at which the least sum of squares rises by no more than
F(1, n - p; level) times the residual variance (Gaussian noise of unknown size). An end that reaches the bound of a
parameter's range is infinite, or the bound itself for a reward, which has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri

from derivedata.scaling.rl.solver import R0, A, Curves, predict, solve

# Rungs of the ladder that looks for an end, in standard errors of the linear approximation.
_RUNGS = (0.8, 1.6, 2.4, 3.4, 5.0, 7.5, 11.0, 16.0, 24.0, 40.0, 80.0, 200.0)
_HEAVY = 1e6


@dataclass(frozen=True, slots=True)
class Ends:
    """Lower and upper ends (K,)."""

    low: NDArray
    high: NDArray


def profile_parameter(curves: Curves, theta: NDArray, index: int, free: NDArray, *, level: float = 0.95) -> Ends:
    """Intervals of one entry of the vectors (C_mid and B as logarithms). NaN where the entry is not free."""
    held = free.copy()
    held[:, index] = False

    def rise(which: NDArray, value: NDArray, start: NDArray) -> tuple[NDArray, NDArray]:
        start = start.copy()
        start[:, index] = value
        part = curves.take(which)
        solved = solve(part, start, held[which])
        return part.error(solved), solved

    bounded = index in (R0, A)
    ends = _ends(curves, theta, free, theta[:, index], curves.low[:, index], curves.high[:, index], rise, level)
    if not bounded:
        ends = Ends(
            np.where(ends.low <= curves.low[:, index], -np.inf, ends.low),
            np.where(ends.high >= curves.high[:, index], np.inf, ends.high),
        )
    gone = ~free[:, index]
    return Ends(np.where(gone, np.nan, ends.low), np.where(gone, np.nan, ends.high))


def profile_reward(curves: Curves, theta: NDArray, x: NDArray, free: NDArray, *, level: float = 0.95) -> Ends:
    """Intervals of the expected reward at x = ln C (K,): the curve is held there by a point of great weight."""
    x = np.broadcast_to(np.asarray(x, float), len(theta))
    here = predict(theta, x[:, None])[:, 0]

    def rise(which: NDArray, value: NDArray, start: NDArray) -> tuple[NDArray, NDArray]:
        part = curves.take(which)
        solved = solve(part.with_point(x[which], value, _HEAVY), start, free[which])
        # Where the bounds do not let the curve through the point, the value is not possible.
        off = np.abs(predict(solved, x[which][:, None])[:, 0] - value) > 1e-3
        return np.where(off, np.inf, part.error(solved)), solved

    return _ends(curves, theta, free, here, curves.low[:, A], curves.high[:, A], rise, level)


def _ends(
    curves: Curves,
    theta: NDArray,
    free: NDArray,
    here: NDArray,
    low: NDArray,
    high: NDArray,
    rise: Callable[[NDArray, NDArray, NDArray], tuple[NDArray, NDArray]],
    level: float,
) -> Ends:
    count = len(theta)
    least = curves.error(theta)
    spare = np.maximum((curves.weight > 0).sum(1) - free.sum(1), 1)
    limit = least * (1 + fdtri(1, spare, level) / spare)
    limit = np.maximum(limit, least + 1e-14)
    # Both sides of every curve are problems of one batch.
    which = np.tile(np.arange(count), 2)
    bound = np.concatenate([low, high])
    sign = np.repeat([-1.0, 1.0], count)
    inside, inside_rise = here[which].copy(), np.zeros(2 * count)
    outside = bound.copy()
    outside_rise = np.full(2 * count, np.nan)
    start = theta[which].copy()
    unit = _unit(which, here, bound, rise, theta, least, limit)
    looking = np.abs(bound - inside) > 1e-12
    target = np.sqrt(limit - least)[which]
    for rung in _RUNGS:
        at = np.flatnonzero(looking)
        if not len(at):
            break
        value = here[which[at]] + sign[at] * rung * unit[at]
        value = np.where(sign[at] > 0, np.minimum(value, bound[at]), np.maximum(value, bound[at]))
        error, solved = rise(which[at], value, start[at])
        risen = np.sqrt(np.maximum(error - least[which[at]], 0))
        over = risen > target[at]
        outside[at[over]], outside_rise[at[over]] = value[over], risen[over]
        inside[at[~over]], inside_rise[at[~over]], start[at[~over]] = value[~over], risen[~over], solved[~over]
        looking[at[over | (value == bound[at])]] = False
    # What no rung crossed is tried at the bound itself.
    at = np.flatnonzero(looking)
    if len(at):
        error, _ = rise(which[at], bound[at], start[at])
        risen = np.sqrt(np.maximum(error - least[which[at]], 0))
        over = risen > target[at]
        outside_rise[at[over]] = risen[over]
        inside[at[~over]] = bound[at[~over]]
    # The root of the rise is nearly linear in the value: a few false positions find the crossing.
    at = np.flatnonzero(~np.isnan(outside_rise))
    for _ in range(5):
        if not len(at):
            break
        a, b, ra, rb = inside[at], outside[at], inside_rise[at], outside_rise[at]
        share = np.where(np.isfinite(rb), (target[at] - ra) / np.maximum(rb - ra, 1e-300), 0.5)
        value = a + np.clip(share, 0.05, 0.95) * (b - a)
        error, solved = rise(which[at], value, start[at])
        risen = np.sqrt(np.maximum(error - least[which[at]], 0))
        over = risen > target[at]
        outside[at[over]], outside_rise[at[over]] = value[over], risen[over]
        inside[at[~over]], inside_rise[at[~over]], start[at[~over]] = value[~over], risen[~over], solved[~over]
    return Ends(inside[:count], inside[count:])


def _unit(
    which: NDArray,
    here: NDArray,
    bound: NDArray,
    rise: Callable[[NDArray, NDArray, NDArray], tuple[NDArray, NDArray]],
    theta: NDArray,
    least: NDArray,
    limit: NDArray,
) -> NDArray:
    """Steps that would reach half of the limit if the rise were a parabola, from one small step each."""
    step = 1e-3 * (bound - here[which])
    error, _ = rise(which, here[which] + step, theta[which])
    risen = np.sqrt(np.maximum(error - least[which], 0))
    half = 0.5 * np.sqrt(limit - least)[which]
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = np.abs(step) * half / risen
    span = np.abs(bound - here[which])
    return np.where(np.isfinite(unit), np.clip(unit, 1e-6 * span, span), span)
