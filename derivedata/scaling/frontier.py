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
from numpy.typing import NDArray

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
    cells = {}
    for C in flops:
        for D in fresh_tokens:
            for name in names:
                cells[C, D, name] = best_params(law, C, D, name, generator_params)
    # An optimum of every draw is dear, and N is flat around it: a hundred draws say how far it moves.
    fewer = replace(ensemble, draws=ensemble.draws[:: max(1, len(ensemble.draws) // 100)])
    losses = {key: _spent_loss(law, N, key, generator_params) for key, N in cells.items()}
    points = []
    for (C, D, name), N in cells.items():
        seen, derived = (float(v) for v in spend(np.array(N), C, D, name, generator_params))
        rivals = [losses[C, D, other] for other in names]
        dominated = any(
            c <= C and d <= D and (c < C or d < D) and loss <= losses[C, D, name] + 1e-9
            for (c, d, _), loss in losses.items()
        )
        unused = seen < D * (1 - 1e-6)
        points.append(
            FrontierPoint(
                flops=C,
                fresh_tokens=D,
                strategy=name,
                params=fewer.estimate(lambda one, c=C, d=D, s=name: best_params(one, c, d, s, generator_params)),
                fresh_seen=seen,
                x=derived / D,
                derived_tokens=derived,
                loss=ensemble.estimate(lambda one, n=N, cell=(C, D, name): _spent_loss(one, n, cell, generator_params)),
                regime=regime(law, N, seen, derived / seen, name),
                is_best=losses[C, D, name] <= min(rivals) + 1e-12,
                is_on_frontier=not (dominated or unused) and losses[C, D, name] <= min(rivals) + 1e-12,
                outside=law.outside(N, seen, derived / seen, name),
            )
        )
    return tuple(points)


def spend(
    N: NDArray, flops: float, fresh_tokens: float, strategy: str, generator_params: float = 0.0
) -> tuple[NDArray, NDArray]:
    """(fresh tokens seen, derived tokens) of a budget for models of N parameters; broadcasts over N."""
    N = np.asarray(N, float)
    seen = np.minimum(fresh_tokens, flops / (6 * N))
    left = np.maximum(0.0, flops - 6 * N * seen)
    return seen, left / (6 * N + generation_cost(strategy, generator_params))


def best_params(law: Law, flops: float, fresh_tokens: float, strategy: str, generator_params: float = 0.0) -> float:
    """The N of least loss for a budget and a stock of fresh tokens: a grid in ln N, refined three times."""
    low, high = np.log(_N_RANGE)
    # A model that sees fewer than a thousand tokens is no candidate.
    high = min(high, np.log(flops / 6e3))
    if high <= low:
        raise UserError("the budget is too small for any model", value=f"{flops:.3g} FLOPs", remedy="give at least 1e9")
    for _ in range(4):
        grid = np.linspace(low, high, 41)
        N = np.exp(grid)
        seen, derived = spend(N, flops, fresh_tokens, strategy, generator_params)
        best = int(np.argmin(law.loss(N, seen, derived, strategy)))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 40)]
    return float(np.exp((low + high) / 2))


def _spent_loss(law: Law, N: float, cell: tuple[float, float, str], generator_params: float) -> float:
    flops, fresh_tokens, strategy = cell
    seen, derived = spend(N, flops, fresh_tokens, strategy, generator_params)
    return float(law.loss(N, seen, derived, strategy))
