"""Fits of synthetic runs: recovery, what is identified, what is held, what is left out, and the file of a fit."""

import json
from dataclasses import replace

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.scaling.fit import fit
from derivedata.scaling.fitted import Fit
from derivedata.scaling.law import Overfit, Saturation
from derivedata.scaling.presets import load_preset
from derivedata.scaling.runs import Runs
from tests.scaling.data import SIZES, synthetic

LAW = load_preset("qin2026-n370")
QUICK = {"bootstrap": 0, "sensitivity": ()}
BARE = {**QUICK, "profiles": False}


def test_noiseless_runs_give_back_their_law():
    found = fit(synthetic(LAW, noise=0.0), **QUICK).law
    assert (found.E, found.alpha, found.beta) == pytest.approx((LAW.E, LAW.alpha, LAW.beta), rel=1e-3)
    ours, truth = found.strategies["repeat"], LAW.strategies["repeat"]
    assert (ours.rho, ours.sigma) == pytest.approx((truth.rho, truth.sigma), rel=1e-3)


@pytest.mark.parametrize(
    ("form", "truth"),
    [
        ("offset", replace(LAW, D0=2e8)),
        ("worth", replace(LAW, strategies={"repeat": Saturation(lnK=10.7, rho=-0.4, sigma=-0.4, worth=1.3)})),
        ("drift", replace(LAW, strategies={"repeat": Saturation(lnK=10.7, rho=-0.4, sigma=-0.4, drift=0.2)})),
        ("hyperbola", replace(LAW, strategies={"repeat": Saturation(lnK=10.7, rho=-0.4, sigma=-0.4, tail=1.0)})),
        ("overfit", replace(LAW, overfit=Overfit(G=0.02, p=0.8, q=0.5))),
    ],
)
def test_each_form_describes_runs_made_by_it(form, truth):
    runs = synthetic(truth, noise=0.0)
    fitted = fit(runs, form=form, overfit="keep", **QUICK)
    assert fitted.rmse["all"][1] < 2e-4
    assert fit(runs, overfit="keep", **QUICK).rmse["all"][1] > 5 * fitted.rmse["all"][1]


def test_eighty_four_runs_at_one_percent_noise_recover_r_star():
    errors = []
    for seed in range(25):
        fitted = fit(synthetic(LAW, seed=seed), **BARE)
        at, truth = fitted.parameters.where["ln R[repeat]"], fitted.parameters.from_law(LAW)
        errors.append(fitted.theta[at : at + 3] - truth[at : at + 3])
    assert np.all(np.std(errors, axis=0) <= (0.15, 0.09, 0.10))
    assert np.all(np.abs(np.mean(errors, axis=0)) <= 0.05)


@pytest.mark.slow
def test_intervals_cover_what_they_say():
    inside = []
    for seed in range(200):
        fitted = fit(synthetic(LAW, seed=seed), bootstrap=200, sensitivity=(), profiles=False)
        at, truth = fitted.parameters.where["ln R[repeat]"], fitted.parameters.from_law(LAW)
        low, high = np.quantile(fitted.draws[:, at : at + 3], [0.025, 0.975], axis=0)
        limits = [e.low <= LAW.model_limit(N) <= e.high for N, e in fitted.model_limits().items()]
        inside.append([*((truth[at : at + 3] >= low) & (truth[at : at + 3] <= high)), *limits])
    coverage = np.mean(inside, axis=0)
    assert np.all(coverage >= 0.88), coverage
    assert np.all(coverage <= 0.98), coverage


def test_any_number_of_strategies_by_any_name():
    law = replace(LAW, strategies={n: Saturation(lnK=k) for n, k in (("faq", 1.0), ("math v2", 2.0), ("distill", 3.0))})
    parts = [synthetic(law, name, noise=0.0, sizes=SIZES[:3]) for name in law.strategies]
    columns = {f: np.concatenate([getattr(p, f) for p in parts]) for f in ("N", "D", "Dp", "loss", "strategy")}
    found = fit(Runs(**columns), form="constant", **QUICK).law
    assert {n: s.lnK for n, s in found.strategies.items()} == pytest.approx(
        {"faq": 1, "math v2": 2, "distill": 3}, abs=0.01
    )


