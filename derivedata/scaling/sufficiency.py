"""Is validation loss a sufficient statistic across strategies? A test, with intervals (Qin et al. 2026 say it is).

If it is, two models of equal validation loss do equally well on anything else, whatever tokens led them there. So a
downstream figure (bits per byte of other text, accuracy) is regressed on validation loss with a term for each strategy:

    y = f(loss) + delta ln(N/N0) + sum over strategies s of [run is of s] (gamma_s + kappa_s (loss - mean of s)) + error

f is a polynomial; runs on fresh tokens alone are the baseline. gamma_s is the offset at the mean loss of the strategy,
kappa_s its change with the loss, without which a strategy of another slope would bend f. gamma_s = 0 is the claim; an
interval around 0 says how far it may still be wrong, never that it is right. Errors are shared within an (N, D) cell
(same text, same order), so they come from leaving out a cell at a time (CR3, MacKinnon and Webb 2022), with Student's t
for the cells that hold the strategy, and Hotelling's T^2 for all strategies together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, stdtrit

from derivedata.errors import UserError
from derivedata.scaling.ensemble import Estimate
from derivedata.scaling.runs import Runs

# Fewer runs or cells than this say nothing of a strategy.
FEWEST_RUNS, FEWEST_CELLS = 3, 2
# A change of the offset with the loss is fitted from so many runs of a strategy on.
SLOPED = 6
# From so many runs on f has a curve, and a turn.
QUADRATIC, CUBIC = 12, 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """What a strategy changes at equal validation loss.

    Args:
        strategy: its name.
        runs, cells: with its derived tokens, and the (N, D) cells they lie in.
        offset: gamma, in units of the metric, against runs on fresh tokens alone; NaN with `why` where it is unknown.
        change: kappa, the change of the offset for a nat of loss; NaN where it is held at 0.
        in_loss: the same as the change of validation loss that has this effect on the metric, nats.
        covered: share of its runs whose validation loss lies within that of the baseline.
        why: what forbids an answer, "" otherwise.
    """

    strategy: str
    runs: int
    cells: int
    offset: Estimate
    change: Estimate
    in_loss: Estimate
    covered: float
    why: str = ""

    @property
    def differs(self) -> bool:
        """Whether the interval excludes 0."""
        return bool(self.offset.has_interval and not self.offset.low <= 0 <= self.offset.high)

    @property
    def within(self) -> float:
        """How far from 0 the offset may be: the farther end of its interval; NaN where there is none."""
        return max(abs(self.offset.low), abs(self.offset.high)) if self.offset.has_interval else float("nan")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sufficiency:
    """The regression.

    Args:
        effects: by strategy.
        p: of all offsets being 0; NaN with too few cells.
        size: delta, the change of the metric for an e-fold of N at equal loss; None with one size.
        slope: of the metric by validation loss at the mean loss.
        degree: of f. scatter: standard deviation of the residuals. runs, cells: used.
        curve: (loss, metric) of the baseline, for a picture.
        warnings: one line each.
    """

    effects: tuple[Effect, ...]
    p: float
    size: Estimate | None
    slope: float
    degree: int
    scatter: float
    runs: int
    cells: int
    curve: tuple[NDArray, NDArray]
    warnings: tuple[str, ...]


def sufficiency(runs: Runs, metric: NDArray) -> Sufficiency:
    """Test whether a metric of the runs depends on their strategy beyond their validation loss.

    Args:
        runs: with their validation loss, nats.
        metric: (runs,) the downstream figure of each; NaN leaves a run out.

    Raises:
        UserError: no derived tokens, no baseline, or fewer runs than constants.
    """
    metric = np.asarray(metric, float)
    known = np.isfinite(metric)
    runs, y = runs.take(known), metric[known]
    names = runs.strategies
    if not names:
        raise UserError("no run has derived tokens", remedy="give runs of a strategy beside runs on fresh tokens alone")
    alone = runs.Dp == 0
    if alone.sum() < FEWEST_RUNS:
        raise UserError(
            f"{int(alone.sum())} runs on fresh tokens alone are no baseline", remedy=f"give {FEWEST_RUNS} or more"
        )
    unknown = {name: _unknown(runs, name, why) for name in names if (why := _unanswerable(runs, name))}
    asked = tuple(name for name in names if name not in unknown)
    if not asked:
        raise UserError(
            "no strategy has enough runs to be compared",
            value="; ".join(f"{name}: {effect.why}" for name, effect in unknown.items()),
        )
    # Runs of a strategy that cannot be judged would bend f.
    kept = alone | np.isin(runs.strategy.astype(str), asked)
    runs, y, alone = runs.take(kept), y[kept], alone[kept]
    design = _Design(runs, asked)
    if len(y) <= design.columns.shape[1]:
        raise UserError(f"{len(y)} runs cannot fix {design.columns.shape[1]} constants")
    solution, covariance, cells = _jackknife(design.columns, y, runs.weight, runs.cluster)
    slope = float(design.slope(solution))
    effects = []
    for name in names:
        if name in unknown:
            effects.append(unknown[name])
            continue
        own = runs.of(name)
        held = len(np.unique(runs.cluster[own]))
        offset = _estimate(solution, covariance, design.at[name], held)
        change = _estimate(solution, covariance, design.change[name], held) if name in design.change else _NOTHING
        effects.append(
            Effect(
                strategy=name,
                runs=int(own.sum()),
                cells=held,
                offset=offset,
                change=change,
                in_loss=_divided(offset, slope),
                covered=float(_covered(runs.loss[own], runs.loss[alone]).mean()),
            )
        )
    size = None
    if design.has_size:
        size = _estimate(solution, covariance, len(solution) - 1, cells)
    residual = y - design.columns @ solution
    which = list(design.at.values())
    return Sufficiency(
        effects=tuple(effects),
        p=_hotelling(solution[which], covariance[np.ix_(which, which)], min(e.cells for e in effects if not e.why)),
        size=size,
        slope=slope,
        degree=design.degree,
        scatter=float(np.sqrt((residual**2).sum() / (len(y) - len(solution)))),
        runs=len(y),
        cells=cells,
        curve=design.curve(solution),
        warnings=tuple(_warnings(effects, cells)),
    )


_NOTHING = Estimate(value=float("nan"))


def _estimate(solution: NDArray, covariance: NDArray, i: int, cells: int) -> Estimate:
    half, value = float(stdtrit(cells - 1, 0.975) * np.sqrt(covariance[i, i])), float(solution[i])
    return Estimate(value=value, low=value - half, high=value + half)


def _unanswerable(runs: Runs, name: str) -> str:
    own = runs.of(name)
    count, cells = int(own.sum()), len(np.unique(runs.cluster[own]))
    if count < FEWEST_RUNS:
        return f"{count} runs, {FEWEST_RUNS} are needed"
    if cells < FEWEST_CELLS:
        return f"all runs in one (N, D) cell, {FEWEST_CELLS} are needed"
    if not _covered(runs.loss[own], runs.loss[runs.Dp == 0]).any():
        return "no run at a validation loss that runs on fresh tokens have"
    return ""


def _unknown(runs: Runs, name: str, why: str) -> Effect:
    own = runs.of(name)
    return Effect(strategy=name, runs=int(own.sum()), cells=len(np.unique(runs.cluster[own])), offset=_NOTHING,
                  change=_NOTHING, in_loss=_NOTHING, covered=float("nan"), why=why)  # fmt: skip


def _covered(loss: NDArray, baseline: NDArray) -> NDArray:
    return (loss >= baseline.min()) & (loss <= baseline.max())


def _divided(offset: Estimate, slope: float) -> Estimate:
    """An offset in nats of validation loss."""
    if slope == 0 or not np.isfinite(slope):
        return Estimate(value=float("nan"))
    ends = sorted((offset.low / slope, offset.high / slope))
    return Estimate(value=offset.value / slope, low=ends[0], high=ends[1])


class _Design:
    """Columns: powers of the loss (scaled to [-1, 1]), offset and change of each strategy, ln N where sizes differ.

    at, change: columns of a strategy's offset and of its change with the loss.
    """

    def __init__(self, runs: Runs, names: tuple[str, ...]):
        loss = runs.loss
        self.degree = 1 if len(loss) < QUADRATIC else 2 if len(loss) < CUBIC else 3
        self.middle, self.half = (loss.max() + loss.min()) / 2, max((loss.max() - loss.min()) / 2, 1e-12)
        self.mean = float(loss.mean())
        columns, self.at, self.change = list(self._powers(loss)), {}, {}
        for name in names:
            own = runs.of(name)
            self.at[name] = len(columns)
            columns.append(own.astype(float))
            if own.sum() >= SLOPED:
                self.change[name] = len(columns)
                columns.append(np.where(own, loss - loss[own].mean(), 0.0))
        self.has_size = len(np.unique(runs.N)) > 1
        if self.has_size:
            columns.append(np.log(runs.N) - np.log(runs.N).mean())
        self.columns = np.column_stack(columns)
        alone = loss[runs.Dp == 0]
        self.shown = np.linspace(alone.min(), alone.max(), 80)

    def _powers(self, loss: NDArray) -> NDArray:
        return np.array([((loss - self.middle) / self.half) ** power for power in range(self.degree + 1)])

    def slope(self, solution: NDArray) -> float:
        """d metric / d loss of f at the mean loss."""
        u = (self.mean - self.middle) / self.half
        return sum(p * solution[p] * u ** (p - 1) for p in range(1, self.degree + 1)) / self.half

    def curve(self, solution: NDArray) -> tuple[NDArray, NDArray]:
        """f over the losses of the baseline."""
        return self.shown, solution[: self.degree + 1] @ self._powers(self.shown)


def _jackknife(columns: NDArray, y: NDArray, weight: NDArray, cluster: NDArray) -> tuple[NDArray, NDArray, int]:
    """Weighted least squares, its covariance by leaving out a cell at a time, and the number of cells."""
    root = np.sqrt(weight)
    X, z = columns * root[:, None], y * root
    solution = np.linalg.lstsq(X, z, rcond=None)[0]
    labels = np.unique(cluster)
    refits = np.array([np.linalg.lstsq(X[cluster != c], z[cluster != c], rcond=None)[0] for c in labels])
    away = refits - solution
    return solution, (len(labels) - 1) / len(labels) * away.T @ away, len(labels)


def _hotelling(offsets: NDArray, covariance: NDArray, cells: int) -> float:
    """p of all offsets being 0."""
    count = len(offsets)
    if cells <= count or np.linalg.matrix_rank(covariance) < count:
        return float("nan")
    square = float(offsets @ np.linalg.solve(covariance, offsets))
    return float(fdtrc(count, cells - count, square * (cells - count) / (count * (cells - 1))))


def _warnings(effects: list[Effect], cells: int):
    if cells < 6:
        yield f"{cells} (N, D) cells: intervals rest on very few; six and more are wanted"
    for effect in effects:
        if effect.why:
            yield f"{effect.strategy}: {effect.why}"
        elif effect.covered < 0.5:
            yield (
                f"{effect.strategy}: {effect.covered:.0%} of its runs lie within the losses of runs on fresh tokens;"
                " elsewhere the baseline is extrapolated"
            )
