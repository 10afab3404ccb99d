"""How often the 95% intervals of `eta fit` hold the truth: `python -m tests.bench.eta_coverage [DRAWS]`.

Runs of the published law with 1% noise, alone or with another 1% that the runs of an (N, D) cell share, are fitted as
`eta fit` fits them (100 bootstrap refits, or sandwich errors). Scored: R* and the loss at x = 3 in the middle of the
design, and E + A/N^alpha at the smallest and the largest size.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from derivedata.scaling.fit import fit
from derivedata.scaling.presets import load_preset
from derivedata.scaling.runs import Runs
from tests.scaling.data import SIZES, synthetic

LAW = load_preset("qin2026-n370")
# Sizes, tokens per parameter, refits.
DESIGNS = (
    (SIZES, (5, 20, 80), 100),
    (SIZES[:3], (5, 20, 80), 100),
    (SIZES[:3], (5, 80), 100),
    (SIZES[:2], (5, 80), 100),
    (SIZES[:3], (5, 20, 80), 0),
)


def drawn(seed: int, sizes: tuple, tpps: tuple, shared: float) -> Runs:
    """Runs with 1% noise of their own and some that their cell shares."""
    runs = synthetic(LAW, seed=seed, sizes=sizes, tpps=tpps)
    common = np.random.default_rng(10_000 + seed).normal(0, shared, runs.cluster.max() + 1)
    return replace(runs, loss=runs.loss * np.exp(common[runs.cluster]))


def inside(runs: Runs, refits: int) -> list[bool]:
    """Whether R*, E_eff at both ends and the loss lie in their intervals."""
    sizes, tpps = np.unique(runs.N), np.unique(runs.tpp.round(6))
    N, D = sizes[len(sizes) // 2], sizes[len(sizes) // 2] * tpps[len(tpps) // 2]
    fitted = fit(runs, bootstrap=refits, sensitivity=(), profiles=False)
    figures = (
        lambda law: float(law.r_star(N, D, "repeat")),
        lambda law: float(law.model_limit(sizes[0])),
        lambda law: float(law.model_limit(sizes[-1])),
        lambda law: float(law.loss(N, D, 3 * D, "repeat")),
    )
    found = [(fitted.ensemble.estimate(figure), figure(LAW)) for figure in figures]
    return [estimate.low <= truth <= estimate.high for estimate, truth in found]


def main(draws: int = 60) -> None:
    print("| runs, cells, errors | R* | E + A/N^alpha, smallest and largest N | loss at x = 3 |")
    print("| --- | --- | --- | --- |")
    for sizes, tpps, refits in DESIGNS:
        for shared, words in ((0.0, "independent"), (0.01, "another 1% common to a cell")):
            all_runs = [drawn(seed, sizes, tpps, shared) for seed in range(draws)]
            share = np.mean([inside(runs, refits) for runs in all_runs], axis=0)
            cells = len(sizes) * len(tpps)
            how = ", `--bootstrap 0`" if refits == 0 else " (runs resampled)" if cells < 6 else ""
            print(
                f"| {len(all_runs[0])}, {cells}, {words}{how} | {share[0]:.2f} | {share[1]:.2f}, {share[2]:.2f} "
                f"| {share[3]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
