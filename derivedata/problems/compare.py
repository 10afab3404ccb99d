r"""Comparison of two answers without computer algebra: numbers and strings, about 10 microseconds a pair.

`compare(gold, answer)` says True or False where that is certain and None where only math-verify can tell. It also takes
the decisions that math-verify gets wrong: a chain such as `1=2=3` is no answer, a point is no set, a word is no product
of its letters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from derivedata.problems.normalize import Spelled, spell, split_list
from derivedata.problems.values import Unsure, Value, approximate, decimal, evaluate, multiply, same

# An answer this much longer than its gold is no other way to write it.
LONG = 10_000

_PLAIN_INTEGER = re.compile(r"-?\d{1,18}")
_PLAIN_NUMBER = re.compile(r"\$?([-+]?)\$?(\d{1,3}(?:,\d{3})+|\d{1,40})(?:\.(\d{0,40}))?\$?\.?")
_VARIABLE = re.compile(
    r"(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_\{?\w+\}?)?(?:\([a-zA-Z]\))?'?|\\?(?:angle|triangle)?\{?\}?[a-zA-Z]{1,3}|[a-zA-Z]{4,}"
)
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?(?:[ap]\.?m\.?)?", re.IGNORECASE)
_CHOICE = re.compile(r"\(?([A-Z])\)?")
_CHOICE_WITH_TEXT = re.compile(r"\(?([A-Z])[).:]\s*\S.*")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' .-]*")
_EQUALS = re.compile(r"(?<![<>!:=])=(?!=)")
_SHORT_WORDS = frozenset(("yes", "no", "true", "false", "odd", "even", "none", "all", "red", "he", "she"))
_RELATION = re.compile(r"\\(?:le|ge|ne|lt|gt|in|cup|cap)(?![a-zA-Z])|[<>]")
# Units of which two different ones never mean the same number.
_SCALES = frozenset((
    "mm", "cm", "m", "km", "ft", "in", "mi", "yd", "g", "kg", "lb", "oz", "ml", "liters", "s", "min", "hr", "days",
    "weeks", "months", "years",
))  # fmt: skip
_SAME_UNIT = {
    "meter": "m", "meters": "m", "centimeter": "cm", "centimeters": "cm", "kilometer": "km", "kilometers": "km",
    "millimeters": "mm", "inch": "in", "inches": "in", "foot": "ft", "feet": "ft", "mile": "mi", "miles": "mi",
    "yards": "yd", "gram": "g", "grams": "g", "kilograms": "kg", "pound": "lb", "pounds": "lb", "lbs": "lb",
    "ounces": "oz", "second": "s", "seconds": "s", "sec": "s", "minute": "min", "minutes": "min", "hour": "hr",
    "hours": "hr", "hrs": "hr", "day": "days", "week": "weeks", "month": "months", "year": "years", "liter": "liters",
    "l": "liters",
}  # fmt: skip
_NUMBER_WORDS = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
    "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50,
    "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip


class Comparison(NamedTuple):
    """`equal` is None where the comparison can't decide; `by` says what decided (string, number, form, length)."""

    equal: bool | None
    by: str | None


_UNDECIDED = Comparison(None, None)


class _Reading(NamedTuple):
    """An answer as it was understood. `items` are its values; None where it isn't made of numbers."""

    spelled: Spelled
    items: tuple[Value, ...] | None
    bracket: str  # "" for a bare number or list, "(" "[" for what is ordered, "{" for a set
    refused: bool  # a chain or an equation whose sides differ
    words: str | None  # for answers in words, lower case


def compare(gold: str, answer: str) -> Comparison:
    """Compare an extracted answer with one gold answer."""
    if _PLAIN_INTEGER.fullmatch(answer) and _PLAIN_INTEGER.fullmatch(gold):
        return Comparison(int(gold) == int(answer), "number")
    if len(answer) > LONG and len(answer) > 10 * len(gold):
        return Comparison(False, "length")
    a, b = _read(gold), _read(answer)
    if a.spelled.math == b.spelled.math and a.spelled.percent == b.spelled.percent and a.spelled.math:
        if _other_unit(a.spelled, b.spelled):
            return Comparison(False, "unit")
        return Comparison(True, "string" if a.items is None else "number")
    if b.refused and not a.refused:
        return Comparison(False, "form")
    return _compare_readings(a, b)


def _compare_readings(a: _Reading, b: _Reading) -> Comparison:
    letter = _CHOICE.fullmatch(a.spelled.math)
    if letter and (chosen := _CHOICE.fullmatch(b.spelled.words) or _CHOICE_WITH_TEXT.fullmatch(b.spelled.words)):
        return Comparison(letter[1] == chosen[1], "string")
    if a.words is not None or b.words is not None:
        if a.words is not None and b.words is not None:
            return Comparison(a.words == b.words, "string")
        # A word where a number is wanted (or the other way round) is wrong; number words were read as numbers.
        other = b if a.words is not None else a
        return Comparison(False, "string") if other.items is not None else _UNDECIDED
    if _CLOCK.fullmatch(a.spelled.math) and _CLOCK.fullmatch(b.spelled.math):
        clock = [r.spelled.math.lower().replace(".", "").lstrip("0") for r in (a, b)]
        return Comparison(clock[0] == clock[1], "string")
    if a.items is None or b.items is None:
        return _UNDECIDED
    return _compare_numbers(a, b)


