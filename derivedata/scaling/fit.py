"""Fit a Compute-Data law to runs: joint or staged, robust, with what cannot be identified held and said.

    from derivedata.scaling.fit import fit
    print(fit(runs, drop=15).law)

The objective is the sum of weight * Huber(ln L - ln loss), r^2/2 inside delta. Hoffmann et al. 2022 and Besiroglu et
al. 2024 use delta = 1e-3 for one-epoch runs, Qin et al. 2026 0.1 for the joint data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from derivedata.errors import UserError
from derivedata.scaling.diagnostics import overfitted
from derivedata.scaling.fitted import Fit, Settings
from derivedata.scaling.form import form_by_name
from derivedata.scaling.identify import Identified, identify
from derivedata.scaling.law import Law
from derivedata.scaling.model import Model
from derivedata.scaling.runs import Runs
from derivedata.scaling.solver import Solution, solve
from derivedata.scaling.starts import starts
from derivedata.scaling.uncertainty import bootstrap_weights, profile_interval, resampled_together, sandwich

DELTA_ONE_EPOCH = 1e-3
DELTA_JOINT = 0.1
SENSITIVITY = (0, 5, 10, 15)


def fit(
    runs: Runs,
    *,
    form: str = "published",
    mode: str = "joint",
    delta: float | None = None,
    drop: int = 0,
    backbone: Law | None = None,
    overfit: str = "leave-out",
    bootstrap: int = 400,
    sensitivity: tuple[int, ...] = SENSITIVITY,
    profiles: bool = True,
    seed: int = 0,
    name: str = "",
) -> Fit:
    """Fit a law.

    Args:
        runs: the runs, checked by `diagnostics.check_runs`.
        form: a name of `form.FORMS`.
        mode: "joint" fits everything at once; "staged" fits the one-epoch law to the runs without derived tokens and
            freezes it (the paper's prose).
        delta: where the Huber loss turns linear; None for 1e-3 without and 0.1 with derived tokens.
        drop: how many runs to leave out, each time the one with the greatest residual, refitting in between.
        backbone: a law whose E, A, B, alpha, beta are frozen.
        overfit: "leave-out" leaves out runs whose loss rose again with more epochs; "keep" keeps them. The form
            "overfit" keeps them always.
        bootstrap: refits of the cluster bootstrap; 0 for none (intervals then come from the sandwich).
        sensitivity: numbers of dropped runs to refit with, for the sensitivity row; () for none.
        profiles: whether to profile ln R* (and ln R_N), which finds flat valleys.
        seed: of the bootstrap.
        name: name of the fitted law.

    Raises:
        UserError: when the runs cannot identify a law.
    """
    settings = Settings(
        form=form_by_name(form),
        mode=mode if runs.strategies else "joint",
        delta=delta if delta is not None else (DELTA_JOINT if runs.strategies else DELTA_ONE_EPOCH),
        delta_one_epoch=delta if delta is not None else DELTA_ONE_EPOCH,
        drop=drop,
        overfit=overfit,
        bootstrap=bootstrap,
        seed=seed,
        backbone=None if backbone is None else (backbone.name or "given"),
    )
    problem = Problem.of(runs, settings, backbone)
    path = problem.drop_path(max((drop, *sensitivity)))
    left = dict(problem.left_out)
    for index, residual in path.dropped[:drop]:
        left[index] = f"dropped: ln L - ln loss = {residual:+.3f}, the greatest residual left"
    weight, theta = path.weight[drop], path.theta[drop]
    covariance = problem.covariance(theta, weight)
    draws = problem.bootstrap(theta, weight, bootstrap, seed)
    return Fit.build(
        problem=problem,
        theta=theta,
        weight=weight,
        covariance=covariance,
        draws=draws,
        profiles=problem.profiles(theta, weight) if profiles else {},
        left_out=left,
        sensitivity=tuple((k, path.theta[k], path.objective[k]) for k in sensitivity if k < len(path.theta)),
        name=name,
    )


@dataclass(slots=True)
class DropPath:
    """Solutions after 0, 1, 2, ... dropped runs."""

    theta: list[NDArray] = field(default_factory=list)
    objective: list[float] = field(default_factory=list)
    weight: list[NDArray] = field(default_factory=list)
    dropped: list[tuple[int, float]] = field(default_factory=list)


@dataclass(slots=True)
class Problem:
    """Runs with a form: everything that solving, resampling and profiling share."""

    runs: Runs
    settings: Settings
    identified: Identified
    model: Model
    weight: NDArray
    left_out: dict[int, str]
    known: NDArray | None = None
    agreeing: tuple[int, int] = (0, 0)
    minima: tuple[tuple[float, NDArray], ...] = ()

    @classmethod
    def of(cls, runs: Runs, settings: Settings, backbone: Law | None) -> Problem:
        """Identify what is free; leave out runs that a monotone law cannot describe."""
        left_out: dict[int, str] = {}
        if settings.overfit == "leave-out" and not settings.form.overfit:
            left_out = overfitted(runs)
        weight = runs.weight.copy()
        left_out |= {int(i): "weight 0" for i in np.flatnonzero(weight == 0)}
        weight[list(left_out)] = 0.0
        identified = identify(runs.take(weight > 0), settings.form, backbone)
        if identified.parameters.strategies != runs.strategies:
            gone = sorted(set(runs.strategies) - set(identified.parameters.strategies))
            raise UserError(
                "every run of a strategy is left out as overfitted",
                value=", ".join(gone),
                remedy="keep overfitted runs",
            )
        model = Model(runs, identified.parameters)
        # Where a law is given, its own R* is one more start.
        known = None if backbone is None else identified.parameters.from_law(backbone)
        return cls(runs, settings, identified, model, weight, left_out, known)

    @property
    def free(self) -> NDArray:
        """Mask of the parameters that are fitted."""
        return self.identified.free

    def solve_from_scratch(self, weight: NDArray) -> Solution:
        """Solve from the starts of variable projection; counts how many of them agree."""
        default, free, delta = self.identified.default, self.free, self.settings.delta
        if self.settings.mode == "joint":
            return self._from_starts(default, weight, free, delta)
        first, second = self._stages()
        base = self._from_starts(default, weight * (self.runs.Dp == 0), first, self.settings.delta_one_epoch)
        return self._from_starts(base.theta[0], weight, second, delta)

    def _from_starts(self, default: NDArray, weight: NDArray, free: NDArray, delta: float) -> Solution:
        options = {"free": free, "delta": delta, "weight": weight}
        candidates = starts(self.model, default, **options)
        if self.known is not None:
            candidates = np.vstack([candidates, np.where(free, self.known, default)])
        solution = solve(self.model, candidates, **options)
        self.minima = _distinct(solution)
        least = self.minima[0][0]
        self.agreeing = (int((solution.objective < least * (1 + 1e-5) + 1e-15).sum()), len(solution.objective))
        best = [solution.best]
        return Solution(solution.theta[best], solution.objective[best], solution.converged[best])

    def solve_from(self, theta: NDArray, weight: NDArray) -> Solution:
        """Solve from given vectors (K, p) with weights (K, runs) or (runs,)."""
        delta = self.settings.delta
        if self.settings.mode == "joint":
            return solve(self.model, theta, free=self.free, delta=delta, weight=weight)
        first, second = self._stages()
        alone = weight * (self.runs.Dp == 0)
        base = solve(self.model, theta, free=first, delta=self.settings.delta_one_epoch, weight=alone)
        return solve(self.model, base.theta, free=second, delta=delta, weight=weight)

    def _stages(self) -> tuple[NDArray, NDArray]:
        """What is free in the first stage (the one-epoch law) and in the second (the rest)."""
        of_one_epoch = np.zeros(len(self.free), bool)
        of_one_epoch[:5] = True
        of_one_epoch[[-5, -1]] = True
        first, second = self.free & of_one_epoch, self.free & ~of_one_epoch
        count = int(((self.runs.Dp == 0) & (self.weight > 0)).sum())
        if count <= first.sum():
            raise UserError(
                f"a staged fit needs more than {int(first.sum())} runs without derived tokens",
                value=count,
                remedy="fit jointly",
            )
        return first, second

    def drop_path(self, count: int) -> DropPath:
        """Fit, then drop the run with the greatest residual and refit, `count` times or while enough runs are left."""
        path = DropPath()
        weight = self.weight.copy()
        solution = self.solve_from_scratch(weight)
        spare = int((weight > 0).sum()) - 2 * int(self.free.sum())
        while True:
            theta = solution.theta[0]
            path.theta.append(theta)
            path.objective.append(float(solution.objective[0]))
            path.weight.append(weight.copy())
            if len(path.dropped) >= min(count, max(spare, 0)):
                break
            residual = self.model.value(theta) - self.model.lnloss
            worst = int(np.argmax(np.abs(residual) * np.sqrt(weight)))
            path.dropped.append((worst, float(residual[worst])))
            weight[worst] = 0.0
            solution = self.solve_from(theta[None], weight)
        if self.settings.drop >= len(path.theta):
            raise UserError(
                "too many runs to drop",
                value=self.settings.drop,
                remedy=f"at most {len(path.theta) - 1} can go before constants outnumber half of the runs",
            )
        return path

    def covariance(self, theta: NDArray, weight: NDArray) -> NDArray:
        """Cluster-robust sandwich covariance of the centred parameters; by stages, the second given the first."""
        staged = self.settings.mode == "staged"
        covariance = np.zeros((len(theta), len(theta)))
        for stage, free in enumerate(self._stages() if staged else (self.free,)):
            first = staged and stage == 0
            covariance += sandwich(
                self.model,
                theta,
                free=free,
                delta=self.settings.delta_one_epoch if first else self.settings.delta,
                weight=weight * (self.runs.Dp == 0) if first else weight,
                cluster=resampled_together(self.runs.cluster, weight > 0),
            )
        return covariance

    def bootstrap(self, theta: NDArray, weight: NDArray, draws: int, seed: int) -> NDArray:
        """Vectors (draws, p) refitted to resampled (N, D) cells, or to resampled runs where cells are too few."""
        if draws == 0:
            return np.empty((0, len(theta)))
        used = weight > 0
        weights = np.zeros((draws, len(weight)))
        cluster = resampled_together(self.runs.cluster, used)
        weights[:, used] = bootstrap_weights(cluster[used], weight[used], draws, seed)
        return self.solve_from(np.repeat(theta[None], draws, axis=0), weights).theta

    def profiles(self, theta: NDArray, weight: NDArray) -> dict[str, tuple[float, float]]:
        """Profile intervals of ln R* (and ln R_N), infinite where the objective is flat up to the bound."""
        parameters = self.identified.parameters
        free = self._stages()[1] if self.settings.mode == "staged" else self.free
        where = {name: parameters.where[name] for name in (*(f"ln R[{s}]" for s in parameters.strategies), "ln R_N")}
        options = {"free": free, "delta": self.settings.delta, "weight": weight}
        return {name: profile_interval(self.model, theta, i, **options) for name, i in where.items() if free[i]}


def _distinct(solution: Solution, most: int = 4) -> tuple[tuple[float, NDArray], ...]:
    """The distinct optima that starts led to, least first."""
    found: list[tuple[float, NDArray]] = []
    for i in np.argsort(solution.objective, kind="stable"):
        objective = float(solution.objective[i])
        if solution.converged[i] and (not found or objective > found[-1][0] * (1 + 1e-5)):
            found.append((objective, solution.theta[i]))
    return tuple(found[:most]) or ((float(solution.objective.min()), solution.theta[solution.best]),)
