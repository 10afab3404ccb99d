"""Runs that the tests of the scaling room fit: the three published tables, and synthetic ones of a known law."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from derivedata.cli.eta.inputs import read_runs
from derivedata.scaling.law import Law
from derivedata.scaling.runs import Runs

SIZES = (14e6, 42e6, 126e6, 380e6)


def qin(reference_data: Path, *, kept: bool = False) -> Runs:
    """The 370 runs of Qin et al. 2026, or the 355 they kept."""
    where = "kept_in_canonical_fit==1" if kept else None
    return read_runs(reference_data / "scaling" / "cd_qin2026_370runs.csv", where=where)[0]


def muennighoff(reference_data: Path) -> Runs:
    """The 182 C4 runs that Muennighoff et al. 2023 fitted."""
    return read_runs(reference_data / "scaling" / "datablations_runs.csv", where="c4_fit_subset_182==1")[0]


def chinchilla(reference_data: Path) -> Runs:
    """Besiroglu et al.'s 240 of the 245 points of Hoffmann et al. 2022: without the five highest losses."""
    runs = read_runs(reference_data / "scaling" / "chinchilla_epoch_svg_245.csv")[0]
    return runs.take(runs.loss < np.sort(runs.loss)[-5])


def synthetic(
    law: Law,
    strategy: str = "repeat",
    *,
    seed: int = 0,
    noise: float = 0.01,
    sizes: tuple[float, ...] = SIZES,
    tpps: tuple[float, ...] = (5, 20, 80),
    xs: tuple[float, ...] = (0, 1, 3, 7, 15, 31, 63),
) -> Runs:
    """84 runs (by default) of a law with log-normal noise: every size at every D/N with every x."""
    design = np.array([(N, tpp * N, x * tpp * N) for N in sizes for tpp in tpps for x in xs])
    N, D, Dp = design.T
    scatter = np.random.default_rng(seed).normal(0, noise, len(N))
    return Runs(N=N, D=D, Dp=Dp, loss=law.loss(N, D, Dp, strategy) * np.exp(scatter), strategy=strategy)
