"""`derivedata verify-answers` on small files."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from derivedata.cli import main

ROWS = [
    {"gold": "1/2", "response": "So it is \\boxed{0.5}."},
    {"gold": "5", "response": "The answer is 6."},
    {"gold": "5", "response": "<think>It goes on"},
    {"gold": None, "response": "\\boxed{5}"},
    {"gold": "x+1", "response": "\\boxed{1+x}"},
    {"gold": ["2", "-2"], "response": "\\boxed{-2}"},
    {"gold": "9^{9^{9^{9}}}", "response": "\\boxed{5}"},
]


def run(capsys, *arguments) -> tuple[int, str, str]:
    try:
        main(["verify-answers", *map(str, arguments)])
        code = 0
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def answers(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "{broken\n")
    return path


def test_counts_balance_and_verdicts_are_written(capsys, answers, tmp_path):
    output = tmp_path / "verdicts.parquet"
    code, out, err = run(capsys, answers, "-o", output, "--workers", 1, "--deadline", 2)
    assert code == 0
    assert (
        "8 rows = 3 correct + 1 wrong + 1 no_answer + 1 verifier_timeout + 0 verifier_error + 2 unscored"
        in out.splitlines()
    )
    assert "correct 50.0% of 6 with a gold answer" in out
    assert "verifying" in err
    rows = pq.read_table(output).to_pylist()
    assert [row["row"] for row in rows] == list(range(8))
    assert rows[0] == {
        "row": 0,
        "gold": "1/2",
        "verdict": "correct",
        "answer": "0.5",
        "how": "boxed",
        "by": "number",
        "detail": None,
        "verifier": "derivedata-lenient/1+math-verify/0.9.0",
    }
    assert rows[4]["by"] == "math-verify"
    assert rows[7]["detail"] == "unreadable row"


def test_columns_by_name_and_jsonl_out(capsys, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"reward": {"truth": "#### 7"}, "chat": [{"role": "assistant", "content": "#### 7"}]}))
    output = tmp_path / "v.jsonl"
    code, out, _ = run(
        capsys, path, "--gold-field", "reward.truth", "--answer-field", "chat", "-o", output,
        "--answers", "strict", "--form", "hashes",
    )  # fmt: skip
    assert code == 0
    assert "1 correct" in out
    assert json.loads(output.read_text())["how"] == "hashes"


def test_a_verifier_of_ones_own(capsys, answers):
    code, out, _ = run(capsys, answers, "--verifier", "tests.problems.plugins:odd", "--workers", 1)
    assert code == 0
    assert "verifier tests.problems.plugins:odd" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere.jsonl",), "no problems found"),
        (("{answers}", "--answer-field", "nope"), "no column with the response"),
        (("{answers}", "-o", "x.csv"), ".jsonl or .parquet"),
        (("{answers}", "--verifier", "nope:f"), "can't be loaded"),
        (("{answers}", "--deadline", "0"), "must be positive"),
    ],
)
def test_what_goes_wrong_is_one_line(capsys, answers, arguments, said):
    code, _, err = run(capsys, *(argument.format(answers=answers) for argument in arguments))
    assert code == 1
    last = err.strip().splitlines()[-1]
    assert last.startswith("derivedata: ")
    assert said in last
