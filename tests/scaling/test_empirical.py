"""The eta of single runs."""

from dataclasses import replace

import numpy as np
import pytest

from derivedata.scaling.empirical import BELOW_LIMIT, NO_DERIVED, eta_between, eta_empirical
from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.fit import fit
from derivedata.scaling.law import Saturation
from derivedata.scaling.presets import load_preset
from derivedata.scaling.runs import Runs
from tests.scaling.data import qin, synthetic

LAW = load_preset("qin2026-n370")


@pytest.mark.parametrize("law", [LAW, replace(LAW, D0=3e8)], ids=["published", "offset"])
def test_a_run_on_the_law_has_the_eta_of_the_law(law):
    runs = synthetic(law, noise=0.0)
    found = eta_empirical(runs, Ensemble(law=law))
    has = runs.Dp > 0
    assert found.eta[has] == pytest.approx(found.predicted[has], rel=1e-8)
    assert np.all(found.flag[~has] == NO_DERIVED)
    assert np.isnan(found.eta[~has]).all()


def test_the_error_is_the_scatter_that_noise_causes():
    runs = synthetic(LAW, noise=0.0, xs=(3,), sizes=(60e6,), tpps=(20,))
    error = eta_empirical(runs, Ensemble(law=LAW), noise=0.005).error[0]
    spread = [
        eta_empirical(replace(runs, loss=runs.loss * np.exp(z)), Ensemble(law=LAW)).eta[0]
        for z in np.random.default_rng(0).normal(0, 0.005, 2000)
    ]
    assert error == pytest.approx(np.std(spread), rel=0.1)


def test_draws_of_the_law_widen_the_error():
    runs = synthetic(LAW, seed=1)
    fitted = fit(runs, bootstrap=50, sensitivity=())
    alone = eta_empirical(runs, Ensemble(law=fitted.law), noise=0.01).error
    both = eta_empirical(runs, fitted.ensemble, noise=0.01).error
    has = runs.Dp > 0
    assert np.all(both[has] > alone[has])


def test_a_loss_below_the_model_limit_has_no_eta_and_a_reason():
    runs = synthetic(LAW, noise=0.0, xs=(3,))
    runs = replace(runs, loss=np.where(runs.row == 1, LAW.model_limit(runs.N) * 0.99, runs.loss))
    found = eta_empirical(runs, Ensemble(law=LAW))
    assert np.isnan(found.eta[0])
    assert np.isnan(found.error[0])
    assert found.flag[0] == BELOW_LIMIT


def test_eta_above_one_and_below_zero_is_flagged_not_clipped():
    runs = synthetic(LAW, noise=0.0, xs=(3,), sizes=(60e6,), tpps=(20, 40))
    runs = replace(runs, loss=runs.loss * np.array([0.9, 1.4]))
    found = eta_empirical(runs, Ensemble(law=LAW))
    assert found.eta[0] > 1
    assert found.eta[1] < 0
    assert list(found.flag) == [">1", "<0"]


def test_a_strategy_the_law_lacks_still_has_an_empirical_eta():
    runs = synthetic(LAW, noise=0.0, xs=(3,))
    runs = replace(runs, strategy=np.full(len(runs), "faq", object))
    found = eta_empirical(runs, Ensemble(law=LAW))
    assert np.isfinite(found.eta).all()
    assert np.isnan(found.predicted).all()


def test_the_370_runs_have_as_many_above_one_as_published(reference_data):
    runs = qin(reference_data)
    law = fit(runs, drop=15, bootstrap=0, sensitivity=()).law
    flag = eta_empirical(runs, Ensemble(law=law)).flag
    counts = {s: (int(runs.of(s).sum()), int((flag[runs.of(s)] == ">1").sum())) for s in runs.strategies}
    assert counts == {"repeat": (197, 45), "paraphrase": (117, 35)}


def ladder(law, seeds=(0, 1)):
    """One-epoch runs of one size at seven D, and repeats at the least D, for each seed."""
    D = 60e6 * np.array([2, 4, 8, 16, 32, 64, 128])
    x = np.array([1, 3, 7, 15, 4000])
    N, seed = 60e6, np.repeat([str(s) for s in seeds], len(D) + len(x))
    fresh = np.tile(np.concatenate([D, np.full(len(x), D[0])]), len(seeds))
    derived = np.tile(np.concatenate([np.zeros(len(D)), x * D[0]]), len(seeds))
    loss = law.loss(N, fresh, derived, "repeat")
    return Runs(N=np.full(len(fresh), N), D=fresh, Dp=derived, loss=loss, strategy="repeat", seed=seed)


def test_eta_between_measured_losses_needs_no_law():
    law = replace(LAW, strategies={"repeat": Saturation(lnK=np.log(20.0))})
    runs = ladder(law)
    found = eta_between(runs)
    near = (runs.Dp > 0) & (runs.x < 100)
    assert found.eta[near] == pytest.approx(law.eta(runs.N, runs.D, runs.Dp, "repeat")[near], rel=0.03)
    assert np.isnan(found.eta[runs.Dp == 0]).all()


def test_beyond_the_measured_losses_eta_is_known_from_below_alone():
    runs = ladder(replace(LAW, strategies={"repeat": Saturation(lnK=np.log(1000.0))}))
    found = eta_between(runs)
    beyond = runs.x > 100
    assert np.isnan(found.eta[beyond]).all()
    assert found.least[beyond] == pytest.approx((64 - 1) / 4000)
    assert np.isnan(found.least[~beyond]).all()


def test_a_seed_is_read_against_its_own_one_epoch_runs():
    runs = ladder(LAW)
    worse = replace(runs, loss=runs.loss * np.where(runs.seed == "1", 1.05, 1.0))
    both = eta_between(worse).eta.reshape(2, -1)
    # The seed that is 5% worse throughout has the same eta, not one that is far below.
    assert both[1][7:10] == pytest.approx(both[0][7:10], abs=0.02)


def test_one_epoch_losses_that_do_not_fall_measure_nothing():
    runs = ladder(LAW)
    assert np.isnan(eta_between(replace(runs, loss=np.where(runs.Dp == 0, 3.0, runs.loss))).eta).all()
