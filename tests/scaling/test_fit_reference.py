"""Figures of merit on the published runs: what a good implementation reaches, row by row."""

import numpy as np
import pytest

from derivedata.cli.eta.inputs import read_runs
from derivedata.scaling.fit import fit
from derivedata.scaling.holdout import hold_out
from derivedata.scaling.presets import load_preset
from tests.scaling.data import chinchilla, muennighoff, qin

QUICK = {"bootstrap": 0, "sensitivity": ()}


def test_chinchilla_reaches_the_optimum_of_besiroglu_et_al(reference_data):
    fitted = fit(chinchilla(reference_data), **QUICK)
    assert fitted.settings.delta == 1e-3
    assert fitted.objective <= 0.00101828
    law = fitted.law
    assert abs(law.E - 1.8172) <= 0.002
    assert law.alpha == pytest.approx(0.3473, abs=0.001)
    assert law.beta == pytest.approx(0.3672, abs=0.001)
    assert abs(law.A / 477.8 - 1) <= 0.01
    assert fitted.starts == (8, 8)


def test_dropping_five_of_the_245_points_finds_the_240(reference_data):
    runs = read_runs(reference_data / "scaling" / "chinchilla_epoch_svg_245.csv")[0]
    fitted = fit(runs, drop=5, **QUICK)
    assert {row for row, _ in fitted.left_out} == set(runs.row[np.argsort(runs.loss)[-5:]])
    assert fitted.objective <= 0.00101828


def test_muennighoff_both_minima_are_found_and_the_valley_is_open(reference_data):
    fitted = fit(
        muennighoff(reference_data),
        form="muennighoff",
        backbone=load_preset("muennighoff2023"),
        delta=1e-3,
        overfit="keep",
        **QUICK,
    )
    law = fitted.law
    assert fitted.objective <= 0.015806
    assert law.r_star(1e8, 1e9, "repeat") == pytest.approx(95, rel=0.05)
    assert abs(law.R_N - 1.7) <= 0.05
    # The published constants are a local minimum, which the fit tells.
    objective, theta = fitted.minima[1]
    assert objective == pytest.approx(0.0158259, abs=1e-7)
    local = fitted.parameters.to_law(theta)
    assert local.r_star(1e8, 1e9, "repeat") == pytest.approx(15.388, rel=0.01)
    assert abs(local.R_N - 5.310) <= 0.02
    assert fitted.open_ends["ln R[repeat]"] == (False, True)
    assert fitted.constants()["R*[repeat]"].high == np.inf
    assert any("unbounded above" in line for line in fitted.warnings)


def test_muennighoff_at_the_published_constants(reference_data):
    from derivedata.scaling.solver import huber

    runs, law = muennighoff(reference_data), load_preset("muennighoff2023")
    residual = np.log(law.loss(runs.N, runs.D, runs.Dp, "repeat") / runs.loss)
    assert huber(residual, 1e-3).sum() == pytest.approx(0.0158259, abs=1e-7)


def test_muennighoff_constant_r_star_with_their_backbone(reference_data):
    law = load_preset("muennighoff2023")
    fitted = fit(muennighoff(reference_data), form="constant", backbone=law, delta=1e-3, overfit="keep", **QUICK)
    assert fitted.law.r_star(1e8, 1e9, "repeat") == pytest.approx(2.915, abs=0.01)
    assert (fitted.law.E, fitted.law.alpha) == pytest.approx((law.E, law.alpha))


def test_muennighoff_joint_fit_explains_the_runs(reference_data):
    runs = muennighoff(reference_data)
    for delta in (1e-3, 0.1):
        law = fit(runs, delta=delta, overfit="keep", **QUICK).law
        predicted = law.loss(runs.N, runs.D, runs.Dp, runs.strategy)
        left = ((predicted - runs.loss) ** 2).sum() / ((runs.loss - runs.loss.mean()) ** 2).sum()
        assert 1 - left >= 0.96


def test_qin_drop_of_fifteen_is_the_authors_choice(reference_data):
    runs, kept = qin(reference_data), qin(reference_data, kept=True)
    fitted = fit(runs, drop=15, bootstrap=0)
    assert {row for row, _ in fitted.left_out} == set(runs.row) - set(kept.row)
    undropped = fitted.sensitivity_row()[0]
    assert undropped["drop"] == 0
    assert undropped["objective"] <= 0.383828
    assert fitted.objective <= 0.188061
    assert fitted.rmse["all"] == (355, pytest.approx(0.03258, abs=5e-6))
    assert fitted.starts == (8, 8)


def test_qin_constants_agree_with_the_published_ones(reference_data):
    published = load_preset("qin2026-n370")
    law = fit(qin(reference_data, kept=True), **QUICK).law
    assert law.r_star(1e8, 2e9, "repeat") == pytest.approx(7.91, abs=0.1)
    assert law.r_star(1e8, 2e9, "paraphrase") == pytest.approx(6.00, abs=0.1)
    for N in (14e6, 30e6, 60e6, 100e6, 190e6, 370e6, 600e6):
        assert law.model_limit(N) == pytest.approx(published.model_limit(N), rel=0.005)
    for N, epochs in {30e6: 30, 190e6: 15, 600e6: 9.8, 3e9: 5.6, 7e9: 4.3}.items():
        assert 1 + law.x_at_share(0.9, N, 20 * N, "repeat") == pytest.approx(epochs, rel=0.02)
    N = np.geomspace(5e7, 1e8, 2001)
    gap = law.r_star(N, 20 * N, "repeat") / law.r_star(N, 20 * N, "paraphrase")
    assert 69e6 <= np.interp(1, gap, N) <= 70e6


def test_qin_sensitivity_row_shows_what_dropping_does_to_rho(reference_data):
    rows = fit(qin(reference_data), drop=15, bootstrap=0).sensitivity_row()
    assert [row["drop"] for row in rows] == [0, 5, 10, 15]
    rho = [row["rho[repeat]"] for row in rows]
    assert rho == sorted(rho)
    assert rho[0] < -0.8
    assert rho[-1] > -0.45


def test_qin_large_models_are_predicted_from_small_ones(reference_data):
    runs = qin(reference_data, kept=True)
    runs = runs.take(runs.N != 100e6)
    found = hold_out(runs, runs.N >= 190e6, bootstrap=50)
    assert found.fit.sizes == (14e6, 30e6, 60e6)
    assert found.rmse <= 0.06
    assert found.coverage >= 0.88


def test_the_staged_fit_freezes_the_one_epoch_law(reference_data):
    runs = qin(reference_data, kept=True)
    fitted = fit(runs, mode="staged", drop=2, **QUICK)
    staged = fitted.law
    gone = np.isin(runs.row, [row for row, _ in fitted.left_out])
    alone = fit(runs.take((runs.Dp == 0) & ~gone), **QUICK).law
    frozen, own = ([law.E, law.A, law.B, law.alpha, law.beta] for law in (staged, alone))
    assert frozen == pytest.approx(own, rel=1e-3)
    assert set(staged.strategies) == {"repeat", "paraphrase"}


def test_the_offset_form_needs_no_dropping(reference_data):
    runs = qin(reference_data)
    published, offset = (fit(runs, form=form, **QUICK) for form in ("published", "offset"))
    assert offset.objective < 0.5 * published.objective
    assert offset.law.D0 > 1e8
    assert offset.law.loss(1e8, 1.0) < 12
