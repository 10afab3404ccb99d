"""Sweeps that can measure eta, and refusals of those that cannot."""

from __future__ import annotations

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.scaling.design import design
from derivedata.scaling.fit import fit
from derivedata.scaling.presets import load_preset
from derivedata.scaling.runs import Runs

LAW = load_preset("qin2026-n370")
SIZES = (14e6, 60e6, 190e6)


def test_a_sweep_keeps_to_its_budget_and_is_what_the_trainer_takes():
    found = design(LAW, sizes=SIZES, budget=1e20)
    assert found.flops <= 1e20
    assert found.flops == pytest.approx(sum(6 * r.n_params * (r.fresh_tokens + r.derived_tokens) for r in found.runs))
    assert {run.strategy for run in found.runs} == {"1epoch", "repeat", "paraphrase"}
    assert all(run.derived_tokens == pytest.approx(run.x * run.fresh_tokens) for run in found.runs)
    assert all(run.epochs == 1 + run.x for run in found.runs if run.strategy == "repeat")
    keys = [(r.n_params, r.fresh_tokens, r.strategy, r.x, r.seed) for r in found.runs]
    assert len(keys) == len(set(keys)), "replicates differ in their seed"


def test_the_errors_it_promises_are_those_a_fit_finds():
    found = design(LAW, sizes=SIZES, budget=1e20, strategies=["repeat"], noise=0.01)
    N, D, Dp = (np.array([getattr(r, n) for r in found.runs]) for n in ("n_params", "fresh_tokens", "derived_tokens"))
    names = [r.strategy for r in found.runs]
    spread = []
    for seed in range(14):
        noise = np.random.default_rng(seed).normal(0, 0.01, len(N))
        runs = Runs(N=N, D=D, Dp=Dp, loss=LAW.loss(N, D, Dp, names) * np.exp(noise), strategy=names)
        repeat = fit(runs, bootstrap=0, sensitivity=(), delta=0.1).law.strategies["repeat"]
        spread.append((repeat.rho, repeat.sigma))
    promised = found.errors[0]
    rho, sigma = np.std(spread, axis=0)
    assert rho == pytest.approx(promised.rho, rel=0.6)
    assert sigma == pytest.approx(promised.sigma, rel=0.6)


def test_more_money_means_smaller_errors():
    small, large = (design(LAW, sizes=SIZES, budget=b, strategies=["repeat"]).errors[0] for b in (3e19, 3e20))
    assert large.ln_r < small.ln_r
    assert large.rho < small.rho


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": [14e6]}, "one size .* cannot identify sigma.*--ask r-star,rho"),
        ({"tpp": [20.0]}, "one TPP .* cannot identify rho.*--ask r-star,sigma"),
        ({"x": [0.5, 1.0]}, "x = D'/D of at most 1 cannot identify R"),
        ({"budget": 1e18}, "leave .* open.*standard errors to expect"),
        ({"budget": 1e10}, "does not pay for one run"),
        ({"ask": ["eta"]}, "no such constant"),
    ],
)
def test_a_design_that_cannot_answer_is_refused_with_what_it_can(change, message):
    with pytest.raises(UserError, match=message):
        design(LAW, **{"sizes": SIZES, "budget": 1e20, **change})


def test_what_a_refused_design_can_do_is_not_refused():
    found = design(LAW, sizes=[14e6], budget=1e20, ask=["r-star", "rho"], strategies=["repeat"])
    assert found.identifies == ("r-star", "rho")
    assert np.isnan(found.errors[0].sigma)


def test_a_strategy_nobody_knows_is_guessed_to_be_like_a_known_one():
    found = design(LAW, sizes=SIZES, budget=1e20, strategies=["distill"])
    assert {run.strategy for run in found.runs} == {"1epoch", "distill"}
