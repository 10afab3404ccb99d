"""Which parameters, fresh tokens, epochs or rewrites reach a loss."""

from __future__ import annotations

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.presets import load_preset
from derivedata.scaling.targets import solve_for

LAW = load_preset("qin2026-n370")
N370 = Ensemble(law=LAW)


@pytest.mark.parametrize(
    ("unknown", "given"),
    [
        ("params", {"fresh_tokens": 3.8e9, "x": 3.0}),
        ("fresh-tokens", {"params": 190e6, "x": 3.0}),
        ("epochs", {"params": 190e6, "fresh_tokens": 3.8e9}),
        ("rewrites", {"params": 190e6, "fresh_tokens": 3.8e9, "strategy": "paraphrase", "per_rewrite": 0.32}),
    ],
)
def test_the_solution_has_the_loss_asked_for(unknown, given):
    found = solve_for(unknown, N370, loss=3.1, **given)
    reached = LAW.loss(found.params, found.fresh_tokens, found.x * found.fresh_tokens, given.get("strategy", "repeat"))
    assert float(reached) == pytest.approx(3.1, abs=1e-6)
    scale = {
        "params": found.params,
        "fresh-tokens": found.fresh_tokens,
        "epochs": 1 + found.x,
        "rewrites": found.x / 0.32,
    }
    assert found.answer.value == pytest.approx(scale[unknown])


def test_epochs_follow_the_closed_form():
    found = solve_for("epochs", N370, loss=3.0, params=190e6, fresh_tokens=3.8e9)
    R = float(LAW.r_star(190e6, 3.8e9, "repeat"))
    needed = (LAW.B / (3.0 - float(LAW.model_limit(190e6)))) ** (1 / LAW.beta) / 3.8e9
    assert found.x == pytest.approx(-R * np.log(1 - (needed - 1) / R), rel=1e-6)


def test_a_loss_below_the_data_limit_is_not_reached_and_the_limit_is_named():
    found = solve_for("epochs", N370, loss=2.5, params=190e6, fresh_tokens=3.8e9)
    assert not found.is_reached
    assert found.limit == pytest.approx(float(LAW.data_limit(190e6, 3.8e9, "repeat")))


def test_one_epoch_is_the_answer_when_it_is_enough():
    assert solve_for("epochs", N370, loss=5.0, params=190e6, fresh_tokens=3.8e9).answer.value == 1.0


@pytest.mark.parametrize(
    ("unknown", "given", "message"),
    [
        ("tokens", {"params": 1e8}, "no such unknown"),
        ("epochs", {"params": 1e8}, "--fresh-tokens"),
        ("fresh-tokens", {}, "--params"),
        ("rewrites", {"params": 1e8, "fresh_tokens": 1e9}, "repeated tokens are epochs"),
        ("rewrites", {"params": 1e8, "fresh_tokens": 1e9, "strategy": "paraphrase"}, "tokens-per-rewrite"),
        ("epochs", {"params": 1e8, "fresh_tokens": 1e9, "strategy": "paraphrase"}, "epochs belong to"),
    ],
)
def test_what_is_missing_is_named(unknown, given, message):
    with pytest.raises(UserError, match=message):
        solve_for(unknown, N370, loss=3.0, **given)
