"""Are the calculations that a text writes out right? Plain ones only: `48 / 16 = 3`, `1,000 × 1.05 = 1,050`.

What isn't plain (brackets, powers, variables, percentages) is left alone, so silence doesn't mean that all is right.
"""

from __future__ import annotations

import re
from itertools import pairwise

_LATEX = (
    (re.compile(r"\\(?:times|cdot)"), "*"),
    (re.compile(r"\\div"), "/"),
    (re.compile(r"\\[dt]?frac\{([\d.,]+)\}\{([\d.,]+)\}"), r"\1 / \2"),
    (re.compile(r"\\(?:approx)"), "="),
    (re.compile(r"\\(?:text|mathrm)\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\[()\[\],;! ]|[$€£¥]"), " "),
)
_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_UNIT = r"(?:\s{0,2}(?!x\b)[A-Za-zÀ-ɏ²³]{1,20}\.?)?"  # 48 teeth / 16 teeth
_OPERATOR = r"\s{0,2}(?:[-+*/×÷·−–]|(?<=[\s\d])x(?=[\s\d]))\s{0,2}"
_SIDE = rf"{_NUMBER}{_UNIT}(?:{_OPERATOR}{_NUMBER}{_UNIT}){{0,12}}"
_EQUATION = re.compile(rf"(?<![\w.,]){_SIDE}(?:\s{{0,2}}[=≈]\s{{0,2}}{_SIDE}){{1,8}}")
_TOKEN = re.compile(rf"({_NUMBER})|([-+*/×÷·−–x])(?=\s*\d)")
_OPEN_END = re.compile(r"\s*[-+*/×÷·^%(/]")


def wrong_calculations(text: str, tolerance: float = 0.01) -> list[str]:
    """The calculations of a text that don't hold.

    Args:
        text: plain text or simple LaTeX.
        tolerance: relative error that passes as rounding; so does half a unit of the last digit written.

    Returns:
        The wrong equations as they stand in the text, in order.
    """
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    wrong = []
    for match in _EQUATION.finditer(text):
        before = text[: match.start()].rstrip()[-1:]
        if before and before in "+-*/×÷·^=(":
            continue
        sides = re.split(r"[=≈]", match.group())
        if _OPEN_END.match(text, match.end()):
            sides.pop()
        values = [_value(side) for side in sides]
        for (left, left_ops, _), (right, right_ops, decimals) in pairwise(values):
            if left is None or right is None or not left_ops + right_ops:
                continue
            if abs(left - right) > max(0.5001 * 10.0**-decimals, tolerance * abs(left)):
                wrong.append(" ".join(match.group().split()).rstrip("."))
                break
    return wrong


def _value(side: str) -> tuple[float | None, int, int]:
    """Value of a side (None when it divides by 0), how many operations it has, decimals of its last number."""
    tokens = [number or operator for number, operator in _TOKEN.findall(side)]
    terms: list[float] = []
    operations, sign, operator, decimals = 0, 1.0, "+", 0
    for token in tokens:
        if not token[0].isdigit():
            operator, operations = token, operations + 1
            continue
        number = float(token.replace(",", ""))
        decimals = len(token.partition(".")[2])
        if not terms or operator in "+-−–":
            sign = -1.0 if operator in "-−–" and terms else 1.0
            terms.append(sign * number)
        elif operator in "/÷":
            if number == 0:
                return None, operations, decimals
            terms[-1] /= number
        else:
            terms[-1] *= number
    return (sum(terms) if terms else None), operations, decimals
