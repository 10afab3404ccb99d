"""What the tokens of a corpus are worth to a model: eta, eta D', D_eff, the next token, against R*.

    D_eff = D + sum over strategies of eta_s D'_s,   eta_s = (R*_s/x_s)(1 - exp(-x_s/R*_s)),   x_s = D'_s/D

Qin et al. 2026, arXiv 2607.25271, for one strategy; the sum over several is an assumption that no published run tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from derivedata.errors import UserError
from derivedata.scaling.ensemble import Ensemble, Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyWorth:
    """Derived tokens of one strategy.

    Args:
        strategy: its name in the law.
        derived_tokens: D'; x: D'/D.
        r_star: R* at (N, D).
        eta: mean value of a derived token against a fresh one.
        effective_tokens: eta D'.
        share: eta x / R*, how much of what the strategy can ever give is taken.
        marginal: what the next derived token is worth against a fresh one.
        outside: which of N, TPP and x the law was not fitted on, in words.
    """

    strategy: str
    derived_tokens: float
    x: float
    r_star: Estimate
    eta: Estimate
    effective_tokens: Estimate
    share: Estimate
    marginal: Estimate
    outside: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Worth:
    """Fresh and derived tokens of a corpus as a model of `params` parameters sees them.

    Args:
        effective_tokens: D_eff.
        loss, one_epoch_loss: nats a token, with the derived tokens and without.
        is_untested: several strategies were added up.
        unknown: tokens by strategy that the law does not know; they are not in D_eff.
    """

    params: float
    fresh_tokens: float
    strategies: tuple[StrategyWorth, ...]
    effective_tokens: Estimate
    loss: Estimate
    one_epoch_loss: Estimate
    is_untested: bool
    unknown: Mapping[str, float]
    outside: tuple[str, ...]


def worth(ensemble: Ensemble, *, params: float, fresh_tokens: float, derived: Mapping[str, float]) -> Worth:
    """Value derived tokens.

    Args:
        ensemble: the law and its draws.
        params: N in the sense of the law.
        fresh_tokens: D, unique tokens.
        derived: D' by strategy.

    Raises:
        UserError: D or D' is not a number of tokens.
    """
    if not fresh_tokens > 0:
        raise UserError("fresh tokens must be positive", value=fresh_tokens)
    if any(tokens < 0 for tokens in derived.values()):
        raise UserError("derived tokens cannot be negative", value=dict(derived))
    law, N, D = ensemble.law, params, fresh_tokens
    known = {name: float(tokens) for name, tokens in derived.items() if name in law.strategies}
    each = tuple(_one(ensemble, name, N=N, D=D, Dp=tokens) for name, tokens in known.items())
    return Worth(
        params=N,
        fresh_tokens=D,
        strategies=each,
        effective_tokens=ensemble.estimate(lambda one: one.effective_tokens(N, D, known)),
        loss=ensemble.estimate(lambda one: one.mixed_loss(N, D, known)),
        one_epoch_loss=ensemble.estimate(lambda one: one.loss(N, D)),
        is_untested=sum(tokens > 0 for tokens in known.values()) > 1,
        unknown={name: float(tokens) for name, tokens in derived.items() if name not in law.strategies},
        outside=law.outside(N, D),
    )


def _one(ensemble: Ensemble, name: str, *, N: float, D: float, Dp: float) -> StrategyWorth:
    saturation = ensemble.law.saturation(name)
    return StrategyWorth(
        strategy=name,
        derived_tokens=Dp,
        x=Dp / D,
        r_star=ensemble.estimate(lambda one: one.r_star(N, D, name)),
        eta=ensemble.estimate(lambda one: one.eta(N, D, Dp, name)),
        effective_tokens=ensemble.estimate(lambda one: one.gain(N, D, Dp, name) * D),
        share=ensemble.estimate(lambda one: one.gain(N, D, Dp, name) / (saturation.worth * one.r_star(N, D, name))),
        marginal=ensemble.estimate(lambda one: one.marginal_value(N, D, Dp, name)),
        outside=ensemble.law.outside(N, D, Dp / D, name),
    )
