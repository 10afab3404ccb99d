"""A fitted law with everything a reader needs to judge it: constants, intervals, covariance, draws, what was left out.

`Fit.to_dict` and `Fit.from_dict` are plain JSON values; reading and writing files is the command line's business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from derivedata.errors import UserError
from derivedata.scaling.diagnostics import design_warnings
from derivedata.scaling.ensemble import Ensemble, Estimate
from derivedata.scaling.form import Form
from derivedata.scaling.law import Law, Support
from derivedata.scaling.model import Centre, Parameters
from derivedata.scaling.runs import Runs
from derivedata.scaling.solver import huber
from derivedata.scaling.uncertainty import FEWEST_CLUSTERS

if TYPE_CHECKING:
    from derivedata.scaling.fit import Problem

KIND = "derivedata eta fit 1"
ONE_EPOCH = "one epoch"
# Objectives are comparable only at the same delta: both in use in the literature are reported, by name.
DELTAS = {"Hoffmann et al. 2022, one epoch": 1e-3, "Qin et al. 2026, joint": 0.1}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How a fit was made. `delta_one_epoch` matters for the first stage of a staged fit."""

    form: Form
    mode: str
    delta: float
    delta_one_epoch: float
    drop: int
    overfit: str
    bootstrap: int
    seed: int
    backbone: str | None

    def __post_init__(self) -> None:
        if self.mode not in ("joint", "staged"):
            raise UserError("mode must be joint or staged", value=self.mode)
        if self.overfit not in ("leave-out", "keep"):
            raise UserError("overfit must be leave-out or keep", value=self.overfit)
        if not (math.isfinite(self.delta) and self.delta > 0):
            raise UserError("delta must be positive", value=self.delta)
        if self.drop < 0 or self.bootstrap < 0:
            raise UserError("drop and bootstrap cannot be negative", value=min(self.drop, self.bootstrap))
        if self.mode == "staged" and self.backbone:
            raise UserError("a frozen backbone leaves no first stage to fit", remedy="use either of the two")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted law.

    Args:
        name: name of the law.
        settings: how it was fitted.
        centre: geometric means the parameters are centred at.
        strategies: names, in the order of the parameters.
        theta: (p,) centred parameters; `parameters.names` says which is which.
        free: (p,) mask of what was fitted.
        covariance: (p, p) cluster-robust sandwich; zero where not free.
        draws: (draws, p) bootstrap refits.
        profiles: by parameter (ln R* and ln R_N), its 95% profile interval; infinite where the objective is flat.
        objective: sum of weighted Huber losses at `settings.delta`; objectives: at each delta of `DELTAS`.
        count, used: runs given and runs fitted.
        cells: clusters that were resampled.
        left_out: (row, reason) of each run left out.
        restrictions: what was held because the runs cannot identify it.
        warnings: what the design cannot support.
        rmse: by strategy, (runs, RMSE of ln L) over the runs used.
        residual_sd: standard deviation of ln L - ln loss over the runs used, freedom corrected.
        sensitivity: (dropped runs, vector, objective) of refits.
        sizes: distinct N of the runs used.
        starts: (starts that reached the optimum, starts tried).
        minima: (objective, vector) of the distinct optima found before anything was dropped, least first.
        data_sha256: `Runs.sha256` of the runs given.
        support: range of the runs used.
        n_definition: what N counts.
    """

    name: str
    settings: Settings
    centre: Centre
    strategies: tuple[str, ...]
    theta: NDArray
    free: NDArray
    covariance: NDArray
    draws: NDArray
    profiles: Mapping[str, tuple[float, float]]
    objective: float
    objectives: Mapping[str, float]
    count: int
    used: int
    cells: int
    left_out: tuple[tuple[int, str], ...]
    restrictions: tuple[str, ...]
    warnings: tuple[str, ...]
    rmse: Mapping[str, tuple[int, float]]
    residual_sd: float
    sensitivity: tuple[tuple[int, NDArray, float], ...]
    sizes: tuple[float, ...]
    starts: tuple[int, int]
    minima: tuple[tuple[float, NDArray], ...]
    data_sha256: str
    support: Support
    n_definition: str

    @classmethod
    def build(
        cls, problem: Problem, theta: NDArray, weight: NDArray, left_out: Mapping[int, str], name: str, **solved
    ) -> Fit:
        """Put a solved problem together: residuals, support, warnings."""
        runs, settings, model = problem.runs, problem.settings, problem.model
        used = weight > 0
        kept = runs.take(used)
        residual = model.value(theta) - model.lnloss
        parameters = problem.identified.parameters
        fitted = cls(
            name=name,
            settings=settings,
            centre=parameters.centre,
            strategies=parameters.strategies,
            theta=theta,
            free=problem.free,
            objective=float((weight * huber(residual, settings.delta)).sum()),
            objectives={label: float((weight * huber(residual, d)).sum()) for label, d in DELTAS.items()},
            count=len(runs),
            used=int(used.sum()),
            cells=len(np.unique(kept.cluster)),
            left_out=tuple((int(runs.row[i]), reason) for i, reason in sorted(left_out.items())),
            restrictions=problem.identified.notes,
            warnings=(),
            rmse=_rmse(runs, used, residual),
            residual_sd=float(np.sqrt((residual[used] ** 2).sum() / max(used.sum() - problem.free.sum(), 1))),
            sizes=tuple(float(n) for n in np.unique(kept.N)),
            starts=problem.agreeing,
            minima=problem.minima,
            data_sha256=runs.sha256(),
            support=_support(kept),
            n_definition=runs.n_definition,
            **solved,
        )
        return replace(fitted, warnings=(*design_warnings(kept, fitted.law), *fitted._numeric_warnings()))

    @cached_property
    def parameters(self) -> Parameters:
        """Names, bounds and meaning of `theta`."""
        return Parameters(self.settings.form, self.strategies, self.centre)

    @cached_property
    def law(self) -> Law:
        """The fitted law, uncentred."""
        return self._law(self.theta)

    def _law(self, theta: NDArray) -> Law:
        return self.parameters.to_law(theta, name=self.name, n_definition=self.n_definition, support=self.support)

    @property
    def open_ends(self) -> dict[str, tuple[bool, bool]]:
        """By parameter (ln R* and ln R_N), whether its profile interval is open below and above."""
        return {name: (low == -math.inf, high == math.inf) for name, (low, high) in self.profiles.items()}

    @property
    def at_bound(self) -> tuple[str, ...]:
        """Fitted parameters that ended at a bound: the optimum lies beyond, or nowhere."""
        p = self.parameters
        hit = self.free & ((self.theta <= p.low + 1e-9) | (self.theta >= p.high - 1e-9))
        return tuple(p.names[i] for i in np.flatnonzero(hit))

    def _numeric_warnings(self) -> list[str]:
        found = [_at_bound(name) for name in self.at_bound]
        if not len(self.draws) and FEWEST_CLUSTERS <= self.cells < 30:
            found.append(f"sandwich errors of {self.cells} cells cover less than 95% (.55 to .9 with nine): resample")
        if self.cells < FEWEST_CLUSTERS:
            found.insert(
                0,
                f"only {self.cells} (N, D) cells to resample: intervals are over single runs, and too narrow where the"
                " runs of a cell share an error",
            )
        for name, (below, above) in self.open_ends.items():
            if below or above:
                side = "above and below" if below and above else "above" if above else "below"
                found.append(f"{name}: the objective is flat, its interval is unbounded {side}")
        agreeing, tried = self.starts
        if tried > 1 and agreeing < max(2, tried // 3):
            found.append(f"only {agreeing} of {tried} starts reached the least objective: other minima exist")
        found += [
            f"another minimum: objective {objective:.8g}, {self._where(theta)}" for objective, theta in self.minima[1:]
        ]
        return found

    def _where(self, theta: NDArray) -> str:
        law = self._law(theta)
        places = [f"R*[{s}] {float(law.r_star(self.centre.N, self.centre.D, s)):.4g}" for s in self.strategies]
        places += [f"R_N {law.R_N:.4g}"] if law.R_N is not None else []
        return ", ".join(places or [f"alpha {law.alpha:.4g}, beta {law.beta:.4g}"])

    @cached_property
    def ensemble(self) -> Ensemble:
        """The law with its draws: bootstrap refits, or t draws of the sandwich covariance when there are none."""
        few = self.cells < FEWEST_CLUSTERS
        if len(self.draws):
            draws = self.draws
            how = f"95% bootstrap over {f'{self.used} single runs' if few else f'{self.cells} (N, D) cells'}"
        else:
            rng = np.random.default_rng(self.settings.seed)
            freedom = max((self.used - int(self.free.sum())) if few else self.cells - 1, 2)
            normal = rng.multivariate_normal(np.zeros(len(self.theta)), self.covariance, size=400, method="eigh")
            # Student's t: the covariance itself rests on few clusters.
            normal *= np.sqrt(freedom / rng.chisquare(freedom, size=(400, 1)))
            draws = np.clip(self.theta + normal, self.parameters.low, self.parameters.high)
            draws = np.where(self.free, draws, self.theta)
            kind = "sandwich errors of single runs" if few else "cluster-robust sandwich errors"
            how = f"95% interval from {kind}, t with {freedom} degrees of freedom"
        return Ensemble(law=self.law, draws=tuple(self._law(theta) for theta in draws), interval=how)

    def constants(self) -> dict[str, Estimate]:
        """Constants of the law with 95% intervals, R* at the centre included; open profile ends are infinite or 0."""
        found = {
            name: self.ensemble.estimate(lambda law, name=name: getattr(law, name))
            for name in ("E", "A", "B", "alpha", "beta")
        }
        p, form = self.parameters, self.settings.form
        for s in self.strategies:
            at = p.where[f"ln R[{s}]"]
            estimate = self.ensemble.estimate(lambda law, s=s: float(law.r_star(self.centre.N, self.centre.D, s)))
            found[f"R*[{s}]"] = self._opened(estimate, f"ln R[{s}]")
            extras = {"lnK": at, "rho": at + 1, "sigma": at + 2, "tail": at + 3, "worth": at + 4, "drift": at + 5}
            for name, i in extras.items():
                if self.free[i] or (name in ("rho", "sigma") and form.power):
                    found[f"{name}[{s}]"] = self.ensemble.estimate(
                        lambda law, s=s, name=name: getattr(law.strategies[s], name)
                    )
        if form.excess:
            found["R_N"] = self._opened(self.ensemble.estimate(lambda law: law.R_N), "ln R_N")
        if form.offset:
            found["D0"] = self.ensemble.estimate(lambda law: law.D0)
        if form.overfit and self.strategies:
            for name in ("G", "p", "q"):
                found[name] = self.ensemble.estimate(lambda law, name=name: getattr(law.overfit, name))
        return found

    def _opened(self, estimate: Estimate, name: str) -> Estimate:
        """The estimate with ends that its profile opens; the profile itself where draws cannot leave the bound."""
        low, high = self.profiles.get(name, (0.0, 0.0))
        if name in self.at_bound and estimate.low == estimate.high:
            return replace(estimate, low=math.exp(low), high=math.exp(high))
        opened = {**({"low": 0.0} if low == -math.inf else {}), **({"high": math.inf} if high == math.inf else {})}
        return replace(estimate, **opened)

    def model_limits(self) -> dict[float, Estimate]:
        """E_eff(N) = E + A/N^alpha with its interval at each size fitted: identified where E, A, alpha are not."""
        return {N: self.ensemble.estimate(lambda law, N=N: float(law.model_limit(N))) for N in self.sizes}

    def sensitivity_row(self) -> list[dict[str, float]]:
        """Constants after dropping the k runs with the greatest residuals, one dict a k."""
        rows = []
        for k, theta, objective in self.sensitivity:
            law = self._law(theta)
            row = {"drop": k, "objective": objective, "E": law.E, "alpha": law.alpha, "beta": law.beta}
            for s in self.strategies:
                row[f"R*[{s}]"] = float(law.r_star(self.centre.N, self.centre.D, s))
                row[f"rho[{s}]"], row[f"sigma[{s}]"] = law.strategies[s].rho, law.strategies[s].sigma
            rows.append(row)
        return rows

    def to_dict(self) -> dict:
        """Plain JSON values; constants and intervals are in it for readers, `from_dict` does not need them."""
        which = np.flatnonzero(self.free)
        constants = {n: [e.value, e.low, e.high] for n, e in self.constants().items()}
        return {
            "kind": KIND,
            "name": self.name,
            "n_definition": self.n_definition,
            "constants": _plain(constants),
            "e_eff": _plain({f"{N:.10g}": [e.value, e.low, e.high] for N, e in self.model_limits().items()}),
            "interval": self.ensemble.interval,
            "settings": asdict(self.settings),
            "objective": self.objective,
            "objectives": dict(self.objectives),
            "centre": asdict(self.centre),
            "strategies": list(self.strategies),
            "parameters": list(self.parameters.names),
            "theta": _plain(self.theta.tolist()),
            "free": [self.parameters.names[i] for i in which],
            "covariance": self.covariance[np.ix_(which, which)].tolist(),
            "draws": [[float(f"{v:.10g}") for v in row] for row in self.draws[:, which]],
            "profiles": _plain({name: list(ends) for name, ends in self.profiles.items()}),
            "runs": {"given": self.count, "used": self.used, "cells": self.cells, "sha256": self.data_sha256},
            "left_out": [list(pair) for pair in self.left_out],
            "restrictions": list(self.restrictions),
            "warnings": list(self.warnings),
            "rmse": {name: list(pair) for name, pair in self.rmse.items()},
            "residual_sd": self.residual_sd,
            "sensitivity": [[k, _plain(theta.tolist()), objective] for k, theta, objective in self.sensitivity],
            "sizes": list(self.sizes),
            "starts": list(self.starts),
            "minima": [[objective, _plain(theta.tolist())] for objective, theta in self.minima],
            "support": {"N": self.support.N, "tpp": self.support.tpp, "x": dict(self.support.x)},
        }

    @classmethod
    def from_dict(cls, data: Mapping) -> Fit:
        """The fit of a dict made by `to_dict`; UserError when it is something else."""
        if data.get("kind") != KIND:
            raise UserError(
                "not a fit of `derivedata eta fit`", value=data.get("kind"), remedy=f"expected kind {KIND!r}"
            )
        settings = Settings(**{**data["settings"], "form": Form(**data["settings"]["form"])})
        centre, strategies = Centre(**data["centre"]), tuple(data["strategies"])
        parameters = Parameters(settings.form, strategies, centre)
        theta = _vector(data["theta"])
        free = np.isin(parameters.names, data["free"])
        covariance = np.zeros((len(theta), len(theta)))
        covariance[np.ix_(free, free)] = data["covariance"]
        draws = np.repeat(theta[None], len(data["draws"]), axis=0)
        if len(draws):
            draws[:, free] = data["draws"]
        runs, support = data["runs"], data["support"]
        return cls(
            name=data["name"],
            settings=settings,
            centre=centre,
            strategies=strategies,
            theta=theta,
            free=free,
            covariance=covariance,
            draws=draws,
            profiles={name: tuple(float(end) for end in ends) for name, ends in data["profiles"].items()},
            objective=data["objective"],
            objectives=data["objectives"],
            count=runs["given"],
            used=runs["used"],
            cells=runs["cells"],
            left_out=tuple((row, reason) for row, reason in data["left_out"]),
            restrictions=tuple(data["restrictions"]),
            warnings=tuple(data["warnings"]),
            rmse={name: tuple(pair) for name, pair in data["rmse"].items()},
            residual_sd=data["residual_sd"],
            sensitivity=tuple((k, _vector(vector), objective) for k, vector, objective in data["sensitivity"]),
            sizes=tuple(data["sizes"]),
            starts=tuple(data["starts"]),
            minima=tuple((objective, _vector(vector)) for objective, vector in data["minima"]),
            data_sha256=runs["sha256"],
            support=Support(N=tuple(support["N"]), tpp=tuple(support["tpp"]), x=support["x"]),
            n_definition=data["n_definition"],
        )


def _at_bound(name: str) -> str:
    if name.startswith(("tail", "ln D0")):
        return f"{name} ended at its lower bound: here this term adds nothing to the published form"
    return f"{name} ended at the bound of its range: not identified by these runs"


def _rmse(runs: Runs, used: NDArray, residual: NDArray) -> dict[str, tuple[int, float]]:
    groups = {ONE_EPOCH: runs.Dp == 0, **{s: runs.of(s) for s in runs.strategies}, "all": np.ones(len(runs), bool)}
    return {
        name: (int((mask & used).sum()), float(np.sqrt(np.mean(residual[mask & used] ** 2))))
        for name, mask in groups.items()
        if (mask & used).any()
    }


def _support(runs: Runs) -> Support:
    return Support(
        N=(float(runs.N.min()), float(runs.N.max())),
        tpp=(float(runs.tpp.min()), float(runs.tpp.max())),
        x={s: float(runs.x[runs.of(s)].max()) for s in runs.strategies},
    )


def _plain(value):
    """JSON has no infinities: they become the strings "inf" and "-inf"."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _vector(values: list) -> NDArray:
    return np.array([float(v) for v in values])
