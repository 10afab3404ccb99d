"""How well a few runs calibrate a new strategy: `python -m tests.bench.eta_calibration [DRAWS]`.

One strategy of the 355 kept runs is left out; the law of the rest (fit with bootstrap) is the prior; 3, 5 or 8 of the
strategy's runs are given back, many times over. Scored against the fit to all runs: ln R* at the strategy's (N, D)
cells, and the loss of its other runs. "none" takes the remaining strategy's R* as it is; "advised" starts from 3 random
runs and lets `next_best` choose the others among those that exist.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from derivedata.cli.eta.inputs import read_runs
from derivedata.scaling.calibrate import Calibration, calibrate
from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.fit import fit
from derivedata.scaling.law import Law
from derivedata.scaling.runs import Runs
from tests.bench.reference import reference_folder

STRATEGIES = ("paraphrase", "repeat")


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A strategy left out: its runs, the prior without it, the truth (the fit to everything)."""

    strategy: str
    pool: Runs
    prior: Ensemble
    truth: Law
    other: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Means over draws: error and coverage of ln R* over the cells, RMSE of ln L, each with calibration and without."""

    error: float
    error_none: float
    coverage: float
    loss: float
    loss_none: float
    width: float


def left_out(runs: Runs, strategy: str) -> LeftOut:
    """Take one strategy out of runs that hold two."""
    rest = fit(runs.take(~runs.of(strategy)), sensitivity=(), bootstrap=200)
    (other,) = rest.strategies
    truth = fit(runs, sensitivity=(), bootstrap=0).law
    return LeftOut(strategy=strategy, pool=runs.take(runs.of(strategy)), prior=rest.ensemble, truth=truth, other=other)


def kept_runs() -> Runs:
    """The 355 runs of the canonical fit."""
    runs, _ = read_runs(reference_folder() / "scaling" / "cd_qin2026_370runs.csv")
    fitted = fit(runs, drop=15, sensitivity=(), bootstrap=0)
    gone = {row for row, _ in fitted.left_out}
    return runs.take(np.array([row not in gone for row in runs.row]))


def give_back(case: LeftOut, count: int, seed: int, *, advised: bool = False) -> tuple[Calibration, np.ndarray]:
    """Calibrate on `count` runs: random ones, or 3 random ones and then what the calibration asks for."""
    rng = np.random.default_rng(seed)
    chosen = list(rng.choice(len(case.pool), size=min(count, 3) if advised else count, replace=False))
    while True:
        few = case.pool.take(np.array(chosen))
        free = np.setdiff1d(np.arange(len(case.pool)), chosen)
        offers = [(case.pool.N[i], case.pool.D[i], case.pool.x[i]) for i in free]
        found = calibrate(case.prior, few, params=100e6, fresh_tokens=2e9, candidates=offers, seed=seed)
        if len(chosen) == count:
            return found, free
        best = found.next_best
        if best is None:
            chosen.append(int(rng.choice(free)))
            continue
        fits = [i for i in free if np.allclose(offers_of(case, i), (best.params, best.fresh_tokens, best.x))]
        chosen.append(int(fits[0]))


def offers_of(case: LeftOut, i: int) -> tuple[float, float, float]:
    """(N, D, x) of a run of the pool."""
    return case.pool.N[i], case.pool.D[i], case.pool.x[i]


def score(case: LeftOut, count: int, draws: int, *, advised: bool = False) -> Score:
    """Average a number of draws."""
    N, D = np.unique(np.stack([case.pool.N, case.pool.D]), axis=1)
    true = np.log(case.truth.r_star(N, D, case.strategy))
    none = np.sqrt(np.mean((np.log(case.prior.law.r_star(N, D, case.other)) - true) ** 2))
    rows = []
    for seed in range(draws):
        found, free = give_back(case, count, seed, advised=advised)
        rest = case.pool.take(free)

        def rmse(law: Law, name: str, rest: Runs = rest) -> float:
            return float(np.sqrt(np.mean((np.log(law.loss(rest.N, rest.D, rest.Dp, name)) - np.log(rest.loss)) ** 2)))

        value, low, high = found.ensemble.band(lambda law: np.log(law.r_star(N, D, case.strategy)))
        rows.append(
            (
                np.sqrt(np.mean((value - true) ** 2)),
                np.mean((low <= true) & (true <= high)),
                rmse(found.ensemble.law, case.strategy),
                rmse(case.prior.law, case.other),
                np.mean(high - low),
            )
        )
    error, coverage, loss, loss_none, width = np.mean(rows, axis=0)
    return Score(
        error=float(error),
        error_none=float(none),
        coverage=float(coverage),
        loss=float(loss),
        loss_none=float(loss_none),
        width=float(width),
    )


def main() -> None:
    """Print the table of the documentation."""
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    runs = kept_runs()
    print(
        "| left out | runs given back | error of ln R*, none -> calibrated | 95% interval covers | RMSE of ln L, ",
        end="",
    )
    print("none -> calibrated |\n| --- | --- | --- | --- | --- |")
    for strategy in STRATEGIES:
        case = left_out(runs, strategy)
        for count, advised in ((3, False), (5, False), (5, True), (8, False), (8, True)):
            s = score(case, count, draws, advised=advised)
            how = "3 random, then advised" if advised else "random"
            print(
                f"| {strategy} | {count}, {how} | {s.error_none:.2f} -> {s.error:.2f} | {s.coverage:.2f} |"
                f" {s.loss_none:.4f} -> {s.loss:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
