r"""The final answer in a model's response: after the thinking, the last `\boxed{}`, then `####`, then by mode.

Four modes, because the extractor decides the measured difficulty as much as the model does:

* `strict`: only the demanded form (`boxed` or `hashes`); anything else is no answer.
* `lenient`: box, hashes, a stated answer ("the answer is 5", "A: 5"), a response that is nothing but an answer; where
  all of these find nothing, math-verify's own extraction over the text.
* `last-number`: box, else the last number in the text.
* `math-verify`: math-verify's own extraction over the text.

Nothing here takes more than linear time, whatever the response looks like.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MODES = ("strict", "lenient", "last-number", "math-verify")
FORMS = ("boxed", "hashes")

# Raise with every change that can give another answer for the same response: it is written beside each result.
VERSION = 1

# A final answer stands at the end; what is further than this from it is not looked at (a 10 MB response stays cheap).
TAIL = 100_000
# math-verify's patterns are slower than linear, so it is shown less.
TEXT_TAIL = 8_000

_BOX = re.compile(r"\\(?:f?box|boxed)(?![a-zA-Z])\s*")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"-?\d[\d.,]*(?<![.,])|\\[a-zA-Z]+|[^\s{}$]")
_HASHES = re.compile(r"^[ \t]*####[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
_MATH_START = re.compile(r"[-+±]?\s*(?:[\d.$€£(\[{\\<>]|[a-zA-Z]\s*=)")
_STATED = re.compile(
    r"(?:\b(?:final\s+)?answer\s*(?:is\s*:?|:|=)|^\s*A\s*:)[ \t]*(?:\*\*)?[ \t]*(\S[^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
_PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox|operatorname)\s*\{[^{}]*\}")
_SENTENCE_END = re.compile(r"\.(?:\s|$)|[!?](?:\s|$)|;")


@dataclass(frozen=True, slots=True)
class Extraction:
    """What was found: `answer` and `how` (boxed, hashes, stated, whole, number), or neither.

    `text` is what math-verify shall search itself (`how` is then "text"); it is None when nobody should look further.
    """

    answer: str | None
    how: str | None
    text: str | None = None


_NOTHING = Extraction(None, None)


def extractor_name(mode: str) -> str:
    """The name and version under which results of `mode` are recorded, such as `derivedata-lenient/1`."""
    return f"derivedata-{mode}/{VERSION}"


def demanded_form(prompt: str) -> str:
    r"""The form that a prompt asks for: `hashes` if it speaks of `####` and not of `\boxed`, else `boxed`."""
    return "hashes" if "####" in prompt and "\\boxed" not in prompt else "boxed"


def after_thinking(response: str) -> str:
    """The response after its last `</think>`; empty when the thinking was begun and never ended."""
    end = response.rfind("</think>")
    if end >= 0:
        return response[end + len("</think>") :]
    return "" if "<think>" in response else response


def extract(response: str, mode: str = "lenient", form: str = "boxed") -> Extraction:
    """Find the final answer of a response.

    Args:
        response: the model's text as it came.
        mode: one of `MODES`.
        form: the demanded form, for `strict`.
    """
    text = after_thinking(response)[-TAIL:]
    if not text.strip():
        return _NOTHING
    whole_text = Extraction(None, "text", text[-TEXT_TAIL:])
    if mode == "math-verify":
        return whole_text
    for how, find in _STEPS[form if mode == "strict" else mode]:
        if (answer := find(text)) is not None:
            return Extraction(answer, how)
    return whole_text if mode == "lenient" else _NOTHING


def last_box(text: str) -> str | None:
    r"""The content of the last balanced `\boxed{}` or `\fbox{}` (a box in a box is opened); None without one."""
    if "box" not in text:
        return None
    # The usual case, quickly: the last box holds no braces.
    start = text.rfind("\\boxed{") + 7
    if start >= 7 and "box" not in text[start:]:
        end = text.find("}", start)
        if end > start and "{" not in text[start:end] and (content := text[start:end].strip()):
            return content
    for match in reversed(list(_BOX.finditer(text))[-50:]):
        start = match.end()
        if text[start : start + 1] == "{":
            content = _balanced(text, start)
        else:
            bare = _BARE_BOX.match(text, start)
            content = bare.group() if bare else None
        if content is None or not content.strip():
            continue
        # `\boxed{\boxed{5}}`: the inner box comes last and is what the outer one holds.
        return content.strip()
    return None


def _balanced(text: str, start: int) -> str | None:
    """What stands between the brace at `start` and its partner, or None if it has none within reach."""
    depth = 0
    for token in _BRACES.finditer(text, start, start + 20_000):
        if token.group() == "{":
            depth += 1
        elif token.group() == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : token.start()]
    return None


def _last_hashes(text: str) -> str | None:
    if "####" not in text:
        return None
    found = _HASHES.findall(text)
    for position, content in enumerate(reversed(found)):
        content = content.strip("*").strip()
        # `#### Step 2` is a headline in Markdown, not an answer; a single word is one only as the last line of all.
        last_line = position == 0 and text.rstrip().endswith(content)
        if _MATH_START.match(content) or (last_line and " " not in content and content):
            return content
    return None


def _last_stated(text: str) -> str | None:
    """The answer of the last sentence that announces one, if it is short enough to be nothing but the answer."""
    found = _STATED.findall(text[-TEXT_TAIL:])
    if not found:
        return None
    rest = found[-1].strip()
    for opening, closing in (("$", "$"), ("\\(", "\\)"), ("**", "**")):
        if rest.startswith(opening) and (end := rest.find(closing, len(opening))) > 0:
            inner, after = rest[len(opening) : end], rest[end + len(closing) :].strip()
            if not after or after[0] in ".!*":
                return inner.strip() or None
    sentence = _SENTENCE_END.split(rest, maxsplit=1)[0].replace("**", "").strip().rstrip(".,:")
    if not sentence or len(sentence) > 80:
        return None
    words = _PROSE.findall(_TEXT_COMMAND.sub("", sentence))
    # A number with up to two words of unit, a formula, or a word; a longer phrase is reasoning that goes on.
    if len(words) > 2 or (len(words) > 1 and not _MATH_START.match(sentence)):
        return None
    return sentence


def is_bare(text: str) -> bool:
    """Whether the whole response is one short line of mathematics, or a single word, without any prose."""
    text = text.strip()
    if not text or len(text) > 200 or "\n" in text or "box" in text:
        return False
    words = _PROSE.findall(_TEXT_COMMAND.sub("", text))
    if not words:
        return True
    # "7 apples", "12 square meters", "Tuesday" are answers; "x is 5" is a sentence.
    return (len(words) <= 2 and bool(re.fullmatch(r"[-+$]?[\d.,]+(?:\s*[a-zA-Z]{2,}){1,2}\.?", text))) or (
        bool(re.fullmatch(r"[a-zA-Z]+\.?", text))
    )


def _bare(text: str) -> str | None:
    return text.strip() if is_bare(text) else None


def _last_number(text: str) -> str | None:
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


_STEPS = {
    "boxed": (("boxed", last_box),),
    "hashes": (("hashes", _last_hashes),),
    "lenient": (("boxed", last_box), ("hashes", _last_hashes), ("stated", _last_stated), ("whole", _bare)),
    "last-number": (("boxed", last_box), ("number", _last_number)),
}
