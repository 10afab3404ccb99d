"""A new strategy's eta from a few runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.scaling.calibrate import calibrate
from derivedata.scaling.calibrated import calibration_from_dict, calibration_to_dict
from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.law import Law, Saturation
from derivedata.scaling.presets import load_preset, preset_ensemble
from derivedata.scaling.runs import Runs

PRIOR = preset_ensemble("qin2026-n370")
# A rewriter whose tokens last three times as long as the mean of the two published strategies.
TRUTH = replace(PRIOR.law, strategies={"mine": Saturation(lnK=20.9, rho=-0.9, sigma=-0.8)})
CELLS = ((60e6, 20, 3), (60e6, 20, 15), (60e6, 5, 31), (190e6, 20, 7), (190e6, 40, 15), (30e6, 40, 31), (30e6, 80, 63),
         (190e6, 10, 31))  # fmt: skip


def runs_of(law: Law, cells, *, noise: float = 0.0, seed: int = 0, one_epoch: bool = True) -> Runs:
    """Runs of strategy "mine" at (N, TPP, x), and a one-epoch run at each (N, D)."""
    N, tpp, x = np.array(cells, float).T
    D = N * tpp
    if one_epoch:
        pairs = np.unique(np.stack([N, D]), axis=1)
        N, D, x = np.append(N, pairs[0]), np.append(D, pairs[1]), np.append(x, np.zeros(pairs.shape[1]))
    scatter = np.random.default_rng(seed).normal(0, noise, len(N))
    return Runs(N=N, D=D, Dp=x * D, loss=law.loss(N, D, x * D, "mine") * np.exp(scatter), strategy="mine")


def ln_r(law: Law, N: float, D: float) -> float:
    return float(np.log(law.r_star(N, D, "mine")))


def test_eight_runs_move_the_answer_from_the_prior_to_the_truth():
    found = calibrate(PRIOR, runs_of(TRUTH, CELLS), params=190e6, fresh_tokens=3.8e9)
    truth = ln_r(TRUTH, 190e6, 3.8e9)
    assert abs(np.log(found.r_star.value) - truth) < 0.3
    assert abs(np.log(found.r_star.value) - truth) < 0.5 * abs(np.log(found.r_star_prior.value) - truth)
    assert found.sd < 0.55 * found.sd_prior
    assert found.data_share > 0.7


def test_intervals_cover_the_truth_under_the_noise_they_assume():
    truth, inside = ln_r(TRUTH, 190e6, 3.8e9), []
    for seed in range(20):
        found = calibrate(
            PRIOR, runs_of(TRUTH, CELLS[:5], noise=0.025, seed=seed), params=190e6, fresh_tokens=3.8e9, seed=seed
        )
        inside.append(np.log(found.r_star.low) <= truth <= np.log(found.r_star.high))
    assert np.mean(inside) >= 0.85


def test_runs_without_saturation_leave_the_upper_end_to_the_prior():
    found = calibrate(PRIOR, runs_of(TRUTH, [(60e6, 2, 1), (60e6, 5, 1), (30e6, 5, 1)]))
    assert found.data_share < 0.6
    assert found.r_star.high > 5 * found.r_star.value


def test_more_runs_say_more():
    few = calibrate(PRIOR, runs_of(TRUTH, CELLS[:3]), params=190e6, fresh_tokens=3.8e9)
    many = calibrate(PRIOR, runs_of(TRUTH, CELLS), params=190e6, fresh_tokens=3.8e9)
    assert many.sd < few.sd
    assert many.data_share > few.data_share


def test_the_next_run_narrows_as_much_as_it_says():
    start = runs_of(TRUTH, CELLS[:2])
    before = calibrate(PRIOR, start, params=60e6, fresh_tokens=1.2e9)
    best = before.next_best
    assert best.sd_after < before.sd
    extra = (best.params, best.fresh_tokens / best.params, best.x)
    after = calibrate(PRIOR, runs_of(TRUTH, [*CELLS[:2], extra]), params=60e6, fresh_tokens=1.2e9)
    assert after.sd < before.sd
    assert after.sd == pytest.approx(best.sd_after, rel=0.6)
    assert before.next_cheapest.flops <= best.flops


def test_the_spread_it_states_is_that_of_its_draws_at_the_target():
    found = calibrate(PRIOR, runs_of(TRUTH, CELLS), params=30e6, fresh_tokens=2.4e9, draws=2000)
    spread = np.std([ln_r(law, 30e6, 2.4e9) for law in found.ensemble.draws])
    assert found.sd == pytest.approx(spread, rel=0.1)


def test_the_same_seed_gives_the_same_answer():
    runs = runs_of(TRUTH, CELLS[:4])
    assert calibrate(PRIOR, runs, seed=3).r_star == calibrate(PRIOR, runs, seed=3).r_star


def test_runs_of_another_loss_scale_are_called_out():
    runs = runs_of(TRUTH, CELLS)
    found = calibrate(PRIOR, replace(runs, loss=runs.loss * 1.35))
    assert any("does not describe them" in warning for warning in found.warnings)
    assert not any("does not describe them" in warning for warning in calibrate(PRIOR, runs).warnings)


def test_runs_that_follow_another_law_widen_the_answer_instead_of_pretending_to_know():
    # Losses of another tokenizer, all smaller by the same share: eta and R* are as they were. The posterior used to
    # stand on a draw or two, and to close around a wrong R*.
    cells = [(N, tpp, x) for N in (30e6, 60e6, 190e6) for tpp in (5, 20, 40) for x in (1, 3, 7, 15)]
    runs = runs_of(TRUTH, cells, noise=0.01)
    found = calibrate(PRIOR, replace(runs, loss=0.6 * runs.loss), params=60e6, fresh_tokens=1.2e9)
    assert found.misfit > 2
    assert found.effective_draws >= 100
    assert any("the noise: it was raised" in warning for warning in found.warnings)
    assert found.r_star.low <= float(TRUTH.r_star(60e6, 1.2e9, "mine")) <= found.r_star.high
    assert calibrate(PRIOR, runs_of(TRUTH, CELLS, noise=0.025)).misfit == 1


def test_tokens_that_hurt_are_called_out():
    cells = [(60e6, 20, x) for x in (1, 3, 7, 15)]
    runs = runs_of(TRUTH, cells)
    hurt = replace(runs, loss=np.where(runs.Dp > 0, 1.03 * runs.loss[runs.Dp == 0].max(), runs.loss))
    assert any("the loss of 4 runs rose again" in warning for warning in calibrate(PRIOR, hurt).warnings)
    assert not any("rose again" in warning for warning in calibrate(PRIOR, runs).warnings)


def test_missing_one_epoch_runs_and_thin_data_are_called_out():
    found = calibrate(PRIOR, runs_of(TRUTH, CELLS[:2], one_epoch=False))
    assert any("no one-epoch run" in warning for warning in found.warnings)
    assert any("mostly the prior" in warning for warning in found.warnings)


def test_a_calibration_survives_json_and_serves_as_a_law():
    import json

    found = calibrate(PRIOR, runs_of(TRUTH, CELLS))
    again = calibration_from_dict(json.loads(json.dumps(calibration_to_dict(found, runs={"given": 16}))))
    assert set(again.law.strategies) == {"repeat", "paraphrase", "mine"}
    for name in ("repeat", "paraphrase", "mine"):
        before, after = (e.estimate(lambda law, s=name: law.r_star(6e7, 6e8, s)) for e in (found.ensemble, again))
        assert (after.low, after.value, after.high) == pytest.approx((before.low, before.value, before.high), rel=1e-3)
        assert after.low < after.value < after.high
    assert ln_r(again.law, 190e6, 3.8e9) == pytest.approx(ln_r(found.ensemble.law, 190e6, 3.8e9))
    kept = found.ensemble.estimate(lambda law: law.loss(190e6, 3.8e9, 3.8e10, "mine"))
    assert again.estimate(lambda law: law.loss(190e6, 3.8e9, 3.8e10, "mine")).high == pytest.approx(kept.high, rel=1e-4)
    with pytest.raises(UserError, match="not a calibration"):
        calibration_from_dict({"kind": "else"})


def test_many_runs_are_not_decided_by_a_draw_or_two_of_the_backbone():
    cells = [(N, tpp, x) for N in (30e6, 60e6, 190e6, 370e6) for tpp in (5, 10, 20, 40) for x in (1, 3, 7, 15)]
    truth = replace(TRUTH, E=1.0, B=1.25 * TRUTH.B)
    found = calibrate(PRIOR, runs_of(truth, cells, noise=0.02), params=100e6, fresh_tokens=2e9)
    assert found.effective_draws >= 100
    assert any("enough for a fit of their own" in warning for warning in found.warnings)
    assert any("no draw of the backbone fits" in warning for warning in found.warnings)
    assert abs(np.log(found.r_star.value) - ln_r(truth, 100e6, 2e9)) < 4 * found.sd


def test_what_cannot_be_calibrated_is_one_line():
    runs = runs_of(TRUTH, CELLS)
    with pytest.raises(UserError, match="no covariance"):
        calibrate(Ensemble(law=load_preset("qin2026-n356")), runs)
    with pytest.raises(UserError, match="no run has derived tokens"):
        calibrate(PRIOR, runs.take(runs.Dp == 0))
    two = replace(runs, strategy=np.where(np.arange(len(runs)) % 2 == 0, "a", "b"))
    with pytest.raises(UserError, match="several strategies"):
        calibrate(PRIOR, two)
    with pytest.raises(UserError, match="would count twice"):
        calibrate(calibrate(PRIOR, runs).ensemble, runs)
    with pytest.raises(UserError, match="this strategy"):
        calibrate(PRIOR, runs, strategy="other")


@pytest.mark.parametrize(("strategy", "gain", "coverage"), [("paraphrase", 0.9, 0.9), ("repeat", 0.9, 0.75)])
def test_a_left_out_published_strategy_is_recovered_from_eight_of_its_runs(reference_data, strategy, gain, coverage):
    from tests.bench.eta_calibration import kept_runs, left_out, score

    found = score(left_out(kept_runs(), strategy), 8, 4)
    assert found.error < gain * found.error_none, "ln R* over the cells, against taking the other strategy's"
    assert found.loss < found.loss_none, "loss of the runs that were not given back"
    assert found.coverage >= coverage
