"""Whether validation loss says all across strategies: the regression, its intervals, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.scaling.presets import load_preset
from derivedata.scaling.runs import Runs
from derivedata.scaling.sufficiency import sufficiency
from tests.scaling.data import synthetic

LAW = load_preset("qin2026-n370")
SIZES, TPPS = (14e6, 60e6), (5, 20, 80, 160)


def two_strategies(seed: int = 0) -> Runs:
    """One-epoch runs and x of 1, 3, 7 of two strategies in eight (N, D) cells: 56 runs."""
    parts = [
        synthetic(LAW, name, seed=seed + i, sizes=SIZES, tpps=TPPS, xs=xs)
        for i, (name, xs) in enumerate((("repeat", (0, 1, 3, 7)), ("paraphrase", (1, 3, 7))))
    ]
    return Runs(**{f: np.concatenate([getattr(p, f) for p in parts]) for f in ("N", "D", "Dp", "loss", "strategy")})


def metric_of(runs: Runs, *, offset: float, seed: int, cell: float = 0.004, run: float = 0.004):
    """Bits per byte that bend with the loss; paraphrases off by `offset`; errors by run and shared by (N, D) cell."""
    rng = np.random.default_rng(seed)
    value = 0.3 + 0.4 * runs.loss + 0.03 * runs.loss**2 + offset * runs.of("paraphrase")
    # A cell errs by a level, and by another one for its paraphrases.
    cells = runs.cluster.max() + 1
    shared = rng.normal(0, cell, cells)[runs.cluster]
    own = rng.normal(0, cell, cells)[runs.cluster] * runs.of("paraphrase")
    return value + shared + own + rng.normal(0, run, len(runs))


def by_name(found):
    return {effect.strategy: effect for effect in found.effects}


def test_an_offset_of_a_strategy_is_found_in_the_unit_of_the_metric_and_in_nats():
    runs = two_strategies()
    found = sufficiency(runs, metric_of(runs, offset=0.05, seed=1, cell=0, run=0))
    effects = by_name(found)
    assert effects["paraphrase"].offset.value == pytest.approx(0.05, abs=1e-6)
    assert effects["paraphrase"].in_loss.value == pytest.approx(0.05 / found.slope)
    assert found.slope == pytest.approx(0.4 + 0.06 * runs.loss.mean(), rel=1e-3)
    assert effects["paraphrase"].differs and not effects["repeat"].offset.value > 1e-6
    assert found.size.value == pytest.approx(0, abs=1e-6)


def test_intervals_cover_the_truth_though_cells_share_their_errors():
    inside, p = [], []
    for seed in range(300):
        runs = two_strategies(1000 * seed)
        found = sufficiency(runs, metric_of(runs, offset=0.02, seed=seed))
        effect = by_name(found)["paraphrase"].offset
        inside.append(effect.low <= 0.02 <= effect.high)
        p.append(sufficiency(runs, metric_of(runs, offset=0.0, seed=seed)).p)
    assert 0.92 <= np.mean(inside) <= 0.99
    assert np.mean(np.array(p) < 0.05) <= 0.08


def test_a_strategy_of_another_slope_does_not_bend_the_curve_of_the_others():
    runs = two_strategies()
    own = runs.of("paraphrase")
    metric = metric_of(runs, offset=0.0, seed=1, cell=0, run=0)
    metric = metric + np.where(own, -0.2 + 0.3 * (runs.loss - runs.loss[own].mean()), 0.0)
    effects = by_name(sufficiency(runs, metric))
    assert effects["paraphrase"].offset.value == pytest.approx(-0.2, abs=1e-6)
    assert effects["paraphrase"].change.value == pytest.approx(0.3, abs=1e-6)
    assert effects["repeat"].offset.value == pytest.approx(0, abs=1e-6)


def test_nothing_seen_is_told_with_how_far_it_may_still_be_wrong():
    runs = two_strategies()
    effect = by_name(sufficiency(runs, metric_of(runs, offset=0.0, seed=3)))["paraphrase"]
    assert not effect.differs
    assert effect.within == max(abs(effect.offset.low), abs(effect.offset.high)) > 0


def test_a_size_that_does_better_at_equal_loss_is_not_taken_for_a_strategy():
    runs = two_strategies()
    found = sufficiency(runs, metric_of(runs, offset=0.0, seed=2, cell=0.0005) - 0.01 * np.log(runs.N))
    assert found.size.value == pytest.approx(-0.01, abs=0.003)
    assert abs(by_name(found)["paraphrase"].offset.value) < 0.01


def test_a_strategy_that_cannot_be_judged_is_unknown_with_the_reason_and_does_not_bend_the_rest():
    runs = two_strategies()
    rare = np.flatnonzero(runs.of("paraphrase"))[:2]
    metric = metric_of(runs, offset=0.0, seed=4)
    odd = replace(runs, strategy=np.where(np.isin(np.arange(len(runs)), rare), "odd", runs.strategy))
    spoiled = np.where(np.isin(np.arange(len(runs)), rare), 99.0, metric)
    found = sufficiency(odd, spoiled)
    assert by_name(found)["odd"].why == "2 runs, 3 are needed"
    assert np.isnan(by_name(found)["odd"].offset.value)
    assert abs(by_name(found)["repeat"].offset.value) < 0.02
    assert any(line.startswith("odd: 2 runs") for line in found.warnings)


def test_a_baseline_that_ends_short_of_the_runs_is_told():
    runs = two_strategies()
    low = (runs.Dp == 0) & (runs.loss < np.quantile(runs.loss, 0.6))
    found = sufficiency(runs.take(~low), metric_of(runs, offset=0.0, seed=5)[~low])
    assert any("baseline is extrapolated" in line for line in found.warnings)


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (lambda r: r.Dp == 0, "no run has derived tokens"),
        (lambda r: r.Dp > 0, "no baseline"),
        (lambda r: (r.Dp == 0) | ((r.N == 14e6) & (r.tpp == 5)), "no strategy has enough runs"),
    ],
)
def test_what_cannot_be_tested_is_refused(keep, words):
    runs = two_strategies()
    mask = keep(runs)
    with pytest.raises(UserError, match=words):
        sufficiency(runs.take(mask), metric_of(runs, offset=0.0, seed=0)[mask])


def test_a_run_without_the_metric_takes_no_part():
    runs = two_strategies()
    metric = metric_of(runs, offset=0.0, seed=6)
    metric[:3] = np.nan
    assert sufficiency(runs, metric).runs == len(runs) - 3
