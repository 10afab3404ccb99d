"""The layouts that people bring, recognised row by row."""

from __future__ import annotations

import json

import pytest

from derivedata.errors import UserError
from derivedata.problems.layouts import LayoutChoice, messages
from derivedata.problems.problem import count_problems, with_suffix
from derivedata.problems.read import to_problem

USER = [{"role": "user", "content": "What is 3 + 4?"}]

LAYOUTS = [
    ("verl", {"data_source": "x", "prompt": USER, "reward_model": {"style": "rule", "ground_truth": "7"}}),
    ("verl", {"prompt": USER, "reward_model": json.dumps({"ground_truth": "7"})}),
    ("orz", {"prompt": [{"from": "human", "value": "What is 3 + 4?"}], "final_answer": "7"}),
    ("trl", {"prompt": "What is 3 + 4?", "answer": "7"}),
    ("trl", {"prompt": USER, "solution": "It is \\boxed{7}."}),
    ("openr1", {"problem": "What is 3 + 4?", "answer": "7", "correctness_math_verify": [True, False]}),
    ("big-math", {"problem": "What is 3 + 4?", "answer": "7", "llama8b_solve_rate": 0.25}),
    ("math", {"problem": "What is 3 + 4?", "solution": "It is \\boxed{7}.", "level": "Level 1"}),
    ("deepscaler", {"problem": "What is 3 + 4?", "answer": None, "solution": "First \\boxed{3}, then \\boxed{7}."}),
    ("gsm8k", {"question": "What is 3 + 4?", "answer": "Three and four.\n#### 7"}),
    ("gsm8k", {"question": "What is 3 + 4?", "ground_truth": "Three and four.\nA: 7"}),
    ("question-answer", {"question": "What is 3 + 4?", "answer": 7}),
]


def read(row: dict, **choice):
    return to_problem(row, "set.jsonl", 0, LayoutChoice(**choice))


@pytest.mark.parametrize(("layout", "row"), LAYOUTS)
def test_question_and_answer_of_each_layout(layout, row):
    problem = read(row)
    assert (problem.layout, problem.question, problem.golds) == (layout, "What is 3 + 4?", ("7",))
    assert problem.unscored is None


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": USER}, "no_answer"),
        ({"prompt": USER, "reward_model": {"ground_truth": None}}, "no_answer"),
        ({"prompt": USER, "reward_model": {"ground_truth": []}}, "no_answer"),
        ({"prompt": USER, "reward_model": {"ground_truth": "  "}}, "no_answer"),
        ({"prompt": USER, "reward_model": {"ground_truth": float("nan")}}, "no_answer"),
        ({"prompt": [{"role": "user", "content": " "}], "reward_model": {"ground_truth": "7"}}, "empty_question"),
        ({"prompt": [], "reward_model": {"ground_truth": "7"}}, "empty_question"),
        ({"question": None, "answer": "7"}, "empty_question"),
        ({"text": "a document"}, "unknown_layout"),
    ],
)
def test_what_cannot_be_scored_says_why(row, reason):
    assert read(row).unscored == reason


def test_pass_rates_of_others_are_kept_apart():
    row = {
        "prompt": USER,
        "reward_model": {"ground_truth": "7"},
        "extra_info": {"index": 3, "qwen2.5_7b_pass_rate": 0.5, "qwen3_30b_pass_rate": float("nan")},
        "llama8b_solve_rate": 0.25,
        "correctness_llama": [True, False, None, True],
    }
    problem = read(row)
    assert problem.carried == {
        "qwen2.5_7b_pass_rate": 0.5,
        "qwen3_30b_pass_rate": None,
        "llama8b_solve_rate": 0.25,
        "correctness_llama": 2 / 3,
    }
    assert problem.extra_info == {"index": 3}


def test_other_columns_stay_beside_extra_info():
    problem = read({"problem": "q", "answer": "1", "level": 3, "extra_info": {"level": "x"}, "subject": "Algebra"})
    assert problem.extra_info == {"level": "x", "column_level": 3, "subject": "Algebra"}


def test_doubled_backslashes_are_repaired_and_counted():
    problem = read({"problem": "q", "answer": "\\\\frac{1}{2}"})
    assert problem.golds == ("\\frac{1}{2}",)
    assert count_problems([problem])["repaired_backslashes"] == 1


def test_fields_can_be_named():
    row = {"task": {"ask": "q?"}, "keys": ["7", "seven"]}
    problem = read(row, question_field="task.ask", answer_field="keys")
    assert (problem.layout, problem.question, problem.golds) == ("fields", "q?", ("7", "seven"))
    problem = read({"question": "q", "answer": "no", "truth": "yes"}, answer_field="truth")
    assert (problem.layout, problem.golds) == ("question-answer", ("yes",))


def test_a_layout_can_be_forced():
    assert read({"prompt": USER, "answer": "7", "reward_model": None}, layout="trl").golds == ("7",)
    with pytest.raises(UserError, match="unknown layout"):
        LayoutChoice(layout="verll")
    with pytest.raises(UserError, match="--question-field"):
        LayoutChoice(layout="fields")


def test_messages_of_other_shapes():
    assert messages("hi") == ({"role": "user", "content": "hi"},)
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert messages(parts) == ({"role": "user", "content": "ab"},)


def test_an_instruction_is_not_added_twice():
    suffix = "Put the final answer in \\boxed{}."
    plain = read({"problem": "What is 3 + 4?", "answer": "7"})
    assert with_suffix(plain, suffix)[-1]["content"] == f"What is 3 + 4? {suffix}"
    asked = read({"problem": "What is 3 + 4? Answer in \\boxed{}.", "answer": "7"})
    assert with_suffix(asked, suffix) == asked.prompt
