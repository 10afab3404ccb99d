r"""math-verify 0.9.0, called the way that gives right verdicts. Runs in worker processes only.

* A gold answer is wrapped in `\boxed{}` first: `2\sqrt{3}` alone parses as 2. So is an extracted answer.
* Its timeouts are off: they need the main thread, raise a BaseException, and a worker has its deadline anyway.
* Intervals and inequalities are compared both ways.
"""

from __future__ import annotations

import logging
from functools import lru_cache

from derivedata.problems.normalize import strip_delimiters

# One of each kind of answer. The parser builds its tables and SymPy imports its modules as they are first needed, and a
# worker forked without them would spend its first second on that after every kill.
_KINDS = (
    ("\\frac{1}{2}", "\\frac{2}{4} + x"),
    ("(2, \\infty)", "x > 3"),
    ("[0,1]", "0 \\le x \\le 2"),
    ("(-\\infty, 2) \\cup (3, \\infty)", "(-\\infty, 1] \\cup [3, \\infty)"),
    ("\\{1, 2\\}", "\\{1, \\sqrt{3}\\}"),
    ("(1, 2, 3)", "(1, 2, \\frac{\\pi}{3})"),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 2 \\\\ 1 \\end{pmatrix}"),
    ("(x+1)(x+2)", "x^2 + 3x + 4"),
    ("y = 2x + 3", "y = 3 - 2x"),
    ("5x - 7y + 11z + 4 = 0", "5x - 7y + 11z - 4 = 0"),
    ("x^8 + x^7 + x^2 + x + 1", "x^8 + x^6 + 1"),
    ("2\\sqrt{3} + \\sqrt[3]{4}", "3\\sqrt{2}i"),
    ("\\frac{x+2}{x-2}", "\\frac{x}{x-3}"),
    ("\\sin x + \\cos^2 x", "\\tan x"),
    ("\\ln 2 + \\log_2 3", "e^{2}"),
    ("3 + 4i", "3 - 4i"),
    ("1 \\pm \\sqrt{2}", "1, 2"),
    ("50\\%", "0.25x"),
    ("\\binom{5}{2}", "3! + |x|"),
    ("\\sum_{k=1}^{3} k", "\\int_0^1 x\\,dx"),
    ("10 \\text{ cm}", "12\\text{ or }13x"),
    ("2^{n-1}", "a_n \\cdot \\alpha"),
)


def prepare() -> None:
    """Import math-verify and take it once through every kind of answer."""
    logging.disable(logging.WARNING)
    for gold, answer in _KINDS:
        equivalent(gold, answer)
        equivalent(gold, gold)
    judge_text("2", "The answer is $1 + 1$. So it is 3/4 or 0.5.")


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
