"""A sweep to measure eta with: which runs to train for a budget, and the standard errors to expect of the fit.

Candidates are the cells of sizes x TPP x (strategy, x). They are taken greedily by how much they lower the summed log
variances of what is asked for (ln R* at the centre, rho, sigma of each strategy) per FLOP to some power; several powers
are tried and the best sweep is kept. A cell is repeated with another seed only when every affordable cell is taken.
Variances are those of the fit itself: the inverse Fisher information of ln L = law(N, D, D') + noise at a guessed law
(a preset), with a weak prior that holds what no run informs.

A design with one size cannot identify sigma, with one TPP not rho, with x <= 1 not R*: asked for those it is refused,
with what it can identify instead. So is one whose expected errors leave the answer open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from derivedata.errors import UserError
from derivedata.scaling.form import FORMS
from derivedata.scaling.law import Law, Saturation
from derivedata.scaling.model import Centre, Model, Parameters
from derivedata.scaling.runs import Runs

R_STAR, RHO, SIGMA = "r-star", "rho", "sigma"
ONE_EPOCH = "1epoch"
ASKABLE = (R_STAR, RHO, SIGMA)
# Standard errors up to which a constant counts as identified: R* to a factor of 2 and exponents to .4 at 95%.
LARGEST_ERROR = {R_STAR: 0.35, RHO: 0.20, SIGMA: 0.20}
DEFAULT_TPP = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0)
DEFAULT_X = (1.0, 3.0, 7.0, 15.0, 31.0, 63.0)
# Weak prior on every parameter, so that a direction without runs has a large variance instead of none.
_PRIOR_SD = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DesignRun:
    """One run to train; `derived_tokens` = x * `fresh_tokens`, `epochs` = 1 + x for repeats (1 otherwise)."""

    n_params: float
    fresh_tokens: float
    derived_tokens: float
    strategy: str
    x: float
    epochs: float
    seed: int
    flops: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedErrors:
    """Standard errors to expect for one strategy.

    Args:
        ln_r: of ln R* at the centre of the sweep (geometric means of sizes and TPP levels).
        rho, sigma: of the exponents; NaN where the design cannot move them.
        r_star: the guessed R* at that centre.
    """

    strategy: str
    ln_r: float
    rho: float
    sigma: float
    r_star: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """A sweep.

    Args:
        runs: cheapest first.
        flops: training cost of all runs (generation of derived tokens not counted).
        budget: what was allowed.
        errors: by strategy.
        noise: standard deviation of ln L that was assumed.
        guess: name of the law that was assumed.
        identifies: what of `ASKABLE` the sweep can be expected to identify, for every strategy.
        notes: one line each.
    """

    runs: tuple[DesignRun, ...]
    flops: float
    budget: float
    errors: tuple[ExpectedErrors, ...]
    noise: float
    guess: str
    identifies: tuple[str, ...]
    notes: tuple[str, ...]


def design(
    law: Law,
    *,
    sizes: Sequence[float],
    budget: float,
    strategies: Sequence[str] | None = None,
    ask: Sequence[str] = ASKABLE,
    tpp: Sequence[float] = DEFAULT_TPP,
    x: Sequence[float] = DEFAULT_X,
    max_runs: int = 120,
    seeds: int = 3,
    noise: float = 0.01,
) -> Design:
    """The most informative sweep of a budget.

    Args:
        law: a guess of the law (a preset): where to look depends on what is there. Strategies it does not know are
            guessed to be like its first one.
        sizes: numbers of parameters that can be trained.
        budget: FLOPs for training, 6 N (D + D') a run.
        strategies: names; those of the law by default.
        ask: what the sweep is for: "r-star", "rho", "sigma".
        tpp, x: levels of D/N and D'/D to choose from.
        max_runs: stop there even with money left.
        seeds: repeats of a cell at most.
        noise: standard deviation of ln L of a run.

    Raises:
        UserError: the sizes, TPPs, x or budget cannot identify what is asked; the remedy says what they can.
    """
    if not ask:
        raise UserError("a sweep is for something", remedy=f"ask for one or more of {', '.join(ASKABLE)}")
    for name in ask:
        if name not in ASKABLE:
            raise UserError("no such constant to identify", value=name, remedy=f"one of {', '.join(ASKABLE)}")
    names = tuple(strategies) if strategies else tuple(law.strategies) or ("repeat",)
    if ONE_EPOCH in names:
        raise UserError(
            "this is the name of runs without derived tokens", value=ONE_EPOCH, remedy="they are added anyway"
        )
    sizes, tpp, x = (np.unique(np.asarray(v, float)) for v in (sizes, tpp, x))
    possible = _structure(sizes, tpp, x)
    _refuse(ask, possible, sizes, tpp, x)
    guess = _with_strategies(law, names)
    cells = _cells(sizes, tpp, x, names)
    if cells.flops.min() > budget:
        raise UserError(
            "the budget does not pay for one run",
            value=f"{budget:.3g} FLOPs",
            remedy=f"the cheapest run of these sizes costs {cells.flops.min():.3g}",
        )
    information = _Information(guess, names, cells, noise, possible)
    counts = information.choose(budget, max_runs, seeds)
    errors = information.errors(counts)
    identified = tuple(
        what
        for what in possible
        if all({R_STAR: e.ln_r, RHO: e.rho, SIGMA: e.sigma}[what] <= LARGEST_ERROR[what] for e in errors)
    )
    missing = [what for what in ask if what not in identified]
    if missing:
        reached = "; ".join(f"{e.strategy}: {_in_words(e)}" for e in errors)
        can = f"ask for {', '.join(identified)}" if identified else "ask for less"
        raise UserError(
            f"{budget:.3g} FLOPs on these sizes leave {', '.join(missing)} open",
            value=f"standard errors to expect are {reached}",
            remedy=f"{can}, raise --budget, or add smaller sizes, lower TPP or larger x",
        )
    runs = _runs(cells, counts)
    return Design(
        runs=runs,
        flops=sum(run.flops for run in runs),
        budget=budget,
        errors=errors,
        noise=noise,
        guess=law.name,
        identifies=identified,
        notes=_notes(runs, sizes, errors),
    )


@dataclass(frozen=True, slots=True)
class _Cells:
    N: NDArray
    D: NDArray
    x: NDArray
    strategy: NDArray
    flops: NDArray


def _cells(sizes: NDArray, tpp: NDArray, x: NDArray, names: Sequence[str]) -> _Cells:
    rows = [(N, N * t, 0.0, ONE_EPOCH) for N in sizes for t in tpp]
    rows += [(N, N * t, v, s) for s in names for N in sizes for t in tpp for v in x if v > 0]
    N, D, at, strategy = zip(*rows, strict=True)
    N, D, at = np.array(N), np.array(D), np.array(at)
    return _Cells(N, D, at, np.array(strategy, object), 6 * N * D * (1 + at))


def _structure(sizes: NDArray, tpp: NDArray, x: NDArray) -> tuple[str, ...]:
    """What levels alone allow: x beyond 1 for R*, several TPP for rho, several sizes for sigma."""
    if x.size == 0 or x.max() <= 1:
        return ()
    return (R_STAR, *([RHO] if len(tpp) > 1 else []), *([SIGMA] if len(sizes) > 1 else []))


def _refuse(ask: Sequence[str], possible: Sequence[str], sizes: NDArray, tpp: NDArray, x: NDArray) -> None:
    why = {
        R_STAR: "x = D'/D of at most 1 cannot identify R*",
        RHO: f"one TPP ({tpp[0]:.4g}) cannot identify rho" if len(tpp) == 1 else "rho needs R*, which needs x > 1",
        SIGMA: f"one size ({sizes[0] / 1e6:g}M) cannot identify sigma"
        if len(sizes) == 1
        else "sigma needs R*, so x > 1",
    }
    missing = [what for what in ask if what not in possible]
    if missing:
        can = f"these levels can identify {', '.join(possible)}" if possible else "add larger x"
        fix = f"; ask for that with --ask {','.join(possible)}" if possible else ""
        raise UserError("; ".join(why[what] for what in missing), remedy=can + fix)


def _with_strategies(law: Law, names: Sequence[str]) -> Law:
    like = next(iter(law.strategies.values()), Saturation(lnK=2.0))
    return replace(law, strategies={name: law.strategies.get(name, like) for name in names})


class _Information:
    """Fisher information of candidate runs and the greedy choice among them."""

    def __init__(self, law: Law, names: Sequence[str], cells: _Cells, noise: float, possible: Sequence[str]):
        one = cells.strategy == ONE_EPOCH
        centre = Centre(N=float(np.exp(np.log(cells.N[one]).mean())), D=float(np.exp(np.log(cells.D[one]).mean())))
        self.parameters = Parameters(FORMS["published"], tuple(names), centre)
        self.law, self.cells, self.possible, self.names = law, cells, possible, names
        runs = Runs(N=cells.N, D=cells.D, Dp=cells.x * cells.D, loss=np.ones(len(cells.N)), strategy=cells.strategy)
        jacobian = Model(runs, self.parameters).value_and_jacobian(self.parameters.from_law(law))[1]
        free = self.parameters.of_form()
        wanted = []
        for name in names:
            at = self.parameters.where[f"ln R[{name}]"]
            free[at + 1], free[at + 2] = RHO in possible, SIGMA in possible
            wanted += [at + i for i, what in enumerate(ASKABLE) if what in possible]
        if len(np.unique(cells.N)) == 1:
            # One size: E and A / N^alpha are one constant.
            free[1] = free[3] = False
        which = np.flatnonzero(free)
        self.rows = (jacobian[which] / noise).T
        self.wanted = np.searchsorted(which, wanted)
        self.prior = np.eye(len(which)) / _PRIOR_SD**2

    def choose(self, budget: float, max_runs: int, seeds: int) -> NDArray:
        """How often each cell is trained, (cells,): the best of several greedy choices."""
        tried = [self._greedy(budget, max_runs, seeds, power) for power in (0.0, 0.25, 0.5, 0.75, 1.0)]
        return min(tried, key=lambda counts: np.log(self._variances(counts)).sum())

    def _greedy(self, budget: float, max_runs: int, seeds: int, power: float) -> NDArray:
        counts, level = np.zeros(len(self.rows), int), 1
        cov, left = np.linalg.inv(self.prior), budget
        flops, rows = self.cells.flops, self.rows
        while counts.sum() < max_runs:
            open_ = (counts < level) & (flops <= left)
            if not open_.any():
                if level == seeds:
                    break
                level += 1
                continue
            through = rows @ cov
            variance = np.einsum("ij,ij->i", through, rows)
            drop = through[:, self.wanted] ** 2 / (1 + variance)[:, None]
            gain = -np.log1p(-np.minimum(drop / np.diag(cov)[self.wanted], 1 - 1e-12)).sum(axis=1)
            best = int(np.argmax(np.where(open_, gain / flops**power, -1.0)))
            cov = cov - np.outer(through[best], through[best]) / (1 + variance[best])
            counts[best] += 1
            left -= flops[best]
        return counts

    def _variances(self, counts: NDArray) -> NDArray:
        information = self.prior + (self.rows * counts[:, None]).T @ self.rows
        return np.diag(np.linalg.inv(information))[self.wanted]

    def errors(self, counts: NDArray) -> tuple[ExpectedErrors, ...]:
        """Standard errors by strategy."""
        sd = np.sqrt(self._variances(counts)).reshape(len(self.names), len(self.possible))
        centre = self.parameters.centre
        found = []
        for name, row in zip(self.names, sd, strict=True):
            by = dict(zip(self.possible, map(float, row), strict=True))
            found.append(
                ExpectedErrors(
                    strategy=name,
                    ln_r=by[R_STAR],
                    rho=by.get(RHO, float("nan")),
                    sigma=by.get(SIGMA, float("nan")),
                    r_star=float(self.law.r_star(centre.N, centre.D, name)),
                )
            )
        return tuple(found)


def _runs(cells: _Cells, counts: NDArray) -> tuple[DesignRun, ...]:
    runs = [
        DesignRun(
            n_params=float(cells.N[i]),
            fresh_tokens=float(cells.D[i]),
            derived_tokens=float(cells.x[i] * cells.D[i]),
            strategy=str(cells.strategy[i]),
            x=float(cells.x[i]),
            epochs=float(1 + cells.x[i]) if cells.strategy[i] == "repeat" else 1.0,
            seed=seed,
            flops=float(cells.flops[i]),
        )
        for i in np.flatnonzero(counts)
        for seed in range(counts[i])
    ]
    return tuple(sorted(runs, key=lambda run: (run.flops, run.strategy, run.seed)))


def _in_words(errors: ExpectedErrors) -> str:
    parts: Mapping[str, float] = {"ln R*": errors.ln_r, "rho": errors.rho, "sigma": errors.sigma}
    return ", ".join(f"{name} {value:.2g}" for name, value in parts.items() if not np.isnan(value))


def _notes(runs: Sequence[DesignRun], sizes: NDArray, errors: Sequence[ExpectedErrors]) -> tuple[str, ...]:
    found = []
    if len(runs) < 45:
        found.append(f"{len(runs)} runs: at least 45 are usual, 84 for rho and sigma worth quoting")
    if sizes.max() / sizes.min() < 10:
        found.append(f"sizes span a factor {sizes.max() / sizes.min():.3g}; a decade makes E and A/N^alpha separable")
    for e in errors:
        reach = max((run.x for run in runs if run.strategy == e.strategy), default=0.0)
        if reach < 2 * e.r_star:
            found.append(
                f"{e.strategy}: x reaches {reach:.3g}, under 2 R* = {2 * e.r_star:.3g} at its centre: expect R* to be"
                " better bounded below than above"
            )
    unused = [f"{size / 1e6:g}M" for size in sizes if all(run.n_params != size for run in runs)]
    if unused:
        found.append(f"no run of N = {', '.join(unused)}: smaller ones say more per FLOP here")
    found.append("errors are those of the guessed law; a sweep that finds another R* has others")
    return tuple(found)
