"""What is wrong with runs, and what a design cannot say: checks before a fit, warnings after it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from derivedata.errors import UserError
from derivedata.scaling.law import Law
from derivedata.scaling.runs import Runs

# Nobody derives so many tokens from one: D and D' in different units, or a mistyped count.
LARGEST_X = 1e5
# Loss of a model that knows nothing is ln V; no vocabulary in use is larger than this.
LARGEST_VOCABULARY = 300_000


def check_runs(runs: Runs, vocabulary: int | None = None) -> tuple[Runs, list[str]]:
    """Refuse runs that no law can mean, leave out diverged and doubled ones.

    Returns:
        The runs to fit, and one line for each thing left out or worth a second look.

    Raises:
        UserError: for parameters in millions, tokens in billions, losses above ln V, non-positive numbers.
    """
    if len(runs) == 0:
        raise UserError("no runs", remedy="give a table with one row a trained model")
    notes = []
    lost = ~np.isfinite(runs.loss)
    if lost.any():
        notes.append(f"{_rows(runs, lost)}: no finite loss (diverged?), left out")
        runs = runs.take(~lost)
    for column, values, least in (
        ("n_params", runs.N, 0),
        ("fresh_tokens", runs.D, 0),
        ("derived_tokens", runs.Dp, -1),
    ):
        bad = ~np.isfinite(values) | (values <= least) | (values < 0)
        if bad.any():
            at = int(np.argmax(bad))
            raise UserError(
                f"{column} must be {'positive' if least == 0 else 'zero or more'}",
                where=f"row {runs.row[at]}",
                value=float(values[at]),
            )
    if len(runs) and runs.N.max() < 1e4:
        raise UserError(
            "n_params looks to be in millions or billions",
            value=f"{runs.N.max():g} at most",
            remedy="give plain counts",
        )
    if len(runs) and runs.D.max() < 1e4:
        raise UserError(
            "fresh_tokens looks to be in millions or billions",
            value=f"{runs.D.max():g} at most",
            remedy="give plain counts",
        )
    if len(runs) and runs.x.max() > LARGEST_X:
        at = int(np.argmax(runs.x))
        raise UserError(
            f"derived_tokens are more than {LARGEST_X:g} times the fresh ones",
            where=f"row {runs.row[at]}",
            value=f"{runs.Dp[at]:g} of {runs.D[at]:g}",
            remedy="give plain counts of both",
        )
    _check_losses(runs, vocabulary)
    runs, doubled = _without_doubles(runs)
    return runs, notes + doubled + list(_nominal(runs))


def _check_losses(runs: Runs, vocabulary: int | None) -> None:
    if (runs.loss <= 0).any():
        at = int(np.argmin(runs.loss))
        raise UserError(
            "loss must be positive, in nats a token", where=f"row {runs.row[at]}", value=float(runs.loss[at])
        )
    if len(runs) > 2 and np.ptp(runs.loss) == 0:
        raise UserError("every run has the same loss: there is nothing to fit", value=float(runs.loss[0]))
    most = math.log(vocabulary or LARGEST_VOCABULARY)
    if runs.loss.max() > most:
        at = int(np.argmax(runs.loss))
        size = f"a vocabulary of {vocabulary:,}" if vocabulary else "any vocabulary in use"
        raise UserError(
            f"loss is above ln V = {most:.2f} of {size}, which is what a model that knows nothing has",
            where=f"row {runs.row[at]}",
            value=float(runs.loss[at]),
            remedy="give the mean cross-entropy in nats a token, not bits or perplexity, and leave out diverged runs",
        )


def _without_doubles(runs: Runs) -> tuple[Runs, list[str]]:
    """Leave out rows that repeat another in every column; say where rows differ in the loss alone."""
    exact, same, doubles, unseeded = {}, {}, [], 0
    for i in range(len(runs)):
        design = (runs.N[i], runs.D[i], runs.Dp[i], runs.strategy[i] if runs.Dp[i] > 0 else "", runs.seed[i])
        if (design, runs.loss[i]) in exact:
            doubles.append(i)
            continue
        exact[design, runs.loss[i]] = i
        unseeded += design in same
        same[design] = i
    notes = []
    if doubles:
        mask = np.zeros(len(runs), bool)
        mask[doubles] = True
        notes.append(f"{_rows(runs, mask)}: the same run as an earlier row, left out")
        runs = runs.take(~mask)
    if unseeded:
        notes.append(f"{unseeded} runs repeat another's N, D, D' and seed with a different loss: kept as replicates")
    return runs, notes


def _nominal(runs: Runs) -> Iterator[str]:
    """Strategies other than repetition whose D' was counted by multiplying, not by tokenising what was generated."""
    for strategy in runs.strategies:
        x = runs.x[runs.of(strategy)]
        if "repeat" in strategy.lower() or "epoch" in strategy.lower() or len(x) < 3 or len(np.unique(x)) < 2:
            continue
        # Real generations differ in length: exact multiples of one ratio (or of D) mean nobody counted.
        ratio = x / x.min()
        if np.abs(ratio - np.round(ratio)).max() < 1e-9 or np.abs(x - np.round(x)).max() < 1e-9:
            yield (
                f"{strategy}: D' is an exact multiple of D in every run: nominal, not measured? Count the tokens that "
                "were generated (about 0.31 D a rewrite in Qin et al. 2026)"
            )


