"""What comparison decides by itself, and what it leaves alone."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derivedata.problems.compare import compare
from derivedata.problems.golds import unescape
from derivedata.problems.values import Unsure, evaluate, same


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("(2, \\infty)", "x > 2"),
        ("9^{9^{9}}", "1"),
        ("5", "9^{9^{9^{9}}}"),
        ("x+1", "1+x"),
        ("5", "x+1"),
        ("\\frac{1}{3}", "0.333333"),
        ("1:4", "\\frac{1}{4}"),
        ("(0,1)", "[0,1]"),
        ("1/2\\pi", "\\frac{\\pi}{2}"),
    ],
)
def test_what_is_not_certain_is_left_to_math_verify(gold, answer):
    assert compare(gold, answer).equal is None


@pytest.mark.parametrize(("a", "b"), [("\\sqrt{2}", "1.41421356237"), ("\\pi", "3.1416"), ("0.3333", "\\frac{1}{3}")])
def test_rounded_decimals_are_not_the_number(a, b):
    assert compare(a, b).equal is not True


def test_a_long_answer_is_wrong_without_being_read():
    assert compare("5", "(" * 1_000_000).by == "length"


def test_a_chain_is_no_answer_unless_its_sides_agree():
    assert compare("5", "1=2=3=4=5").by == "form"
    assert compare("6", "x=12/2=6").equal
    assert compare("5", "y=a=5").equal is False


@given(st.fractions(max_denominator=10_000), st.fractions(max_denominator=10_000))
def test_fractions_compare_exactly(x, y):
    def latex(value: Fraction) -> str:
        sign = "-" if value < 0 else ""
        return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"

    assert compare(latex(x), str(x)).equal is True
    if abs(x - y) > Fraction(1, 100_000):
        assert compare(latex(x), latex(y)).equal is False


@given(st.integers(1, 10_000), st.integers(2, 50))
def test_surds_are_equal_however_they_are_simplified(inside, factor):
    assert compare(f"{factor}\\sqrt{{{inside}}}", f"\\sqrt{{{factor * factor * inside}}}").equal is True
    assert compare(f"{factor}\\sqrt{{{inside}}}", f"\\sqrt{{{factor * factor * inside + 1}}}").equal is not True


@given(st.text(alphabet="0123456789+-*/^(){}[].,\\ fracsqtpix=%!<>$", max_size=60))
def test_no_text_breaks_the_comparison(text):
    compare("5", text)
    compare(text, "\\frac{1}{2}")
    compare(text, text)


def test_cancellation_is_not_mistaken_for_equality():
    big = "10^{15}"
    difference = evaluate(f"\\sqrt{{{10**30 + 1}}}-{big.replace('{', '').replace('}', '')}")
    assert same(difference, Fraction(0)) is None


@pytest.mark.parametrize("text", ["9^{9^{9}}", "1/0", "x", "", "2\\frac{3}{2}", "(" * 400, "1000!", "2^{10000}"])
def test_unsure_values(text):
    with pytest.raises(Unsure):
        evaluate(text)


def test_doubled_backslashes_are_halved_only_where_all_are_doubled():
    assert unescape("\\\\frac{\\\\pi}{2}") == "\\frac{\\pi}{2}"
    matrix = "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"
    assert unescape(matrix) == matrix
    assert unescape("1 \\\\ 2") == "1 \\\\ 2"
