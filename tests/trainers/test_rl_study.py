"""The study's sums, splits and page (its runs are `just rl-study`)."""

from __future__ import annotations

import json

import numpy as np
import pytest

from derivedata.problems.verifier import Verifier
from derivedata.problems.workers import WorkerLimits
from derivedata.trainers.rl_study_model import CHARACTERS, WAYS, measure, split, sums, warm_up, write_model
from derivedata.trainers.rl_study_page import fell_to_zero, write_page


def test_sums_are_different_and_their_answers_right():
    problems = sums(500, seed=0)
    assert len({problem.question for problem in problems}) == len({problem.uid for problem in problems}) == 500
    for problem in problems:
        assert eval(problem.question.removesuffix("=")) == int(problem.ground_truth)
        assert set(problem.question + problem.ground_truth) <= set(CHARACTERS)


def test_every_way_is_written_with_its_characters_and_only_the_first_is_right():
    gold = 57
    pairs = [(str(gold), f"{way}{gold + off}") for way, off in WAYS.items()]
    with Verifier(limits=WorkerLimits(workers=1)) as verifier:
        assert [verdict.correct for verdict in verifier.verify_many(pairs)] == [True, False, False, False]
    assert all(set(text) <= set(CHARACTERS) for _, text in pairs)


def test_a_warm_up_lowers_the_loss_and_answers_can_be_counted(tmp_path):
    problems = sums(40, seed=0)
    folder = write_model(tmp_path / "model", width=32, layers=1)
    first = warm_up(folder, problems, steps=1, batch=16)
    assert warm_up(folder, problems, steps=40, batch=16) < first
    right = measure(folder, problems[:8], k=4)
    assert right.shape == (8,) and (right >= 0).all() and (right <= 4).all()


def test_bands_are_cut_as_difficulty_cuts_them():
    problems = sums(17, seed=0)
    made = split(problems, np.arange(17), k=16, validation=2)
    assert {name: len(part) for name, part in made.items()} == {
        "easy": 3,  # 5..9 of 16, two of them held out
        "easy-validation": 2,
        "hard": 1,  # 0 and 1 of 16
        "hard-validation": 1,
    }
    assert not {p.uid for p in made["easy"]} & {p.uid for p in made["easy-validation"]}


def test_problems_that_fell_to_zero():
    rows = [
        {"problem": name, "k": k} for name, k in [("a", 3), ("b", 0), ("c", 2), ("a", 0), ("b", 4), ("c", 4), ("d", 4)]
    ]
    assert fell_to_zero(rows) == pytest.approx(0.5)  # a and c were solved at first, a no longer
    assert fell_to_zero(rows[:3]) is None


def test_the_page_is_made_of_the_logs(tmp_path):
    for name, kl in (("easy-8x4", 0.02), ("hard-8x4", None)):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        steps = [{"step": s, "rollouts": 32 * s, "entropy": 1.0, "kl": kl} for s in range(1, 9)]
        problems = [{"step": s, "problem": f"p{s % 3}", "k": s % 5, "n": 4} for s in range(1, 9)]
        rows = [
            {"step": s, "rollouts": 32 * s, "avg": 0.3 + s / 20, "best": 0.6, "worst": 0.1, "k": 4, "problems": 50}
            for s in (0, 8)
        ]
        for log, lines in (("steps", steps), ("problems", problems), ("evaluations", rows)):
            (run / f"{log}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    counts = {"parameters": 1000, "loss": 0.5, "taught": 100, "problems": 17, "right": [1] * 17, "splits": {"easy": 3}}
    page = write_page(tmp_path, counts, ["easy-8x4", "hard-8x4"], "n* = 8", lr_at_1024=1e-3).read_text()
    assert "| easy-8x4 | 8 | 256 | 0.300 [" in page and "| 0.0200 |" in page
    assert "n* = 8" in page
    assert (tmp_path / "rl-study.svg").exists()
