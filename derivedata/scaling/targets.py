"""What reaches a loss: the parameters, fresh tokens, epochs or rewrites that `eta plan --solve-for` asks for.

Epochs and rewrites have a closed form in the published law: D_eff = (B / (L - E - A/N^alpha))^(1/beta) is needed, so
x = -R* ln(1 - (D_eff/D - 1) / R*), which exists only while D_eff < D (1 + R*). Parameters and fresh tokens are found on
a grid and refined, since R* moves with both. Where nothing reaches the loss, the answer says what the limit is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from derivedata.errors import UserError
from derivedata.scaling.ensemble import Ensemble, Estimate
from derivedata.scaling.law import Law
from derivedata.scaling.plan import REPEAT, generation_cost

UNKNOWNS = ("params", "fresh-tokens", "epochs", "rewrites")
_PARAMS = (1e5, 1e14)
_TOKENS = (1e5, 1e17)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """An answer of `solve_for`.

    Args:
        unknown: "params", "fresh-tokens", "epochs" or "rewrites".
        answer: its value; NaN when no value reaches the loss.
        limit: the loss that the unknown approaches when it grows without end.
        params, fresh_tokens, x: the solution as a whole.
        flops: training and generation.
        outside: which of N, TPP and x the law was not fitted on, in words.
    """

    unknown: str
    answer: Estimate
    loss: float
    limit: float
    params: float
    fresh_tokens: float
    x: float
    flops: float
    outside: tuple[str, ...]

    @property
    def is_reached(self) -> bool:
        """Whether some value of the unknown reaches the loss."""
        return bool(np.isfinite(self.answer.value))


def solve_for(
    unknown: str,
    ensemble: Ensemble,
    *,
    loss: float,
    strategy: str = REPEAT,
    params: float | None = None,
    fresh_tokens: float | None = None,
    x: float = 0.0,
    per_rewrite: float | None = None,
    generator_params: float = 0.0,
) -> Target:
    """The value of one unknown that gives a loss, the others held.

    Args:
        unknown: "params" (D and x given), "fresh-tokens" (N and x given), "epochs" or "rewrites" (N and D given).
        loss: target, nats a token.
        strategy: whose derived tokens; "epochs" needs "repeat", "rewrites" another.
        x: D'/D held while N or D is sought.
        per_rewrite: derived tokens of one rewrite per fresh token, for "rewrites".

    Raises:
        UserError: an unknown of another name, or something missing that the unknown needs.
    """
    if unknown not in UNKNOWNS:
        raise UserError("no such unknown", value=unknown, remedy=f"one of {', '.join(UNKNOWNS)}")
    if params is None and unknown != "params":
        raise UserError(f"the parameters are needed to solve for {unknown}", remedy="give --params")
    if fresh_tokens is None and unknown != "fresh-tokens":
        raise UserError(f"the fresh tokens are needed to solve for {unknown}", remedy="give --fresh-tokens")
    law = ensemble.law
    if strategy == REPEAT and unknown == "rewrites":
        raise UserError(
            "repeated tokens are epochs", value=strategy, remedy="use --solve-for epochs, or --strategy paraphrase"
        )
    if strategy != REPEAT and unknown == "epochs":
        raise UserError("epochs belong to the strategy repeat", value=strategy, remedy="use --solve-for rewrites")
    if unknown == "rewrites" and per_rewrite is None:
        raise UserError(
            "the derived tokens of a rewrite are unknown", value=strategy, remedy="give --tokens-per-rewrite"
        )
    if x or unknown in ("epochs", "rewrites"):
        law.saturation(strategy)

    if unknown == "params":
        answer = ensemble.estimate(lambda one: params_for_loss(one, loss, fresh_tokens, x, strategy))
        limit = float(law.loss(_PARAMS[1], fresh_tokens, x * fresh_tokens, strategy))
        params = answer.value
    elif unknown == "fresh-tokens":
        answer = ensemble.estimate(lambda one: fresh_tokens_for_loss(one, loss, params, x, strategy))
        limit = float(law.model_limit(params))
        fresh_tokens = answer.value
    else:
        found = ensemble.estimate(lambda one: x_for_loss(one, loss, params, fresh_tokens, strategy))
        x = found.value
        limit = float(law.data_limit(params, fresh_tokens, strategy))
        answer = found.map(lambda v: 1 + v) if unknown == "epochs" else found.map(lambda v: v / per_rewrite)
    solved = bool(np.isfinite(answer.value))
    cost = 6 * params * (1 + x) + generation_cost(strategy, generator_params) * x
    return Target(
        unknown=unknown,
        answer=answer,
        loss=loss,
        limit=limit,
        params=params,
        fresh_tokens=fresh_tokens,
        x=x,
        flops=fresh_tokens * cost,
        outside=law.outside(params, fresh_tokens, x, strategy) if solved else (),
    )


def x_for_loss(law: Law, loss: float, params: float, fresh_tokens: float, strategy: str) -> float:
    """The x = D'/D at which a strategy reaches a loss; 0 if one epoch does; NaN if none does (below `data_limit`)."""
    N, D = params, fresh_tokens
    if float(law.loss(N, D)) <= loss:
        return 0.0

    def gap(log_x: float) -> float:
        return float(law.loss(N, D, np.exp(log_x) * D, strategy)) - loss

    # On a grid first: a law with an overfitting term comes down and rises again.
    grid = np.linspace(np.log(1e-6), np.log(1e9), 1501)
    reached = np.asarray(law.loss(N, D, np.exp(grid) * D, strategy)) <= loss
    if not reached.any():
        return float("nan")
    first = int(np.argmax(reached))
    return float(np.exp(grid[0] if first == 0 else brentq(gap, grid[first - 1], grid[first])))


def params_for_loss(law: Law, loss: float, fresh_tokens: float, x: float, strategy: str) -> float:
    """The least N that reaches a loss with D fresh tokens and x D derived ones; NaN if none does."""
    return _least(lambda N: law.loss(N, fresh_tokens, x * fresh_tokens, strategy), loss, _PARAMS)


def fresh_tokens_for_loss(law: Law, loss: float, params: float, x: float, strategy: str) -> float:
    """The least D that, with x D derived tokens, takes a model of N parameters to a loss; NaN if none does."""
    return _least(lambda D: law.loss(params, D, x * D, strategy), loss, _TOKENS)


def _least(curve, loss: float, bounds: tuple[float, float]) -> float:
    grid = np.geomspace(*bounds, 801)
    reached = np.asarray(curve(grid)) <= loss
    if not reached.any():
        return float("nan")
    first = int(np.argmax(reached))
    if first == 0:
        return float(grid[0])
    return float(np.exp(brentq(lambda v: float(curve(np.exp(v))) - loss, *np.log(grid[first - 1 : first + 1]))))
