"""C = B_p * n * M: three numbers give the fourth, and what doesn't fit names the nearest that does."""

from __future__ import annotations

import pytest

from derivedata.errors import UserError
from derivedata.trainers.rl_budget import resolve_budget
from derivedata.trainers.rl_recipes import RECIPES, Recipe, learning_rate


@pytest.mark.parametrize("missing", ["problems", "rollouts", "iterations", "budget"])
def test_any_three_give_the_fourth(missing):
    whole = {"problems": 48, "rollouts": 16, "iterations": 100, "budget": 76_800}
    found = resolve_budget(**{name: value for name, value in whole.items() if name != missing})
    assert (found.problems, found.rollouts, found.iterations, found.total) == (48, 16, 100, 76_800)


def line(**given) -> str:
    with pytest.raises(UserError) as error:
        resolve_budget(**given)
    return error.value.line


def test_a_budget_that_fits_no_iterations_names_the_nearest():
    told = line(problems=7, rollouts=16, budget=1000)
    assert "--budget 896 (--iterations 8) or --budget 1008 (--iterations 9)" in told


def test_a_budget_below_the_least_names_the_least():
    assert "the nearest: --budget 112 (--iterations 1)" in line(problems=7, rollouts=16, budget=50).lower()


def test_the_missing_rollouts_are_at_least_two():
    assert "--budget 200 (--rollouts 2)" in line(problems=10, iterations=10, budget=100)


def test_all_four_must_agree():
    assert "7 problems x 16 rollouts x 9 iterations are 1,008 rollouts" in line(
        problems=7, rollouts=16, iterations=9, budget=1000
    )


def test_too_few_numbers():
    assert "any two of them and --budget" in line(problems=7, budget=1000)


def test_one_rollout_is_refused():
    assert "no baseline" in line(problems=7, rollouts=1, iterations=3)


def test_iterations_fill_whole_rounds_of_generation():
    assert "--iterations 99 or 108" in line(problems=48, rollouts=16, iterations=100, step=9)
    told = line(problems=48, rollouts=16, budget=76_800, step=9)
    assert "--budget 76032 (--iterations 99) or --budget 82944 (--iterations 108)" in told
    assert resolve_budget(problems=48, rollouts=16, budget=76_032, step=9).iterations == 99


def test_the_rate_follows_the_square_root_law():
    assert learning_rate(1024, 1e-6) == pytest.approx(1e-6)
    assert learning_rate(256, 1e-6) == pytest.approx(5e-7)
    # ScaleRL's own rate at its own batch.
    assert RECIPES["scalerl"].learning_rate(48 * 16) == pytest.approx(5e-7)


def test_kl_and_entropy_go_together():
    with pytest.raises(UserError, match="together or not at all"):
        Recipe(name="mine", loss="grpo", kl=1e-3)
    assert RECIPES["easy"].kl > 0 < RECIPES["easy"].entropy
    assert all(RECIPES[name].kl == RECIPES[name].entropy == 0 for name in ("hard", "mixed", "scalerl"))
