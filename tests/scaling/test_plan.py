"""Advice for one N and D: epochs, rewrites, regimes, gaps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.law import Saturation
from derivedata.scaling.plan import (
    COMPUTE_BOUND,
    DATA_BOUND,
    MODEL_BOUND,
    plan,
    regime,
    tokens_for_flops,
    x_at_marginal,
)
from derivedata.scaling.presets import load_preset

N370 = Ensemble(law=load_preset("qin2026-n370"))


@pytest.mark.parametrize(("params", "epochs"), [(30e6, 30), (190e6, 15), (600e6, 9.8), (3e9, 5.6), (7e9, 4.3)])
def test_recommended_epochs_at_20_tokens_a_parameter_are_the_published_ones(params, epochs):
    advice = plan(N370, params=params, fresh_tokens=20 * params)
    assert advice.strategies["repeat"].recommended.count.value == pytest.approx(epochs, rel=0.02)


def test_milestones_lie_at_r_star_times_ln_2_ln_4_and_ln_10():
    repeat = plan(N370, params=190e6, fresh_tokens=3.8e9).strategies["repeat"]
    ratios = [stop.x.value / repeat.r_star.value for stop in repeat.milestones]
    assert ratios == pytest.approx([np.log(2), np.log(4), np.log(10)])
    assert [stop.share for stop in repeat.milestones] == pytest.approx([0.5, 0.75, 0.9])
    assert [stop.marginal for stop in repeat.milestones] == pytest.approx([0.5, 0.25, 0.1])


def test_rewrites_are_x_over_the_measured_tokens_of_a_rewrite():
    measured = plan(N370, params=100e6, fresh_tokens=2e9, per_rewrite={"paraphrase": 0.5}).strategies["paraphrase"]
    assert measured.recommended.count.value == pytest.approx(measured.recommended.x.value / 0.5)
    published = plan(N370, params=100e6, fresh_tokens=2e9)
    assert published.strategies["paraphrase"].per_rewrite == 0.32
    assert any("published, not measured" in note for note in published.notes)


def test_rewrites_of_a_strategy_nobody_measured_are_unknown_not_zero():
    law = replace(N370.law, strategies={"distill": Saturation(lnK=2.0)})
    advice = plan(Ensemble(law=law), params=100e6, fresh_tokens=2e9)
    assert advice.strategies["distill"].recommended.count is None
    assert "distill unknown" in advice.notes[0]


def test_the_three_gaps_add_up_to_the_reducible_loss():
    now = plan(N370, params=190e6, fresh_tokens=3.8e9, flops=3e19).strategies["repeat"].now
    gaps = now.gaps
    assert gaps.compute.value + gaps.data.value + gaps.model.value == pytest.approx(now.loss.value - N370.law.E)
    assert min(gaps.compute.value, gaps.data.value, gaps.model.value) > 0


def test_a_budget_is_spent_on_fresh_tokens_first_then_on_derived_ones_and_their_generation():
    cost = {"params": 1e8, "fresh_tokens": 1e9, "generator_params": 1.7e9}
    assert tokens_for_flops(3e17, strategy="paraphrase", **cost) == (5e8, 0.0)
    seen, derived = tokens_for_flops(2e18, strategy="paraphrase", **cost)
    assert seen == 1e9
    assert 6 * 1e8 * (seen + derived) + 2 * 1.7e9 * derived == pytest.approx(2e18)
    assert tokens_for_flops(2e18, strategy="repeat", **cost)[1] == pytest.approx(2e18 / 6e8 - 1e9)


def test_regimes_follow_one_another_as_derived_and_fresh_tokens_grow():
    stop = x_at_marginal(N370.law, 0.1, 190e6, 3.8e9, "repeat")
    assert regime(N370.law, 190e6, 3.8e9, 0.5 * stop, "repeat") == COMPUTE_BOUND
    assert regime(N370.law, 190e6, 3.8e9, 1.5 * stop, "repeat") == DATA_BOUND
    assert regime(N370.law, 30e6, 1e13, 0.0, "repeat") == MODEL_BOUND


@pytest.mark.parametrize("change", [{"tail": 1.0}, {"worth": 0.6}, {"drift": 0.2}])
def test_the_stopping_point_of_other_forms_of_eta_has_the_marginal_value_asked_for(change):
    law = replace(N370.law, strategies={"repeat": replace(N370.law.strategies["repeat"], **change)})
    x = x_at_marginal(law, 0.1, 190e6, 3.8e9, "repeat")
    assert float(law.marginal_value(190e6, 3.8e9, x * 3.8e9, "repeat")) == pytest.approx(0.1, rel=2e-3)


def test_figures_beyond_the_runs_behind_the_law_say_so():
    beyond = plan(N370, params=7e9, fresh_tokens=140e9).strategies["repeat"].recommended
    assert beyond.outside == ("N 7e+09 is outside 1.4e+07 to 6e+08",)
    assert plan(N370, params=190e6, fresh_tokens=3.8e9).strategies["repeat"].recommended.outside == ()


def test_a_law_without_draws_has_no_intervals_and_says_so():
    advice = plan(N370, params=190e6, fresh_tokens=3.8e9)
    assert advice.interval == "no interval published"
    assert not advice.strategies["repeat"].r_star.has_interval


def test_intervals_are_those_of_the_draws():
    base = N370.law.strategies["repeat"]
    draws = tuple(
        replace(N370.law, strategies={"repeat": replace(base, lnK=base.lnK + shift)})
        for shift in np.linspace(-1, 1, 201)
    )
    spread = plan(Ensemble(law=N370.law, draws=draws), params=190e6, fresh_tokens=3.8e9, strategies=["repeat"])
    r_star = spread.strategies["repeat"].r_star
    assert r_star.low == pytest.approx(r_star.value * np.exp(-0.95), rel=0.02)
    assert r_star.high == pytest.approx(r_star.value * np.exp(0.95), rel=0.02)
    epochs = spread.strategies["repeat"].recommended.count
    assert epochs.high == pytest.approx(1 + np.log(10) * r_star.high)


def test_a_law_fitted_without_derived_tokens_can_not_plan_them():
    with pytest.raises(UserError, match="without derived tokens"):
        plan(Ensemble(law=load_preset("epoch2024")), params=1e9, fresh_tokens=2e10)
    with pytest.raises(UserError, match="knows no such strategy"):
        plan(N370, params=1e9, fresh_tokens=2e10, strategies=["distill"])