def _compare_numbers(a: _Reading, b: _Reading) -> Comparison:
    if len(a.items) == 1 and len(b.items) == 1 and a.bracket in ("", "{") and b.bracket in ("", "{"):
        equal = _same_amount(a.items[0], a.spelled.percent, b.items[0], b.spelled.percent)
        if equal and _other_unit(a.spelled, b.spelled):
            return Comparison(False, "unit")
        return Comparison(equal, "number" if equal is not None else None)
    ordered = a.bracket in ("(", "[") or b.bracket in ("(", "[")
    if ordered and a.bracket and b.bracket and a.bracket != b.bracket:
        return _UNDECIDED
    if len(a.items) != len(b.items):
        # {1, 1} is {1}: only without repetition is another length another set.
        repeats = not ordered and (_has_repeats(a.items) or _has_repeats(b.items))
        return _UNDECIDED if repeats else Comparison(False, "number")
    first, second = (a.items, b.items) if ordered else (_sorted(a.items), _sorted(b.items))
    outcomes = [same(x, y) for x, y in zip(first, second, strict=True)]
    if all(outcomes):
        return Comparison(True, "number")
    return Comparison(False, "number") if any(outcome is False for outcome in outcomes) else _UNDECIDED


def _same_amount(gold: Value, gold_percent: bool, answer: Value, answer_percent: bool) -> bool | None:
    """Equality of two amounts. `50%` stands for 50 (of a hundred) and for 0.5 alike, on either side."""
    outcome = same(gold, answer)
    if outcome is True or gold_percent == answer_percent:
        return outcome
    percent, plain = (gold, answer) if gold_percent else (answer, gold)
    hundredth = same(multiply(percent, Fraction(1, 100)), plain)
    if hundredth is True:
        return True
    return None if outcome is None or hundredth is None else False


def _sorted(items: Sequence[Value]) -> list[Value]:
    return sorted(items, key=lambda value: approximate(value).value)


def _has_repeats(items: Sequence[Value]) -> bool:
    ordered = _sorted(items)
    return any(same(x, y) is not False for x, y in pairwise(ordered))


def _other_unit(a: Spelled, b: Spelled) -> bool:
    """Whether both carry a unit of measure and these measure differently."""
    if not a.unit or not b.unit:
        return False
    first, second = _SAME_UNIT.get(a.unit, a.unit), _SAME_UNIT.get(b.unit, b.unit)
    return first != second and first in _SCALES and second in _SCALES


@lru_cache(maxsize=50_000)
def _read(text: str) -> _Reading:
    if match := _PLAIN_NUMBER.fullmatch(text):
        value = decimal(*match.groups())
        tight = str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"
        return _Reading(Spelled(tight, tight, "", False), (value,), "", False, None)
    spelled = spell(text)
    words = _in_words(spelled.words)
    if isinstance(words, int):
        return _Reading(spelled, (evaluate(str(words)),), "", False, None)
    if words is not None:
        return _Reading(spelled, None, "", False, words)
    body = spelled.math
    refused = False
    if "=" in body:
        body, refused = _without_equation(body)
    items, bracket = (None, "") if body is None else _items(body)
    return _Reading(spelled, items, bracket, refused, None)


def _in_words(text: str) -> str | int | None:
    """An answer in words in lower case, a number word as its number, or None for mathematics."""
    if not text or not text[0].isalpha() or not _WORDS.fullmatch(text):
        return None
    lower = " ".join(text.lower().replace(".", "").split())
    tens, _, ones = lower.partition("-")
    if lower in _NUMBER_WORDS:
        return _NUMBER_WORDS[lower]
    if _NUMBER_WORDS.get(tens, 0) >= 20 and 0 < _NUMBER_WORDS.get(ones, 0) < 10:
        return _NUMBER_WORDS[tens] + _NUMBER_WORDS[ones]
    return lower if lower in _SHORT_WORDS or re.search("[a-z]{4}", lower) else None


def _without_equation(body: str) -> tuple[str | None, bool]:
    """Take `x=` off each part of an answer. Returns (what is left or None, whether a chain makes it no answer)."""
    if _RELATION.search(body):
        return body, False
    left: list[str] = []
    for part in split_list(body):
        sides = _EQUALS.split(part)
        if len(sides) == 1:
            left.append(part)
            continue
        chain = len(sides) > 2
        if _VARIABLE.fullmatch(sides[0]):
            sides = sides[1:]
        if len(sides) == 1:
            left.append(sides[0])
            continue
        try:
            values = [evaluate(side) for side in sides]
        except Unsure:
            # One equation (x + y = 5) is for math-verify; a longer chain of what can't be checked is refused.
            return None, chain
        if any(same(values[0], value) is not True for value in values[1:]):
            return None, True
        left.append(sides[-1])
    return ",".join(left), False


def _items(body: str) -> tuple[tuple[Value, ...] | None, str]:
    bracket = ""
    if body.startswith("\\{") and body.endswith("\\}"):
        body, bracket = body[2:-2], "{"
    elif body[:1] in ("(", "[") and body[-1:] in (")", "]") and "," in body and _one_bracket(body):
        if body[0] + body[-1] not in ("()", "[]"):
            return None, ""
        body, bracket = body[1:-1], body[0]
        return _values(body.split(",")), bracket
    return _values(split_list(body)), bracket


def _one_bracket(body: str) -> bool:
    """Whether the first bracket closes at the end: `(1,2)` and not `(1,2),(3,4)`."""
    depth = 0
    for position, character in enumerate(body):
        depth += (character in "([") - (character in ")]")
        if depth == 0:
            return position == len(body) - 1
    return False


def _values(parts: Sequence[str]) -> tuple[Value, ...] | None:
    values: list[Value] = []
    try:
        for part in parts:
            if "\\pm" in part:
                values += [evaluate(part.replace("\\pm", sign).replace("+{}", "+").lstrip("+")) for sign in "+-"]
            else:
                values.append(evaluate(part))
    except Unsure:
        return None
    return tuple(values)
