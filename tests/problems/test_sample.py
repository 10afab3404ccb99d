"""The sixty problems that come with the package, and what SmolLM2-135M-Instruct made of them."""

from __future__ import annotations

import ast
import gzip
import json
import math
import operator
from collections import Counter
from pathlib import Path

from derivedata.problems import Verifier
from derivedata.problems.bands import parse_bands
from derivedata.problems.read import read_problems
from derivedata.problems.sample import sample_problems

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
# 16 answers of SmolLM2-135M-Instruct to each, T=0.6, 48 new tokens, drawn after the problems were chosen.
RECORDED = Path(__file__).parent / "recorded" / "sample-16x60.jsonl.gz"


def compute(node: ast.expr) -> int:
    match node:
        case ast.Constant(value):
            return value
        case ast.BinOp(left, op, right):
            return OPERATORS[type(op)](compute(left), compute(right))
        case ast.Call(ast.Name("gcd"), arguments):
            return math.gcd(*map(compute, arguments))
    raise ValueError(ast.dump(node))


def test_sixty_problems_all_scorable_and_all_different():
    problems = list(read_problems([str(sample_problems())]))
    assert len(problems) == 60
    assert all(problem.unscored is None and problem.layout == "verl" for problem in problems)
    assert len({problem.text_sha256 for problem in problems}) == 60


def test_the_answers_are_what_their_sums_give():
    for problem in read_problems([str(sample_problems())]):
        computed = compute(ast.parse(problem.extra_info["computed_as"], mode="eval").body)
        assert str(computed) == problem.ground_truth, problem.question


def test_the_small_model_gives_all_four_bands():
    with gzip.open(RECORDED, "rt") as file:
        samples = {row["problem"]: row["samples"] for row in map(json.loads, file)}
    problems = list(read_problems([str(sample_problems())]))
    pairs = [(problem.golds, s["text"]) for problem in problems for s in samples[problem.question]]
    # By the last number, which comparison decides alone; lenient answers give 21 hard, 12 gap, 18 easy, 9 above.
    with Verifier(answers="last-number") as verifier:
        verdicts = list(verifier.verify_many(pairs))
    bands = parse_bands("isocompute")
    rates = [sum(v.correct for v in verdicts[i : i + 16]) / 16 for i in range(0, len(verdicts), 16)]
    found = Counter(bands.label(rate) for rate in rates)
    assert found == {"hard": 21, "gap": 14, "easy": 17, "above": 8}
