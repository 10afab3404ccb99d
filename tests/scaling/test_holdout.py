"""Hold-outs, once and rolling, and forms compared on them."""

from dataclasses import replace

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.scaling.compare import compare_forms
from derivedata.scaling.fit import fit
from derivedata.scaling.holdout import hold_out, options_of, rolling
from derivedata.scaling.presets import load_preset
from tests.scaling.data import synthetic

LAW = load_preset("qin2026-n370")
RUNS = synthetic(LAW, seed=6)


def test_held_out_runs_of_a_true_law_are_predicted_to_the_noise():
    found = hold_out(RUNS, RUNS.x > 20, label="x>20", bootstrap=100)
    assert (found.trained, found.tested) == (60, 24)
    assert found.rmse < 0.02
    assert found.coverage >= 0.85
    assert set(found.row) == set(RUNS.row[RUNS.x > 20])


def test_held_out_runs_are_not_fitted():
    held = RUNS.row == 10
    spoiled = replace(RUNS, loss=np.where(held, RUNS.loss * 2, RUNS.loss))
    clean, other = (hold_out(runs, held, bootstrap=10, overfit="keep") for runs in (RUNS, spoiled))
    assert other.fit.law == clean.fit.law
    assert other.rmse == pytest.approx(abs(clean.residual[0] - np.log(2)))


def test_rolling_by_size_and_by_x():
    by_size = rolling(RUNS, "N", bootstrap=20)
    assert [(one.trained, one.tested) for one in by_size] == [(63, 21)]
    by_x = rolling(RUNS, "x", bootstrap=20)
    assert [one.label for one in by_x] == [f"x in ({a}, {2 * a}] from smaller" for a in (2, 4, 8, 16, 32)]
    assert [one.tested for one in by_x] == [12] * 5
    # x <= 2 cannot identify more than a constant, larger x can: no fold is refused.
    assert not any(one.refused for one in by_x)


def test_a_fold_that_cannot_be_fitted_says_why():
    found = hold_out(RUNS, RUNS.row > 3, bootstrap=10)
    assert "cannot fix" in found.refused
    assert np.isnan(found.rmse)
    missing = hold_out(RUNS, RUNS.Dp > 0, bootstrap=10)
    assert missing.refused == "no run of repeat is left to fit"


def test_holding_out_nothing_or_everything_is_refused():
    with pytest.raises(UserError, match="nothing to hold out"):
        hold_out(RUNS, RUNS.N > 1e12)
    with pytest.raises(UserError, match="every run is held out"):
        hold_out(RUNS, RUNS.N > 1)


def test_a_check_repeats_the_settings_of_the_fit():
    fitted = fit(RUNS, form="offset", delta=0.05, bootstrap=0, sensitivity=())
    found = hold_out(RUNS, RUNS.x > 20, bootstrap=10, **options_of(fitted.settings))
    assert found.fit.settings.form.name == "offset"
    assert found.fit.settings.delta == 0.05


def test_the_form_that_made_the_runs_wins_the_comparison():
    runs = synthetic(replace(LAW, D0=4e8), seed=1, sizes=(14e6, 30e6, 60e6, 200e6), tpps=(2, 8, 32), xs=(0, 1, 4, 16))
    scores = {(s.held_out, s.form): s for s in compare_forms(runs, ["published", "offset"], draws=500)}
    assert set(scores) == {(by, form) for by in ("N", "TPP", "x") for form in ("published", "offset")}
    assert scores["TPP", "offset"].verdict == "better"
    assert scores["TPP", "offset"].difference < 0
    assert scores["N", "published"].difference == 0
    assert scores["N", "published"].tested == scores["N", "offset"].tested
