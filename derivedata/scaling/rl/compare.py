"""Recipes against each other: what their seeds say, and their efficiency at a common asymptote.

Two curves that end near each other may have the same A reached at different speed, or different asymptotes. So all
curves are fitted once with one shared A and their own C_mid and B (Khatri et al. 2025 compare ablations so), and an
F test says whether one A describes them as well as an A each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, stdtrit

from derivedata.errors import UserError
from derivedata.scaling.ensemble import Estimate
from derivedata.scaling.rl.curve import Sigmoid
from derivedata.scaling.rl.fit import CurveFit
from derivedata.scaling.rl.solver import A, Curves, solve


@dataclass(frozen=True, kw_only=True, slots=True)
class Seeds:
    """One recipe over its seeds: means with 95% t intervals; C_mid and B by their logarithms.

    Args:
        seeds: runs.
        A: none (NaN) where a seed has no asymptote of its own: a mean of guesses would look like knowledge.
        sd_A: standard deviation of A from seed to seed (the paper's margin is .02), NaN with A.
    """

    recipe: str
    seeds: int
    A: Estimate
    C_mid: Estimate
    B: Estimate
    sd_A: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Common:
    """Curves at one asymptote.

    Args:
        A: the shared one.
        laws: run -> sigmoid with that A.
        relative: run -> compute it needs to reach half of the gain, against the fastest (1).
        p: of the F test that one A is enough; below .05 the recipes differ in A, and speed is the wrong question.
    """

    A: float
    laws: dict[str, Sigmoid]
    relative: dict[str, float]
    p: float

    @property
    def is_tenable(self) -> bool:
        """Whether the points do not object to one asymptote."""
        return self.p >= 0.05


def over_seeds(fits: Sequence[CurveFit]) -> tuple[Seeds, ...]:
    """What runs of one recipe (and n and B_p) say together; recipes with one run are left out."""
    groups: dict[tuple, list[CurveFit]] = {}
    for fit in fits:
        if fit.curve.recipe:
            groups.setdefault((fit.curve.recipe, fit.curve.n, fit.curve.problems), []).append(fit)
    found = []
    for (recipe, n, problems), members in groups.items():
        if len(members) < 2:
            continue
        name = ", ".join([recipe, *([f"n {n}"] if n else []), *([f"B_p {problems}"] if problems else [])])
        has = all(fit.asymptote is not None for fit in members)
        asymptotes = np.array([fit.law.A if has else np.nan for fit in members])
        found.append(
            Seeds(
                recipe=name,
                seeds=len(members),
                A=_mean(asymptotes) if has else Estimate(value=float("nan")),
                C_mid=_mean(np.log([fit.law.C_mid for fit in members])).map(np.exp),
                B=_mean(np.log([fit.law.B for fit in members])).map(np.exp),
                sd_A=float(asymptotes.std(ddof=1)),
            )
        )
    return tuple(found)


def _mean(values: NDArray) -> Estimate:
    half = float(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / np.sqrt(len(values)))
    mean = float(np.mean(values))
    return Estimate(value=mean, low=mean - half, high=mean + half)


def at_common_asymptote(fits: Sequence[CurveFit]) -> Common:
    """Fit all curves with one A.

    Raises:
        UserError: fewer than two curves.
    """
    if len(fits) < 2:
        raise UserError("a common asymptote needs two curves or more", value=len(fits))
    curves = _together(fits)
    theta = np.array([fit.law.theta for fit in fits])
    free = np.array([fit.free for fit in fits])
    separate = solve(curves, theta, free)
    held = free.copy()
    held[:, A] = False
    low, high = float(separate[:, A].min()), float(separate[:, A].max())
    for _ in range(4):
        values = np.linspace(low, high, 17)
        solved = np.array([_at(curves, separate, held, value) for value in values])
        errors = np.array([curves.error(one).sum() for one in solved])
        best = int(np.argmin(errors))
        low, high = values[max(best - 1, 0)], values[min(best + 1, 16)]
    points, own = int((curves.weight > 0).sum()), float(curves.error(separate).sum())
    spare = points - int(free.sum())
    ratio = (float(errors[best]) - own) / (len(fits) - 1) / max(own / max(spare, 1), 1e-300)
    laws = {fit.curve.run: Sigmoid.of(one) for fit, one in zip(fits, solved[best], strict=True)}
    fastest = min(law.C_mid for law in laws.values())
    return Common(
        A=float(values[best]),
        laws=laws,
        relative={run: law.C_mid / fastest for run, law in laws.items()},
        p=float(fdtrc(len(fits) - 1, max(spare, 1), max(ratio, 0.0))),
    )


def _at(curves: Curves, theta: NDArray, held: NDArray, value: float) -> NDArray:
    start = theta.copy()
    start[:, A] = value
    return solve(curves, start, held)


def _together(fits: Sequence[CurveFit]) -> Curves:
    """Curves of different lengths, padded by points without weight."""
    single = [fit.points() for fit in fits]
    longest = max(one.x.shape[1] for one in single)

    def padded(name: str) -> NDArray:
        rows = [getattr(one, name)[0] for one in single]
        filled = [np.pad(row, (0, longest - len(row)), mode="edge" if name == "x" else "constant") for row in rows]
        return np.array(filled)

    return Curves.of(padded("x"), padded("y"), padded("weight"))
