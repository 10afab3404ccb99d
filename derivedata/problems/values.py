r"""What a closed numeric expression is worth: `2\sqrt{3}`, `\frac{3}{4}\pi`, `4\frac{2}{3}`, `1.5\times10^{3}`.

Rational values are exact; others carry a bound of their rounding error, so that two of them are called equal or
different only where that is certain. Anything ambiguous (`1/2\pi`), large (`9^{9^9}`) or with a letter is `Unsure`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction


class Unsure(Exception):
    """The text is not an expression whose value is certain."""


@dataclass(frozen=True, slots=True)
class Approx:
    """A real number known to within `error` (absolute)."""

    value: float
    error: float


Value = Fraction | Approx

_EPS = 2.0**-50
_MAX_BITS = 4096
_MAX_LENGTH = 300
_MAX_DEPTH = 30
_TOKEN = re.compile(
    r"(?P<number>\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)"
    r"|(?P<command>\\[a-zA-Z]+)|(?P<mark>[-+*/^(){}\[\]!])"
)
_INTEGER = re.compile(r"[-+]?\d{1,18}")
_SCIENTIFIC = re.compile(r"[-+]?\d+(?:\.\d+)?[eE][-+]?\d{1,3}")
_DECIMAL = re.compile(r"([-+]?)(\d{1,3}(?:,\d{3})+|\d{1,40})(?:\.(\d{0,40}))?")
_FRACTION = re.compile(r"([-+]?)(?:\\frac\{(-?\d{1,18})\}\{(\d{1,18})\}|(\d{1,18})/(\d{1,18}))")
_REPEATING = re.compile(r"([-+]?)(\d{0,18})\.(\d{0,18})\\overline\{(\d{1,18})\}")
_OPERATOR = {"\\cdot": "*", "\\times": "*", "\\div": "/"}


def evaluate(text: str) -> Value:
    """The value of a tightly spelled expression (derivedata.problems.normalize).

    Raises:
        Unsure: it has no value that is certain.
    """
    if _INTEGER.fullmatch(text):
        return Fraction(int(text))
    if not text or len(text) > _MAX_LENGTH:
        raise Unsure
    if match := _DECIMAL.fullmatch(text):
        return decimal(*match.groups())
    if match := _FRACTION.fullmatch(text):
        sign, above, below, above_slash, below_slash = match.groups()
        below = int(below or below_slash)
        if not below:
            raise Unsure
        value = Fraction(int(above or above_slash), below)
        return -value if sign == "-" else value
    if _SCIENTIFIC.fullmatch(text):
        return Fraction(text)
    if match := _REPEATING.fullmatch(text):
        sign, whole, behind, period = match.groups()
        repeated = Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(behind))
        value = decimal("", whole or "0", behind) + repeated
        return -value if sign == "-" else value
    try:
        return _Parser(text).whole()
    except (OverflowError, ZeroDivisionError, ValueError):
        raise Unsure from None


def decimal(sign: str, whole: str, behind: str | None) -> Fraction:
    """The exact value of a decimal number given in its three parts (`Fraction(str)` takes three times as long)."""
    behind = behind or ""
    number = int(sign + whole.replace(",", "") + behind)
    return Fraction(number, 10 ** len(behind)) if behind else Fraction(number)


def same(a: Value, b: Value) -> bool | None:
    """Whether two values are equal; None where the rounding of decimals could be the only difference."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        above, below, other_above, other_below = a.numerator, a.denominator, b.numerator, b.denominator
        if above == other_above and below == other_below:
            return True
        # Two different integers, or a difference above 2e-6; in whole numbers, which is exact and quick.
        far = abs(above * other_below - other_above * below) * 500_000 > below * other_below
        return False if far else None
    a, b = approximate(a), approximate(b)
    difference, bound = abs(a.value - b.value), a.error + b.error
    if difference <= bound:
        # Equal as far as doubles can tell: certain enough when they tell twelve digits.
        return True if bound <= 1e-12 * max(abs(a.value), 1e-3) else None
    return False if difference > 2e-6 + bound else None


def approximate(value: Value) -> Approx:
    """A value as a double with its error bound."""
    if isinstance(value, Approx):
        return value
    number = float(value)
    return Approx(number, abs(number) * _EPS)


def _checked(value: Value) -> Value:
    if isinstance(value, Fraction):
        if value.numerator.bit_length() > _MAX_BITS or value.denominator.bit_length() > _MAX_BITS:
            raise Unsure
    elif not (math.isfinite(value.value) and math.isfinite(value.error)):
        raise Unsure
    return value


def _add(a: Value, b: Value) -> Value:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return _checked(a + b)
    a, b = approximate(a), approximate(b)
    total = a.value + b.value
    return _checked(Approx(total, a.error + b.error + abs(total) * _EPS))


def _negative(a: Value) -> Value:
    return -a if isinstance(a, Fraction) else Approx(-a.value, a.error)


