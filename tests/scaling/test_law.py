"""The law: its limits, its special cases, and what follows from it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.scaling.law import Law, Saturation, eta, marginal_value, saturated_gain, x_at_share
from derivedata.scaling.presets import load_preset, preset_ensemble

QIN = load_preset("qin2026-n370")


def test_published_formula_by_hand():
    N, D, Dp = 1e8, 2e9, 6e9
    R = math.exp(10.7405 - 0.41606 * math.log(D / N) - 0.40350 * math.log(N))
    x = Dp / D
    value = R / x * (1 - math.exp(-x / R))
    by_hand = 1.3958 + 225.30 / N**0.28914 + 17737.7 / (D + value * Dp) ** 0.43782
    assert QIN.r_star(N, D, "repeat") == pytest.approx(R, rel=1e-12)
    assert QIN.eta(N, D, Dp, "repeat") == pytest.approx(value, rel=1e-12)
    assert QIN.loss(N, D, Dp, "repeat") == pytest.approx(by_hand, rel=1e-12)


def test_without_derived_tokens_the_law_is_chinchilla_and_eta_is_one():
    assert QIN.loss(1e8, 2e9) == pytest.approx(1.3958 + 225.30 / 1e8**0.28914 + 17737.7 / 2e9**0.43782)
    assert QIN.eta(1e8, 2e9, 0.0, "repeat") == 1.0
    assert eta(0.0, 5.0) == 1.0


def test_endless_derived_tokens_reach_the_data_limit_and_no_further():
    limit = QIN.data_limit(1e8, 2e9, "repeat")
    R = QIN.r_star(1e8, 2e9, "repeat")
    assert QIN.loss(1e8, 2e9, np.inf, "repeat") == pytest.approx(limit, rel=1e-12)
    assert limit == pytest.approx(1.3958 + 225.30 / 1e8**0.28914 + 17737.7 / (2e9 * (1 + R)) ** 0.43782)
    assert QIN.model_limit(1e8) < limit < QIN.loss(1e8, 2e9, 1e12, "repeat") + 1e-12


def test_a_constant_r_star_is_the_special_case_of_muennighoff():
    law = load_preset("muennighoff2023")
    assert law.strategies["repeat"].is_constant
    assert law.r_star(1e8, 1e9, "repeat") == pytest.approx(15.39)
    # Below the compute-optimal size for D no parameter is in excess.
    assert law.loss(1e6, 1e9) == pytest.approx(law.E + law.A / 1e6**law.alpha + law.B / 1e9**law.beta)


def test_excess_parameters_follow_the_published_formula():
    law = load_preset("muennighoff2023")
    N, D = 1e10, 1e9
    filled = D * (law.A / law.B) ** (1 / law.alpha)
    R_N = N / filled - 1
    counted = filled + filled * 5.31 * (1 - math.exp(-R_N / 5.31))
    assert law.loss(N, D) == pytest.approx(law.E + law.A / counted**law.alpha + law.B / D**law.beta)


@pytest.mark.parametrize("tail", [0.0, 0.3, 1.0, 2.5])
def test_gain_starts_as_x_ends_at_r_and_its_slope_is_the_marginal_value(tail):
    R = 7.0
    assert saturated_gain(1e-6, R, tail) == pytest.approx(1e-6, rel=1e-5)
    assert saturated_gain(np.inf, R, tail) == pytest.approx(R)
    x, h = np.array([0.5, 3.0, 20.0]), 1e-5
    slope = (saturated_gain(x + h, R, tail) - saturated_gain(x - h, R, tail)) / (2 * h)
    assert marginal_value(x, R, tail) == pytest.approx(slope, rel=1e-6)
    assert saturated_gain(x_at_share(0.9, R, tail), R, tail) == pytest.approx(0.9 * R)


def test_the_next_token_is_worth_a_tenth_at_r_ln_ten():
    x = QIN.x_at_share(0.9, 1e8, 2e9, "repeat")
    assert x == pytest.approx(math.log(10) * QIN.r_star(1e8, 2e9, "repeat"))
    assert QIN.marginal_value(1e8, 2e9, x * 2e9, "repeat") == pytest.approx(0.1)


def test_an_infinite_r_star_means_tokens_that_never_fade():
    law = replace(QIN, strategies={"repeat": Saturation(lnK=math.inf)})
    assert law.eta(1e8, 2e9, 1e12, "repeat") == 1.0
    assert law.marginal_value(1e8, 2e9, 1e12, "repeat") == 1.0
    assert law.data_limit(1e8, 2e9, "repeat") == pytest.approx(law.model_limit(1e8))


def test_drift_lets_r_star_change_with_x():
    law = replace(QIN, strategies={"repeat": Saturation(lnK=2.0, drift=-0.4)})
    assert law.r_star(1e8, 2e9, "repeat", 3.0) == pytest.approx(math.exp(2.0) * 4**-0.4)
    h = 1e3
    slope = (law.gain(1e8, 2e9, 6e9 + h, "repeat") - law.gain(1e8, 2e9, 6e9 - h, "repeat")) * 2e9 / (2 * h)
    assert law.marginal_value(1e8, 2e9, 6e9, "repeat") == pytest.approx(slope, rel=1e-4)


def test_strategies_are_chosen_run_by_run_and_add_up_in_mixtures():
    N, D, Dp = 1e8, 2e9, 4e9
    both = QIN.loss(N, D, np.array([Dp, Dp, 0.0]), ["repeat", "paraphrase", "1epoch"])
    assert both == pytest.approx([QIN.loss(N, D, Dp, "repeat"), QIN.loss(N, D, Dp, "paraphrase"), QIN.loss(N, D)])
    tokens = QIN.effective_tokens(N, D, {"repeat": Dp, "paraphrase": Dp})
    expected = D * (1 + QIN.gain(N, D, Dp, "repeat") + QIN.gain(N, D, Dp, "paraphrase"))
    assert tokens == pytest.approx(expected)
    assert QIN.mixed_loss(N, D, {"repeat": Dp, "paraphrase": Dp}) == pytest.approx(QIN.loss_of_tokens(N, D, tokens))


def test_an_unknown_strategy_is_named_with_the_known_ones():
    with pytest.raises(UserError, match=r"distill.*repeat, paraphrase"):
        QIN.loss(1e8, 2e9, 1e9, "distill")


def test_outside_says_which_quantity_is_extrapolated():
    assert QIN.outside(1e8, 2e9, 3.0, "repeat") == ()
    found = QIN.outside(3e9, 2e9, 100.0, "repeat")
    assert [line.split()[0] for line in found] == ["N", "TPP", "x"]
    assert Law(E=1, A=1, B=1, alpha=0.3, beta=0.3).outside(1, 1) == ()


def test_recommended_epochs_match_the_published_table():
    table = {30e6: 30, 190e6: 15, 600e6: 9.8, 3e9: 5.6, 7e9: 4.3}
    for N, epochs in table.items():
        assert 1 + QIN.x_at_share(0.9, N, 20 * N, "repeat") == pytest.approx(epochs, rel=0.02)


def test_repeat_and_paraphrase_cross_where_published():
    for tpp, size in {3: 655e6, 5: 357e6, 10: 157e6, 20: 69e6, 40: 30e6}.items():
        N = np.geomspace(1e7, 1e9, 4001)
        gap = np.log(QIN.r_star(N, tpp * N, "repeat") / QIN.r_star(N, tpp * N, "paraphrase"))
        assert np.exp(np.interp(0, gap, np.log(N))) == pytest.approx(size, rel=0.02)


def test_a_preset_knows_its_draws_and_an_unknown_one_is_refused():
    ensemble = preset_ensemble("qin2026-n370")
    assert ensemble.law == QIN
    assert len(ensemble.draws) == 400
    spread = ensemble.estimate(lambda law: float(law.r_star(1e8, 2e9, "repeat")))
    assert spread.low < spread.value < spread.high
    assert not preset_ensemble("epoch2024").draws
    with pytest.raises(UserError, match="qin2026-n370"):
        load_preset("qin2027")
