"""What to do with a model of N parameters and D fresh tokens: the regime, the epochs, the rewrites, the loss to expect.

    gaps at (N, D, D'):  compute gap  L - L_D     what more derived tokens (more compute) can still win
                         data gap     L_D - L_N   what only more fresh tokens can win
                         model gap    L_N - E     what only more parameters can win
    x at a share p of the limit R* D:  x = R* ln(1/(1-p)), so R* ln 2, R* ln 4, R* ln 10 for 50, 75, 90%
    recommended: where the next derived token is worth a tenth of a fresh one, exp(-x/R*) = .1, x = R* ln 10
    epochs = 1 + x;   rewrites = x / (D' per rewrite and fresh token, as measured)

Qin, Hamidieh, Alvarez-Melis, arXiv 2607.25271, with L_D and L_N as in `Law.data_limit` and `Law.model_limit`. A run is
compute-bound until the recommended x, data-bound beyond it, and model-bound as soon as doubling N would win more than
any number of tokens: A N^-alpha (1 - 2^-alpha) > L - L_N.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from derivedata.errors import UserError
from derivedata.scaling.ensemble import Ensemble, Estimate
from derivedata.scaling.law import Law

SHARES = (0.5, 0.75, 0.9)
WORTH_STOPPING = 0.1
REPEAT = "repeat"
# Derived tokens a rewrite gives per fresh token, as measured by Qin et al.; a user's own measurement replaces it.
PUBLISHED_PER_REWRITE = {"paraphrase": 0.32}

COMPUTE_BOUND, DATA_BOUND, MODEL_BOUND = "compute-bound", "data-bound", "model-bound"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gaps:
    """Three distances of the loss, nats: to the data limit, from there to the model limit, from there to E."""

    compute: Estimate
    data: Estimate
    model: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Milestone:
    """A point on the way of derived tokens of one strategy.

    Args:
        share: eta x / R* reached, 0 to 1.
        x: D'/D.
        count: epochs (repeat) or rewrites of every document; None when the tokens of a rewrite are unknown.
        derived_tokens: D'.
        marginal: what the next derived token is worth against a fresh one.
        loss: expected loss, nats.
        training_flops, generation_flops: 6 N (D + D') and 2 N_generator D'.
        outside: which of N, TPP and x the law was not fitted on, in words.
    """

    share: float
    x: Estimate
    count: Estimate | None
    derived_tokens: Estimate
    marginal: float
    loss: Estimate
    training_flops: float
    generation_flops: float
    outside: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where a budget of FLOPs ends with one strategy (without a budget: after one epoch).

    Args:
        fresh_seen: fresh tokens the budget reaches, at most D.
        derived_tokens, x: D' and D'/D.
        effective_tokens: D + eta D'.
        loss: expected loss, nats.
        marginal: what the next token is worth against a fresh one.
        gaps, regime: see the module.
        outside: which of N, TPP and x the law was not fitted on, in words.
    """

    fresh_seen: float
    derived_tokens: float
    x: float
    effective_tokens: Estimate
    loss: Estimate
    marginal: Estimate
    gaps: Gaps
    regime: str
    outside: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyPlan:
    """Advice for one strategy; `recommended` is where the next token is worth a tenth of a fresh one."""

    strategy: str
    unit: str
    per_rewrite: float | None
    r_star: Estimate
    data_limit: Estimate
    milestones: tuple[Milestone, ...]
    recommended: Milestone
    now: Position


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Advice for one (N, D): a `StrategyPlan` a strategy, and what the figures stand on."""

    params: float
    fresh_tokens: float
    flops: float | None
    generator_params: float
    model_limit: Estimate
    one_epoch_loss: Estimate
    strategies: Mapping[str, StrategyPlan]
    law: str
    n_definition: str
    interval: str
    notes: tuple[str, ...] = field(default=())


def plan(
    ensemble: Ensemble,
    *,
    params: float,
    fresh_tokens: float,
    flops: float | None = None,
    generator_params: float = 0.0,
    per_rewrite: Mapping[str, float] | None = None,
    strategies: Iterable[str] | None = None,
) -> Plan:
    """Regimes, epochs and rewrites for a model of `params` parameters and `fresh_tokens` unique tokens.

    Args:
        ensemble: the law and its draws.
        params: N in the sense of the law (`Law.n_definition`).
        fresh_tokens: D.
        flops: budget for training and generation together; None to look at one epoch.
        generator_params: parameters of the model that rewrites (2 FLOPs each and generated token); 0 when it is free.
        per_rewrite: derived tokens of one rewrite per fresh token, by strategy, as measured.
        strategies: which of the law's strategies; all by default.

    Raises:
        UserError: the law has no strategy, or not one that is asked for.
    """
    law = ensemble.law
    names = list(law.strategies) if strategies is None else list(strategies)
    if not names:
        raise UserError("this law was fitted without derived tokens", value=law.name, remedy="take qin2026-n370")
    for name in names:
        law.saturation(name)
    rates = {**PUBLISHED_PER_REWRITE, **(per_rewrite or {})}
    notes = []
    for name in names:
        if name != REPEAT and name not in rates:
            notes.append(f"tokens per rewrite of {name} unknown: rewrites are not given, only x = D'/D")
        elif name != REPEAT and name not in (per_rewrite or {}):
            notes.append(
                f"{name}: {rates[name]:g} derived tokens per fresh token and rewrite (published, not measured)"
            )
    return Plan(
        params=params,
        fresh_tokens=fresh_tokens,
        flops=flops,
        generator_params=generator_params,
        model_limit=ensemble.estimate(lambda one: one.model_limit(params)),
        one_epoch_loss=ensemble.estimate(lambda one: one.loss(params, fresh_tokens)),
        strategies={
            name: _strategy_plan(
                ensemble,
                name,
                N=params,
                D=fresh_tokens,
                flops=flops,
                generator_params=generator_params,
                per_rewrite=rates.get(name),
            )
            for name in names
        },
        law=law.name,
        n_definition=law.n_definition,
        interval=ensemble.interval,
        notes=tuple(notes),
    )


def generation_cost(strategy: str, generator_params: float) -> float:
    """FLOPs of making one derived token: nothing for repeats, 2 N_generator (one forward pass) for the rest."""
    return 0.0 if strategy == REPEAT else 2.0 * generator_params


def tokens_for_flops(
    flops: float, *, params: float, fresh_tokens: float, strategy: str, generator_params: float = 0.0
) -> tuple[float, float]:
    """(fresh tokens seen, derived tokens) of a budget: 6 N (D + D') for training plus generation of D'."""
    fresh = min(fresh_tokens, flops / (6 * params))
    left = flops - 6 * params * fresh
    return fresh, max(0.0, left / (6 * params + generation_cost(strategy, generator_params)))


def x_at_marginal(law: Law, value: float, N: float, D: float, strategy: str) -> float:
    """The x = D'/D from which the next derived token is worth less than `value` of a fresh one.

    R* ln(1/value) in the published form; found numerically for the others. 0 when no derived token is worth as much,
    infinity when all are.
    """
    s = law.saturation(strategy)
    R = float(law.r_star(N, D, strategy))
    if s.tail == 0 and s.worth == 1 and s.drift == 0:
        return R * float(np.log(1 / value))
    grid = np.geomspace(1e-6, 1e9, 4001)
    worth = np.asarray(law.marginal_value(N, D, grid * D, strategy))
    below = np.nonzero(worth < value)[0]
    if not below.size:
        return float("inf")
    first = int(below[0])
    if first == 0:
        return 0.0
    # Neighbours on the grid differ by under 1%: linear interpolation in ln x is exact enough for advice.
    step = (worth[first - 1] - value) / (worth[first - 1] - worth[first])
    return float(np.exp(np.log(grid[first - 1]) + step * np.log(grid[first] / grid[first - 1])))


def regime(law: Law, N: float, D: float, x: float, strategy: str) -> str:
    """Which limit holds the loss at (N, D, x D): compute-bound, data-bound or model-bound (see the module)."""
    above = float(law.loss(N, D, x * D, strategy) - law.model_limit(N))
    doubled = float(law.model_limit(N) - law.model_limit(2 * N))
    if doubled > above:
        return MODEL_BOUND
    return COMPUTE_BOUND if x < x_at_marginal(law, WORTH_STOPPING, N, D, strategy) else DATA_BOUND


def position(
    ensemble: Ensemble, *, params: float, fresh_tokens: float, fresh_seen: float, derived_tokens: float, strategy: str
) -> Position:
    """The loss, the gaps and the regime after `fresh_seen` of `fresh_tokens` and `derived_tokens` made of them."""
    N, D, seen, x = params, fresh_tokens, fresh_seen, derived_tokens / fresh_tokens
    law = ensemble.law
    unfinished = seen < D * (1 - 1e-12)

    def loss(one: Law) -> float:
        return one.loss(N, seen, derived_tokens, strategy)

    return Position(
        fresh_seen=seen,
        derived_tokens=derived_tokens,
        x=x,
        effective_tokens=ensemble.estimate(lambda one: one.effective_tokens(N, seen, {strategy: derived_tokens})),
        loss=ensemble.estimate(loss),
        # While fresh tokens are left, the next token is a fresh one.
        marginal=Estimate(value=1.0, low=1.0, high=1.0)
        if unfinished
        else ensemble.estimate(lambda one: one.marginal_value(N, D, derived_tokens, strategy)),
        gaps=Gaps(
            compute=ensemble.estimate(lambda one: loss(one) - one.data_limit(N, D, strategy)),
            data=ensemble.estimate(lambda one: one.data_limit(N, D, strategy) - one.model_limit(N)),
            model=ensemble.estimate(lambda one: one.model_limit(N) - one.E),
        ),
        regime=regime(law, N, seen, 0.0, strategy) if unfinished else regime(law, N, D, x, strategy),
        outside=law.outside(N, seen, x, strategy),
    )


def milestone(
    ensemble: Ensemble,
    *,
    params: float,
    fresh_tokens: float,
    strategy: str,
    x: Estimate,
    per_rewrite: float | None = None,
    generator_params: float = 0.0,
) -> Milestone:
    """What x = D'/D of a strategy gives and costs; the loss interval is that at the central x."""
    N, D, law = params, fresh_tokens, ensemble.law
    derived = x.value * D
    gain = float(law.gain(N, D, derived, strategy)) if np.isfinite(derived) else np.inf
    limit = law.saturation(strategy).worth * float(law.r_star(N, D, strategy))
    if strategy == REPEAT:
        count = x.map(lambda v: 1 + v)
    else:
        count = None if per_rewrite is None else x.map(lambda v: v / per_rewrite)
    return Milestone(
        share=gain / limit if limit else float("nan"),
        x=x,
        count=count,
        derived_tokens=x.map(lambda v: v * D),
        marginal=float(law.marginal_value(N, D, derived, strategy)),
        loss=ensemble.estimate(lambda one: one.loss(N, D, derived, strategy)),
        training_flops=6 * N * (D + derived),
        generation_flops=generation_cost(strategy, generator_params) * derived,
        outside=law.outside(N, D, x.value, strategy),
    )


def _strategy_plan(
    ensemble: Ensemble,
    strategy: str,
    *,
    N: float,
    D: float,
    flops: float | None,
    generator_params: float,
    per_rewrite: float | None,
) -> StrategyPlan:
    def stop(x: Estimate) -> Milestone:
        return milestone(
            ensemble,
            params=N,
            fresh_tokens=D,
            strategy=strategy,
            x=x,
            per_rewrite=per_rewrite,
            generator_params=generator_params,
        )

    seen, derived = (
        (D, 0.0)
        if flops is None
        else tokens_for_flops(flops, params=N, fresh_tokens=D, strategy=strategy, generator_params=generator_params)
    )
    return StrategyPlan(
        strategy=strategy,
        unit="epochs" if strategy == REPEAT else "rewrites",
        per_rewrite=None if strategy == REPEAT else per_rewrite,
        r_star=ensemble.estimate(lambda one: one.r_star(N, D, strategy)),
        data_limit=ensemble.estimate(lambda one: one.data_limit(N, D, strategy)),
        milestones=tuple(
            stop(ensemble.estimate(lambda one, share=share: one.x_at_share(share, N, D, strategy))) for share in SHARES
        ),
        recommended=stop(ensemble.estimate(lambda one: x_at_marginal(one, WORTH_STOPPING, N, D, strategy))),
        now=position(ensemble, params=N, fresh_tokens=D, fresh_seen=seen, derived_tokens=derived, strategy=strategy),
    )
