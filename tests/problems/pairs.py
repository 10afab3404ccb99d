r"""Hand-made pairs of gold answer and response, with what a teacher would say.

`MISSES` names the pairs that the verifier gets wrong and why; a test keeps that list exact.
"""

from __future__ import annotations

RIGHT, WRONG, NONE = "correct", "wrong", "no_answer"

# (gold, response, verdict)
PAIRS: list[tuple[str, str, str]] = [
    # Numbers in other spellings.
    ("1200", "\\boxed{1,200}", RIGHT),
    ("1,200", "\\boxed{1200}", RIGHT),
    ("12000", "\\boxed{12{,}000}", RIGHT),
    ("12000", "\\boxed{12 000}", RIGHT),
    ("2.5", "\\boxed{\\frac{5}{2}}", RIGHT),
    ("\\frac{5}{2}", "\\boxed{2\\frac{1}{2}}", RIGHT),
    ("3.5", "\\boxed{3 1/2}", RIGHT),
    ("0.5", "\\boxed{.5}", RIGHT),
    ("5", "\\boxed{5.00}", RIGHT),
    ("1500", "\\boxed{1.5 \\times 10^3}", RIGHT),
    ("-\\frac{2}{3}", "\\boxed{\\frac{-2}{3}}", RIGHT),
    ("\\frac{14}{3}", "\\boxed{\\dfrac{14}{3}}", RIGHT),
    ("\\frac{14}{3}", "\\boxed{4.67}", WRONG),
    ("3.14159", "\\boxed{\\pi}", WRONG),
    ("7", "\\boxed{-7}", WRONG),
    ("10", "\\boxed{100}", WRONG),
    ("7", "\\boxed{seven}", RIGHT),
    ("1000000", "\\boxed{10^6}", RIGHT),
    ("101_2", "\\boxed{101_{2}}", RIGHT),
    ("2013^{4025}", "\\boxed{2013^{4025}}", RIGHT),
    # Percentages and money.
    ("50\\%", "\\boxed{50}", RIGHT),
    ("50\\%", "\\boxed{0.5}", RIGHT),
    ("0.25", "\\boxed{25\\%}", RIGHT),
    ("50", "\\boxed{0.5}", WRONG),
    ("12.5\\%", "\\boxed{\\frac{1}{8}}", RIGHT),
    ("\\$5", "\\boxed{5.00}", RIGHT),
    ("18", "\\boxed{\\$18.00}", RIGHT),
    # Units.
    ("7 \\text{ apples}", "\\boxed{7}", RIGHT),
    ("7", "\\boxed{7 \\text{ apples}}", RIGHT),
    ("12", "\\boxed{12\\,\\text{cm}^2}", RIGHT),
    ("5 cm", "\\boxed{5 m}", WRONG),
    ("3 \\text{ meters}", "\\boxed{3 m}", RIGHT),
    ("60^\\circ", "\\boxed{60}", RIGHT),
    ("60^\\circ", "\\boxed{60 \\text{ degrees}}", RIGHT),
    ("5 \\text{ m}", "\\boxed{500 \\text{ cm}}", RIGHT),
    # Surds and constants.
    ("2\\sqrt{3}", "\\boxed{\\sqrt{12}}", RIGHT),
    ("2\\sqrt{3}", "\\boxed{2\\sqrt3}", RIGHT),
    ("2\\sqrt{3}", "\\boxed{2}", WRONG),
    ("\\frac{\\sqrt{3}}{3}", "\\boxed{\\frac{1}{\\sqrt{3}}}", RIGHT),
    ("\\sqrt[3]{8}", "\\boxed{2}", RIGHT),
    ("\\frac{3\\pi}{4}", "\\boxed{0.75\\pi}", RIGHT),
    ("\\sqrt{2}+\\sqrt{3}", "\\boxed{\\sqrt{5+2\\sqrt{6}}}", RIGHT),
    ("\\sqrt{2}", "\\boxed{1.41}", WRONG),
    ("\\ln 2", "\\boxed{\\ln{2}}", RIGHT),
    ("1+\\sqrt{2}", "\\boxed{\\sqrt{2}+1}", RIGHT),
    ("2.4+1.8i", "\\boxed{\\frac{12}{5}+\\frac{9}{5}i}", RIGHT),
    # Algebra.
    ("p - q", "\\boxed{-q + p}", RIGHT),
    ("(x+1)^2", "\\boxed{x^2+2x+1}", RIGHT),
    ("\\frac{x+2}{x-2}", "\\boxed{\\frac{2+x}{x-2}}", RIGHT),
    ("x^2-1", "\\boxed{x^2+1}", WRONG),
    ("\\frac{n}{2n-1}", "\\boxed{n/(2n-1)}", RIGHT),
    ("x=5", "\\boxed{5}", RIGHT),
    ("5", "\\boxed{x = 5}", RIGHT),
    ("y = 2x + 3", "\\boxed{y=3+2x}", RIGHT),
    ("2^{n-1}", "\\boxed{\\frac{2^n}{2}}", RIGHT),
    # Intervals and inequalities, either way round.
    ("(2, \\infty)", "\\boxed{x > 2}", RIGHT),
    ("x > 2", "\\boxed{(2, \\infty)}", RIGHT),
    ("[0,1]", "\\boxed{0 \\le x \\le 1}", RIGHT),
    ("(0,1)", "\\boxed{[0,1]}", WRONG),
    ("(2, \\infty)", "\\boxed{x \\ge 2}", WRONG),
    ("(-\\infty,-1)\\cup(1,\\infty)", "\\boxed{(1,\\infty)\\cup(-\\infty,-1)}", RIGHT),
    # Sets, lists and points.
    ("\\{1,2\\}", "\\boxed{\\{2,1\\}}", RIGHT),
    ("1,2,3", "\\boxed{3, 2, 1}", RIGHT),
    ("1,2,3", "\\boxed{1, 2}", WRONG),
    ("(1,2)", "\\boxed{(2,1)}", WRONG),
    ("(3, \\frac{\\pi}{2})", "\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}", RIGHT),
    ("\\pm 2", "\\boxed{2, -2}", RIGHT),
    ("1 \\pm \\sqrt{2}", "\\boxed{1-\\sqrt 2, 1+\\sqrt 2}", RIGHT),
    ("19 \\text{ and } 30", "\\boxed{30, 19}", RIGHT),
    ("x=1 \\text{ or } x=2", "\\boxed{2, 1}", RIGHT),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\boxed{\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}}", RIGHT),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\boxed{\\begin{pmatrix} 2 \\\\ 1 \\end{pmatrix}}", WRONG),
    # Words and choices.
    ("Evelyn", "\\boxed{\\text{Evelyn}}", RIGHT),
    ("Angela", "\\boxed{Galena}", WRONG),
    ("\\text{even}", "\\boxed{Even}", RIGHT),
    ("C", "\\boxed{(C)}", RIGHT),
    ("C", "\\boxed{\\textbf{(C)}\\ 12}", RIGHT),
    ("C", "\\boxed{D}", WRONG),
    ("11:47", "\\boxed{11:47}", RIGHT),
    ("11:47", "\\boxed{11:48}", WRONG),
    ("Tuesday", "It falls on a \\boxed{Tuesday}.", RIGHT),
    # Several boxes: the last one is the answer.
    ("5", "First \\boxed{3}, hence \\boxed{5}.", RIGHT),
    ("3", "First \\boxed{3}, hence \\boxed{5}.", WRONG),
    ("5", "Perhaps \\boxed{5}. No: \\boxed{6", RIGHT),
    ("5", "<think>\\boxed{5}</think> The answer is \\boxed{6}.", WRONG),
    ("5", "<think>I believe \\boxed{5}", NONE),
    # Chains and hedges.
    ("5", "\\boxed{1=2=3=4=5}", WRONG),
    ("6", "\\boxed{x = 12/2 = 6}", RIGHT),
    ("5", "\\boxed{2+3=5}", RIGHT),
    ("5", "\\boxed{5 \\text{ or } 6}", WRONG),
    ("5", "The answer is 5 or 6.", WRONG),
    ("5", "\\boxed{5, 6, 7, 8}", WRONG),
    ("5", "I cannot solve this.", NONE),
    ("5", "\\boxed{}", NONE),
    # Further notations.
    ("\\frac{1}{3}", "\\boxed{0.\\overline{3}}", RIGHT),
    ("3", "\\boxed{\\log_2 8}", RIGHT),
    ("\\emptyset", "\\boxed{\\text{no solution}}", RIGHT),
    ("(1,2)", "\\boxed{x=1, y=2}", RIGHT),
    ("(1,2)", "\\boxed{x \\in (1,2)}", RIGHT),
    ("\\frac{1}{2}", "\\boxed{\\sin 30^\\circ}", RIGHT),
    ("1:4", "\\boxed{\\frac{1}{4}}", RIGHT),
    ("3628800", "\\boxed{10!}", RIGHT),
    ("120", "\\boxed{\\binom{10}{3}}", RIGHT),
    ("\\frac{x}{2}", "\\boxed{\\frac{1}{2}x}", RIGHT),
    ("e^{2}", "\\boxed{e^2}", RIGHT),
    # Answers without a box.
    ("2,317", "so much.\n#### 2,317", RIGHT),
    ("7", "He has seven.\nA: 7", RIGHT),
    ("12", "The answer is **12**.", RIGHT),
    ("\\frac{1}{2}", "The final answer is $\\frac12$.", RIGHT),
    ("2\\sqrt{3}", "2\\sqrt{3}", RIGHT),
]

# gold, response -> why it is wrong about this pair.
MISSES: dict[tuple[str, str], str] = {
    ("5 \\text{ m}", "\\boxed{500 \\text{ cm}}"): "units are compared, never converted",
    (
        "2.4+1.8i",
        "\\boxed{\\frac{12}{5}+\\frac{9}{5}i}",
    ): "math-verify doesn't bring decimals and fractions together in a complex number",
    ("\\emptyset", "\\boxed{\\text{no solution}}"): "words are not read as mathematics, numbers excepted",
    ("\\frac{1}{2}", "\\boxed{\\sin 30^\\circ}"): "the degree sign is dropped, so this is the sine of 30 radians",
}
