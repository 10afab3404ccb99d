"""Eta of a new strategy from 3 to 8 runs: the published law is the prior, the runs say the rest.

Nobody trains 84 models a rewriter. The backbone (E, A, B, alpha, beta) comes from a law with draws, as they vary; ln R*
and its exponents rho and sigma from what the law's strategies have in common, as widely as strategies differ:

    ln L_i = ln L(N_i, D_i, D'_i; backbone, ln R*, rho, sigma) + cell + noise
    backbone ~ the draws of the law;  (ln R*, rho, sigma) ~ their mean over strategies, sd `Between`

with a deviation shared by the runs of one (N, D), since real losses miss the law by cell. Checked by leaving a strategy
of the 370 published runs out and giving a few of its runs back (`python -m tests.bench.eta_calibration`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from derivedata.errors import UserError
from derivedata.scaling.diagnostics import overfitted
from derivedata.scaling.ensemble import Ensemble, Estimate
from derivedata.scaling.form import FORMS
from derivedata.scaling.law import Law, Saturation
from derivedata.scaling.model import Centre, Model, Parameters
from derivedata.scaling.posterior import BACKBONE, FEW_DRAWS, OWN, Noise, Posterior, Sample
from derivedata.scaling.runs import Runs

# Mean squared deviation, in units of what is allowed, from which the runs do not belong to the law.
SURPRISING = 4.0
# More runs than this need no prior.
MANY_RUNS = 40
NEXT_TPP = (2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
NEXT_X = (0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Between:
    """How far strategies differ from one another, as standard deviations.

    Written with D and N as variables, ln R* = c + rho ln D + (sigma - rho) ln N. Repeat and paraphrase lie .9 apart in
    rho, the exponent of D, but both have next to no exponent of N: .01 and .15. So that one is held more tightly.

    Args:
        ln_r: of ln R* at the centre, nearly free.
        tokens: of rho, the exponent of D at fixed N.
        params: of sigma - rho, the exponent of N at fixed D.
    """

    ln_r: float = 1.0
    tokens: float = 0.9
    params: float = 0.25

    def covariance(self) -> NDArray:
        """Covariance of (ln R* at the centre, rho, sigma)."""
        t, n = self.tokens**2, self.params**2
        return np.array([[self.ln_r**2, 0.0, 0.0], [0.0, t, t], [0.0, t, t + n]])


@dataclass(frozen=True, kw_only=True, slots=True)
class NextRun:
    """A run that would narrow R* at the target.

    Args:
        params, fresh_tokens, x: the run.
        flops: its training cost.
        sd_after: standard deviation of ln R* at the target to expect after it.
    """

    params: float
    fresh_tokens: float
    x: float
    flops: float
    sd_after: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """What a few runs say about a strategy at one (N, D).

    Args:
        strategy: its name.
        ensemble: law and posterior draws; the new strategy stands beside those of the prior.
        params, fresh_tokens: the target.
        r_star: R* at the target with a 95% interval.
        r_star_prior: the same before the runs.
        sd_prior, sd: standard deviations of ln R* at the target before and after.
        data_share: 1 - sd^2 / sd_prior^2: how much of the answer is data (0 all prior, 1 all data).
        effective_draws: how many equally weighted draws the posterior stands on.
        surprise: squared deviations of the runs from what the prior expects, in units of its spread and the noise, per
            run (1 is expected).
        misfit: by how much the noise was raised, because no R* brings the runs within it (1: not raised).
        next_best, next_cheapest: the run that narrows most, and most per FLOP among those that narrow at least half as
            much; None when no run of the sizes used would narrow the answer.
        warnings: one line each.
    """

    strategy: str
    ensemble: Ensemble
    params: float
    fresh_tokens: float
    r_star: Estimate
    r_star_prior: Estimate
    sd_prior: float
    sd: float
    data_share: float
    effective_draws: float
    surprise: float
    misfit: float
    next_best: NextRun | None
    next_cheapest: NextRun | None
    warnings: tuple[str, ...]


def calibrate(
    prior: Ensemble,
    runs: Runs,
    *,
    strategy: str | None = None,
    params: float | None = None,
    fresh_tokens: float | None = None,
    like: str | None = None,
    noise: Noise | None = None,
    between: Between | None = None,
    candidates: Sequence[tuple[float, float, float]] | None = None,
    draws: int = 400,
    seed: int = 0,
) -> Calibration:
    """Fit K, and how far rho and sigma must move, for one strategy from a few runs.

    Args:
        prior: a law with draws (`preset_ensemble("qin2026-n370")`, or a fit with its bootstrap).
        runs: runs of one strategy, and, better, one-epoch runs of the same (N, D).
        strategy: which one, if the runs hold several.
        params, fresh_tokens: where R* is asked for; the geometric means of the runs by default.
        like: strategy of the law whose rho and sigma are the prior; all of them by default.
        noise, between: spreads, see there.
        candidates: (N, D, x) of runs that could come next; by default the sizes used so far, TPP 2.5 to 80, x 0 to 63.
        draws: posterior draws kept.
        seed: of the sampling.

    Raises:
        UserError: the prior has no draws, or the runs have no or several strategies.
    """
    noise, between = noise or Noise(), between or Between()
    if not prior.draws:
        raise UserError(
            "this law has no covariance to serve as a prior", value=prior.law.name, remedy="use qin2026-n370"
        )
    name = _only_strategy(runs, strategy)
    if prior.law.name.endswith(_label("", name)):
        raise UserError(
            "this law is calibrated for the strategy already: its runs would count twice",
            value=name,
            remedy="start from the law before it, with all runs",
        )
    runs = runs.take((runs.Dp == 0) | (runs.strategy == name))
    params = float(np.exp(np.log(runs.N).mean())) if params is None else params
    fresh_tokens = float(np.exp(np.log(runs.D).mean())) if fresh_tokens is None else fresh_tokens

    parameters = Parameters(FORMS["published"], (name,), _centre(prior.law, runs))
    backbones = np.array([parameters.from_law(replace(law, strategies={})) for law in (prior.law, *prior.draws)])
    mean, cov = _own_prior(prior, parameters, like, between)
    posterior = Posterior(Model(runs, parameters), backbones[:, :BACKBONE], mean, cov, noise)
    rng = np.random.default_rng(seed)
    sample = posterior.sample(rng)
    kept = rng.choice(len(sample.own), size=draws, p=sample.weight)

    centre = parameters.centre
    probe = np.array([1.0, np.log(fresh_tokens / params / centre.tpp), np.log(params / centre.N)])
    before = float(mean @ probe), float(np.sqrt(probe @ cov @ probe))
    target = sample.own @ probe
    middle = sample.weight @ sample.own
    sd = float(np.sqrt(sample.weight @ (target - middle @ probe) ** 2))
    ensemble = replace(
        _ensemble(prior, parameters, middle, sample.own[kept], sample.backbone[kept], reach=float(runs.x.max())),
        interval=f"95% of {draws} posterior draws: {prior.law.name} as prior, {len(runs)} runs",
    )
    vectors = posterior.vectors(sample.own[kept], sample.backbone[kept])
    best, cheapest = _next_runs(posterior, vectors, target[kept], candidates or _grid(np.unique(runs.N)), sd)
    surprise = posterior.surprise()
    return Calibration(
        strategy=name,
        ensemble=ensemble,
        params=params,
        fresh_tokens=fresh_tokens,
        r_star=ensemble.estimate(lambda law: law.r_star(params, fresh_tokens, name)),
        r_star_prior=Estimate(
            value=float(np.exp(before[0])),
            low=float(np.exp(before[0] - 1.96 * before[1])),
            high=float(np.exp(before[0] + 1.96 * before[1])),
        ),
        sd_prior=before[1],
        sd=sd,
        data_share=max(0.0, 1 - (sd / before[1]) ** 2),
        effective_draws=sample.effective_size,
        surprise=surprise,
        misfit=posterior.misfit,
        next_best=best,
        next_cheapest=cheapest,
        warnings=_warnings(runs, prior.law, (params, fresh_tokens), name, surprise, posterior.misfit, sample),
    )


def _only_strategy(runs: Runs, strategy: str | None) -> str:
    names = runs.strategies
    if strategy is not None:
        if strategy not in names:
            raise UserError("no run has derived tokens of this strategy", value=strategy, remedy=f"there are {names}")
        return strategy
    if not names:
        raise UserError("no run has derived tokens", remedy="give runs with derived_tokens > 0")
    if len(names) > 1:
        raise UserError("the runs hold several strategies", value=", ".join(names), remedy="name one with --strategy")
    return names[0]


def _label(law: str, strategy: str) -> str:
    return f"{law} calibrated for {strategy}"


def _centre(law: Law, runs: Runs) -> Centre:
    """The middle of the runs behind the law (where its parameters are least correlated), else of the user's."""
    if law.support is None:
        return Centre.of(runs)
    N = float(np.sqrt(np.prod(law.support.N)))
    return Centre(N=N, D=N * float(np.sqrt(np.prod(law.support.tpp))))


