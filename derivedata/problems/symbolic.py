r"""math-verify 0.9.0, called the way that gives right verdicts. Runs in worker processes only.

* A gold answer is wrapped in `\boxed{}` first: `2\sqrt{3}` alone parses as 2. So is an extracted answer.
* Its timeouts are off: they need the main thread, raise a BaseException, and a worker has its deadline anyway.
* Intervals and inequalities are compared both ways.
"""

from __future__ import annotations

import logging
from functools import lru_cache

from derivedata.problems.normalize import strip_delimiters


def prepare() -> None:
    """Import math-verify and run it once: its grammar tables and patterns are built on first use."""
    logging.disable(logging.WARNING)
    equivalent("\\frac{1}{2}", "\\frac{2}{4} + x")
    judge_text("2", "The answer is $1 + 1$.")


def version() -> str:
    """The installed version of math-verify."""
    from importlib.metadata import version

    return version("math-verify")


@lru_cache(maxsize=4_096)
def _parsed_box(answer: str) -> list:
    from math_verify import parse

    return parse(f"\\boxed{{{strip_delimiters(answer)}}}", parsing_timeout=None)


def equivalent(gold: str, answer: str) -> bool:
    """Whether an extracted answer means the same as the gold answer."""
    from math_verify import parse, verify

    target = parse(f"\\boxed{{{strip_delimiters(answer)}}}", parsing_timeout=None)
    return bool(target) and verify(_parsed_box(gold), target, allow_set_relation_comp=True, timeout_seconds=None)


def judge_text(gold: str, text: str) -> tuple[str, str | None]:
    """Let math-verify search a whole text. Returns (correct | wrong | no_answer, what it found as a string)."""
    from math_verify import parse, verify

    target = parse(text, parsing_timeout=None)
    if not target:
        return "no_answer", None
    right = verify(_parsed_box(gold), target, allow_set_relation_comp=True, timeout_seconds=None)
    found = next((item for item in target if isinstance(item, str)), None)
    return ("correct" if right else "wrong"), found
