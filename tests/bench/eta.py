"""How long fits take, and how well they end, in CPU seconds on one thread: `python -m tests.bench.eta`.

The peer is the package `chinchilla` (pip install chinchilla) on the same 240 points with the same loss, Huber of ln L
with delta 1e-3, from 32 starts around the published constants, its picture switched off. Absent, its row is left out.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from derivedata.cli.eta.inputs import read_runs
from derivedata.scaling.fit import fit
from derivedata.scaling.presets import load_preset
from derivedata.scaling.runs import Runs
from derivedata.scaling.solver import huber
from tests.bench.reference import reference_folder

QUICK = {"bootstrap": 0, "sensitivity": (), "profiles": False}


def main() -> None:
    """Print the table."""
    folder = reference_folder() / "scaling"
    points = read_runs(folder / "chinchilla_epoch_svg_245.csv")[0]
    points = points.take(points.loss < np.sort(points.loss)[-5])
    qin = read_runs(folder / "cd_qin2026_370runs.csv")[0]
    kept = read_runs(folder / "cd_qin2026_370runs.csv", where="kept_in_canonical_fit==1")[0]
    c4 = read_runs(folder / "datablations_runs.csv", where="c4_fit_subset_182==1")[0]

    print(f"{'what':<58}{'CPU s':>9}{'target':>9}   result")
    ours, fitted = measure(lambda: fit(points, **QUICK), 7)
    row("Chinchilla, 240 points, 8 starts", ours, 0.05, f"objective {fitted.objective:.8f}, E {fitted.law.E:.4f}")
    theirs = chinchilla_package(points)
    if theirs:
        seconds, objective, E = theirs
        row("  the chinchilla package, 32 starts", seconds, None, f"objective {objective:.8f}, E {E:.4f}")
        row(
            "  times as fast",
            seconds / ours,
            40,
            "better objective" if fitted.objective < objective else "worse objective",
        )
    full, fitted = measure(lambda: fit(points), 3)
    row("  with 400 refits and sensitivity row", full, None, f"{len(fitted.draws)} draws")

    seconds, fitted = measure(lambda: fit(qin, drop=15, bootstrap=0), 5)
    row("Qin, 370 runs, drop 15, sensitivity, profiles, sandwich", seconds, 3.0, f"objective {fitted.objective:.6f}")
    with_draws, fitted = measure(lambda: fit(qin, drop=15), 3)
    row("  the same with 400 bootstrap refits", with_draws, None, f"{len(fitted.draws)} draws")
    row("  the 400 refits alone", with_draws - seconds, 10.0, f"{fitted.cells} cells")
    seconds, fitted = measure(lambda: fit(kept, mode="staged", **QUICK), 5)
    row("Qin, 355 kept runs, staged", seconds, None, f"RMSE {fitted.rmse['all'][1]:.5f}")
    seconds, fitted = measure(lambda: fit(qin, form="offset-worth", **QUICK), 5)
    row("Qin, 370 runs, offset-worth", seconds, None, f"objective {fitted.objective:.6f}")

    backbone = load_preset("muennighoff2023")
    options = {"form": "muennighoff", "backbone": backbone, "delta": 1e-3, "overfit": "keep", **QUICK}
    seconds, fitted = measure(lambda: fit(c4, **options), 5)
    row("Muennighoff, 182 runs, their backbone", seconds, None, f"objective {fitted.objective:.7f}")


def measure(call, times: int):
    """Median CPU seconds of some calls, after one to warm up, and the last result."""
    call()
    spent = []
    for _ in range(times):
        start = time.process_time()
        result = call()
        spent.append(time.process_time() - start)
    return float(np.median(spent)), result


def row(what: str, value: float, target: float | None, result: str) -> None:
    """One line of the table."""
    print(f"{what:<58}{value:>9.3f}{'' if target is None else f'{target:g}':>9}   {result}", flush=True)


def chinchilla_package(points: Runs) -> tuple[float, float, float] | None:
    """CPU seconds, objective and E of the package, or None where it is not installed."""
    try:
        from chinchilla import Chinchilla
        from chinchilla._metrics import log_huber
    except ImportError:
        return None
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        model = Chinchilla(
            folder,
            param_grid={
                "E": (1.5, 2.0),
                "a": (5.0, 7.0),
                "b": (6.0, 9.0),
                "alpha": (0.3, 0.4),
                "beta": (0.3, 0.4),
            },
            loss_fn=lambda true, predicted: log_huber(true, predicted, 1e-3),
            log_level=50,
        )
        for N, D, loss in zip(points.N, points.D, points.loss, strict=True):
            model.database.append(N=N, D=D, loss=loss)
        model.visualizer.optim = lambda *_, **__: None
        before = os.times()
        model.fit(parallel=False)
        after = os.times()
    logging.disable(logging.NOTSET)
    spent = sum(after[:4]) - sum(before[:4])
    predicted = model.E + model.A / points.N**model.alpha + model.B / points.D**model.beta
    residual = np.log(np.asarray(predicted, float)) - np.log(points.loss)
    return spent, float(huber(residual, 1e-3).sum()), float(model.E)


if __name__ == "__main__":
    main()
