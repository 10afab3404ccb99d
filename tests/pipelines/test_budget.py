"""The cut that meets a budget of tokens: in the order of the documents, whatever finished first."""

import random

from derivedata.pipelines.budget import Budget, ChunkTokens, cut


def test_the_cut_is_the_shortest_prefix_that_holds_the_tokens():
    outcomes = [(0, 10), (1, 0), (2, 5), (2, 5), (3, 10)]
    assert cut(outcomes, first=0, stop=4, missing=1) == 1
    assert cut(outcomes, first=0, stop=4, missing=10) == 1
    assert cut(outcomes, first=0, stop=4, missing=11) == 3
    assert cut(outcomes, first=0, stop=4, missing=30) == 4
    assert cut(outcomes, first=0, stop=4, missing=31) is None


def test_the_cut_does_not_depend_on_who_finished_first():
    draw = random.Random(0)
    outcomes = [(position, draw.randrange(20)) for position in range(50) for _ in range(3)]
    wanted = cut(outcomes, first=0, stop=50, missing=300)
    for _ in range(20):
        draw.shuffle(outcomes)
        assert cut(outcomes, first=0, stop=50, missing=300) == wanted


def test_positions_count_from_the_start_of_the_unit():
    assert cut([(7, 4), (8, 4)], first=7, stop=9, missing=5) == 9


def test_tokens_before_a_chunk_are_unknown_while_an_earlier_one_is_open():
    chunks = [ChunkTokens(documents=5, frontier=5, tokens=50), ChunkTokens(documents=5), ChunkTokens(documents=5)]
    budget = Budget(target=100, chunks=chunks, mean=10)
    assert budget.before(1) == 50
    assert budget.before(2) is None
    chunks[1].decided = 30
    assert budget.before(2) == 80


def test_a_budget_is_reached_by_committed_tokens_without_a_gap():
    chunks = [ChunkTokens(documents=5, frontier=3, tokens=30), ChunkTokens(documents=5, frontier=5, tokens=80)]
    assert not Budget(target=60, chunks=chunks, mean=10).reached()
    assert Budget(target=30, chunks=chunks, mean=10).reached()
    chunks[0].frontier = 5
    assert Budget(target=110, chunks=chunks, mean=10).reached()


def test_the_guess_learns_from_what_is_finished():
    budget = Budget(target=1000, chunks=[ChunkTokens(documents=10), ChunkTokens(documents=10)], mean=100)
    assert budget.expected_before(1, {}) == 1000
    budget.learn(98, 980)
    assert round(budget.rate) == 12
