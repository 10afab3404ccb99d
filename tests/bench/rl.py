"""How well RL curves are fitted and forecast, how fast, and whether the planner finds the optimum of the toy.

    python -m tests.bench.rl

Draws: over the ten rows of ScaleRL's table, 200 draws each of 60 evaluations evenly spaced from .6 to 8 C_mid around
the published sigmoid with R_0 = .25 known. The peer of the grid is what the paper describes: SciPy's `curve_fit` for B
in every cell, timed over every 20th cell. Studies: a hundred toy worlds, one run for each n (tests/scaling/rl_study).
"""

from __future__ import annotations

import contextlib
import csv
import os
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from derivedata.scaling.rl.curve import Sigmoid
from derivedata.scaling.rl.fit import WEAK_WIDTH, fit_curve
from derivedata.scaling.rl.grid import Grid, fit_grid
from derivedata.scaling.rl.points import Curve
from derivedata.scaling.rl.profile import profile_parameter
from derivedata.scaling.rl.solver import Curves, fit_many, predict
from tests.bench.reference import reference_folder
from tests.scaling.rl_study import studies

DRAWS = 200
R0 = 0.25


def main() -> None:
    """Print the tables."""
    with (reference_folder() / "rl" / "scalerl_table1.csv").open() as file:
        laws = {
            row["experiment"]: Sigmoid(R0=R0, A=float(row["A"]), C_mid=float(row["C_mid_gpu_hours"]), B=float(row["B"]))
            for row in csv.DictReader(file)
        }
    draws(laws)
    grid(laws["ScaleRL"])
    planner()


def draws(laws: dict[str, Sigmoid]) -> None:
    """Errors at noise .005; coverage and the flag at noise .01 up to 4 C_mid."""
    rng = np.random.default_rng(0)
    print(f"{'':<24}{'noise .005':>22}{'noise .01, C <= 4 C_mid: coverage':>40}")
    print(f"{'recipe':<24}{'A +-.01':>9}{'8 C_mid +-.013':>16}{'A':>12}{'C_mid':>8}{'B':>8}{'flagged weak':>14}")
    rows, began = [], time.process_time()
    for name, law in laws.items():
        C = np.linspace(0.6, 8, 60) * law.C_mid
        early = law.C_mid * 4 >= C
        y = law.reward(C) + rng.normal(0, 0.005, (DRAWS, 60))
        found = fit_many(Curves.of(np.log(C), y), r0=R0)
        half = fit_many(Curves.of(np.log(C[early]), y[:, early]), r0=R0)
        forecast = predict(half, np.full((DRAWS, 1), np.log(C[-1])))[:, 0]
        noisy = law.reward(C[early]) + rng.normal(0, 0.01, (DRAWS, int(early.sum())))
        curves = Curves.of(np.log(C[early]), noisy)
        theta = fit_many(curves, r0=R0)
        free = np.tile([False, True, True, True], (DRAWS, 1))
        ends = [profile_parameter(curves, theta, i, free) for i in (1, 2, 3)]
        truth = law.theta[1:]
        rows.append(
            [
                np.mean(np.abs(found[:, 1] - law.A) < 0.01),
                np.mean(np.abs(forecast - law.reward(C[-1])) < 0.013),
                *(np.mean((e.low <= t) & (e.high >= t)) for e, t in zip(ends, truth, strict=True)),
                np.mean(ends[0].high - ends[0].low > WEAK_WIDTH),
            ]
        )
        print(f"{name:<24}" + _row(rows[-1]))
    print(f"{'all':<24}" + _row(np.mean(rows, axis=0)))
    print(f"targets: 95%, 95%; coverage 90-98%; flagged. {time.process_time() - began:.1f} CPU s in all\n")


def _row(values) -> str:
    return "".join(f"{value:>{width}.1%}" for value, width in zip(values, (9, 16, 12, 8, 8, 14), strict=True))


def grid(law: Sigmoid) -> None:
    """7,100 cells with 200 bootstrap refits, against curve_fit for every cell."""
    from scipy.optimize import curve_fit

    cells = Grid(A=0.45 + 0.005 * np.arange(71), C_mid=np.geomspace(100, 40_000, 100))
    C = np.linspace(0.6, 8, 60) * law.C_mid
    reward = law.reward(C) + np.random.default_rng(1).normal(0, 0.005, 60)
    curve = Curve(run="bench", C=np.append(0, C), reward=np.append(R0, reward))
    began = time.process_time()
    fit = fit_curve(curve, method="grid", grid=cells, bootstrap=200)
    ours = time.process_time() - began
    began = time.process_time()
    found = Sigmoid.of(fit_grid(C, reward, r0=R0, grid=cells)[0])
    once = time.process_time() - began
    count = 0
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for a in cells.A:
            for mid in cells.C_mid[::20]:
                count += 1
                shape = lambda c, b, a=a, mid=mid: R0 + (a - R0) / (1 + (mid / c) ** b)  # noqa: E731
                # A cell without a good B is one more that the search must end in.
                with contextlib.suppress(RuntimeError):
                    curve_fit(shape, C, reward, p0=[1.5], bounds=(0.2, 10))
    theirs = (time.process_time() - began) * cells.cells / count
    shape = lambda c, b: R0 + (found.A - R0) / (1 + (found.C_mid / c) ** b)  # noqa: E731
    B = curve_fit(shape, C, reward, p0=[1.5])[0][0]
    print(f"{cells.cells} cells, one fit: {once:.3f} CPU s (A {found.A:.3f}, C_mid {found.C_mid:.0f}, B {found.B:.4f})")
    print(f"  with 200 bootstrap refits and profiles: {ours:.2f} CPU s (target 2); A {np.std(fit.draws[:, 1]):.4f} sd")
    print(
        f"  curve_fit in every cell, one fit: {theirs:.1f} CPU s ({count} cells timed), {theirs / once:.0f} times ours"
    )
    print(f"  curve_fit in the best cell: B {B:.4f}\n")


def planner() -> None:
    """A hundred studies, and studies whose grid does not hold the optimum."""
    began, right, worse = time.process_time(), [], []
    for kind, budget in (("hard", 2.5e4), ("hard", 8e4), ("easy", 1.5e4), ("easy", 4e4)):
        found = studies(25, budget=budget, kind=kind, seed=1)
        right += [study.is_right for study in found]
        loss = [study.rewards[study.best] - study.rewards[int(study.plan.n.value)] for study in found]
        worse += loss
        best = sorted({study.best for study in found})
        print(
            f"25 studies, {kind}, C = {budget:,.0f}: {np.mean(right[-25:]):.0%} within one power of two"
            f" (optima {', '.join(map(str, best))}); reward given away {np.mean(loss):.4f}"
        )
    print(f"100 studies: {np.mean(right):.0%} (target 90%), {time.process_time() - began:.0f} CPU s")
    record = studies(25, budget=8e4, seed=1, points="record")
    print(f"  25 of them from record-breaking points: {np.mean([study.is_right for study in record]):.0%}")
    outside = studies(25, budget=8e4, ns=(4, 8), known=(4, 8, 16, 32, 64), seed=2)
    flagged = [any("edge of the grid" in flag for flag in study.plan.flags) for study in outside if study.best > 8]
    print(f"optimum outside the grid (n of 4, 8 only): {np.mean(flagged):.0%} of {len(flagged)} studies flagged")


if __name__ == "__main__":
    main()
