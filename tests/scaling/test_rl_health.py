"""Is a run healthy, and what does it do to single problems?"""

from __future__ import annotations

import numpy as np
import pytest

from derivedata.scaling.rl.health import check
from derivedata.scaling.rl.interference import LABELS, interference, sharpening_or_coverage
from derivedata.scaling.rl.points import Curve

STEPS = 200


def steps(**columns) -> dict:
    """A healthy run, with some columns replaced."""
    way = np.linspace(0, 1, STEPS)
    return {
        "reward": 0.3 + 0.3 * way,
        "entropy": 0.5 - 0.2 * way,
        "kl": 0.02 * way,
        "length": 200 + 50 * way,
        "truncated": np.full(STEPS, 0.02),
    } | columns


def curve(end: float = 0.58) -> Curve:
    return Curve(run="r", C=np.arange(0.0, 11), reward=np.linspace(0.3, end, 11))


def test_a_healthy_run_fails_no_test():
    health = check("r", steps(), curve())
    assert health.is_healthy
    assert [one.test for one in health.findings] == [
        "entropy", "length", "truncated", "KL", "train-validation gap", "validation",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "test", "words"),
    [
        ({"entropy": np.geomspace(0.5, 0.005, STEPS)}, "entropy", "collapse"),
        ({"entropy": np.linspace(0.5, 4, STEPS)}, "entropy", "explosion"),
        ({"length": np.linspace(200, 900, STEPS)}, "length", "over twofold"),
        ({"truncated": np.linspace(0, 0.3, STEPS)}, "truncated", "over 10%"),
        ({"kl": np.geomspace(0.01, 2, STEPS)}, "KL", "over 0.5"),
        ({"reward": np.linspace(0.3, 0.95, STEPS)}, "train-validation gap", "n too large"),
    ],
)
def test_what_makes_a_run_unhealthy_is_named(columns, test, words):
    health = check("r", steps(**columns), curve())
    assert health.failed == (test,)
    assert words in next(one.words for one in health.findings if one.test == test)


def test_a_validation_reward_that_falls_is_unhealthy():
    reward = np.concatenate([np.linspace(0.3, 0.6, 8), np.linspace(0.58, 0.4, 6)])
    health = check("r", steps(), Curve(run="r", C=np.arange(14.0), reward=reward))
    assert "validation" in health.failed


def test_a_reward_of_plus_and_minus_one_is_compared_as_a_share():
    way = np.linspace(0, 1, STEPS)
    assert check("r", steps(reward=2 * (0.3 + 0.3 * way) - 1), curve()).is_healthy


def test_what_was_not_logged_is_not_tested_and_said():
    health = check("r", {"reward": np.full(STEPS, np.nan)})
    assert health.is_healthy
    assert all(one.failed is None for one in health.findings)
    assert "entropy not logged" in [one.words for one in health.findings]


def groups(rates: np.ndarray, *, n: int = 16, passes: int = 4, seed: int = 0):
    """Rows of (step, problem, k, n): every problem met in every pass at its rate (passes, problems)."""
    rng = np.random.default_rng(seed)
    step = np.repeat(np.arange(passes), rates.shape[1])
    problem = np.tile(np.arange(rates.shape[1]), passes)
    return step, problem, rng.binomial(n, rates.ravel()), np.full(rates.size, n)


def test_problems_that_fell_to_zero_are_counted_against_chance():
    rates = np.full((4, 100), 0.5)
    rates[2:, :20] = 0.0
    found = interference(*groups(rates), windows=4)
    assert found.compared == 100
    assert found.fallen == pytest.approx(0.20)
    assert found.by_chance < 0.01
    assert found.histogram.sum(1) == pytest.approx(1)
    assert found.histogram[-1][LABELS.index("0")] == pytest.approx(0.20)


def test_nothing_has_fallen_where_few_samples_are_all_wrong_by_chance():
    rates = np.full((4, 2000), 0.15)
    found = interference(*groups(rates, n=4), windows=4)
    assert found.fallen == pytest.approx(0.85**4, abs=0.04)
    assert found.by_chance == pytest.approx(found.fallen, abs=0.04)
    assert interference(*groups(rates, n=64), windows=4).fallen < 0.01


def test_problems_solved_anew_are_counted():
    rates = np.zeros((4, 50))
    rates[3, :25] = 0.6
    assert interference(*groups(rates), windows=4).risen == pytest.approx(0.5)


def test_one_step_shows_no_change():
    assert interference(np.ones(5), np.arange(5), np.ones(5), np.full(5, 4)) is None


@pytest.mark.parametrize(
    ("best", "worst", "kind"),
    [
        ((0.5, 0.7), (0.2, 0.2), "coverage: more"),
        ((0.5, 0.5), (0.2, 0.4), "sharpening: the same"),
        ((0.6, 0.4), (0.2, 0.35), "sharpening at the cost of coverage"),
        ((0.5, 0.7), (0.2, 0.4), "coverage and sharpening"),
        ((0.5, 0.51), (0.2, 0.21), "no change beyond the noise"),
    ],
)
def test_sharpening_and_coverage_are_told_apart(best, worst, kind):
    found = sharpening_or_coverage({"best": np.array(best), "worst": np.array(worst)}, 300)
    assert found.kind.startswith(kind)


def test_without_best_and_worst_nothing_is_said():
    assert sharpening_or_coverage({"best": np.array([0.5, 0.6])}, 300) is None