def multiply(a: Value, b: Value) -> Value:
    """The product of two values."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return _checked(a * b)
    a, b = approximate(a), approximate(b)
    product = a.value * b.value
    return _checked(
        Approx(product, abs(a.value) * b.error + abs(b.value) * a.error + a.error * b.error + abs(product) * _EPS)
    )


def _inverse(a: Value) -> Value:
    if isinstance(a, Fraction):
        return 1 / a
    if abs(a.value) <= 2 * a.error:
        raise Unsure
    inverse = 1 / a.value
    return _checked(Approx(inverse, 2 * a.error * inverse * inverse + abs(inverse) * _EPS))


def _power(base: Value, exponent: Value) -> Value:
    if not isinstance(exponent, Fraction):
        raise Unsure
    if exponent.denominator != 1:
        if exponent.denominator > 12:
            raise Unsure
        return _power(_root(base, exponent.denominator), Fraction(exponent.numerator))
    times = exponent.numerator
    if isinstance(base, Fraction):
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(times) * bits > _MAX_BITS:
            raise Unsure
        return base**times
    if abs(times) > 64:
        raise Unsure
    result: Value = Fraction(1)
    for _ in range(abs(times)):
        result = multiply(result, base)
    return result if times >= 0 else _inverse(result)


def _root(value: Value, degree: int) -> Value:
    if isinstance(value, Fraction):
        negative = value < 0
        if negative and degree % 2 == 0:
            raise Unsure
        above, below = _integer_root(abs(value.numerator), degree), _integer_root(value.denominator, degree)
        if above is not None and below is not None:
            return Fraction(-above if negative else above, below)
    value = approximate(value)
    if value.value <= 2 * value.error:
        raise Unsure
    root = value.value ** (1 / degree)
    return Approx(root, root * (value.error / value.value + 4 * _EPS))


def _integer_root(value: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(value)
        return root if root * root == value else None
    if value.bit_length() > 900:
        return None
    near = round(value ** (1 / degree))
    return next((root for root in (near - 1, near, near + 1) if root >= 0 and root**degree == value), None)


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str):
        self.tokens: list[str] = []
        end = 0
        for match in _TOKEN.finditer(text):
            if match.start() != end:
                raise Unsure
            end = match.end()
            self.tokens.append(_OPERATOR.get(match.group(), match.group()))
        if end != len(text):
            raise Unsure
        self.at = 0
        self.depth = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str | None = None) -> str:
        token = self.peek()
        if not token or (wanted is not None and token != wanted):
            raise Unsure
        self.at += 1
        return token

    def whole(self) -> Value:
        value = self.sum()
        if self.peek():
            raise Unsure
        return value

    def sum(self) -> Value:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise Unsure
        value = self.product()
        while self.peek() in ("+", "-"):
            sign = self.take()
            term = self.product()
            value = _add(value, term if sign == "+" else _negative(term))
        self.depth -= 1
        return value

    def product(self) -> Value:
        value = self.signed()
        divided = False
        while True:
            token = self.peek()
            if token == "*":
                self.take()
                value = multiply(value, self.signed())
            elif token == "/":
                self.take()
                value = multiply(value, _inverse(self.signed()))
                divided = True
            elif token in ("(", "\\sqrt", "\\pi", "\\frac"):
                # Is 1/2\pi a half of pi or one over two pi? And a number before \frac is a mixed number (see atom).
                if divided or token == "\\frac":
                    raise Unsure
                value = multiply(value, self.powered())
            else:
                return value

    def signed(self) -> Value:
        if self.peek() in ("+", "-"):
            sign = self.take()
            value = self.powered()
            return value if sign == "+" else _negative(value)
        return self.powered()

    def powered(self) -> Value:
        base = self.atom()
        if self.peek() == "!":
            self.take()
            if not isinstance(base, Fraction) or base.denominator != 1 or not 0 <= base <= 300:
                raise Unsure
            base = _checked(Fraction(math.factorial(base.numerator)))
        if self.peek() == "^":
            self.take()
            base = _power(base, self.group())
            if self.peek() == "^":
                raise Unsure
        return base

    def group(self) -> Value:
        """An argument: a braced expression or a single digit (`2^10` is taken as people mean it, not as TeX does)."""
        if self.peek() == "{":
            self.take()
            value = self.sum()
            self.take("}")
            return value
        return self.signed_number()

    def signed_number(self) -> Value:
        if self.peek() == "-":
            self.take()
            return _negative(self.atom())
        return self.atom()

    def atom(self) -> Value:
        token = self.take()
        if token[0].isdigit() or token[0] == ".":
            value = Fraction(token.replace(",", ""))
            if self.peek() == "\\frac":
                return self.mixed(value)
            return value
        if token in ("(", "{", "["):
            value = self.sum()
            self.take({"(": ")", "{": "}", "[": "]"}[token])
            return value
        if token == "\\pi":
            return Approx(math.pi, math.pi * _EPS)
        if token == "\\frac":
            above = self.group()
            return multiply(above, _inverse(self.group()))
        if token == "\\sqrt":
            degree = 2
            if self.peek() == "[":
                self.take()
                index = self.atom()
                self.take("]")
                if not isinstance(index, Fraction) or index.denominator != 1 or not 2 <= index <= 12:
                    raise Unsure
                degree = index.numerator
            return _root(self.group(), degree)
        raise Unsure

    def mixed(self, whole: Fraction) -> Value:
        r"""`4\frac{2}{3}`: a mixed number when its fraction is a proper one of two integers."""
        self.take("\\frac")
        above, below = self.group(), self.group()
        plain = all(isinstance(part, Fraction) and part.denominator == 1 for part in (whole, above, below))
        if not plain or not 0 < above < below:
            raise Unsure
        return whole + above / below