def test_one_epoch_runs_alone_give_chinchilla():
    fitted = fit(synthetic(LAW, noise=0.0, xs=(0,)), **QUICK)
    assert fitted.law.strategies == {}
    assert fitted.settings.delta == 1e-3
    assert fitted.law.beta == pytest.approx(LAW.beta, rel=1e-3)


def test_a_handful_of_cells_is_resampled_by_run_and_never_has_an_interval_of_no_width():
    xs = (0, 0.5, 1, 2, 3, 5, 7, 10, 15, 31, 63)
    for bootstrap in (100, 0):
        fitted = fit(synthetic(LAW, sizes=(60e6,), tpps=(20,), xs=xs), bootstrap=bootstrap, sensitivity=())
        estimate = fitted.constants()["R*[repeat]"]
        assert estimate.low < 0.9 * estimate.value < 1.1 * estimate.value < estimate.high
        assert "single runs" in fitted.ensemble.interval
        assert any("only 1 (N, D) cells to resample" in warning for warning in fitted.warnings)


def test_sandwich_errors_of_few_cells_are_said_to_cover_too_little():
    assert any("sandwich errors of 12 cells" in warning for warning in fit(synthetic(LAW), **BARE).warnings)
    assert not any("sandwich" in w for w in fit(synthetic(LAW), bootstrap=10, sensitivity=()).warnings)


def test_weights_count_and_weight_zero_is_absent():
    runs = synthetic(LAW, seed=3)
    spoiled = replace(
        runs, loss=np.where(runs.row == 5, runs.loss * 1.3, runs.loss), weight=np.where(runs.row == 5, 0.0, 1.0)
    )
    without = fit(runs.take(runs.row != 5), **QUICK)
    fitted = fit(spoiled, **QUICK)
    assert fitted.law.beta == pytest.approx(without.law.beta, rel=1e-4)
    assert fitted.left_out == ((5, "weight 0"),)


def test_a_term_that_adds_nothing_is_said_to():
    for form, name in (("tail", "tail[repeat]"), ("offset", "ln D0")):
        fitted = fit(synthetic(LAW, noise=0.0) if form == "offset" else synthetic(LAW, seed=1), form=form, **QUICK)
        assert fitted.at_bound == (name,)
        assert any("adds nothing" in line for line in fitted.warnings)


def test_a_wild_run_is_dropped_first():
    runs = synthetic(LAW, seed=1)
    runs = replace(runs, loss=np.where(runs.row == 11, runs.loss * 1.5, runs.loss))
    fitted = fit(runs, drop=1, overfit="keep", **QUICK)
    assert [row for row, _ in fitted.left_out] == [11]
    assert "greatest residual" in fitted.left_out[0][1]


def test_overfitted_runs_are_left_out_and_said():
    runs = synthetic(replace(LAW, overfit=Overfit(G=0.004, p=1.5, q=0.3)), noise=0.001)
    fitted = fit(runs, **QUICK)
    assert fitted.left_out
    assert all("overfitted: loss" in reason for _, reason in fitted.left_out)
    assert fit(runs, overfit="keep", **QUICK).left_out == ()


def test_clean_noisy_runs_are_not_taken_for_overfitted():
    assert all(fit(synthetic(LAW, seed=seed), **BARE).left_out == () for seed in range(10))


def test_one_tpp_holds_rho():
    fitted = fit(synthetic(LAW, tpps=(20,)), **QUICK)
    assert fitted.law.strategies["repeat"].rho == 0
    assert any("cannot identify rho" in note for note in fitted.restrictions)


def test_one_size_holds_sigma_and_alpha():
    fitted = fit(synthetic(LAW, sizes=(60e6,), tpps=(2, 5, 20, 80), noise=0.002), **QUICK)
    assert fitted.law.strategies["repeat"].sigma == 0
    assert fitted.law.A < 1e-9
    assert fitted.law.model_limit(60e6) == pytest.approx(LAW.model_limit(60e6), rel=0.1)
    assert any("one size only" in note for note in fitted.restrictions)
    assert any("cannot identify sigma" in note for note in fitted.restrictions)


