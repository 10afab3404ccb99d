"""Forms of the law compared on hold-outs: same folds, starts, loss and runs for each, differences paired by cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from derivedata.errors import UserError
from derivedata.scaling.fit import fit
from derivedata.scaling.holdout import folds_by_size, folds_by_x
from derivedata.scaling.runs import Runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How one form predicted what was held out in one way.

    Args:
        form: its name; held_out: "N", "TPP" or "x".
        folds, tested: numbers of fits and of predictions.
        rmse: of ln L - ln loss over all predictions.
        difference: rmse less that of the published form, and its 95% interval by a bootstrap over (N, D) cells.
    """

    form: str
    held_out: str
    folds: int
    tested: int
    rmse: float
    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Whether the interval of the difference excludes 0."""
        return "better" if self.high < 0 else "worse" if self.low > 0 else "same"


def compare_forms(
    runs: Runs, forms: Sequence[str], *, delta: float = 0.1, draws: int = 2000, seed: int = 0
) -> list[Score]:
    """Score forms, the first of which is the one the others are measured against.

    Each fold fits all runs up to a value of N, TPP or x and predicts the next ones. Overfitted runs are kept, so that
    every form sees the same runs.
    """
    scores = []
    for held_out, folds in (("N", folds_by_size), ("TPP", folds_by_tpp), ("x", folds_by_x)):
        splits = [(past, held) for _, past, held in folds(runs)]
        residuals = {form: [] for form in forms}
        cells, count = [], 0
        for past, held in splits:
            try:
                fold = {form: _predict(runs, past, held, form, delta) for form in forms}
            except UserError:
                # Too few runs for the largest form: no form is scored on this fold.
                continue
            count += 1
            cells.append(runs.cluster[held])
            for form in forms:
                residuals[form].append(fold[form])
        if count:
            squares = {form: np.concatenate(parts) ** 2 for form, parts in residuals.items()}
            scores += _scores(squares, np.concatenate(cells), held_out=held_out, folds=count, draws=draws, seed=seed)
    return scores


def folds_by_tpp(runs: Runs) -> Iterator[tuple[str, NDArray, NDArray]]:
    """Each doubling of D/N predicted from all smaller D/N, once three doublings are behind."""
    edge = 8 * runs.tpp.min()
    while edge < runs.tpp.max():
        past, held = runs.tpp <= edge * 1.001, (runs.tpp > edge * 1.001) & (runs.tpp <= 2 * edge * 1.001)
        if held.sum() >= 5:
            yield f"TPP in ({edge:.4g}, {2 * edge:.4g}] from smaller", past, held
        edge *= 2


def _predict(runs: Runs, past: NDArray, held: NDArray, form: str, delta: float) -> NDArray:
    """ln L - ln loss of the held runs."""
    rest, tested = runs.take(past), runs.take(held)
    if set(tested.strategies) - set(rest.strategies):
        raise UserError("a strategy is held out whole")
    law = fit(rest, form=form, delta=delta, overfit="keep", bootstrap=0, sensitivity=(), profiles=False).law
    with np.errstate(all="ignore"):
        residual = np.log(law.loss(tested.N, tested.D, tested.Dp, tested.strategy)) - np.log(tested.loss)
    return residual


def _scores(
    squares: dict[str, NDArray], cells: NDArray, *, held_out: str, folds: int, draws: int, seed: int
) -> Iterator[Score]:
    labels = np.unique(cells, return_inverse=True)[1].reshape(-1)
    groups = int(labels.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), size=draws)
    sizes = np.bincount(labels)
    totals = {form: np.bincount(labels, square) for form, square in squares.items()}
    base = next(iter(squares))
    for form, square in squares.items():
        rmse = np.sqrt(square.mean())
        if not np.isfinite(rmse):
            # The form's extrapolation is no number somewhere: worse than any.
            yield Score(
                form=form, held_out=held_out, folds=folds, tested=len(square),
                rmse=np.inf, difference=np.inf, low=np.inf, high=np.inf,
            )  # fmt: skip
            continue
        spread = np.sqrt(drawn @ totals[form] / (drawn @ sizes)) - np.sqrt(drawn @ totals[base] / (drawn @ sizes))
        low, high = np.quantile(spread, [0.025, 0.975])
        yield Score(
            form=form,
            held_out=held_out,
            folds=folds,
            tested=len(square),
            rmse=float(rmse),
            difference=float(rmse - np.sqrt(squares[base].mean())),
            low=float(low),
            high=float(high),
        )
