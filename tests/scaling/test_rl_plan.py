"""The planner: record-breaking points, the frontier over n, n*(C), its flags, and whole studies on the toy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.scaling.rl.design import design
from derivedata.scaling.rl.frontier import PAPER, BestN, Frontier, envelope, fit_best_n, peak_of
from derivedata.scaling.rl.groups import group, record_breaking
from derivedata.scaling.rl.plan import plan
from derivedata.scaling.rl.points import Curve
from derivedata.scaling.rl.simulate import World, measured, train, true_optimum
from tests.scaling.rl_study import studies

NS = (4, 8, 16, 32, 64)


def rising(n: int, *, A: float, C_mid: float, to: float = 1e5, noise: float = 0.0, problems: int = 16, run: str = ""):
    """A run of n rollouts whose curve is known."""
    C = np.geomspace(to / 100, to, 30)
    reward = 0.1 + (A - 0.1) / (1 + (C_mid / C) ** 1.5) + np.random.default_rng(n).normal(0, noise, 30)
    return Curve(
        run=run or f"n{n}", C=np.append(0, C), reward=np.append(0.1, reward).clip(0, 1), n=n, problems=problems
    )


def family(noise: float = 0.0, ns=NS, **more) -> list[Curve]:
    """Larger n ends higher and comes later, as long as n <= 32; beyond that it only comes later."""
    return [rising(n, A=0.4 + 0.04 * min(np.log2(n), 5), C_mid=500 * n**0.9, noise=noise, **more) for n in ns]


def test_a_record_is_the_first_point_in_a_new_bucket():
    curve = Curve(run="a", C=np.array([0, 1, 2, 3, 4, 5.0]), reward=np.array([0.5, 0.3, 0.31, 0.42, 0.35, 0.5]))
    assert record_breaking(curve, bucket=0.1).tolist() == [1, 3, 5]


def test_the_frontier_is_the_best_n_at_every_compute():
    groups, notes = group(family(), draws=2)
    edge = envelope(groups)
    assert notes == ()
    at = [{g.n: float(g.at(C)) for g in groups} for C in edge.C]
    assert edge.n.tolist() == [max(one, key=one.get) for one in at]
    assert edge.n[0] == 4 and edge.n[-1] == 32
    assert edge.falls == ()


def test_an_n_is_as_good_as_its_best_number_of_problems():
    small, large = (rising(8, A=a, C_mid=2000, problems=b, run=f"b{b}") for a, b in ((0.7, 16), (0.5, 64)))
    other = rising(32, A=0.6, C_mid=2000)
    groups, _ = group([small, large, other], draws=2)
    assert [(one.n, len(one.members)) for one in groups] == [(8, 2), (32, 1)]
    assert float(groups[0].at(1e5)) == float(groups[0].members[0].at(1e5)) > 0.69
    assert groups[0].best_member(1e5).problems == 16
    advice = plan([small, large, other], budget=1e5, draws=20)
    assert (advice.n.value, advice.problems) == (8, 16)
    assert len(advice.cells) == 3


def test_a_curve_is_not_read_outside_its_own_points():
    short = rising(4, A=0.9, C_mid=500, to=1e4)
    groups, _ = group([short, *family(ns=(8, 16))], draws=2)
    assert np.isnan(groups[0].at(5e4))
    # Up to 1e4 the short run is best; beyond its end it is nobody's advice.
    assert envelope(groups).n[-1] == 16


def test_n_star_of_the_paper_at_a_million_rollouts():
    assert PAPER["easy problems, B_p 32"].n(1e6) == pytest.approx(118, rel=0.02)
    assert PAPER["easy problems, all free"].n(1e6) == pytest.approx(31, rel=0.03)
    # Past the largest n they tried nothing is said.
    assert PAPER["hard problems, B_p 32"].n(1e12) <= 512


def test_the_sigmoid_of_n_star_is_found_on_its_own_frontier():
    law = BestN(L=5, k=4, c0=4.5, b=2, low_n=4, high_n=128, rmse=0, bounds=())
    C = np.geomspace(1e3, 1e6, 120)
    edge = Frontier(C=C, reward=np.zeros(120), n=law.n(C), peak=law.n(C), falls=())
    found = fit_best_n(edge, [4, 8, 16, 32, 64, 128])
    assert (found.L, found.k, found.c0, found.b) == pytest.approx((5, 4, 4.5, 2), rel=0.02)
    assert found.bounds == ()
    # A jump is as steep as the bound allows: said, not believed.
    n = np.where(C < 3e4, 4, 64)
    assert "k" in fit_best_n(Frontier(C=C, reward=np.zeros(120), n=n, peak=n, falls=()), [4, 8, 64]).bounds
    # An n* that hardly moves has no curve.
    still = np.full(120, 16.0)
    assert fit_best_n(Frontier(C=C, reward=np.zeros(120), n=still, peak=still, falls=()), [8, 16, 32]) is None


def test_the_peak_lies_between_the_n_that_were_tried():
    ns = np.array([4, 8, 16, 32, 64])
    bowl = 0.5 - 0.01 * (np.log2(ns) - 4.4) ** 2
    assert peak_of(ns, bowl) == pytest.approx(2**4.4)
    # One lucky run moves it little; the best single n would be 8.
    lucky = bowl + np.array([0, 0.03, 0, 0, 0])
    assert 11 < peak_of(ns, lucky) < 24
    assert peak_of(ns[:2], np.array([0.1, 0.2])) == 8
    # A trough has no peak: the best stands. What was not reached is left out.
    assert peak_of(ns, np.array([0.5, 0.3, 0.2, 0.3, 0.6])) == 64
    assert peak_of(ns, np.array([0.5, 0.4, 0.2, np.nan, np.nan])) == 4


def test_the_plan_of_a_known_family():
    advice = plan(family(noise=0.005), budget=1e5, draws=50)
    assert advice.n.value == 32
    assert advice.n.low >= 16
    assert advice.problems == 16
    assert advice.iterations == pytest.approx(1e5 / 512)
    assert sum(advice.chance.values()) == pytest.approx(1)
    assert plan(family(noise=0.005), budget=3e3, draws=50).n.value < 32


def test_the_optimum_at_the_edge_is_flagged_and_not_extrapolated():
    advice = plan(family(ns=(4, 8, 16)), budget=1e7, draws=20)
    assert advice.n.value == 16
    assert any("edge of the grid: n = 16 is the largest tried" in flag for flag in advice.flags)
    assert any("budget beyond the runs" in flag for flag in advice.flags)


def test_an_n_star_that_falls_is_flagged():
    late = [rising(4, A=0.9, C_mid=50_000), rising(16, A=0.5, C_mid=1500), rising(64, A=0.49, C_mid=1500)]
    assert any("non-monotone: n* falls" in flag for flag in plan(late, budget=1e5, draws=5).flags)


def test_n_that_are_as_good_as_each_other_are_said_to_be():
    same = [rising(n, A=0.6, C_mid=5000, noise=0.01) for n in (8, 16, 32, 64)]
    advice = plan(same, budget=1e5, draws=100)
    assert len(advice.level) >= 3
    flat = plan([rising(n, A=0.6, C_mid=5000) for n in (8, 16, 32)], budget=1e5, draws=20)
    assert any("not told apart" in flag for flag in flat.flags)
    assert advice.n.low < advice.n.high


def test_runs_that_cannot_take_part_are_left_out_by_name():
    curves = [
        *family(),
        Curve(run="unknown", C=np.arange(1.0, 9), reward=np.linspace(0.1, 0.5, 8)),
        rising(1, A=0.5, C_mid=100, run="alone"),
        Curve(run="fallen", C=np.arange(1.0, 25) * 4000, reward=np.append(np.linspace(0.1, 0.8, 16), [0.3] * 8), n=64),
    ]
    advice = plan(curves, budget=1e5, draws=5, left_out={"n16": "entropy collapse"})
    assert set(advice.left_out) == {"unknown", "alone", "fallen", "n16"}
    assert "fell by 0.4" in advice.left_out["fallen"]
    assert advice.left_out["n16"] == "entropy collapse"
    assert 16 not in advice.chance


def test_at_a_fixed_batch_n_and_problems_share_it():
    curves = [rising(n, A=0.4 + 0.05 * np.log2(n), C_mid=1000 * n, problems=512 // n, run=f"B-{n}") for n in NS]
    advice = plan([*curves, *family()], budget=1e5, batch=512, draws=20)
    assert advice.runs == 6  # five at B = 512, and n = 32 with B_p = 16 of the family
    assert advice.problems == 512 // advice.n.value
    assert advice.iterations == pytest.approx(1e5 / 512)
    assert advice.left_out["n8"] == "batch of 128, not 512"


def test_what_no_plan_can_come_from_is_refused_in_one_line():
    with pytest.raises(UserError, match="two or more values of n"):
        plan(family(ns=(8,)), budget=1e5)
    with pytest.raises(UserError, match="no compute at which two n can be compared"):
        plan([rising(4, A=0.5, C_mid=10, to=1e2), rising(8, A=0.5, C_mid=10, to=1e6)], budget=1e5, draws=2)
    with pytest.raises(UserError, match="the budget fits no step"):
        plan(family(), budget=50, draws=2)


def test_the_toy_shows_why_n_star_rises_with_the_budget():
    """Few rollouts win early, many win late; and where training is short, problems fall to 0 all the same."""
    worlds = [World(seed=i) for i in range(6)]
    few, many = (train(worlds, n=n, problems_per_batch=16, budget=6e4) for n in (4, 64))
    early, late = 12_000, 60_000
    assert np.interp(early, few.C, few.reward.mean(0)) > np.interp(early, many.C, many.reward.mean(0))
    assert np.interp(late, few.C, few.reward.mean(0)) < np.interp(late, many.C, many.reward.mean(0))
    # Interference: while the mean rises, some problems get worse.
    assert few.reward[:, -1].mean() > few.reward[:, 0].mean() + 0.1
    assert (few.p[:, -1] < few.p[:, 0] - 0.02).any()


def test_a_small_set_is_learnt_by_heart():
    world = World(problems=32, memory=0.5, seed=1)
    trace = train([world], n=16, problems_per_batch=16, budget=3e4)
    gained = trace.trained[0].mean(-1) - trace.trained[0, 0].mean()
    assert gained[-1] > (trace.reward[0] - trace.reward[0, 0])[-1] + 0.1


def test_evaluations_of_the_toy_are_samples_of_its_chances():
    trace = train([World(seed=3)], n=8, problems_per_batch=16, budget=4000)
    seen = measured(trace, k=4)
    assert trace.C[0] == 0
    np.testing.assert_allclose(seen["avg"], trace.reward, atol=0.06)
    assert (seen["worst"] <= seen["avg"]).all() and (seen["avg"] <= seen["best"]).all()


def test_the_optimum_is_read_where_there_are_runs():
    rewards = {4: (np.array([0, 10, 100.0]), np.array([0, 0.2, 0.3])), 8: (np.array([0, 10.0]), np.array([0, 0.9]))}
    assert true_optimum(rewards, 100) == (4, {4: pytest.approx(0.3)})


def test_a_toy_without_a_group_or_a_step_is_refused():
    with pytest.raises(UserError, match="n = 1 has no group"):
        train([World()], n=1, problems_per_batch=8, budget=1e4)
    with pytest.raises(UserError, match="the budget fits no step"):
        train([World()], n=64, problems_per_batch=32, budget=100)


def test_studies_on_the_toy_find_the_optimum():
    """A few of the hundred studies of the bench: n within one power of two of the known optimum."""
    found = studies(8, budget=5e4, draws=30)
    assert sum(study.is_right for study in found) >= 7


def test_studies_whose_grid_does_not_hold_the_optimum_say_so():
    found = studies(6, budget=5e4, ns=(4, 8), known=(4, 8, 16, 32))
    for study in found:
        assert study.best >= 16
        assert any("edge of the grid: n = 8 is the largest tried" in flag for flag in study.plan.flags)


def test_a_design_is_a_line_of_n_and_a_line_at_a_fixed_batch():
    grid = design(1e6, problems=2000, problems_per_batch=16)
    ns = sorted({r.rollouts_per_problem for r in grid.runs if r.problems_per_batch == 16})
    assert len(ns) >= 4
    assert all(b == 2 * a for a, b in pairwise(ns))
    batches = [r.problems_per_batch * r.rollouts_per_problem for r in grid.runs]
    assert max(batches.count(b) for b in set(batches)) >= 4
    assert grid.rollouts <= 1e6
    assert all(run.iterations >= 40 for run in grid.runs)
    # Equal compute, up to the last step.
    assert min(run.rollouts for run in grid.runs) > 0.97 * grid.each


def test_a_design_that_shows_no_optimum_is_refused_with_what_would():
    with pytest.raises(UserError, match=r"1e\+03 rollouts do not pay for 4 values of n.*would, or lower"):
        design(1e3)
    with pytest.raises(UserError, match="needs 4 values of n"):
        design(1e6, least_n=8, most_n=16)
