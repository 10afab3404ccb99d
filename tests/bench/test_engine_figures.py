"""What the engine's benchmark computes from its samples."""

from tests.bench.engine import occupancy, possible_hits


def test_occupancy_counts_from_first_full_until_fewer_remain():
    ramp, full, gap, tail = (0, 3, 9), (10, 32, 20), (20, 30, 20), (90, 12, 0)
    assert occupancy([ramp, ramp, full, full, full, gap, tail], 32, 100) == (0.75, 0.0, 4)


def test_a_gap_is_the_clients_fault_only_when_nobody_waits():
    assert occupancy([(0, 32, 5), (9, 30, 1), (9, 30, 2), (9, 32, 0)], 32, 100) == (0.5, 0.25, 4)


def test_an_engine_that_was_never_full_has_no_occupancy():
    assert occupancy([(0, 5, 0)], 32, 100) == (None, None, 0)


def test_possible_hits_are_whole_blocks_of_what_came_before():
    first = list(range(10))
    assert possible_hits([first], 4) == 0
    assert possible_hits([first, first], 4) == 8
    assert possible_hits([first, [*first[:7], 99]], 4) == 4
    assert possible_hits([first, [99, *first[1:]]], 4) == 0


def test_the_last_token_of_a_prompt_is_always_computed():
    prompt = list(range(8))
    assert possible_hits([prompt, prompt], 4) == 4