def _own_prior(prior: Ensemble, parameters: Parameters, like: str | None, between: Between) -> tuple[NDArray, NDArray]:
    """Mean and covariance of (ln R* at the centre, rho, sigma) of a strategy nobody has seen."""
    name = parameters.strategies[0]
    sources = [like] if like is not None else list(prior.law.strategies)

    def common(law: Law) -> NDArray:
        own = [replace(law, strategies={name: law.saturation(source)}) for source in sources]
        return np.mean([parameters.from_law(one)[OWN] for one in own], axis=0)

    if not sources:
        # A one-epoch law knows no strategy: a few epochs' worth at the centre, falling with N and TPP.
        return np.array([2.0, -0.5, -0.5]), between.covariance()
    return common(prior.law), between.covariance() + np.cov([common(law) for law in prior.draws], rowvar=False)


def _ensemble(
    prior: Ensemble, parameters: Parameters, middle: NDArray, own: NDArray, backbone: NDArray, *, reach: float
) -> Ensemble:
    """The prior's laws with the new strategy beside the others; backbone 0 is the central law, i the draw i - 1."""
    name, central = parameters.strategies[0], parameters.from_law(replace(prior.law, strategies={}))
    laws = (prior.law, *prior.draws)

    def saturation(three: NDArray) -> Saturation:
        vector = central.copy()
        vector[OWN] = three
        return parameters.to_law(vector).strategies[name]

    def with_new(law: Law, three: NDArray) -> Law:
        return replace(law, strategies={**law.strategies, name: saturation(three)}, support=None)

    support = prior.law.support
    if support is not None:
        support = replace(support, x={**support.x, name: reach})
    label = _label(prior.law.name, name)
    return Ensemble(
        law=replace(with_new(prior.law, middle), name=label, support=support),
        draws=tuple(with_new(laws[i], three) for i, three in zip(backbone, own, strict=True)),
    )


