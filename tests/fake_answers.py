"""What the fake server answers to problems whose text says how often they are solved, and the problems themselves.

    FakeServer(reply=answer, ...)      "What is 3 + 4? (rate 0.25)" is answered rightly in a quarter of the samples

An answer is a function of prompt and seed alone, so what a full measurement would give is known without one.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from tests.fake_server import identity

_SUM = re.compile(r"What is (\d+) \+ (\d+)\? \(rate ([\d.]+)\)")


def answer(prompt: str, draw: int) -> str:
    """A boxed answer, right with the rate that the prompt names."""
    first, second, rate = _SUM.search(prompt).groups()
    right = random.Random(draw).random() < float(rate)
    return f"It is \\boxed{{{int(first) + int(second) + (0 if right else 1)}}}."


def is_right(ids: list[int], seed: int, rate: float) -> bool:
    """Whether the server's answer to a request is right."""
    return random.Random(int(identity(ids, seed)[:12], 16)).random() < rate


def problem(number: int, rate: float) -> dict:
    """One problem of that rate, as a row of verl's."""
    text = f"What is {number} + {number % 7}? (rate {rate:.4f})"
    return {
        "data_source": f"sums{number % 2}",
        "prompt": [{"role": "user", "content": text}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(number + number % 7)},
        "extra_info": {"index": number, "split": "train"},
    }


def write_problems(path: Path, rates: list[float]) -> Path:
    """Write problems of these rates as JSON lines."""
    path.write_text("".join(json.dumps(problem(number, rate)) + "\n" for number, rate in enumerate(rates)))
    return path
