"""Fit ScaleRL's sigmoid to the evaluations of a run, with intervals, a forecast, and what the points cannot say.

    from derivedata.scaling.rl.fit import fit_curve
    print(fit_curve(curve, hold_out_after=2e5).law)

Early compute is skipped: Khatri et al. 2025 leave out about the first epoch, where the sigmoid does not hold. Here that
is what lies below a twentieth of the largest C fitted, unless the caller knows better. An evaluation at C = 0 measures
R_0 with the noise of any other, so it is a point of the fit (taken as exact, as ScaleRL does and the grid still does,
intervals of C_mid cover 85 instead of 95%); without one R_0 is fitted to the rest, and said to be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from derivedata.errors import UserError
from derivedata.scaling.ensemble import Estimate
from derivedata.scaling.rl.curve import PowerLaw, Sigmoid, fit_power_law
from derivedata.scaling.rl.grid import Grid, at_edge, fit_grid
from derivedata.scaling.rl.points import Curve
from derivedata.scaling.rl.profile import profile_parameter, profile_reward
from derivedata.scaling.rl.solver import LN_B, LN_C_MID, R0, STEEPNESS, A, Curves, fit_many, predict

SKIPPED_SHARE = 0.05
FEWEST, FEW = 6, 15
# C = 0 lies at -infinity of ln C: so far below the other points that the flattest sigmoid is R_0 there.
_FAR = 200.0
# An asymptote whose interval is wider than +-.01 does not tell recipes apart (those of the paper differ by .01-.03).
WEAK_WIDTH = 0.02
WEAK = "asymptote weakly identified"
EDGE = "A at the edge of its range"
MID_EDGE = "C_mid at the edge of its range"
STEEP_EDGE = "B at the edge of its range"
SHORT = "largest C not surely above C_mid: no asymptote"
TOO_FEW = "too few points"
DRIFT = "residuals drift: no clean sigmoid, intervals are too narrow"
FALLING = "falling or flat curve: no asymptote"
NO_START = "R_0 fitted: no evaluation at C = 0"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """How evaluations after the fitted ones were forecast.

    Args:
        after: the largest C that was fitted.
        count: evaluations held out.
        rmse, bias: of the sigmoid (forecast - measured); power_rmse: of the power law.
        last: measured reward at the last evaluation; forecast: of the sigmoid there, with its band.
        last_C: where that is.
    """

    after: float
    count: int
    rmse: float
    bias: float
    power_rmse: float
    last_C: float
    last: float
    forecast: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveFit:
    """A fitted curve.

    Args:
        curve: what was given.
        law: the sigmoid of least squares.
        R0, A, C_mid, B: with 95% profile intervals; R0 without one where it is given.
        asymptote: A, or None where the points end before C_mid.
        used: evaluations fitted; skipped: left out below `skipped_below`.
        rmse: of the fitted points; power, power_rmse: the power law beside it.
        largest: largest C fitted.
        forecast: at `forecast_C`, twice the largest C; power_forecast: the power law there.
        held_out: evaluations after `hold_out_after`.
        flags: what the points cannot say, a line each.
        method: "joint" or "grid".
        draws: (draws, 4) vectors of the bootstrap, empty without one.
    """

    curve: Curve
    law: Sigmoid
    R0: Estimate
    A: Estimate
    C_mid: Estimate
    B: Estimate
    used: int
    skipped: int
    skipped_below: float
    rmse: float
    largest: float
    forecast_C: float
    forecast: Estimate
    power: PowerLaw
    power_rmse: float
    power_forecast: float
    held_out: HeldOut | None
    flags: tuple[str, ...]
    method: str
    draws: NDArray

    @property
    def asymptote(self) -> Estimate | None:
        """A, where the points allow one."""
        return None if SHORT in self.flags or FALLING in self.flags else self.A

    def band(self, C: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        """(reward, low, high) at C > 0: the curve with its pointwise 95% profile interval."""
        return _band(self.points(), self.law, self.free, np.asarray(C, float))

    def points(self) -> Curves:
        """The evaluations that were fitted."""
        C, reward = _fitted(self.curve, self.skipped_below, self.largest)
        return _points(C, reward, self.curve.start_reward if self.R0.has_interval else None)

    @property
    def free(self) -> NDArray:
        """Which of (R_0, A, ln C_mid, ln B) were fitted."""
        free = np.ones(4, bool)
        free[R0] = self.R0.has_interval
        return free


def fit_curve(
    curve: Curve,
    *,
    r0: float | None = None,
    skip_below: float | None = None,
    hold_out_after: float | None = None,
    method: str = "joint",
    grid: Grid | None = None,
    bootstrap: int = 0,
    horizon: float = 2.0,
    seed: int = 0,
) -> CurveFit:
    """Fit one curve.

    Args:
        r0: R_0 where it is known; None to fit it, with the evaluation at C = 0 where there is one.
        skip_below: evaluations below this C are left out; None for a twentieth of the largest C fitted.
        hold_out_after: evaluations beyond this C are forecast, not fitted.
        method: "joint" moves A, C_mid and B together; "grid" is ScaleRL's grid.
        grid: cells of the grid method; None for `Grid.of` the points.
        bootstrap: refits to resampled evaluations (kept in `draws`).
        horizon: the forecast stands at this multiple of the largest C fitted.

    Raises:
        UserError: fewer than six evaluations are left to fit, or an unknown R_0 with the grid.
    """
    where = f"run {curve.run}"
    known = curve.start_reward if r0 is None else r0
    if known is not None and not 0 <= known <= 1:
        raise UserError("R_0 is a share between 0 and 1", where=where, value=known)
    inside = (curve.C > 0) & ((np.inf if hold_out_after is None else hold_out_after) >= curve.C)
    largest = float(curve.C[inside].max(initial=0.0))
    skip = SKIPPED_SHARE * largest if skip_below is None else float(skip_below)
    C, reward = _fitted(curve, skip, largest)
    if len(C) < FEWEST:
        cut = "" if hold_out_after is None else f" up to C = {hold_out_after:g}"
        raise UserError(
            f"{len(C)} evaluations{cut} are too few for a curve of four constants",
            where=where,
            remedy=f"evaluate at {FEWEST} or more points of C after {skip:.4g}",
        )
    start = curve.start_reward if r0 is None and method == "joint" else None
    fixed = known if start is None else None
    curves = _points(C, reward, start)
    free = np.ones((1, 4), bool)
    free[:, R0] = fixed is None
    edges: tuple[bool, bool] = (False, False)
    draws = np.empty((0, 4))
    weights = _resampled(len(C), bootstrap, seed)
    if method == "grid":
        if known is None:
            raise UserError("the grid needs R_0", where=where, remedy="give --start-reward, or take the joint fit")
        grid = grid or Grid.of(C)
        theta = fit_grid(C, reward, r0=known, grid=grid, weight=np.vstack([np.ones(len(C)), weights]))
        theta, draws = theta[:1], theta[1:]
        edges = at_edge(theta[0], grid)
    else:
        theta = fit_many(curves, r0=fixed)
        if bootstrap:
            draws = fit_many(
                _points(np.tile(C, (bootstrap, 1)), np.tile(reward, (bootstrap, 1)), start, weights), r0=fixed
            )
    law = Sigmoid.of(theta[0])
    estimates = _intervals(curves, theta, free)
    target = horizon * largest
    value, low, high = _band(curves, law, free[0], np.array([target]))
    power, power_rmse = fit_power_law(C, reward)
    return CurveFit(
        curve=curve,
        law=law,
        R0=estimates[0],
        A=estimates[1],
        C_mid=estimates[2],
        B=estimates[3],
        used=len(C),
        skipped=int((inside & (skip > curve.C)).sum()),
        skipped_below=skip,
        rmse=float(np.sqrt(curves.error(theta)[0] / curves.x.shape[1])),
        largest=largest,
        forecast_C=target,
        forecast=Estimate(value=float(value[0]), low=float(low[0]), high=float(high[0])),
        power=power,
        power_rmse=power_rmse,
        power_forecast=float(power.reward(target)),
        held_out=_held_out(curve, largest, law, power, curves, free[0]) if hold_out_after is not None else None,
        flags=_flags(curve, theta[0], estimates, len(C), largest, known is None, edges, _points(C, reward)),
        method=method,
        draws=draws,
    )


def _fitted(curve: Curve, skip: float, largest: float) -> tuple[NDArray, NDArray]:
    kept = (curve.C > 0) & (skip <= curve.C) & (largest >= curve.C)
    return curve.C[kept], curve.reward[kept]


def _points(C: NDArray, reward: NDArray, start: float | None = None, weight: NDArray | None = None) -> Curves:
    """Evaluations as curves, the one at C = 0 (`start`) as the last point where it is fitted."""
    curves = Curves.of(np.log(C), reward, weight)
    if start is None:
        return curves
    count = len(curves.x)
    return curves.with_point(np.full(count, curves.x.min() - _FAR), np.full(count, start), 1.0)


def _resampled(points: int, draws: int, seed: int) -> NDArray:
    """How often each evaluation counts in each draw of the bootstrap."""
    return np.random.default_rng(seed).multinomial(points, np.full(points, 1 / points), size=draws).astype(float)


def _intervals(curves: Curves, theta: NDArray, free: NDArray) -> list[Estimate]:
    found = []
    for index in (R0, A, LN_C_MID, LN_B):
        value = float(theta[0, index])
        write = np.exp if index in (LN_C_MID, LN_B) else float
        if not free[0, index]:
            found.append(Estimate(value=float(write(value))))
            continue
        ends = profile_parameter(curves, theta, index, free)
        # What starts at the grid's best cell may lie a little outside the interval around the optimum.
        low, high = min(float(ends.low[0]), value), max(float(ends.high[0]), value)
        found.append(Estimate(value=float(write(value)), low=float(write(low)), high=float(write(high))))
    return found


def _band(curves: Curves, law: Sigmoid, free: NDArray, C: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    many = curves.take(np.zeros(len(C), int))
    theta = np.tile(law.theta, (len(C), 1))
    ends = profile_reward(many, theta, np.log(C), np.tile(free, (len(C), 1)))
    return law.reward(C), ends.low, ends.high


def _held_out(
    curve: Curve, largest: float, law: Sigmoid, power: PowerLaw, curves: Curves, free: NDArray
) -> HeldOut | None:
    beyond = largest < curve.C
    if not beyond.any():
        raise UserError(
            "no evaluation lies beyond the cut", where=f"run {curve.run}", value=f"--hold-out-after {largest:g}",
            remedy=f"the largest C is {curve.C.max():g}",
        )  # fmt: skip
    C, reward = curve.C[beyond], curve.reward[beyond]
    error = law.reward(C) - reward
    value, low, high = _band(curves, law, free, C[-1:])
    return HeldOut(
        after=largest,
        count=len(C),
        rmse=float(np.sqrt(np.mean(error**2))),
        bias=float(error.mean()),
        power_rmse=float(np.sqrt(np.mean((power.reward(C) - reward) ** 2))),
        last_C=float(C[-1]),
        last=float(reward[-1]),
        forecast=Estimate(value=float(value[0]), low=float(low[0]), high=float(high[0])),
    )


def _drifts(curves: Curves, theta: NDArray) -> bool:
    """Whether neighbouring residuals are alike: lag-one correlation beyond 2.6 standard errors (.5% by chance)."""
    left = (predict(theta[None], curves.x) - curves.y)[0]
    total = float((left**2).sum())
    return len(left) >= FEW and total > 0 and float((left[1:] * left[:-1]).sum()) / total > 2.6 / np.sqrt(len(left))


def _flags(
    curve: Curve,
    theta: NDArray,
    estimates: list[Estimate],
    used: int,
    largest: float,
    fitted_start: bool,
    edges: tuple[bool, bool],
    curves: Curves,
) -> tuple[str, ...]:
    found = []
    r0, a, mid, steep = theta
    interval = estimates[1]
    falling = a <= r0 + 1e-6 or curve.fall() > 0
    if falling:
        found.append(FALLING)
    if largest < max(np.exp(mid), estimates[2].high):
        found.append(SHORT)
    if edges[0] or a >= 1 - 1e-6 or a <= 1e-6:
        found.append(EDGE)
    if edges[1]:
        found.append(MID_EDGE)
    if np.isclose(steep, np.log(STEEPNESS)).any():
        found.append(STEEP_EDGE)
    if interval.high - interval.low > WEAK_WIDTH:
        found.append(WEAK)
    if _drifts(curves, theta):
        found.append(DRIFT)
    if used < FEW:
        found.append(TOO_FEW)
    if fitted_start:
        found.append(NO_START)
    return tuple(found)
