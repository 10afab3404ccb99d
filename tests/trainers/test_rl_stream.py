"""Which problems a run draws: in an order of the seed's, without the retired, and the same after a restart."""

from __future__ import annotations

import json

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.trainers.rl_stream import ProblemStream

UIDS = [f"p{i}" for i in range(10)]


def stream(**given) -> ProblemStream:
    return ProblemStream(UIDS, **({"batch": 3, "seed": 5} | given))


def test_an_epoch_holds_each_problem_once_and_the_next_is_another_order():
    made = stream(batch=5)
    epochs = [[*made.draw(), *made.draw()] for _ in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_rest_of_an_epoch_is_left_out():
    made = stream()
    drawn = [made.draw() for _ in range(6)]
    assert all(len(set(batch)) == 3 for batch in drawn)
    assert len({row for batch in drawn[:3] for row in batch}) == 9
    assert made.epoch == 1


def test_the_order_depends_on_the_seed_alone():
    assert stream().draw() == stream().draw() != stream(seed=6).draw()


def reference_retired(history: list[tuple[int, int, int]], at: float) -> np.ndarray:
    right, tried = np.zeros(10), np.zeros(10)
    for row, k, n in history:
        right[row] += k
        tried[row] += n
    return np.array([n > 0 and k / n >= at for k, n in zip(right, tried, strict=True)])


def test_prompts_at_nine_in_ten_are_retired():
    made = stream(retire_at=0.9)
    history = [(0, 9, 10), (1, 8, 10), (2, 16, 16), (3, 0, 16), (4, 4, 8), (4, 8, 8), (5, 18, 20), (6, 0, 0)]
    for row, k, n in history:
        made.record(row, k, n)
    assert made.retired().tolist() == reference_retired(history, 0.9).tolist()
    assert made.retired_count == 3
    drawn = {row for _ in range(20) for row in made.draw()}
    assert drawn == set(range(10)) - {0, 2, 5}


def test_a_prompt_comes_back_into_no_epoch_but_others_fill_the_batch():
    made = stream(retire_at=0.9)
    for row in range(7):
        made.record(row, 8, 8)
    assert sorted(made.draw()) == [7, 8, 9]
    assert not made.exhausted
    made.record(7, 8, 8)
    assert made.exhausted
    with pytest.raises(UserError, match="2 problems are left below the pass rate"):
        made.draw()


def test_without_a_threshold_nothing_is_retired():
    made = stream()
    made.record(0, 8, 8)
    assert made.retired_count == 0


def test_a_restored_stream_draws_what_the_first_would_have_drawn():
    first, again = stream(retire_at=0.9), stream(retire_at=0.9)
    for turn in range(7):
        for row in first.draw():
            first.record(row, 8 if row % 4 == 0 else turn % 8, 8)
    again.restore(json.loads(json.dumps(first.state())))
    assert [again.draw() for _ in range(9)] == [first.draw() for _ in range(9)]
    assert again.retired_count == first.retired_count > 0


def test_a_state_of_other_problems_is_refused():
    with pytest.raises(UserError, match="other problems"):
        stream().restore({"epoch": 0, "position": 0, "history": {"elsewhere": [1, 2]}})


@pytest.mark.parametrize(("uids", "batch", "told"), [(UIDS, 11, "11 of 10"), (["a", "b", "a"], 2, "same uid")])
def test_what_can_not_be_drawn_from(uids, batch, told):
    with pytest.raises(UserError, match=told):
        ProblemStream(uids, batch=batch, seed=0)
