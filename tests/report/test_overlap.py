"""What two texts say in the same words is found in both, whatever the case and the script."""

from __future__ import annotations

import random

import pytest

from derivedata.report.overlap import overlap


def marked(spans) -> list[str]:
    return [text for text, is_marked in spans if is_marked]


def test_runs_that_both_have_are_marked_in_both():
    both = overlap("The low gear is easy to push, but slow.", "Riders say a LOW GEAR is easy to push up a hill.")
    assert marked(both.first) == ["low gear is easy to push"]
    assert marked(both.second) == ["LOW GEAR is easy to push"]
    assert both.share == pytest.approx(6 / 12)


def test_fewer_than_four_words_are_chance():
    assert overlap("one two three apart", "one two three together").share == 0


def test_scripts_without_spaces_count_by_the_character():
    assert marked(overlap("今日は天気がいいです。", "明日も天気がいいですか").first) == ["天気がいいです"]


def test_nothing_is_lost_or_added():
    draw = random.Random(0)
    for _ in range(200):
        first, second = (" ".join(draw.choices("a b, c. d\n e'f", k=draw.randrange(30))) for _ in range(2))
        both = overlap(first, second)
        assert "".join(text for text, _ in both.first) == first
        assert "".join(text for text, _ in both.second) == second


def test_a_copy_is_all_marked_and_empty_texts_are_fine():
    assert overlap("a b c d e", "a b c d e").share == 1
    assert overlap("", "a b c d").share == overlap("a b c d", "").share == 0
