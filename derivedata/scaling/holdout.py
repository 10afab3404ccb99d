"""Hold runs out, fit the rest, and see how well they are predicted: once, or rolling over increasing N or x."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from derivedata.errors import UserError
from derivedata.scaling.diagnostics import overfitted
from derivedata.scaling.fit import fit
from derivedata.scaling.fitted import Fit, Settings
from derivedata.scaling.law import Law
from derivedata.scaling.runs import Runs


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HoldOut:
    """Prediction of held-out runs.

    Args:
        label: what was held out, in words.
        trained, tested: numbers of runs fitted and predicted.
        rmse: root mean square of ln L - ln loss over the tested runs; NaN when refused.
        bias: mean of the same.
        coverage: share of tested runs inside their 95% prediction interval (draws of the law and scatter of the runs).
        row, residual: of each tested run.
        fit: the fit to the rest, None when refused.
        refused: why the rest could not be fitted, "" otherwise.
    """

    label: str
    trained: int
    tested: int
    rmse: float = np.nan
    bias: float = np.nan
    coverage: float = np.nan
    row: NDArray = field(default_factory=lambda: np.empty(0, int))
    residual: NDArray = field(default_factory=lambda: np.empty(0))
    fit: Fit | None = None
    refused: str = ""


def options_of(settings: Settings, backbone: Law | None = None) -> dict:
    """Keyword arguments of `fit` that repeat a fit's settings on other runs (nothing is dropped)."""
    return {
        "form": settings.form.name,
        "mode": settings.mode,
        "delta": settings.delta,
        "overfit": settings.overfit,
        "backbone": backbone,
    }


def hold_out(runs: Runs, held: NDArray, *, label: str = "", bootstrap: int = 200, seed: int = 0, **options) -> HoldOut:
    """Fit the runs that are not held and predict those that are.

    Args:
        runs: all runs; see `scored_runs` for which of them belong in a hold-out.
        held: (runs,) mask.
        label: what is held out, in words.
        bootstrap: refits behind the prediction intervals.
        seed: of the bootstrap and of the scatter drawn for the intervals.
        options: passed to `fit`.
    """
    rest, tested = runs.take(~held), runs.take(held)
    if len(tested) == 0 or len(rest) == 0:
        raise UserError("nothing to hold out" if len(tested) == 0 else "every run is held out", value=label or None)
    try:
        unknown = sorted(set(tested.strategies) - set(rest.strategies))
        if unknown:
            raise UserError(f"no run of {', '.join(unknown)} is left to fit")
        fitted = fit(rest, bootstrap=bootstrap, sensitivity=(), profiles=False, seed=seed, **options)
    except UserError as error:
        return HoldOut(label=label, trained=len(rest), tested=len(tested), refused=error.what)

    predicted = _ln_loss(fitted.law, tested)
    residual = predicted - np.log(tested.loss)
    scatter = np.random.default_rng(seed).normal(0, fitted.residual_sd, (len(fitted.ensemble.draws), len(tested)))
    spread = np.array([_ln_loss(law, tested) for law in fitted.ensemble.draws]) + scatter
    low, high = np.quantile(spread, [0.025, 0.975], axis=0)
    inside = (np.log(tested.loss) >= low) & (np.log(tested.loss) <= high)
    return HoldOut(
        label=label,
        trained=fitted.used,
        tested=len(tested),
        rmse=float(np.sqrt(np.mean(residual**2))),
        bias=float(residual.mean()),
        coverage=float(inside.mean()),
        row=tested.row,
        residual=residual,
        fit=fitted,
    )


def rolling(runs: Runs, by: str, *, bootstrap: int = 200, **options) -> list[HoldOut]:
    """Fit all runs up to a value and predict those at the next ones, again and again.

    Args:
        runs: the runs.
        by: "N" (each size predicted from all smaller ones, from the fourth size on) or "x" (each doubling of x from all
            smaller x; runs without derived tokens are always fitted).
        bootstrap, options: as in `hold_out`.
    """
    runs = scored_runs(runs, **options)
    folds = {"N": folds_by_size, "x": folds_by_x}
    if by not in folds:
        raise UserError("rolling hold-out is by N or by x", value=by)
    found = []
    for label, past, held in folds[by](runs):
        shown = runs.take(past | held)
        found.append(hold_out(shown, held[past | held], label=label, bootstrap=bootstrap, **options))
    return found


def scored_runs(runs: Runs, *, overfit: str = "leave-out", form: str = "published", **_) -> Runs:
    """The runs a hold-out is about: without the overfitted ones, unless they are kept or the form is about them."""
    if overfit == "keep" or form == "overfit":
        return runs
    mask = np.ones(len(runs), bool)
    mask[list(overfitted(runs))] = False
    return runs.take(mask)


def folds_by_size(runs: Runs) -> Iterator[tuple[str, NDArray, NDArray]]:
    sizes = np.unique(runs.N)
    for size in sizes[3:]:
        yield f"N = {size:.4g} from smaller", size > runs.N, size == runs.N


def folds_by_x(runs: Runs) -> Iterator[tuple[str, NDArray, NDArray]]:
    edge = 2.0
    while edge < runs.x.max():
        past, held = runs.x <= edge, (runs.x > edge) & (runs.x <= 2 * edge)
        if held.sum() >= 5 and (past & (runs.Dp > 0)).sum() >= 5:
            yield f"x in ({edge:g}, {2 * edge:g}] from smaller", past, held
        edge *= 2


def _ln_loss(law: Law, runs: Runs) -> NDArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(law.loss(runs.N, runs.D, runs.Dp, runs.strategy))
