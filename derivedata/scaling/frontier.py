"""The compute-data frontier: for each budget of FLOPs and stock of fresh tokens, the best N, x and strategy.

For a budget C, D fresh tokens and one strategy, every N fixes the rest: 6 N (D + D') + 2 G D' = C (G parameters of the
generator, none for repeats), or D = C / 6N when the fresh tokens are not used up. The N of least loss is found on a
grid and refined. Qin et al. 2026, arXiv 2607.25271, call the lower edge over D the compute-data frontier.

A point is on the frontier when no point with as little compute and as little data has a lower loss; a stock that the
budget cannot use up is not (the same loss needs less data).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from derivedata.errors import UserError
from derivedata.scaling.ensemble import Ensemble, Estimate
from derivedata.scaling.law import Law
from derivedata.scaling.plan import generation_cost, regime

_N_RANGE = (1e5, 1e13)


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierPoint:
    """The best run of one strategy for a budget and a stock of fresh tokens.

    Args:
        flops: budget for training and generation.
        fresh_tokens: the stock D.
        strategy: whose derived tokens.
        params: N of least loss.
        fresh_seen: fresh tokens used, at most `fresh_tokens`.
        x: D'/D; derived_tokens: D'.
        loss: nats a token.
        regime: see `plan.regime`.
        is_best: whether no other strategy has a lower loss here.
        is_on_frontier: see the module.
        outside: which of N, TPP and x the law was not fitted on, in words.
    """

    flops: float
    fresh_tokens: float
    strategy: str
    params: Estimate
    fresh_seen: float
    x: float
    derived_tokens: float
    loss: Estimate
    regime: str
    is_best: bool
    is_on_frontier: bool
    outside: tuple[str, ...]


def frontier(
    ensemble: Ensemble,
    *,
    flops: Sequence[float],
    fresh_tokens: Sequence[float],
    strategies: Sequence[str] | None = None,
    generator_params: float = 0.0,
) -> tuple[FrontierPoint, ...]:
    """The best N, x and loss for every budget, stock of fresh tokens and strategy.

    Args:
        ensemble: the law and its draws.
        flops: budgets C.
        fresh_tokens: stocks D.
        strategies: those of the law by default; a one-epoch law is planned without derived tokens.
        generator_params: parameters of the model that rewrites.

    Returns:
        Points in the order budget, stock, strategy.
    """
    law = ensemble.law
    names = list(strategies) if strategies is not None else list(law.strategies)
    for name in names:
        law.saturation(name)
    if not names:
        raise UserError("this law was fitted without derived tokens", value=law.name, remedy="take qin2026-n370")
    C, D = (axis.ravel() for axis in np.meshgrid(flops, fresh_tokens, indexing="ij"))
    # An optimum of every draw is dear, and N is flat around it: a hundred draws say how far it moves.
    fewer = replace(ensemble, draws=ensemble.draws[:: max(1, len(ensemble.draws) // 100)])
    found = []
    for name in names:
        N = fewer.band(lambda one, s=name: best_params(one, C, D, s, generator_params))
        best = N[0]
        seen, derived = spend(best, C, D, name, generator_params)
        loss = ensemble.band(lambda one, n=best, d=(seen, derived), s=name: one.loss(n, *d, s))
        found.append(_Column(name, N, seen, derived, loss))
    least = np.min([column.loss[0] for column in found], axis=0)
    points = []
    for i in range(len(C)):
        cheaper = (C[i] >= C) & (D[i] >= D) & ((C[i] > C) | (D[i] > D))
        for column in found:
            loss, seen, N = column.loss[0][i], float(column.seen[i]), float(column.params[0][i])
            derived = float(column.derived[i])
            is_best = bool(loss <= least[i] + 1e-12)
            is_dominated = bool((least[cheaper] <= loss + 1e-9).any()) or seen < D[i] * (1 - 1e-6)
            points.append(
                FrontierPoint(
                    flops=float(C[i]),
                    fresh_tokens=float(D[i]),
                    strategy=column.strategy,
                    params=_at(column.params, i),
                    fresh_seen=seen,
                    x=derived / float(D[i]),
                    derived_tokens=derived,
                    loss=_at(column.loss, i),
                    regime=regime(law, N, seen, derived / seen, column.strategy),
                    is_best=is_best,
                    is_on_frontier=is_best and not is_dominated,
                    outside=law.outside(N, seen, derived / seen, column.strategy),
                )
            )
    return tuple(points)


@dataclass(frozen=True, slots=True)
class _Column:
    """One strategy over all cells; `params` and `loss` are (value, low, high)."""

    strategy: str
    params: tuple
    seen: NDArray
    derived: NDArray
    loss: tuple


def _at(band: tuple, i: int) -> Estimate:
    value, low, high = band
    if low is None:
        return Estimate(value=float(value[i]))
    return Estimate(value=float(value[i]), low=float(low[i]), high=float(high[i]))


def spend(
    N: ArrayLike, flops: ArrayLike, fresh_tokens: ArrayLike, strategy: str, generator_params: float = 0.0
) -> tuple[NDArray, NDArray]:
    """(fresh tokens seen, derived tokens) of a budget for models of N parameters; all broadcast."""
    N, flops = np.asarray(N, float), np.asarray(flops, float)
    seen = np.minimum(fresh_tokens, flops / (6 * N))
    left = np.maximum(0.0, flops - 6 * N * seen)
    # What rounding leaves of a budget that is spent is no derived token.
    left = np.where(left < 1e-9 * flops, 0.0, left)
    return seen, left / (6 * N + generation_cost(strategy, generator_params))


def best_params(
    law: Law, flops: ArrayLike, fresh_tokens: ArrayLike, strategy: str, generator_params: float = 0.0
) -> NDArray:
    """The N of least loss for budgets and stocks of fresh tokens: a grid in ln N, refined three times. Broadcasts."""
    C, D = np.broadcast_arrays(np.asarray(flops, float), np.asarray(fresh_tokens, float))
    low = np.full(C.shape, np.log(_N_RANGE[0]))
    # A model that sees fewer than a thousand tokens is no candidate.
    high = np.minimum(np.log(_N_RANGE[1]), np.log(C / 6e3))
    if np.any(high <= low):
        raise UserError(
            "the budget is too small for any model", value=f"{C.min():.3g} FLOPs", remedy="give at least 1e9"
        )
    for _ in range(4):
        grid = np.linspace(low, high, 41)
        N = np.exp(grid)
        seen, derived = spend(N, C, D, strategy, generator_params)
        best = np.argmin(law.loss(N, seen, derived, strategy), axis=0)[None]
        low = np.take_along_axis(grid, np.maximum(best - 1, 0), 0)[0]
        high = np.take_along_axis(grid, np.minimum(best + 1, 40), 0)[0]
    return np.exp((low + high) / 2)[()]