def _grid(sizes: NDArray) -> list[tuple[float, float, float]]:
    return [(N, N * tpp, x) for N in sizes for tpp in NEXT_TPP for x in NEXT_X]


def _next_runs(
    posterior: Posterior, vectors: NDArray, target: NDArray, candidates: Sequence[tuple[float, float, float]], sd: float
) -> tuple[NextRun | None, NextRun | None]:
    """The most telling of some runs, by a linear update of the posterior draws."""
    N, D, x = np.array(candidates, float).T
    parameters = posterior.model.parameters
    runs = Runs(N=N, D=D, Dp=x * D, loss=np.ones(len(N)), strategy=parameters.strategies[0])
    value = Model(runs, parameters).value(vectors)
    both = (target - target.mean()) @ (value - value.mean(axis=0)) / len(target)
    # The deviation of a cell that already has runs is partly known; counting it in full errs on the safe side.
    gain = both**2 / (value.var(axis=0) + posterior.noise.run**2 + posterior.noise.cell**2)
    gain = np.minimum(gain, 0.99 * sd**2)
    if gain.max() < 0.02 * sd**2:
        return None, None
    flops = 6 * N * D * (1 + x)

    def run(i: int) -> NextRun:
        after = float(np.sqrt(sd**2 - gain[i]))
        return NextRun(
            params=float(N[i]), fresh_tokens=float(D[i]), x=float(x[i]), flops=float(flops[i]), sd_after=after
        )

    worthwhile = np.where(gain >= 0.5 * gain.max(), gain / flops, 0.0)
    return run(int(np.argmax(gain))), run(int(np.argmax(worthwhile)))


def _warnings(
    runs: Runs, law: Law, at: tuple[float, float], strategy: str, surprise: float, misfit: float, sample: Sample
) -> tuple[str, ...]:
    found, own = [], int(runs.of(strategy).sum())
    if own < 3:
        found.append(f"{own} run(s) of {strategy}: the answer is mostly the prior; 3 to 8 are meant")
    if not (runs.Dp == 0).any():
        found.append("no one-epoch run: a level of loss other than the prior's is read as eta; add one a cell (N, D)")
    if surprise > SURPRISING:
        found.append(
            f"the runs lie {np.sqrt(surprise):.1f} times further from {law.name} than it allows (other data, tokenizer"
            " or evaluation set?): its backbone does not describe them; fit your own with `eta fit`"
        )
    if misfit > 1:
        found.append(
            f"no R* brings the runs within the noise: it was raised {misfit:.1f} times, and the intervals with it"
        )
    if worse := len(overfitted(runs)):
        found.append(
            f"the loss of {worse} runs rose again with more tokens: no R* says so, and a small one is read from it;"
            " leave overfitted runs out"
        )
    if own > MANY_RUNS:
        found.append(f"{own} runs of {strategy} are enough for a fit of their own: `eta fit`")
    if sample.is_marginal:
        found.append(
            "no draw of the backbone fits all runs: its spread is counted as their error, its draws as they were"
        )
    if sample.effective_size < FEW_DRAWS:
        found.append(f"only {sample.effective_size:.0f} effective draws behind the posterior: intervals are rough")
    return (*found, *(f"extrapolated: {where}" for where in law.outside(*at)))
