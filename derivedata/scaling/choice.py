"""Repeat, paraphrase or both: where one strategy overtakes the other, in tokens and in FLOPs with generation counted.

In tokens: eta grows with R*, so at equal D' the strategy with the larger R* wins. Both are equal at the N (for a TPP)
or the D (for an N) where ln K_r + rho_r ln(D/N) + sigma_r ln N = ln K_p + rho_p ln(D/N) + sigma_p ln N.

In FLOPs: a generated token costs 6N + 2G instead of 6N (G parameters of the generator), so a budget buys only
k = 6N / (6N + 2G) times as many. At first the cheaper strategy wins; one with a larger R* overtakes it where
R_r (1 - exp(-x/R_r)) = R_p (1 - exp(-k x/R_p)).

Both at once: with D_eff = D + sum of eta_s D'_s, a budget is best split where a FLOP buys the same in each,
exp(-x_r/R_r) = k exp(-x_p/R_p). No published run mixes strategies: the sum is untested, and so is this advice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from derivedata.scaling.ensemble import Ensemble, Estimate
from derivedata.scaling.law import Law
from derivedata.scaling.plan import WORTH_STOPPING, generation_cost, tokens_for_flops, x_at_marginal


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """A budget spent on two strategies at once (untested).

    Args:
        x: D'/D by strategy.
        effective_tokens: D + sum of eta_s D'_s.
        loss: expected loss, nats.
    """

    x: dict[str, float]
    effective_tokens: Estimate
    loss: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Two strategies compared at one (N, D).

    Args:
        first, second: their names.
        more_in_tokens: the one whose derived tokens are worth more here (larger R*).
        r_ratio: R* of the second over R* of the first.
        crossover_params: N at which both R* are equal for this TPP; NaN when they never are.
        below_params: the strategy that is worth more below that N.
        crossover_fresh_tokens: D at which both are equal for this N; NaN when they never are.
        below_fresh_tokens: the strategy that is worth more below that D.
        overtakes: the strategy that wins for large budgets in FLOPs, when another wins for small ones; None when
            `always` wins for all.
        crossover_flops: budget (training of all tokens and generation) from which `overtakes` wins; infinite if never.
        crossover_x: its x = D'/D there.
        flops: the budget at which the rest is compared.
        best: the single strategy with the lowest loss at that budget.
        losses: expected loss of each at that budget.
        mixture: the best split of that budget.
        mixture_gain: share of the extra effective tokens of `best` that the mixture adds (untested).
        outside: which of N, TPP and x a law was not fitted on.
    """

    first: str
    second: str
    more_in_tokens: str
    r_ratio: Estimate
    crossover_params: Estimate
    below_params: str | None
    crossover_fresh_tokens: Estimate
    below_fresh_tokens: str | None
    overtakes: str | None
    always: str | None
    crossover_flops: Estimate
    crossover_x: float
    flops: float
    best: str
    losses: dict[str, Estimate]
    mixture: Mixture
    mixture_gain: float
    outside: tuple[str, ...]


def choose(
    ensemble: Ensemble,
    *,
    params: float,
    fresh_tokens: float,
    first: str = "repeat",
    second: str = "paraphrase",
    flops: float | None = None,
    generator_params: float = 0.0,
) -> Choice:
    """Compare two strategies of a law for N = `params` and D = `fresh_tokens`.

    Args:
        flops: budget for training and generation at which losses and the mixture are compared; by default the one that
            takes the strategy with the larger R* to its recommended x.
    """
    law, N, D = ensemble.law, params, fresh_tokens
    names = (first, second)
    R = {name: float(law.r_star(N, D, name)) for name in names}
    richer = max(names, key=R.get)
    if flops is None:
        x = x_at_marginal(law, WORTH_STOPPING, N, D, richer)
        flops = D * (6 * N * (1 + x) + generation_cost(richer, generator_params) * x)
    spent = {
        name: tokens_for_flops(flops, params=N, fresh_tokens=D, strategy=name, generator_params=generator_params)
        for name in names
    }
    losses = {
        name: ensemble.estimate(lambda one, name=name: one.loss(N, spent[name][0], spent[name][1], name))
        for name in names
    }
    best = min(names, key=lambda name: losses[name].value)
    split = split_budget(
        law, params=N, fresh_tokens=D, flops=flops, first=first, second=second, generator_params=generator_params
    )
    derived = {name: x * D for name, x in split.items()}
    fresh = spent[first][0]
    mixture = Mixture(
        x=split,
        effective_tokens=ensemble.estimate(lambda one: one.effective_tokens(N, fresh, derived)),
        loss=ensemble.estimate(lambda one: one.mixed_loss(N, fresh, derived)),
    )
    alone = float(law.effective_tokens(N, fresh, {best: spent[best][1]}))
    crossover_x, overtakes, always = _overtaking(law, N, D, names, generator_params)
    tpp = D / N
    return Choice(
        first=first,
        second=second,
        more_in_tokens=richer,
        r_ratio=ensemble.estimate(lambda one: one.r_star(N, D, second) / one.r_star(N, D, first)),
        crossover_params=ensemble.estimate(lambda one: crossover_params(one, tpp, first, second)),
        below_params=_side(law, names, lambda scale: (N * scale, D * scale)),
        crossover_fresh_tokens=ensemble.estimate(lambda one: crossover_fresh_tokens(one, N, first, second)),
        below_fresh_tokens=_side(law, names, lambda scale: (N, D * scale)),
        overtakes=overtakes,
        always=always,
        crossover_flops=ensemble.estimate(
            lambda one: _flops_at(_overtaking(one, N, D, names, generator_params)[0], N, D)
        ),
        crossover_x=crossover_x,
        flops=flops,
        best=best,
        losses=losses,
        mixture=mixture,
        mixture_gain=(float(mixture.effective_tokens.value) - alone) / (alone - fresh) if alone > fresh else 0.0,
        outside=tuple(dict.fromkeys(w for name in names for w in law.outside(N, D, spent[name][1] / D, name))),
    )


