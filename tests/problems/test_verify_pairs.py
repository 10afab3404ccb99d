"""What the verifier says of hand-made pairs, and of the labelled data sets."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from derivedata.errors import UserError
from derivedata.problems import Verifier, WorkerLimits
from derivedata.problems.bands import parse_bands
from derivedata.problems.golds import gold_answers
from tests.problems.pairs import MISSES, PAIRS


def test_hand_made_pairs(verifier):
    outcomes = verifier.verify_many((gold, response) for gold, response, _ in PAIRS)
    missed = {
        (gold, response)
        for (gold, response, wanted), outcome in zip(PAIRS, outcomes, strict=True)
        if outcome.verdict != wanted
    }
    assert missed == set(MISSES)
    assert len(PAIRS) >= 80
    assert len(PAIRS) - len(missed) >= 75


def test_all_labelled_gsm8k_solutions_agree(verifier, reference_data):
    lines = (reference_data / "problems/gsm8k-labelled-solutions-600.jsonl").read_text().splitlines()
    models = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
    solutions = [(row["ground_truth"], row[model]) for row in map(json.loads, lines) for model in models]
    verdicts = verifier.verify_many((gold.rsplit("A:")[-1], one["solution"]) for gold, one in solutions)
    agree = [v.correct == one["is_correct"] for v, (_, one) in zip(verdicts, solutions, strict=True)]
    assert len(agree) == 2400
    assert all(agree)


def test_math500_golds_agree_with_their_own_solutions(verifier, reference_data):
    rows = [json.loads(line) for line in (reference_data / "problems/math500.jsonl").read_text().splitlines()]
    verdicts = list(verifier.verify_many((row["answer"], row["solution"]) for row in rows))
    assert sum(verdict.correct for verdict in verdicts) >= 499


def bands_of(reference_data, answers: str) -> dict[str, int]:
    """Bands of the 60 recorded arithmetic questions under one way of finding answers."""
    lines = (reference_data / "problems/recorded/arithmetic-16x60.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    with Verifier(answers=answers, limits=WorkerLimits(workers=2, deadline=30)) as verifier:
        verdicts = list(verifier.verify_many((row["answer"], s["text"]) for row in rows for s in row["samples"]))
    bands = parse_bands("isocompute")
    rates = [sum(v.correct for v in verdicts[i : i + 16]) / 16 for i in range(0, len(verdicts), 16)]
    return Counter(bands.label(rate) for rate in rates)


def test_recorded_samples_by_math_verifys_own_extraction(reference_data):
    assert bands_of(reference_data, "math-verify") == {"hard": 20, "gap": 17, "easy": 20, "above": 3}


def test_recorded_samples_by_last_number(reference_data):
    assert bands_of(reference_data, "last-number") == {"hard": 29, "gap": 14, "easy": 17}


def test_a_list_of_golds_holds_alternatives(verifier):
    assert verifier.verify(["2", "-2"], "\\boxed{-2}").correct
    assert verifier.verify('["2", "-2"]', "\\boxed{-2, 2}").correct
    assert not verifier.verify(["2", "-2"], "\\boxed{3}").correct


def test_a_closed_interval_is_no_list():
    assert gold_answers("[0, 1]") == ("[0, 1]",)


def test_numbers_can_be_golds(verifier):
    assert verifier.verify(2.5, "\\boxed{5/2}").correct
    assert verifier.verify(7, "#### 7").correct


def test_without_a_gold_there_is_no_verdict(verifier):
    with pytest.raises(UserError, match="no gold answer"):
        verifier.verify(None, "\\boxed{1}")


def test_strict_takes_only_the_demanded_form():
    with Verifier(answers="strict") as strict:
        assert strict.verify("5", "\\boxed{5}").correct
        assert strict.verify("5", "The answer is 5.").verdict == "no_answer"
        assert strict.verify("5", "#### 5").verdict == "no_answer"
        assert strict.verify("5", "#### 5", form="hashes").correct


def test_the_name_of_the_verifier_holds_versions(verifier):
    assert verifier.name == "derivedata-lenient/1+math-verify/0.9.0"