def overfitted(runs: Runs) -> dict[int, str]:
    """Runs whose loss had risen again with more derived tokens of the same N, D and strategy: index -> reason.

    A monotone law cannot describe them. A run counts when it and the run with the most derived tokens both lie above
    the lowest loss before by 1% and by four times the scatter of the losses.
    """
    scatter = noise(runs)
    least_rise = max(0.01, 4 * scatter)
    found = {}
    for cell in _cells(runs):
        x, lnloss = _curve(runs, cell)
        floor = np.minimum.accumulate(lnloss)
        over = lnloss - floor > least_rise
        if not over[-1]:
            continue
        low = x[int(np.argmin(lnloss))]
        for i in cell:
            if runs.x[i] > low and over[np.searchsorted(x, runs.x[i])]:
                rise = lnloss[np.searchsorted(x, runs.x[i])] - lnloss.min()
                found[int(i)] = f"overfitted: loss {100 * math.expm1(rise):.1f}% above its least at x = {low:.3g}"
    return found


def noise(runs: Runs) -> float:
    """Standard deviation of ln loss between runs that should agree: seeds where there are any, else roughness over x.

    Roughness (deviation from the line through both neighbours in ln(1 + x)) holds curvature too, so it errs upwards.
    """
    groups = defaultdict(list)
    for i in range(len(runs)):
        groups[runs.N[i], runs.D[i], runs.Dp[i], runs.strategy[i] if runs.Dp[i] > 0 else ""].append(
            math.log(runs.loss[i])
        )
    spread, freedom = 0.0, 0
    for values in groups.values():
        spread += float(np.var(values) * len(values))
        freedom += len(values) - 1
    if freedom >= 5:
        return math.sqrt(spread / freedom)
    bends = []
    for cell in _cells(runs):
        x, lnloss = _curve(runs, cell)
        t = np.log1p(x)
        if len(t) >= 3:
            left = (t[2:] - t[1:-1]) / (t[2:] - t[:-2])
            bend = lnloss[1:-1] - left * lnloss[:-2] - (1 - left) * lnloss[2:]
            bends.extend(bend / np.sqrt(1 + left**2 + (1 - left) ** 2))
    return float(1.4826 * np.median(np.abs(bends))) if bends else 0.0


def _cells(runs: Runs) -> Iterator[NDArray]:
    """Indices of the runs of one (N, D, strategy), the one-epoch runs of that (N, D) included."""
    for strategy in runs.strategies:
        mine = runs.of(strategy)
        for N, D in sorted({(runs.N[i], runs.D[i]) for i in np.flatnonzero(mine)}):
            yield np.flatnonzero((runs.N == N) & (runs.D == D) & (mine | (runs.Dp == 0)))


def _curve(runs: Runs, cell: NDArray) -> tuple[NDArray, NDArray]:
    """Distinct x of a cell and the mean ln loss at each (replicates averaged)."""
    x, which = np.unique(runs.x[cell], return_inverse=True)
    return x, np.bincount(which.reshape(-1), np.log(runs.loss[cell])) / np.bincount(which.reshape(-1))


def design_warnings(runs: Runs, law: Law) -> list[str]:
    """What the design of the (used) runs cannot support, one line each; empty for a good design."""
    found = []
    sizes, ratios = np.unique(runs.N), np.unique(np.round(np.log(runs.tpp), 2))
    # One size alone is already told as a restriction of the fit.
    if len(sizes) > 1 and (len(sizes) < 3 or sizes.max() / sizes.min() < 10):
        found.append(
            f"{len(sizes)} sizes over a factor {sizes.max() / sizes.min():.3g}: three over a decade are needed for "
            "alpha and sigma"
        )
    elif len(sizes) > 1 and sizes.max() / sizes.min() < 100:
        found.append(
            "E, A and alpha are not separately identified over less than two decades of N: read E + A/N^alpha instead"
        )
    if len(ratios) < 3 or runs.tpp.max() / runs.tpp.min() < 10:
        found.append(
            f"tokens per parameter over a factor {runs.tpp.max() / runs.tpp.min():.3g}: three values over a decade are "
            "needed for beta and rho"
        )
    if (runs.Dp == 0).sum() < 5:
        found.append(f"{int((runs.Dp == 0).sum())} runs without derived tokens: B and beta rest on the form of eta")
    for strategy in runs.strategies:
        found += _strategy_warnings(runs, law, strategy)
    return found


def _strategy_warnings(runs: Runs, law: Law, strategy: str) -> Iterator[str]:
    mine = np.flatnonzero(runs.of(strategy))
    R = np.broadcast_to(law.r_star(runs.N[mine], runs.D[mine], strategy), len(mine))
    reach = defaultdict(bool)
    for i, r in zip(mine, R, strict=True):
        reach[runs.N[i], runs.D[i]] |= bool(runs.x[i] >= 2 * r)
    if 2 * sum(reach.values()) < len(reach):
        yield (
            f"{strategy}: x reaches 2 R* in {sum(reach.values())} of {len(reach)} (N, D) cells, half are needed to see "
            "the value of a token fade"
        )
    if len(mine) < 45:
        yield f"{strategy}: {len(mine)} runs with derived tokens; R* needs 45 at 1% noise, rho and sigma 84"
    elif len(mine) < 84:
        yield f"{strategy}: {len(mine)} runs with derived tokens; useful rho and sigma need 84 at 1% noise"


def _rows(runs: Runs, mask: NDArray) -> str:
    rows = [str(r) for r in runs.row[mask]]
    shown = ", ".join(rows[:8]) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
    return f"row{'s' if len(rows) > 1 else ''} {shown}"