def crossover_params(law: Law, tpp: float, first: str = "repeat", second: str = "paraphrase") -> float:
    """The N at which the R* of two strategies are equal for a TPP = D/N; NaN when sigma is the same for both."""
    a, b = law.saturation(first), law.saturation(second)
    if a.sigma == b.sigma:
        return float("nan")
    exponent = (b.lnK - a.lnK + (b.rho - a.rho) * np.log(tpp)) / (a.sigma - b.sigma)
    return float(np.exp(np.clip(exponent, -700, 700)))


def crossover_fresh_tokens(law: Law, params: float, first: str = "repeat", second: str = "paraphrase") -> float:
    """The D at which the R* of two strategies are equal for N = `params`; NaN when rho is the same for both."""
    a, b = law.saturation(first), law.saturation(second)
    if a.rho == b.rho:
        return float("nan")
    exponent = (b.lnK - a.lnK + (b.sigma - a.sigma) * np.log(params)) / (a.rho - b.rho)
    return float(np.exp(np.clip(exponent + np.log(params), -700, 700)))


def split_budget(
    law: Law,
    *,
    params: float,
    fresh_tokens: float,
    flops: float,
    first: str = "repeat",
    second: str = "paraphrase",
    generator_params: float = 0.0,
) -> dict[str, float]:
    """x = D'/D by strategy that gives the most effective tokens for a budget, if their gains add up (untested).

    Found by bisection on the share of FLOPs at which the marginal values per FLOP are equal (the gain is concave).
    """
    N, D = params, fresh_tokens
    left = max(0.0, flops - 6 * N * D)
    cost = {name: 6 * N + generation_cost(name, generator_params) for name in (first, second)}

    def xs(share: float) -> dict[str, float]:
        return {first: (1 - share) * left / cost[first] / D, second: share * left / cost[second] / D}

    def lead(share: float) -> float:
        x = xs(share)
        per_flop = {name: float(law.marginal_value(N, D, x[name] * D, name)) / cost[name] for name in x}
        return (per_flop[second] - per_flop[first]) * cost[first]

    if left == 0 or lead(0.0) <= 0:
        return xs(0.0)
    if lead(1.0) >= 0:
        return xs(1.0)
    return xs(brentq(lead, 0.0, 1.0, xtol=1e-12))


def _overtaking(
    law: Law, N: float, D: float, names: tuple[str, str], generator_params: float
) -> tuple[float, str | None, str | None]:
    """(x of the cheaper strategy where their gains per FLOP cross, which overtakes, None), else (inf or 0, None, which
    wins for every budget)."""
    cheap, dear = sorted(names, key=lambda name: generation_cost(name, generator_params))
    k = (6 * N + generation_cost(cheap, generator_params)) / (6 * N + generation_cost(dear, generator_params))
    if k == 1:
        return 0.0, None, max(names, key=lambda name: float(law.r_star(N, D, name)))

    def lead(x: NDArray) -> NDArray:
        return law.gain(N, D, k * np.asarray(x) * D, dear) - law.gain(N, D, np.asarray(x) * D, cheap)

    grid = np.geomspace(1e-4, 1e6, 2001)
    ahead = np.asarray(lead(grid)) > 1e-12
    if not ahead.any():
        return float("inf"), None, cheap
    first = int(np.argmax(ahead))
    if first == 0:
        return 0.0, None, dear
    return float(brentq(lead, grid[first - 1], grid[first])), dear, None


def _flops_at(x: float, N: float, D: float) -> float:
    return 6 * N * D * (1 + x)


def _side(law: Law, names: tuple[str, str], at) -> str | None:
    """Which strategy has the larger R* far below (None when the ratio does not change)."""
    first, second = names
    ratio = [float(law.r_star(*at(scale), second) / law.r_star(*at(scale), first)) for scale in (1e-6, 1e6)]
    if np.isclose(ratio[0], ratio[1]):
        return None
    return second if ratio[0] > ratio[1] else first
