r"""Mathematical text in one spelling: `$\dfrac12\,\text{cm}$.` becomes `\frac{1}{2}` with the unit `cm`.

Only changes that never alter what is meant happen here; what a string is worth is derivedata.problems.values' business.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_SPACING = re.compile(
    r"\\[!,;: ]|~|\\q?quad\b|\\(?:left|right|displaystyle|limits|mathstrut)(?![a-zA-Z])|\\[bB]igg?[lr]?"
)
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname|bold)\s*\{([^{}]*)\}")
_SHORT_FRAC = re.compile(r"\\frac\s*(\d)\s*(\d)|\\frac\s*(\d)\s*(\{[^{}]*\})|\\frac\s*(\{[^{}]*\})\s*(\d)")
_SHORT_SQRT = re.compile(r"\\sqrt\s*(\d|[a-zA-Z](?![a-zA-Z]))")
_ONE_CHARACTER = re.compile(r"([_^])\{(\w)\}")
_DEGREES = re.compile(r"\^?\{?\s*\\circ\s*\}?|°|(?<=\d)\s*\\?degrees?\b")
_CURRENCY = re.compile(r"\\\$|[€£¥]|\\(?:euro|pounds)\b")
_MIXED = re.compile(r"(?<![\d./])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])")
_SPLIT_THOUSANDS = re.compile(r"(?<![\d.])(\d{1,3})((?:\s\d{3})+)(?![\d])")
_COMMAND_SPACE = re.compile(r"(\\[a-zA-Z]+)\s+(?=[a-zA-Z])")
_ALTERNATIVES = re.compile(r"\s*[,;]?\s+(?:or|and)\s+")
_SPACE = re.compile(r"\s+")

_SAME = (
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("\\cfrac", "\\frac"),
    ("\\leqslant", "\\le"),
    ("\\geqslant", "\\ge"),
    ("\\leq", "\\le"),
    ("\\geq", "\\ge"),
    ("\\neq", "\\ne"),
    ("\\lbrace", "\\{"),
    ("\\rbrace", "\\}"),
    ("\\%", "%"),
    ("{,}", ","),
    ("\\infin", "\\infty"),
)
_LATEX_OF = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "×": "\\times ",
        "·": "\\cdot ",
        "÷": "\\div ",
        "π": "\\pi ",
        "∞": "\\infty ",
        "√": "\\sqrt ",
        "≤": "\\le ",
        "≥": "\\ge ",
        "±": "\\pm ",
        "∪": "\\cup ",
        "½": "\\frac{1}{2}",
        "\u00a0": " ",
        "\u202f": " ",
        "，": ",",
        "（": "(",
        "）": ")",
    }
)


class Spelled(NamedTuple):
    """One answer in the common spelling.

    `math` has no spaces; `words` is the same with `\\text{}` opened and single spaces, for answers in words; `unit` was
    taken off its end ("" without one); `percent` says that a percent sign was.
    """

    math: str
    words: str
    unit: str
    percent: bool


# Units that may stand bare behind a number; others count as one when they are words or stand in \text{}.
_UNITS = (
    "(?<=\\s)[mgshlL]|mm|cm|dm|km|mi|ft|yd|mg|kg|lbs?|oz|ml|cl|min|sec|hrs?|mph|kph|km/h|m/s|rad|mol|kj|hz|"
    "cm\\^[23]|m\\^[23]|km\\^2|ft\\^[23]|in\\^[23]|units?\\^[23]"
)
# Words behind a number that change it.
_NO_UNIT = (
    r"(?:and|or|plus|minus|times|over|squared|cubed|factorial|dozen|hundred|thousand|million|billion|sqrt|mod|base)\b"
)
_TRAILING_UNIT = re.compile(
    rf"^(?P<value>.*?[\d)}}.])\s*\\?\s*(?P<unit>(?!{_NO_UNIT})(?:(?:{_UNITS})|[a-zA-Z]{{3,}})"
    rf"(?:[ /.-]+(?:per\s+)?[a-zA-Z]+)*(?:\^\{{?[23]\}}?)?)\.?$"
)
_NUMERIC_BODY = re.compile(r"^[-+±\\\d.,/^*{}()\[\] ]*(?:\\(?:frac|sqrt|pi|cdot|times|div)[-+\d.,/^*{}()\[\] ]*)*$")


def spell(text: str) -> Spelled:
    """Bring an extracted answer or a gold answer into the common spelling."""
    text = strip_delimiters(text)
    if not text.isascii():
        text = text.translate(_LATEX_OF)
    if "\\" in text or "{" in text:
        for old, new in _SAME:
            if old in text:
                text = text.replace(old, new)
        text = _SPACING.sub(" ", text)
        text = _CURRENCY.sub("", text)
    text = text.replace("$", "")
    if "circ" in text or "°" in text or "degree" in text:
        text = _DEGREES.sub("", text)
    opened = _TEXT.sub(r" \1 ", text) if "\\" in text else text
    words = _SPACE.sub(" ", opened).strip().rstrip(".").strip()
    percent = False
    unit = ""
    value = words
    if value.endswith(("%", "percent")):
        value, percent = value.removesuffix("%").removesuffix("percent").rstrip().removesuffix("\\").rstrip(), True
    elif (match := _TRAILING_UNIT.match(value)) and _NUMERIC_BODY.match(match["value"]):
        value, unit = match["value"], match["unit"].lower()
    if " or " in value or " and " in value:
        value = _ALTERNATIVES.sub(",", value)
    return Spelled(_tighten(value), words, unit, percent)


def _tighten(value: str) -> str:
    value = _MIXED.sub(r"\1\\frac{\2}{\3}", value)
    value = _SPLIT_THOUSANDS.sub(lambda m: m[1] + m[2].replace(" ", ""), value)
    if "\\" in value:
        if "\\frac" in value:
            value = _SHORT_FRAC.sub(_braced_fraction, value)
        value = _SHORT_SQRT.sub(r"\\sqrt{\1}", value)
        # `\pi r` must not become `\pir`.
        value = _COMMAND_SPACE.sub(r"\1{}", value)
    value = value.replace(" ", "")
    if "{" in value:
        value = _ONE_CHARACTER.sub(r"\1\2", value)
    return value


def _braced_fraction(match: re.Match) -> str:
    above, below = (part for part in match.groups() if part is not None)
    above = above if above.startswith("{") else f"{{{above}}}"
    below = below if below.startswith("{") else f"{{{below}}}"
    return f"\\frac{above}{below}"


def strip_delimiters(text: str) -> str:
    r"""Take `$...$`, `\(...\)`, `\[...\]`, `**...**` and a closing full stop or comma off."""
    text = text.strip()
    while True:
        before = text
        text = text.rstrip(".,;:").strip() if text[-1:] in ".,;:" else text
        for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**")):
            if len(text) >= len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
                inner = text[len(opening) : len(text) - len(closing)]
                if opening not in inner:
                    text = inner.strip()
        if text == before:
            return text


def split_list(text: str) -> list[str]:
    """Split at the commas and semicolons that stand in no bracket; a number's thousands commas don't split."""
    if "," not in text and ";" not in text:
        return [text]
    if re.fullmatch(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?", text):
        return [text]
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character in ",;" and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return parts
