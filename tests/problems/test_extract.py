"""Where the answer of a response is found."""

from __future__ import annotations

import pytest

from derivedata.problems.extract import demanded_form, extract, last_box


@pytest.mark.parametrize(
    ("response", "answer", "how"),
    [
        ("so \\boxed{\\frac{1}{2}} it is", "\\frac{1}{2}", "boxed"),
        ("\\boxed{3} then \\boxed{4", "3", "boxed"),
        ("\\boxed{\\boxed{3}}", "3", "boxed"),
        ("\\boxed 12 and no braces", "12", "boxed"),
        ("\\fbox{7}", "7", "boxed"),
        ("<think>\\boxed{1}</think>\\boxed{2}", "2", "boxed"),
        ("so much.\n#### 1,200\nGoodbye.", "1,200", "hashes"),
        ("#### 10\nmore\n#### ", "10", "hashes"),
        ("He has seven.\nA: 7", "7", "stated"),
        ("The answer is $\\frac12$.", "\\frac12", "stated"),
        ("Answer: **12**", "12", "stated"),
        ("The answer is 5 or 6", "5 or 6", "stated"),
        ("2\\sqrt{3}", "2\\sqrt{3}", "whole"),
        ("7 apples", "7 apples", "whole"),
    ],
)
def test_lenient_finds(response, answer, how):
    found = extract(response)
    assert (found.answer, found.how) == (answer, how)


@pytest.mark.parametrize(
    "response", ["#### Step 2: add 3", "The answer is 5 because 2 and 3 make it", "Tom has 5.", "\\boxed{}"]
)
def test_lenient_leaves_the_rest_to_math_verify(response):
    found = extract(response)
    assert found.answer is None
    assert found.text == response


@pytest.mark.parametrize("response", ["", "   \n", "<think>\\boxed{3}", "<think>a</think>  "])
def test_nothing_is_nothing(response):
    for mode in ("strict", "lenient", "last-number", "math-verify"):
        found = extract(response, mode)
        assert (found.answer, found.text) == (None, None)


def test_last_number():
    assert extract("3 + 4 = 7, or 1,200.50 in all", "last-number").answer == "1,200.50"
    assert extract("\\boxed{5} of 7", "last-number").answer == "5"
    assert extract("none", "last-number").answer is None


def test_escaped_braces_stay_in_the_box():
    assert last_box("\\boxed{\\{1, 2\\}}") == "\\{1, 2\\}"


def test_a_response_of_ten_megabytes_is_read_from_its_end():
    assert extract("x" * 10_000_000 + " \\boxed{5}").answer == "5"
    assert extract("\\boxed{" * 1_500_000).answer is None
    assert extract("9" * 10_000_000, "last-number").how == "number"


def test_the_demanded_form_stands_in_the_prompt():
    assert demanded_form("Put it in \\boxed{}.") == "boxed"
    assert demanded_form("End with #### and the number.") == "hashes"
    assert demanded_form("What is 3 + 4?") == "boxed"
