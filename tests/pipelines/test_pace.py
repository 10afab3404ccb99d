"""How fast tokens come, with a clock and a counter of the test's own."""

from __future__ import annotations

import pytest

from derivedata.cli.progress import Progress, State
from derivedata.pipelines.pace import OVER_S, Pace, in_words


class Machine:
    """A server that generates `rate` tokens a second from the tenth second on."""

    def __init__(self, rate: float):
        self.rate, self.now, self.away = rate, 0.0, False

    def count(self) -> int | None:
        return None if self.away else int(self.rate * max(0.0, self.now - 10))


@pytest.fixture
def machine():
    return Machine(100.0)


@pytest.fixture
def pace(machine):
    pace = Pace(clock=lambda: machine.now)
    pace.hear(machine.count)
    return pace


def watch(pace, machine, seconds):
    seen = {}
    for _ in range(seconds):
        machine.now += 1
        rate = pace.tokens_per_second(seen)
    return rate


def test_the_rate_of_our_own_server_is_right_before_any_request_is_finished(pace, machine):
    assert watch(pace, machine, 9) is None
    assert watch(pace, machine, 6) == pytest.approx(100)


def test_the_rate_is_that_of_the_last_half_minute(pace, machine):
    watch(pace, machine, 60)
    machine.rate = 50  # the counter falls back, as after a restart
    machine.now += 10
    assert watch(pace, machine, 2 * int(OVER_S)) == pytest.approx(50)


def test_a_server_that_does_not_say_now_keeps_its_last_rate(pace, machine):
    watch(pace, machine, 20)
    machine.away = True
    assert watch(pace, machine, 5) == pytest.approx(100)


def test_elsewhere_finished_requests_are_counted():
    seen = {"generated": 600, "started": 100.0, "written": 160.0}
    assert Pace().tokens_per_second(seen) == pytest.approx(10)


def test_the_time_that_is_left_follows_from_the_speed_where_it_is_known():
    states = iter([State(0, 100), State(10, 100, "", 2.0), State(10, 100)])
    progress = Progress("work", lambda: next(states))
    progress._line()
    assert "45 s left" in progress._line()
    progress._began -= 60
    assert "9:00 left" in progress._line()


def test_an_unknown_rate_is_not_shown_as_nought():
    assert in_words(None) == ""
    assert in_words(1234.5) == ", 1,234 new tokens/s"
