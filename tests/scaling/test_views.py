"""Arrays behind the figures."""

from __future__ import annotations

import numpy as np
import pytest

from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.presets import load_preset, preset_ensemble
from derivedata.scaling.runs import Runs
from derivedata.scaling.views import collapse, eta_curves, loss_curves, r_star_field

LAW = load_preset("qin2026-n370")
N370 = Ensemble(law=LAW)


def exact_runs() -> Runs:
    """Runs that lie on the law: 30M at two TPPs, 60M at one."""
    N = np.array([30e6] * 6 + [60e6] * 2)
    D = N * np.array([5, 5, 5, 20, 20, 20, 20, 20])
    x = np.array([1, 3, 15, 1, 3, 15, 1, 3])
    return Runs(N=N, D=D, Dp=x * D, loss=LAW.loss(N, D, x * D, "repeat"), strategy="repeat")


def test_errors_of_the_runs_are_those_of_their_scatter():
    wide, narrow = (eta_curves(N370, exact_runs(), "repeat", noise=noise)[0].run_error for noise in (0.02, 0.01))
    assert wide == pytest.approx(2 * narrow)


def test_eta_of_runs_on_the_law_lies_on_its_curve():
    curves = eta_curves(N370, exact_runs(), "repeat")
    assert [curve.tpp for curve in curves] == [5.0, 20.0]
    assert all(curve.params == 30e6 for curve in curves), "the size with most runs"
    for curve in curves:
        at = np.exp(np.interp(np.log(curve.run_x), np.log(curve.x), np.log(curve.value)))
        assert curve.run_eta == pytest.approx(at, rel=1e-3)
        assert curve.hidden == 0


def test_bands_enclose_the_law():
    (curve, *_) = eta_curves(preset_ensemble("qin2026-n370"), exact_runs(), "repeat")
    assert np.all(curve.low <= curve.value + 1e-12)
    assert np.all(curve.value <= curve.high + 1e-12)


def test_runs_of_all_sizes_collapse_on_one_curve():
    one = collapse(N370, exact_runs(), "repeat")
    assert one.eta == pytest.approx((1 - np.exp(-one.x_over_r)) / one.x_over_r)


def test_runs_without_a_drawable_eta_are_counted():
    runs = exact_runs()
    loss = runs.loss.copy()
    loss[0] = float(LAW.model_limit(30e6)) - 0.1
    changed = Runs(N=runs.N, D=runs.D, Dp=runs.Dp, loss=loss, strategy="repeat")
    assert collapse(N370, changed, "repeat").hidden == 1
    assert sum(curve.hidden for curve in eta_curves(N370, changed, "repeat")) == 1


def test_a_field_has_rows_of_tpp_and_columns_of_size():
    field = r_star_field(LAW, "repeat", params=(1e7, 1e9), tpp=(1, 100))
    N, tpp = field.x[10], field.y[20]
    assert field.value[20, 10] == pytest.approx(float(LAW.r_star(N, N * tpp, "repeat")))


def test_loss_falls_to_the_limit_of_its_strategy():
    fresh, *derived = loss_curves(N370, params=190e6, fresh_tokens=3.8e9)
    assert fresh.strategy is None
    for curve in derived:
        assert np.all(np.diff(curve.value) <= 1e-12)
        assert np.all(curve.value >= fresh.value - 1e-9), "a derived token is never worth more than a fresh one"
    repeat = next(curve for curve in derived if curve.strategy == "repeat")
    limit = float(LAW.data_limit(190e6, 3.8e9, "repeat"))
    assert limit < repeat.value[-1] < limit + 0.02