def test_x_up_to_one_falls_back_to_a_constant_r_star_and_little_x_leaves_it_open():
    fitted = fit(synthetic(LAW, xs=(0, 0.1, 0.25)), **QUICK)
    assert fitted.law.strategies["repeat"].is_constant
    assert any("never exceeds 1" in note for note in fitted.restrictions)
    assert fitted.constants()["R*[repeat]"].high == np.inf


def test_a_strategy_with_two_runs_gets_one_constant():
    runs = synthetic(LAW)
    two = np.isin(runs.row, (4, 20))
    runs = replace(runs, strategy=np.where(two, "faq", runs.strategy))
    fitted = fit(runs, **QUICK)
    assert fitted.law.strategies["faq"].is_constant
    assert not fitted.law.strategies["repeat"].is_constant
    assert any(note.startswith("faq: only 2 runs") for note in fitted.restrictions)


def test_n_and_tpp_that_move_together_hold_sigma():
    whole = synthetic(LAW)
    tied = (
        np.isin(whole.tpp * 1e6, []) | ((whole.N == 14e6) & (whole.tpp == 80)) | ((whole.N == 380e6) & (whole.tpp == 5))
    )
    fitted = fit(whole.take(tied | (whole.Dp == 0)), **QUICK)
    assert any("vary together" in note for note in fitted.restrictions)


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (synthetic(LAW, sizes=(1e8,), tpps=(20,), xs=(0,)), "same number of tokens"),
        (synthetic(LAW, sizes=SIZES[:2], tpps=(5, 20), xs=(0,)), "cannot fix"),
    ],
)
def test_runs_that_mean_nothing_are_refused(runs, words):
    with pytest.raises(UserError, match=words):
        fit(runs, **QUICK)


def test_a_staged_fit_without_one_epoch_runs_is_refused():
    with pytest.raises(UserError, match="without derived tokens"):
        fit(synthetic(LAW, xs=(1, 3, 7, 15)), mode="staged", **QUICK)


def test_too_many_runs_to_drop_is_refused():
    with pytest.raises(UserError, match="too many runs to drop"):
        fit(synthetic(LAW), drop=80, **QUICK)


def test_thin_designs_are_warned_about():
    fitted = fit(synthetic(LAW, sizes=(30e6, 60e6), xs=(0, 1, 3)), **QUICK)
    told = " ".join(fitted.warnings)
    for words in ("2 sizes over a factor 2", "x reaches 2 R*", "R* needs 45"):
        assert words in told


def test_the_bootstrap_is_reproducible_and_resamples_cells():
    runs = synthetic(LAW, seed=2)
    first, second = (fit(runs, bootstrap=20, sensitivity=(), seed=7) for _ in range(2))
    assert np.array_equal(first.draws, second.draws)
    assert first.cells == 12
    other = fit(runs, bootstrap=20, sensitivity=(), seed=8)
    assert not np.array_equal(first.draws, other.draws)


def test_sandwich_and_bootstrap_errors_agree_roughly():
    fitted = fit(synthetic(LAW, seed=5), bootstrap=200, sensitivity=())
    at = fitted.parameters.where["ln R[repeat]"]
    ratio = np.sqrt(np.diag(fitted.covariance))[at : at + 3] / fitted.draws[:, at : at + 3].std(axis=0)
    assert np.all((ratio > 0.5) & (ratio < 2))


@pytest.mark.parametrize("form", ["published", "offset-worth", "muennighoff"])
def test_a_fit_survives_json(form):
    fitted = fit(synthetic(LAW, seed=4), form=form, bootstrap=10, name="mine")
    again = Fit.from_dict(json.loads(json.dumps(fitted.to_dict(), allow_nan=False)))
    assert again.law == fitted.law
    assert again.law.name == "mine"
    assert again.constants().keys() == fitted.constants().keys()
    assert again.draws == pytest.approx(fitted.draws, rel=1e-8)
    assert again.sensitivity_row() == fitted.sensitivity_row()
    assert Fit.from_dict(again.to_dict()).to_dict() == again.to_dict()


def test_a_file_of_something_else_is_refused():
    with pytest.raises(UserError, match="not a fit"):
        Fit.from_dict({"kind": "a recipe"})
