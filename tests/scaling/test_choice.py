"""Repeat, paraphrase or both."""

from __future__ import annotations

import numpy as np
import pytest

from derivedata.scaling.choice import choose, crossover_fresh_tokens, crossover_params, split_budget
from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.presets import load_preset

LAW = load_preset("qin2026-n370")
N370 = Ensemble(law=LAW)


@pytest.mark.parametrize(("tpp", "millions"), [(3, 655), (5, 357), (10, 157), (20, 69), (40, 30)])
def test_the_size_at_which_both_strategies_are_worth_the_same_is_the_published_one(tpp, millions):
    assert crossover_params(LAW, tpp) / 1e6 == pytest.approx(millions, abs=0.6)


def test_both_r_star_are_equal_at_either_crossover():
    N = crossover_params(LAW, 10)
    assert float(LAW.r_star(N, 10 * N, "repeat")) == pytest.approx(float(LAW.r_star(N, 10 * N, "paraphrase")))
    D = crossover_fresh_tokens(LAW, 190e6)
    assert float(LAW.r_star(190e6, D, "repeat")) == pytest.approx(float(LAW.r_star(190e6, D, "paraphrase")))


def test_paraphrase_wins_in_tokens_below_the_crossover_and_repeat_above():
    small = choose(N370, params=30e6, fresh_tokens=3e8)
    large = choose(N370, params=600e6, fresh_tokens=12e9)
    assert (small.more_in_tokens, large.more_in_tokens) == ("paraphrase", "repeat")
    assert small.below_params == "paraphrase"


def test_a_budget_within_one_epoch_does_not_decide_which_strategy_is_better():
    # Both losses are the same there; the winner for every budget is that of the derived tokens, not the first named.
    within = choose(N370, params=30e6, fresh_tokens=6e8, flops=1e16)
    assert within.overtakes is None and within.always == "paraphrase"
    dear = choose(N370, params=600e6, fresh_tokens=12e9, generator_params=1.7e9)
    assert dear.overtakes is None and dear.always == "repeat"


def test_generation_costs_delay_paraphrase_until_a_budget_where_both_losses_are_equal():
    cost = {"params": 60e6, "fresh_tokens": 1.2e9, "generator_params": 1.7e9}
    apart = choose(N370, **cost)
    assert apart.overtakes == "paraphrase"
    at = choose(N370, **cost, flops=apart.crossover_flops.value)
    assert at.losses["repeat"].value == pytest.approx(at.losses["paraphrase"].value, abs=1e-6)
    assert choose(N370, **cost, flops=apart.crossover_flops.value / 3).best == "repeat"
    free = choose(N370, params=60e6, fresh_tokens=1.2e9)
    assert free.overtakes is None
    assert free.best == "paraphrase"


def test_a_strategy_that_never_overtakes_has_an_infinite_crossover():
    never = choose(N370, params=1.2e9, fresh_tokens=30e9, generator_params=1.7e9)
    assert never.overtakes is None
    assert np.isinf(never.crossover_flops.value)


def test_a_split_budget_is_spent_fully_and_buys_the_same_in_both_strategies():
    N, D, flops, G = 60e6, 1.2e9, 1e20, 1.7e9
    x = split_budget(LAW, params=N, fresh_tokens=D, flops=flops, generator_params=G)
    assert 6 * N * D + D * (6 * N * x["repeat"] + (6 * N + 2 * G) * x["paraphrase"]) == pytest.approx(flops)
    per_flop = {
        name: float(LAW.marginal_value(N, D, x[name] * D, name)) / cost
        for name, cost in (("repeat", 6 * N), ("paraphrase", 6 * N + 2 * G))
    }
    assert per_flop["repeat"] == pytest.approx(per_flop["paraphrase"], rel=1e-6)
    mixture = choose(N370, params=N, fresh_tokens=D, flops=flops, generator_params=G)
    assert mixture.mixture.loss.value < min(loss.value for loss in mixture.losses.values())


def test_a_small_budget_goes_to_the_cheaper_strategy_alone():
    x = split_budget(LAW, params=60e6, fresh_tokens=1.2e9, flops=5e17, generator_params=1.7e9)
    assert x["paraphrase"] == 0
    assert x["repeat"] > 0
