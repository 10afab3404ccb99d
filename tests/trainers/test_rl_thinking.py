"""Forced end of thinking: which completions are interrupted, and that an answer still fits."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from derivedata.errors import UserError
from derivedata.trainers.rl_thinking import ThinkingLimit, holds, thinking_limit
from tests.tiny_model import write_tiny_model

LIMIT = ThinkingLimit(limit=4, total=12, forced=(7, 8, 9), mark=(8, 9), ends=frozenset({0}))


@pytest.mark.parametrize(
    ("completion", "interrupted", "continued"),
    [
        ([1, 2, 3, 4], True, True),
        ([1, 8, 9, 4], False, True),  # thinking is over, the answer goes on
        ([1, 2, 3, 0], False, False),  # ended exactly at the limit
        ([1, 0], False, False),  # ended before it
        ([8, 1, 9, 4], True, True),  # half a mark is none
    ],
)
def test_only_unended_thought_at_the_limit_is_interrupted(completion, interrupted, continued):
    assert LIMIT.interrupted(completion) is interrupted
    assert LIMIT.continued(completion) is continued


def test_the_rest_fills_the_completion():
    assert LIMIT.limit + len(LIMIT.forced) + LIMIT.rest == LIMIT.total


def test_a_mark_is_found_anywhere():
    assert holds([1, 2, 3], (2, 3)) and holds([2], (2,))
    assert not holds([1, 2], (2, 1)) and not holds([], (1,))


def test_a_limit_without_room_for_an_answer_is_refused():
    with pytest.raises(UserError, match="no room for an answer"):
        ThinkingLimit(limit=9, total=12, forced=(7, 8, 9), mark=(8,), ends=frozenset({0}))


def test_the_sentence_is_in_the_tokens_of_the_model(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(write_tiny_model(tmp_path / "m"))
    made = thinking_limit(tokenizer, [2], limit=100, total=400)
    assert tokenizer.decode(list(made.forced)).endswith("final answer now. </think>")
    # The forced sentence ends thinking by the very mark that is looked for, whatever the tokenizer merges.
    assert not made.interrupted([5] * 100 + list(made.mark))
