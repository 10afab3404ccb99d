"""The compute-data frontier."""

from __future__ import annotations

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.frontier import best_params, frontier, spend
from derivedata.scaling.presets import load_preset
from derivedata.scaling.views import loss_field

LAW = load_preset("qin2026-n370")
N370 = Ensemble(law=LAW)


def test_the_best_size_without_scarcity_is_the_closed_form_of_chinchilla():
    C = 1e20
    G = (LAW.alpha * LAW.A / (LAW.beta * LAW.B)) ** (1 / (LAW.alpha + LAW.beta))
    closed = G * (C / 6) ** (LAW.beta / (LAW.alpha + LAW.beta))
    assert best_params(LAW, C, 1e15, "repeat") == pytest.approx(closed, rel=1e-3)


@pytest.mark.parametrize("strategy", ["repeat", "paraphrase"])
def test_no_other_size_has_a_lower_loss(strategy):
    C, D, G = 1e20, 2e9, 1.7e9
    N = best_params(LAW, C, D, strategy, G)

    def loss(size: float) -> float:
        seen, derived = spend(np.array(size), C, D, strategy, G)
        return float(LAW.loss(size, seen, derived, strategy))

    assert all(loss(N) <= loss(N * factor) + 1e-9 for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0))


def test_every_point_spends_its_budget():
    for point in frontier(N370, flops=[1e19, 1e21], fresh_tokens=[1e9, 1e11], generator_params=1.7e9):
        generation = 0 if point.strategy == "repeat" else 2 * 1.7e9
        N = point.params.value
        spent = 6 * N * (point.fresh_seen + point.derived_tokens) + generation * point.derived_tokens
        assert spent == pytest.approx(point.flops, rel=1e-6)


def test_loss_falls_with_compute_and_with_data():
    points = {(p.flops, p.fresh_tokens): p.loss.value
              for p in frontier(N370, flops=[1e19, 1e20], fresh_tokens=[1e9, 4e9], strategies=["repeat"])}  # fmt: skip
    assert points[1e20, 1e9] < points[1e19, 1e9]
    assert points[1e20, 4e9] < points[1e20, 1e9]


def test_data_that_the_budget_cannot_use_is_not_on_the_frontier():
    points = frontier(N370, flops=[1e19], fresh_tokens=[1e9, 1e12])
    assert any(point.is_on_frontier for point in points if point.fresh_tokens == 1e9)
    assert not any(point.is_on_frontier for point in points if point.fresh_tokens == 1e12)
    assert all(point.x == 0 for point in points if point.fresh_tokens == 1e12)


def test_exactly_the_best_strategy_is_marked():
    points = frontier(N370, flops=[1e20], fresh_tokens=[1e9], generator_params=1.7e9)
    best = min(points, key=lambda point: point.loss.value)
    assert [point.is_best for point in points] == [point is best for point in points]


def test_the_plane_agrees_with_the_points_and_knows_where_data_stops_to_matter():
    field = loss_field(LAW, flops=(1e19, 1e21), fresh_tokens=(1e9, 1e12), strategies=["repeat"], steps=3)
    (point,) = frontier(N370, flops=[1e20], fresh_tokens=[float(field.loss.y[0])], strategies=["repeat"])
    assert field.loss.value[0, 1] == pytest.approx(point.loss.value)
    assert field.enough[1] == pytest.approx(1e20 / 6 / best_params(LAW, 1e20, 1e30, "repeat"))


def test_what_has_no_frontier_is_one_line():
    with pytest.raises(UserError, match="without derived tokens"):
        frontier(Ensemble(law=load_preset("epoch2024")), flops=[1e20], fresh_tokens=[1e9])
    with pytest.raises(UserError, match="too small"):
        frontier(N370, flops=[1e5], fresh_tokens=[1e9])
