"""Learning rates over a run."""

import pytest

from derivedata.errors import UserError
from derivedata.trainers.schedule import Schedule, default_batch_tokens, default_rate


def wsd(steps, **more):
    return Schedule(kind="wsd", peak=1.0, steps=steps, warmup=4, decay=0.2, **more)


def test_wsd_rises_holds_and_falls():
    rates = [wsd(20).rate(step) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert set(rates[4:16]) == {1.0}
    assert rates[16:] == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_runs_of_any_length_share_the_steps_before_the_shorter_ones_fork():
    short, long = wsd(20), wsd(200)
    assert short.fork == 16
    assert [short.rate(step) for step in range(16)] == [long.rate(step) for step in range(16)]
    assert short.rate(16) < long.rate(16)


def test_cosine_ends_near_its_floor():
    schedule = Schedule(kind="cosine", peak=2.0, steps=100, warmup=10, floor=0.1)
    assert schedule.rate(9) == 2.0
    assert schedule.rate(55) == pytest.approx(1.1)
    assert schedule.rate(99) == pytest.approx(0.2, abs=0.01)


def test_a_run_shorter_than_its_warm_up_still_falls():
    schedule = Schedule(kind="wsd", peak=1.0, steps=3, warmup=10, decay=1.0)
    assert max(schedule.rate(step) for step in range(3)) < 0.31


def test_defaults_follow_the_size():
    assert default_rate(108e6) == pytest.approx(0.0047)
    assert default_rate(44e3) == 0.01
    assert default_batch_tokens(108e6) == 160 * 2048


def test_an_unknown_kind_names_those_there_are():
    with pytest.raises(UserError, match="There are wsd, cosine"):
        Schedule(kind="linear", peak=1e-3, steps=10, warmup=0)
