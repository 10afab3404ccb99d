"""Pass rates, bands and intervals against figures worked out elsewhere or by brute force."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pyarrow.parquet as pq
import pytest

from derivedata.errors import UserError
from derivedata.problems.bands import parse_bands
from derivedata.problems.passrate import (
    BetaMixture,
    avg_at_k,
    fit_prior,
    jeffreys_interval,
    label_quality,
    pass_at_k,
    worst_at_k,
)


def guru_rates(reference_data) -> np.ndarray:
    rows = pq.read_table(reference_data / "problems/guru-math-512.parquet").column("extra_info").to_pylist()
    rates = np.array([row["qwen2.5_7b_pass_rate"] for row in rows], float)
    return rates[~np.isnan(rates)]


def test_isocompute_bands_at_16():
    bands = parse_bands("isocompute")
    assert bands.names == ("hard", "gap", "easy", "above")
    labels = [bands.names[i] for i in bands.labels_of_counts(16)]
    assert labels == ["hard"] * 2 + ["gap"] * 3 + ["easy"] * 5 + ["above"] * 7


def test_own_and_named_bands():
    bands = parse_bands("mine=0.2:0.4,zero=0")
    assert [bands.label(rate) for rate in (0, 0.1, 0.2, 0.4, 0.41)] == ["zero", "gap", "mine", "mine", "above"]
    five = parse_bands("five")
    assert [five.label(rate) for rate in (0, 0.06, 0.3, 0.61)] == ["very-hard", "hard", "medium", "very-easy"]
    assert parse_bands("easy").label(0.1) == "below"


def test_extremely_hard_needs_128_samples():
    bands = parse_bands("isocompute-128")
    with pytest.raises(UserError, match="needs 128 samples"):
        bands.check_samples(16)
    bands.check_samples(128)
    assert bands.names[bands.labels_of_counts(128)[0]] == "extremely-hard"
    assert bands.names[bands.labels_of_counts(128)[1]] == "hard"


@pytest.mark.parametrize(
    "text", ["eazy", "easy=0.6:0.3", "a=0:0.5,b=0.4:1", "easy=x:y", "=0:1", "gap=0:1", "easy,easy"]
)
def test_bands_that_make_no_sense(text):
    with pytest.raises(UserError):
        parse_bands(text)


def test_a_band_that_no_count_reaches():
    with pytest.raises(UserError, match="no count of 4"):
        parse_bands("thin=0.3:0.4").check_samples(4)


def test_pass_at_k_is_the_share_of_all_draws():
    outcomes = [1, 1, 0, 0, 0, 0, 1, 0]
    draws = list(combinations(outcomes, 3))
    assert pass_at_k(3, 8, 3) == pytest.approx(np.mean([any(draw) for draw in draws]))
    assert worst_at_k(3, 8, 3) == pytest.approx(np.mean([all(draw) for draw in draws]))
    assert np.isnan(pass_at_k(1, 2, 3))
    assert pass_at_k(np.array([0, 16]), 16, 4).tolist() == [0, 1]
    assert np.isnan(avg_at_k(0, 0))
    assert avg_at_k(np.array([4, 8]), 16).tolist() == [0.25, 0.5]


def test_jeffreys_interval():
    low, high = jeffreys_interval(np.array([0, 8, 16]), 16)
    # Brown, Cai, DasGupta 2001, table 5: n = 16.
    assert low == pytest.approx([0, 0.272, 0.857], abs=0.001)
    assert high == pytest.approx([0.143, 0.728, 1], abs=0.001)


def test_the_prior_is_found_again():
    rng = np.random.default_rng(0)
    rates = np.where(rng.random(4000) < 0.8, rng.beta(0.1, 20, 4000), rng.beta(0.5, 1, 4000))
    prior = fit_prior(rng.binomial(16, rates), np.full(4000, 16))
    for edge in (0.0625, 0.3, 0.6):
        assert float(prior.cdf(edge, 0, 0)) == pytest.approx((rates <= edge).mean(), abs=0.02)


def test_a_prior_from_nothing_but_failures():
    prior = fit_prior(np.zeros(100), np.full(100, 16))
    assert float(prior.cdf(0.0625, 0, 0)) > 0.9
    with pytest.raises(UserError, match="at least one"):
        fit_prior(np.array([]), np.array([]))


def test_predictive_sums_to_one_and_learns():
    prior = BetaMixture((0.8, 0.2), (0.1, 0.5), (20.0, 1.0))
    chances = prior.predictive(np.array([0, 4]), np.array([4, 4]), 12)
    assert chances.sum(axis=1) == pytest.approx([1, 1])
    assert chances[0, 0] > 0.9
    assert chances[1, 0] < 0.01


def test_expected_quality_of_labels_is_what_simulation_gives():
    prior, bands = BetaMixture((0.6, 0.4), (0.3, 4.0), (8.0, 6.0)), parse_bands("isocompute")
    rng = np.random.default_rng(1)
    first = rng.random(200_000) < 0.6
    rates = np.where(first, rng.beta(0.3, 8, 200_000), rng.beta(4, 6, 200_000))
    once, again = (bands.label_index(rng.binomial(16, rates) / 16) for _ in range(2))
    quality = label_quality(prior, bands, 16)
    assert quality.mislabelled == pytest.approx((once != bands.label_index(rates)).mean(), abs=0.005)
    assert quality.agreement == pytest.approx((once == again).mean(), abs=0.005)


def test_a_band_of_one_rate_is_right_where_the_rate_is_small():
    bands = parse_bands("five")
    assert [bands.names[i] for i in bands.of_true_rates()] == ["hard", "hard", "medium", "easy", "very-easy"]
    # Nearly all rates lie far below one in sixteen: 0 of 16 is no wrong label, though no rate is exactly 0.
    quality = label_quality(BetaMixture((1.0,), (1.0,), (400.0,)), bands, 16)
    assert quality.mislabelled < 0.01


def test_guru_labels_repeat_for_about_three_in_four(reference_data):
    counts = np.round(guru_rates(reference_data) * 16)
    quality = label_quality(fit_prior(counts, np.full(len(counts), 16)), parse_bands("isocompute"), 16)
    assert quality.agreement == pytest.approx(0.73, abs=0.04)
