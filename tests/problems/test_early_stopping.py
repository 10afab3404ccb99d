"""Stopping early: what it saves and what it changes, replayed on outcomes that were all drawn."""

from __future__ import annotations

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.problems.bands import parse_bands
from derivedata.problems.early_stopping import (
    borderline,
    label_chances,
    parse_confidence,
    pilot_size,
    replay,
    replay_with_pilot,
    stopping_rule,
)
from derivedata.problems.passrate import BetaMixture, fit_prior
from tests.problems.test_passrate import guru_rates

BANDS = parse_bands("isocompute")
PRIOR = BetaMixture((0.8, 0.2), (0.1, 0.5), (20.0, 1.0))


def weak_model(rng: np.random.Generator, problems: int) -> np.ndarray:
    return np.where(rng.random(problems) < 0.8, rng.beta(0.1, 20, problems), rng.beta(0.5, 1, problems))


def test_exact_stops_only_where_nothing_can_change():
    rng = np.random.default_rng(0)
    outcomes = rng.random((2000, 16)) < rng.random((2000, 1))
    done = replay(stopping_rule(BANDS, 16, 1.0), outcomes)
    assert done.changed == 0
    assert done.saved > 0.05
    rule = stopping_rule(BANDS, 16, 1.0)
    assert rule.label(10, 10) == "above"
    assert rule.label(0, 14) is None
    assert rule.label(0, 15) == "hard"


def test_the_pilot_is_measured_in_full():
    rng = np.random.default_rng(0)
    done = replay_with_pilot(np.zeros((1000, 16), int), BANDS, 0.95, fit_prior, rng)
    assert sorted(set(done.used))[-1] == 16
    assert (done.used == 16).sum() == pilot_size(1000)


def test_none_takes_every_sample():
    rng = np.random.default_rng(0)
    done = replay(stopping_rule(BANDS, 16, None), rng.random((100, 16)) < 0.9)
    assert (done.used == 16).all()
    assert done.changed == done.saved == 0


@pytest.mark.parametrize("seed", range(2))
def test_guru_at_99_percent(reference_data, seed):
    rng = np.random.default_rng(seed)
    rates = rng.choice(guru_rates(reference_data), 10_000)
    outcomes = rng.permuted(np.arange(16) < np.round(rates * 16)[:, None], axis=1)
    done = replay_with_pilot(outcomes, BANDS, 0.99, fit_prior, rng)
    assert done.changed <= 0.005
    assert done.saved >= 0.12


@pytest.mark.parametrize("seed", range(2))
def test_a_weak_model_at_99_percent(seed):
    rng = np.random.default_rng(seed)
    outcomes = rng.random((10_000, 16)) < weak_model(rng, 10_000)[:, None]
    done = replay_with_pilot(outcomes, BANDS, 0.99, fit_prior, rng)
    assert (done.used == 16).sum() >= pilot_size(10_000)
    assert done.saved >= 0.35
    # One in a hundred by the true prior; the pilot's is a little off.
    assert done.changed <= 0.0125


def test_the_predicted_label_is_right_as_often_as_promised():
    rng = np.random.default_rng(2)
    outcomes = rng.random((20_000, 16)) < weak_model(rng, 20_000)[:, None]
    done = replay(stopping_rule(BANDS, 16, 0.95, PRIOR), outcomes)
    stopped = done.used < 16
    assert (done.label == done.full_label)[stopped].mean() >= 0.95


def test_how_many_samples_may_be_in_flight():
    rule = stopping_rule(BANDS, 16, 1.0)
    assert rule.may_need(0, 0) == 10
    assert rule.may_need(10, 10) == 0
    assert rule.may_need(0, 14) == 1


def test_samples_spent_on_borderline_problems_help():
    rng = np.random.default_rng(3)
    prior = BetaMixture((0.75, 0.25), (0.5, 6.3), (20.0, 36.0))
    rates = np.where(rng.random(20_000) < 0.75, rng.beta(0.5, 20, 20_000), rng.beta(6.3, 36, 20_000))
    truth = BANDS.label_index(rates)
    correct, n = rng.binomial(16, rates), np.full(20_000, 16)
    at_the_edge = borderline(correct, n, BANDS, prior)
    assert 0 < at_the_edge.mean() < 1
    before = (BANDS.label_index(correct / n) == truth).mean()
    correct = correct + np.where(at_the_edge, rng.binomial(48, rates), 0)
    n = n + 48 * at_the_edge
    after = (BANDS.label_index(correct / n) == truth).mean()
    assert after > before + 0.08
    # The problems that were left alone are those whose labels were sure.
    assert (BANDS.label_index(correct / n) == truth)[~at_the_edge].mean() > 0.9


def test_no_answer_right_is_not_borderline_where_the_hardest_band_is_that():
    bands = parse_bands("five")
    assert not borderline(np.array([0]), np.array([16]), bands, PRIOR)[0]
    assert borderline(np.array([1]), np.array([16]), bands, PRIOR)[0]


def test_chances_of_labels_sum_to_one():
    chances = label_chances(np.arange(17), np.full(17, 16), BANDS, PRIOR)
    assert chances.sum(axis=1) == pytest.approx(np.ones(17))
    assert chances[0, 0] > 0.98


def test_pilots():
    assert [pilot_size(n) for n in (60, 1000, 10_000, 10**6)] == [60, 100, 400, 500]


def test_confidences():
    assert [parse_confidence(text) for text in ("none", "exact", "0.95")] == [None, 1.0, 0.95]
    for text in ("1.5", "often", "0.3", "nan"):
        with pytest.raises(UserError):
            parse_confidence(text)
    with pytest.raises(UserError, match="needs a prior"):
        stopping_rule(BANDS, 16, 0.99)
