"""The eta of single runs: which eta would give exactly the run's loss, how sure that is, and when there is none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.law import Law
from derivedata.scaling.runs import Runs

NO_DERIVED = "no derived tokens"
BELOW_LIMIT = "undefined: loss at or below E + A/N^alpha"

# RMSE of ln L of the 355 runs behind qin2026-n370: what a law without draws of its own is taken to miss a run by.
PUBLISHED_NOISE = 0.0326


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Empirical:
    """One entry a run. `eta` is never clipped: above 1 is normal (45 of 197 repeat, 35 of 117 paraphrase runs).

    Args:
        eta: the eta that gives the run's loss; NaN where there is none.
        error: its standard error, from the scatter of the runs and the uncertainty of the law together.
        predicted: eta of the law at that run (NaN for an unknown strategy).
        flag: "", ">1", "<0", or the reason why there is none.
    """

    eta: NDArray
    error: NDArray
    predicted: NDArray
    flag: NDArray


def eta_empirical(runs: Runs, ensemble: Ensemble, *, noise: float | None = None) -> Empirical:
    """Solve L(N, D, D', eta) = loss for eta, run by run.

        eta = (D_eff - D) / D',   D_eff = (B / (loss - E - A/N^alpha))^(1/beta) - D0

    Args:
        runs: the runs.
        ensemble: law and draws; the draws give the part of the error that is the law's.
        noise: standard deviation of ln loss of a run around the law; the published 0.0326 by default.

    The error of a run is sqrt(noise part^2 + law part^2): the first by the delta method, the second as half the width
    of the central 68% of eta over the draws. Where the loss lies close to E + A/N^alpha both are large.
    """
    value = _solve(runs, ensemble.law)
    has = runs.Dp > 0
    step = 1e-4
    with np.errstate(invalid="ignore"):
        slope = (_solve(runs, ensemble.law, step) - _solve(runs, ensemble.law, -step)) / (2 * step)
    error = np.abs(slope) * (PUBLISHED_NOISE if noise is None else noise)
    if ensemble.draws:
        spread = np.array([_solve(runs, law) for law in ensemble.draws])
        # Draws in which the run lies at or below its model limit say "anything": they count as infinite.
        spread = np.where(np.isnan(spread), np.inf, spread)
        low, high = np.quantile(spread, [0.16, 0.84], axis=0, method="nearest")
        with np.errstate(invalid="ignore"):
            error = np.hypot(error, (high - low) / 2)
    error = np.where(np.isnan(value), np.nan, error)
    flag = np.full(len(runs), "", object)
    flag[value > 1], flag[value < 0] = ">1", "<0"
    flag[np.isnan(value)] = BELOW_LIMIT
    flag[~has] = NO_DERIVED
    return Empirical(eta=value, error=error, predicted=_predicted(runs, ensemble.law), flag=flag)


def _solve(runs: Runs, law: Law, shift: float = 0.0) -> NDArray:
    """Eta of each run, its ln loss moved by a shift; NaN without derived tokens or at the model limit."""
    limit = law.loss_of_tokens(runs.N, runs.D, np.inf) + law.penalty(runs.N, runs.D, runs.Dp)
    above = runs.loss * np.exp(shift) - limit
    with np.errstate(all="ignore"):
        tokens = (law.B / above) ** (1 / law.beta) - law.D0
        return np.where((runs.Dp > 0) & (above > 0), (tokens - runs.D) / runs.Dp, np.nan)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Between:
    """Eta of each run without a law. eta: NaN where the loss lies beyond those measured. least: there, what eta is at
    least, since the loss is below that of one epoch on the most fresh tokens; NaN elsewhere."""

    eta: NDArray
    least: NDArray


def eta_between(runs: Runs) -> Between:
    """Eta = (D_eff - D) / D', with D_eff read between the measured losses of one-epoch runs of the same N.

    ln L is taken to be linear in ln D between neighbouring D. A run is read against the one-epoch runs of its own seed
    where there are two or more (they share the order of the text, and in a sweep the beginning of the training), else
    against the means over seeds. No law is involved, so none can be wrong; nothing is said beyond the measured losses.
    """
    eta, least = np.full(len(runs), np.nan), np.full(len(runs), np.nan)
    alone = runs.Dp == 0
    for i in np.flatnonzero(~alone):
        same = alone & (runs.N[i] == runs.N)
        own = same & (runs.seed == runs.seed[i])
        if len(np.unique(runs.D[own])) >= 2:
            same = own
        D, which = np.unique(runs.D[same], return_inverse=True)
        lnloss = np.bincount(which.reshape(-1), np.log(runs.loss[same])) / np.bincount(which.reshape(-1))
        if len(D) < 2 or (np.diff(lnloss) >= 0).any():
            continue
        here, x = np.log(runs.loss[i]), runs.x[i]
        if here < lnloss[-1]:
            least[i] = (D[-1] / runs.D[i] - 1) / x
        elif here <= lnloss[0]:
            effective = np.exp(np.interp(-here, -lnloss, np.log(D)))
            eta[i] = (effective / runs.D[i] - 1) / x
    return Between(eta=eta, least=least)


def _predicted(runs: Runs, law: Law) -> NDArray:
    predicted = np.full(len(runs), np.nan)
    for strategy in runs.strategies:
        mine = runs.of(strategy)
        if strategy in law.strategies:
            predicted[mine] = law.eta(runs.N[mine], runs.D[mine], runs.Dp[mine], strategy)
    return predicted
