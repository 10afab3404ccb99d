"""How many rollouts a problem, problems a batch and iterations a budget of C rollouts is best spent on.

The answer comes from the user's own runs (`frontier`), with the chance that each n is the best one, and with flags for
what the runs cannot say: an n at the edge of those tried, a constant at its bound, an n* that falls, a budget beyond
the runs. Nothing is extrapolated past the largest n tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from derivedata.errors import UserError
from derivedata.scaling.ensemble import Estimate
from derivedata.scaling.rl.frontier import BestN, Frontier, envelope, fit_best_n, peak_of
from derivedata.scaling.rl.groups import BUCKET, ByN, group
from derivedata.scaling.rl.points import Curve

METRICS = ("avg", "best", "worst")
FEWEST_ITERATIONS = 20
# Two n whose rewards differ by less than this are as good as each other.
LEVEL_REWARD = 0.002


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One (B_p, n) at the budget: expected reward with the spread of its draws, iterations the budget allows."""

    n: int
    problems: int | None
    iterations: float | None
    reward: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Advice for a budget.

    Args:
        budget: C in rollouts; read_at: the C at which the runs were read (the budget, or the largest C compared).
        metric: what was maximised.
        batch: B held, or None.
        runs: how many runs the advice stands on; left_out: run -> why.
        groups: curves by n, each with its best B_p; frontier: their envelope.
        best_n: n*(C), None where n* hardly moves.
        n: the recommended rollouts a problem, a value that was tried; interval over the draws.
        chance: n -> share of draws in which it is nearest to the peak at `read_at`.
        level: n whose reward there is within `LEVEL_REWARD` of the best, or inside the spread of the difference.
        problems, iterations: B_p and M with that n; None where the runs do not tell.
        cells: every (B_p, n) at the budget.
        flags: what the runs cannot say; notes: what was done.
    """

    budget: float
    read_at: float
    metric: str
    batch: int | None
    runs: int
    left_out: Mapping[str, str]
    groups: tuple[ByN, ...]
    frontier: Frontier
    best_n: BestN | None
    n: Estimate
    chance: Mapping[int, float]
    level: tuple[int, ...]
    problems: int | None
    iterations: float | None
    cells: tuple[Cell, ...]
    flags: tuple[str, ...]
    notes: tuple[str, ...]


def plan(
    curves: Sequence[Curve],
    *,
    budget: float,
    metric: str = "avg",
    batch: int | None = None,
    left_out: Mapping[str, str] | None = None,
    points: str = "all",
    draws: int = 200,
    seed: int = 0,
) -> Plan:
    """Plan a budget from runs that were trained with different n.

    Args:
        curves: evaluations of each run, n known.
        budget: rollouts to spend.
        metric: name of what `Curve.reward` is, for the words.
        batch: B = B_p n to hold; only runs with that B are compared.
        left_out: runs that take no part, with the reason.
        points: see `frontier.group`.

    Raises:
        UserError: fewer than two n to compare, or a budget below one step.
    """
    left = dict(left_out or {})
    used = []
    for curve in curves:
        if curve.run in left:
            continue
        if curve.n is None:
            left[curve.run] = "n unknown"
        elif curve.n < 2:
            left[curve.run] = "n = 1: a group of one has no advantage"
        elif curve.fall() > 0:
            left[curve.run] = f"its reward fell by {curve.fall():.3f} at the end"
        elif batch is not None and curve.batch != batch:
            left[curve.run] = f"batch of {curve.batch if curve.batch else 'unknown size'}, not {batch}"
        else:
            used.append(curve)
    tried = sorted({curve.n for curve in used})
    if len(tried) < 2:
        raise UserError(
            "runs with two or more values of n are needed" + (f" at B = {batch}" if batch else ""),
            value=f"{len(used)} usable runs with n of {', '.join(map(str, tried)) or 'none'}"
            + "".join(f"; {run}: {why}" for run, why in list(left.items())[:3]),
            remedy="`rl design` proposes a grid",
        )
    groups, notes = group(used, points=points, draws=draws, seed=seed)
    if len(groups) < 2:
        raise UserError("too few points on all but one n", value="; ".join(notes), remedy="evaluate more often")
    frontier = envelope(groups)
    best_n = fit_best_n(frontier, tried)
    read_at = float(np.clip(budget, frontier.C[0], frontier.C[-1]))
    chance, level = _chances(groups, read_at)
    here = int(np.argmin(np.abs(np.log(frontier.C / read_at))))
    star = float(best_n.n(budget)) if best_n is not None and not best_n.bounds else float(frontier.peak[here])
    chosen = _choose(star, chance)
    cells = _cells(groups, read_at, budget)
    problems = _problems(cells, chosen, batch)
    iterations = None if problems is None else budget / (problems * chosen)
    if iterations is not None and iterations < 1:
        raise UserError(
            "the budget fits no step", value=f"{budget:g} rollouts", remedy=f"one step takes {problems * chosen}"
        )
    inside = [n for n, share in sorted(chance.items()) if share >= 0.025] or [chosen]
    return Plan(
        budget=budget,
        read_at=read_at,
        metric=metric,
        batch=batch,
        runs=len(used),
        left_out=left,
        groups=groups,
        frontier=frontier,
        best_n=best_n,
        n=Estimate(value=chosen, low=min(*inside, chosen), high=max(*inside, chosen)),
        chance=chance,
        level=level,
        problems=problems,
        iterations=iterations,
        cells=cells,
        flags=_flags(groups, frontier, best_n, chosen, int(frontier.n[here]), budget, tried, chance, level, iterations),
        notes=(*notes, *_said(points, frontier, used)),
    )


def _choose(star: float, chance: Mapping[int, float]) -> int:
    """The n next to n*; about half way between two, the one that more of the draws are nearest to."""
    gaps = {n: abs(np.log2(n / star)) for n in chance}
    first, second = sorted(gaps, key=gaps.__getitem__)[:2]
    is_between = min(first, second) < star < max(first, second)
    if is_between and gaps[first] > 0.3 * (gaps[first] + gaps[second]):
        return max(first, second, key=chance.__getitem__)
    return first


def _chances(groups: Sequence[ByN], at: float) -> tuple[dict[int, float], tuple[int, ...]]:
    """How often each n is nearest to the peak among the draws, and which n are level with the best one."""
    here = [g for g in groups if np.isfinite(g.at(at))]
    draws = np.array([g.spread(at)[:, 0] for g in here])
    ns = np.array([g.n for g in here])
    peaks = np.array([peak_of(ns, column) for column in draws.T])
    nearest = np.argmin(np.abs(np.log2(peaks)[:, None] - np.log2(ns)), axis=1)
    wins = np.bincount(nearest, minlength=len(here)) / draws.shape[1]
    value = np.array([float(g.at(at)) for g in here])
    best = int(np.argmax(value))
    behind = np.quantile(draws[best] - draws, 0.025, axis=1)
    level = tuple(g.n for g, low, v in zip(here, behind, value, strict=True)
                  if low <= 0 or value[best] - v < LEVEL_REWARD)  # fmt: skip
    return {g.n: float(w) for g, w in zip(here, wins, strict=True)}, level


def _cells(groups: Sequence[ByN], at: float, budget: float) -> tuple[Cell, ...]:
    found = []
    for one in (member for by_n in groups for member in by_n.members):
        value = float(one.at(at))
        if one.problems is None or not np.isfinite(value):
            continue
        low, high = np.quantile(one.spread(at)[:, 0], [0.025, 0.975])
        reward = Estimate(value=value, low=float(low), high=float(high))
        found.append(Cell(n=one.n, problems=one.problems, iterations=budget / (one.n * one.problems), reward=reward))
    return tuple(found)


def _problems(cells: Sequence[Cell], n: int, batch: int | None) -> int | None:
    if batch is not None:
        return batch // n if batch >= n else None
    own = [cell for cell in cells if cell.n == n]
    return max(own, key=lambda cell: cell.reward.value).problems if own else None


def _flags(
    groups: Sequence[ByN],
    frontier: Frontier,
    best_n: BestN | None,
    chosen: int,
    best: int,
    budget: float,
    tried: Sequence[int],
    chance: Mapping[int, float],
    level: Sequence[int],
    iterations: float | None,
) -> tuple[str, ...]:
    found = []
    if tried[-1] in (chosen, best):
        found.append(f"edge of the grid: n = {tried[-1]} is the largest tried, a larger one may be better")
    if chosen == tried[0]:
        found.append(f"edge of the grid: n = {chosen} is the smallest tried, a smaller one may be better")
    if budget > frontier.C[-1] * 1.05:
        found.append(
            f"budget beyond the runs: compared up to C = {frontier.C[-1]:,.0f}; n* is read there or from the fit,"
            f" and not past n = {tried[-1]}"
        )
    if budget < frontier.C[0] / 1.05:
        found.append(f"budget below the runs: compared from C = {frontier.C[0]:,.0f}")
    for C, before, after in frontier.falls:
        found.append(f"non-monotone: n* falls from {before} to {after} at C = {C:,.0f}; noise, or more than n differs")
    if best_n is None:
        low, high = frontier.peak.min(), frontier.peak.max()
        found.append(f"no curve n*(C): n* stays between {low:.3g} and {high:.3g} over the C compared")
    elif best_n.bounds:
        found.append(
            f"bound hit: {', '.join(best_n.bounds)} of n*(C) is at the bound of its range; read from the frontier"
        )
    if len(level) == len(chance):
        found.append("the n tried are not told apart at this C: any of them does as well")
    elif max(chance.values()) < 0.5:
        likely = ", ".join(f"{n} ({share:.0%})" for n, share in chance.items() if share >= 0.05)
        found.append(f"no n is clearly best: {likely} of the draws")
    if iterations is not None and iterations < FEWEST_ITERATIONS:
        found.append(f"only {iterations:.3g} iterations: the warm-up alone takes 10")
    short = [str(g.n) for g in groups if g.n not in chance]
    if short:
        found.append(f"no run of n = {', '.join(short)} reaches the C compared: they take no part there")
    missing = [str(n) for n in tried if n not in {g.n for g in groups}]
    if missing:
        found.append(f"too few points to fit n of {', '.join(missing)}")
    return tuple(found)


def _said(points: str, frontier: Frontier, used: Sequence[Curve]) -> list[str]:
    kind = f"record-breaking points (buckets of {BUCKET:g})" if points == "record" else "all evaluations"
    said = [f"curves of each (n, B_p) from {kind}; compared at C from {frontier.C[0]:,.0f} to {frontier.C[-1]:,.0f}"]
    unknown = sum(curve.problems is None for curve in used)
    if unknown:
        said.append(f"{unknown} runs without B_p say nothing of it")
    return said
