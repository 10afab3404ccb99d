"""ScaleRL's sigmoid: the fit, its intervals and forecasts, what it refuses, and recipes at a common asymptote."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.scaling.rl import fit as rl
from derivedata.scaling.rl.compare import at_common_asymptote, over_seeds
from derivedata.scaling.rl.curve import Sigmoid, fit_power_law
from derivedata.scaling.rl.fit import fit_curve
from derivedata.scaling.rl.grid import Grid, at_edge, fit_grid
from derivedata.scaling.rl.points import Curve
from derivedata.scaling.rl.profile import profile_parameter
from derivedata.scaling.rl.solver import Curves, fit_many, predict, solve

LAW = Sigmoid(R0=0.25, A=0.61, C_mid=2542, B=1.92)
R0_KNOWN = np.array([False, True, True, True])


def evaluations(law: Sigmoid = LAW, *, to: float = 8, points: int = 60, noise: float = 0.005, seed: int = 0, **more):
    """A run with one evaluation before training and others evenly spaced from .6 C_mid."""
    C = np.linspace(0.6, to, points) * law.C_mid
    reward = law.reward(C) + np.random.default_rng(seed).normal(0, noise, points)
    fields = {"run": f"seed-{seed}"} | more
    return Curve(C=np.append(0, C), reward=np.append(law.R0, reward), **fields)


def test_intervals_cover_though_the_start_is_measured_like_any_other_point():
    inside = []
    for seed in range(80):
        rng = np.random.default_rng(seed)
        C = np.append(0, np.linspace(0.05, 8, 60) * LAW.C_mid)
        fit = fit_curve(Curve(run="a", C=C, reward=LAW.reward(C) + rng.normal(0, 0.015, len(C))))
        inside.append([e.low <= truth <= e.high for e, truth in ((fit.R0, LAW.R0), (fit.C_mid, LAW.C_mid))])
    # Taken as exact, the start made intervals of C_mid cover 85%.
    assert (np.mean(inside, axis=0) >= 0.9).all()


def test_seeds_without_an_asymptote_have_none_together():
    early = [fit_curve(evaluations(seed=seed, to=0.9, recipe="short")) for seed in range(3)]
    assert all(fit.asymptote is None for fit in early)
    (seeds,) = over_seeds(early)
    assert np.isnan(seeds.A.value) and not seeds.A.has_interval and np.isnan(seeds.sd_A)


def test_half_of_the_gain_is_there_at_c_mid():
    assert LAW.reward(LAW.C_mid) == pytest.approx((0.25 + 0.61) / 2)
    assert LAW.reward(0) == pytest.approx(0.25)
    assert LAW.reward(1e12) == pytest.approx(0.61)


def test_curves_without_noise_give_back_their_constants():
    laws = [Sigmoid(R0=0.1, A=0.9, C_mid=50, B=0.8), LAW, Sigmoid(R0=0.3, A=0.35, C_mid=1e6, B=4)]
    x = np.array([np.log(np.geomspace(0.1, 20, 40) * law.C_mid) for law in laws])
    y = np.array([law.reward(np.exp(row)) for law, row in zip(laws, x, strict=True)])
    found = fit_many(Curves.of(x, y))
    np.testing.assert_allclose(found, [law.theta for law in laws], rtol=1e-4, atol=1e-5)


def test_the_published_recipes_are_recovered_and_forecast(reference_data):
    """A within .01 from .6 to 8 C_mid, and the reward at 8 C_mid within .013 from C <= 4 C_mid, in 95% of draws."""
    rng = np.random.default_rng(1)
    with (reference_data / "rl" / "scalerl_table1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    right, forecast = [], []
    for row in rows:
        law = Sigmoid(R0=0.25, A=float(row["A"]), C_mid=float(row["C_mid_gpu_hours"]), B=float(row["B"]))
        C = np.linspace(0.6, 8, 60) * law.C_mid
        y = law.reward(C) + rng.normal(0, 0.005, (40, 60))
        early = 4 * law.C_mid >= C
        found = fit_many(Curves.of(np.log(C), y), r0=law.R0)
        half = fit_many(Curves.of(np.log(C[early]), y[:, early]), r0=law.R0)
        right.append(np.abs(found[:, 1] - law.A) < 0.01)
        forecast.append(np.abs(predict(half, np.full((40, 1), np.log(C[-1])))[:, 0] - law.reward(C[-1])) < 0.013)
    assert np.mean(right) >= 0.95
    assert np.mean(forecast) >= 0.95


def test_intervals_of_the_asymptote_cover_it():
    C = np.linspace(0.6, 8, 60) * LAW.C_mid
    C = C[4 * LAW.C_mid >= C]
    y = LAW.reward(C) + np.random.default_rng(2).normal(0, 0.01, (200, len(C)))
    curves = Curves.of(np.log(C), y)
    theta = fit_many(curves, r0=LAW.R0)
    ends = profile_parameter(curves, theta, 1, np.tile(R0_KNOWN, (200, 1)))
    covered = (ends.low <= LAW.A) & (ends.high >= LAW.A)
    assert 0.90 <= covered.mean() <= 0.98
    # At this noise half of the gain's far end is not seen well enough, and every fit says so.
    assert (ends.high - ends.low > rl.WEAK_WIDTH).mean() > 0.95


def test_a_profile_is_where_the_sum_of_squares_has_risen_by_the_quantile_of_f():
    curve = evaluations(to=4, points=28, noise=0.01)
    fit = fit_curve(curve)
    curves, free = fit.points(), fit.free[None].copy()
    free[:, 1] = False
    least = curves.error(fit.law.theta[None])[0]
    for end in (fit.A.low, fit.A.high):
        start = fit.law.theta[None].copy()
        start[:, 1] = end
        rise = curves.error(solve(curves, start, free))[0] / least - 1
        assert rise * 25 == pytest.approx(4.242, rel=0.01)  # F(1, 28 - 3; .95)


def test_a_forecast_has_a_band_and_a_power_law_beside_it():
    fit = fit_curve(evaluations(), hold_out_after=4 * LAW.C_mid)
    assert fit.forecast_C == pytest.approx(2 * fit.largest)
    assert fit.forecast.low < LAW.reward(fit.forecast_C) < fit.forecast.high
    assert fit.held_out.count == 32
    assert fit.held_out.rmse < 0.01 < fit.held_out.power_rmse
    low, high = fit.held_out.forecast.low, fit.held_out.forecast.high
    assert low < LAW.reward(8 * LAW.C_mid) < high
    # Where there are points the band is narrow, far beyond them it is the interval of A.
    _, low, high = fit.band(np.array([2 * LAW.C_mid, 1e9]))
    assert high[0] - low[0] < 0.006
    assert high[1] == pytest.approx(fit.A.high, abs=1e-3)


def test_early_compute_is_skipped_and_stated():
    curve = evaluations(Sigmoid(R0=0.25, A=0.61, C_mid=500, B=1.9), to=40, points=80)
    fit = fit_curve(curve)
    assert fit.skipped_below == pytest.approx(0.05 * 40 * 500)
    assert fit.skipped == int(((curve.C > 0) & (fit.skipped_below > curve.C)).sum()) > 0
    assert fit_curve(curve, skip_below=0).skipped == 0


def test_a_power_law_is_found_with_its_own_asymptote():
    C = np.geomspace(10, 1e4, 30)
    law, rmse = fit_power_law(C, 0.8 - 2.0 * C**-0.5)
    assert (law.A, law.D, law.b) == pytest.approx((0.8, 2.0, 0.5), rel=1e-3)
    assert rmse < 1e-5
    # No share is above 1.
    law, _ = fit_power_law(C, 0.1 + 0.09 * np.log10(C))
    assert law.A <= 1


@pytest.mark.parametrize(
    ("curve", "flag"),
    [
        (evaluations(to=0.9, points=30), rl.SHORT),
        (evaluations(to=4, points=10), rl.TOO_FEW),
        (evaluations(Sigmoid(R0=0.5, A=0.3, C_mid=1000, B=1.5)), rl.FALLING),
        (evaluations(Sigmoid(R0=0.3, A=1.0, C_mid=1000, B=1.5), noise=0), rl.EDGE),
        (evaluations(to=4, points=28, noise=0.01), rl.WEAK),
    ],
    ids=["short", "few", "falling", "edge", "weak"],
)
def test_what_the_points_cannot_say_is_flagged(curve, flag):
    assert flag in fit_curve(curve).flags


def test_a_good_curve_has_no_flag():
    fit = fit_curve(evaluations(seed=1))
    assert fit.flags == ()
    assert fit.asymptote.low < 0.61 < fit.asymptote.high


def test_no_asymptote_is_given_below_c_mid_or_on_the_way_down():
    assert fit_curve(evaluations(to=0.9, points=30)).asymptote is None
    rising = evaluations(to=6, points=40)
    down = rising.reward.copy()
    down[-12:] -= np.linspace(0, 0.15, 12)
    collapsed = Curve(run="collapsed", C=rising.C, reward=down)
    assert collapsed.fall() > 0.05
    assert rl.FALLING in fit_curve(collapsed).flags
    assert rising.fall() == 0


def test_a_curve_of_another_form_is_said_to_be_no_sigmoid():
    C = np.linspace(50, 5000, 60)
    kinked = np.minimum(0.2 + 0.3 * C / 2500, 0.5) + np.random.default_rng(0).normal(0, 0.004, 60)
    fit = fit_curve(Curve(run="kink", C=np.append(0, C), reward=np.append(0.2, kinked)))
    assert rl.DRIFT in fit.flags


def test_a_curve_that_never_rises_has_no_asymptote():
    flat = fit_curve(Curve(run="flat", C=np.arange(0.0, 20), reward=np.zeros(20)))
    assert flat.asymptote is None
    assert rl.FALLING in flat.flags


def test_without_an_evaluation_before_training_r0_is_fitted_and_said_to_be():
    curve = evaluations()
    fit = fit_curve(Curve(run="late", C=curve.C[1:], reward=curve.reward[1:]))
    assert rl.NO_START in fit.flags
    assert fit.R0.has_interval
    assert rl.NO_START not in fit_curve(Curve(run="late", C=curve.C[1:], reward=curve.reward[1:]), r0=0.25).flags


def test_bad_evaluations_are_refused_in_one_line():
    with pytest.raises(UserError, match=r"run a, C = 20: reward out of range"):
        Curve(run="a", C=np.array([10.0, 20]), reward=np.array([0.5, 1.5]))
    with pytest.raises(UserError, match="two runs under one name"):
        Curve(run="a", C=np.array([10.0, 20, 10]), reward=np.array([0.5, 0.5, 0.6]))
    with pytest.raises(UserError, match="C is a finite number"):
        Curve(run="a", C=np.array([-1.0]), reward=np.array([0.5]))
    with pytest.raises(UserError, match="5 evaluations are too few"):
        fit_curve(evaluations(points=5))
    with pytest.raises(UserError, match="no evaluation lies beyond the cut"):
        fit_curve(evaluations(), hold_out_after=1e9)


def brute_force(C, reward, r0, grid):
    """Every cell with a fine search for B: what the fast grid must find."""
    best = (np.inf, None)
    steep = np.geomspace(0.2, 10, 4000)
    for mid in grid.C_mid:
        s = 1 / (1 + (mid / C) ** steep[:, None])
        for a in grid.A:
            error = ((r0 + (a - r0) * s - reward) ** 2).sum(1)
            at = int(np.argmin(error))
            best = min(best, (float(error[at]), (a, mid, steep[at])))
    return best


def test_the_grid_finds_the_best_cell_of_all():
    curve = evaluations(noise=0.02, to=5, points=30)
    C, reward = curve.C[1:], curve.reward[1:]
    grid = Grid(A=0.45 + 0.01 * np.arange(36), C_mid=np.geomspace(500, 20000, 30))
    error, (a, mid, steep) = brute_force(C, reward, 0.25, grid)
    found = Sigmoid.of(fit_grid(C, reward, r0=0.25, grid=grid)[0])
    assert (found.A, found.C_mid) == pytest.approx((a, mid))
    assert steep == pytest.approx(found.B, rel=2e-3)
    assert ((found.reward(C) - reward) ** 2).sum() <= error + 1e-12


def test_bootstrap_draws_of_the_grid_are_its_fits_to_resampled_points():
    curve = evaluations(noise=0.01)
    C, reward = curve.C[1:], curve.reward[1:]
    grid = Grid.of(C)
    assert grid.cells == 7100
    assert grid.A[[0, -1]] == pytest.approx([0.45, 0.80])
    weight = np.random.default_rng(0).multinomial(60, np.full(60, 1 / 60), size=3).astype(float)
    together = fit_grid(C, reward, r0=0.25, grid=grid, weight=weight)
    for row, one in zip(together, weight, strict=True):
        points = np.repeat(np.arange(60), one.astype(int))
        alone = fit_grid(C[points], reward[points], r0=0.25, grid=grid)[0]
        np.testing.assert_allclose(row, alone, rtol=1e-6)


def test_an_asymptote_at_the_end_of_the_grid_is_flagged():
    low = evaluations(Sigmoid(R0=0.1, A=0.30, C_mid=1000, B=1.5))
    fit = fit_curve(low, method="grid", bootstrap=5)
    assert rl.EDGE in fit.flags
    assert len(fit.draws) == 5
    assert at_edge(fit.law.theta, Grid.of(low.C))[0]


def test_recipes_at_one_asymptote_are_compared_by_their_speed():
    slow = Sigmoid(R0=0.25, A=0.61, C_mid=5000, B=1.9)
    fits = [fit_curve(evaluations(run="fast")), fit_curve(evaluations(slow, seed=1, run="slow"))]
    common = at_common_asymptote(fits)
    assert common.is_tenable
    assert pytest.approx(0.61, abs=0.005) == common.A
    assert common.relative["fast"] == 1
    assert common.relative["slow"] == pytest.approx(5000 / 2542, rel=0.05)


def test_recipes_with_two_asymptotes_are_not_held_to_one():
    other = Sigmoid(R0=0.25, A=0.66, C_mid=2542, B=1.9)
    fits = [fit_curve(evaluations(run="a")), fit_curve(evaluations(other, seed=1, run="b"))]
    assert not at_common_asymptote(fits).is_tenable


def test_seeds_of_a_recipe_give_an_interval_of_their_own():
    fits = [fit_curve(evaluations(seed=seed, recipe="scalerl", n=16, problems=48)) for seed in range(4)]
    (seeds,) = over_seeds([*fits, fit_curve(evaluations(seed=9, recipe="alone"))])
    assert seeds.recipe == "scalerl, n 16, B_p 48"
    assert seeds.seeds == 4
    assert seeds.A.low < 0.61 < seeds.A.high
    assert seeds.sd_A < 0.01
