"""The verifier as a reward function of TRL."""

from __future__ import annotations

import math

import pytest

from derivedata.errors import UserError
from derivedata.trainers.rewards import check_rewards, completion_text, math_reward, verified_reward

ANSWERS = ["4", "1/2", "7"]
TEXTS = ["It is \\boxed{4}.", "so 0.5", "8"]


def test_a_plain_function_with_trls_signature():
    rewards = math_reward(prompts=["?"] * 3, completions=TEXTS, completion_ids=[[1]] * 3, answer=ANSWERS, uid=["a"] * 3)
    assert rewards == [1.0, 1.0, 0.0]


def test_conversations_are_read_like_texts():
    conversations = [[{"role": "assistant", "content": text}] for text in TEXTS]
    assert math_reward(prompts=[[]] * 3, completions=conversations, answer=ANSWERS) == [1.0, 1.0, 0.0]
    assert completion_text([{"role": "assistant", "content": [{"type": "text", "text": "8"}]}]) == "8"
    assert completion_text([]) == ""


def test_plus_and_minus_one_with_strict_answers():
    reward = verified_reward(answers="strict", wrong=-1.0)
    assert reward(["?"] * 3, TEXTS, answer=ANSWERS) == [1.0, -1.0, -1.0]


def test_without_answers_there_is_one_line():
    with pytest.raises(UserError, match="no column `answer`"):
        math_reward(["?"], ["4"])
    with pytest.raises(UserError, match="no gold answer"):
        math_reward(["?"], ["4"], answer=[""])


@pytest.mark.parametrize("bad", [1.5, -0.1, math.inf])
def test_rewards_outside_their_range_are_refused(bad):
    check_rewards([0.0, 1.0, None, math.nan], 0, 1)
    with pytest.raises(UserError, match="outside"):
        check_rewards([0.5, bad], 0, 1)
