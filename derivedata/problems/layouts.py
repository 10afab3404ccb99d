r"""The layouts in which people bring problems, recognised row by row by their columns.

| layout | question | answer |
| --- | --- | --- |
| verl (Guru, DAPO, Skywork, Eurus) | `prompt` messages | `reward_model.ground_truth` |
| orz | `prompt[0].value` | `final_answer` |
| trl | `prompt`, a string or messages | `answer`, `ground_truth`, `final_answer` or `solution` |
| prompt-only | `prompt` | none: unscored |
| openr1, big-math, math, deepscaler | `problem` | `answer`, else the last box of `solution` |
| gsm8k | `question` | behind `####` (or a last line `A:`) in `answer` or `ground_truth` |
| question-answer | `question` | `answer`, `ground_truth`, `final_answer` |
| fields | named by the user | named by the user |
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from derivedata.errors import UserError
from derivedata.problems.extract import last_box
from derivedata.problems.golds import gold_answers, unescape

LAYOUTS = (
    "verl",
    "orz",
    "trl",
    "prompt-only",
    "openr1",
    "big-math",
    "math",
    "deepscaler",
    "gsm8k",
    "question-answer",
    "fields",
)

_RATE = re.compile(r"(?:pass|solve|success|correct)_?rate|(?:^|_)(?:avg|mean|pass|maj)@\d+|correctness", re.IGNORECASE)
_ANSWERS = ("answer", "ground_truth", "final_answer", "solution")
_LAST_LINE = re.compile(r"^[ \t]*(?:####|A:)[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant"}


@dataclass(frozen=True, slots=True)
class Fields:
    """A row taken apart: what is question, what is answer, and which columns were used for them."""

    layout: str
    prompt: tuple[dict[str, str], ...]
    golds: tuple[str, ...]
    repaired: bool
    used: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutChoice:
    """What the user said about the layout; all None: recognise it.

    Fields are column names; dots reach into structs (`reward_model.ground_truth`, `prompt.0.value`).
    """

    layout: str | None = None
    question_field: str | None = None
    answer_field: str | None = None

    def __post_init__(self):
        if self.layout is not None and self.layout not in LAYOUTS:
            raise UserError("unknown layout of problems", value=self.layout, remedy=f"use one of {', '.join(LAYOUTS)}")
        if self.layout == "fields" and not (self.question_field and self.answer_field):
            raise UserError("the layout `fields` needs --question-field and --answer-field")


def recognise(row: Mapping) -> str | None:
    """The layout of a row, or None."""
    if "prompt" in row:
        return _recognise_prompt(row)
    if "problem" in row and ("answer" in row or "solution" in row):
        return _recognise_problem(row)
    if "question" not in row:
        return None
    lines = any(isinstance(row.get(name), str) and _LAST_LINE.search(row[name]) for name in ("answer", "ground_truth"))
    return "gsm8k" if lines else "question-answer"


def _recognise_problem(row: Mapping) -> str:
    if any(name.startswith("correctness") for name in row):
        return "openr1"
    if any("solve_rate" in name for name in row):
        return "big-math"
    return "math" if "level" in row or "subject" in row else "deepscaler"


def _recognise_prompt(row: Mapping) -> str:
    if "reward_model" in row:
        return "verl"
    prompt = row["prompt"]
    if isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], Mapping) and "value" in prompt[0]:
        return "orz"
    return "trl" if any(name in row for name in _ANSWERS) else "prompt-only"


def take_apart(row: Mapping, choice: LayoutChoice) -> Fields | None:
    """Find question and answer of a row; None when no layout fits."""
    layout = choice.layout or recognise(row)
    if choice.question_field and choice.answer_field:
        layout = choice.layout or "fields"
    if layout is None:
        return None
    question, answer, used = _READERS[layout](row)
    if choice.question_field:
        question, used = reach(row, choice.question_field), used | {choice.question_field.split(".")[0]}
    if choice.answer_field:
        answer, used = reach(row, choice.answer_field), used | {choice.answer_field.split(".")[0]}
        if isinstance(answer, str) and layout != "gsm8k":
            answer = solution_answer(answer) or answer
    golds = tuple(gold.strip() for gold in gold_answers(answer) if gold.strip())
    repaired = isinstance(answer, str) and unescape(answer) != answer
    return Fields(layout, messages(question), golds, repaired, frozenset(used))


def messages(prompt: object) -> tuple[dict[str, str], ...]:
    """A prompt as messages: a string becomes the user's, ORZ's `from`/`value` become role and content."""
    if prompt is None:
        return ()
    if isinstance(prompt, str):
        return ({"role": "user", "content": prompt},)
    if not isinstance(prompt, list | tuple):
        return ({"role": "user", "content": str(prompt)},)
    found = []
    for message in prompt:
        if not isinstance(message, Mapping):
            continue
        content = message.get("content", message.get("value"))
        role = message.get("role", message.get("from", "user"))
        if isinstance(content, list):
            # Content in parts, as multimodal chat formats have it: the text of it.
            content = "".join(part.get("text", "") for part in content if isinstance(part, Mapping))
        found.append({"role": _ROLES.get(role, role or "user"), "content": "" if content is None else str(content)})
    return tuple(found)


def reach(row: Mapping, path: str) -> object:
    """The value at a dotted path; a column whose own name holds the dots comes first. None where there is none."""
    if path in row:
        return row[path]
    value: object = row
    for step in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list | tuple) and step.lstrip("-").isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def pass_rates(row: Mapping) -> dict[str, float | None]:
    """Pass rates that came with a row, at its top or in `extra_info`: a number in [0, 1], or a list of verdicts.

    A rate that is there and unknown (null, NaN) is None.
    """
    rates: dict[str, float | None] = {}
    extra = row.get("extra_info")
    for columns in (extra if isinstance(extra, Mapping) else {}, row):
        for name, value in columns.items():
            if not _RATE.search(name):
                continue
            known, rate = _rate(value)
            if known and (rate is not None or name not in rates):
                rates[name] = rate
    return rates


def _rate(value: object) -> tuple[bool, float | None]:
    if value is None:
        return True, None
    if isinstance(value, list | tuple) and value and all(isinstance(item, bool) or item is None for item in value):
        verdicts = [item for item in value if item is not None]
        return True, (sum(verdicts) / len(verdicts) if verdicts else None)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if math.isnan(value):
            return True, None
        return (True, float(value)) if 0 <= value <= 1 else (False, None)
    return False, None


def solution_answer(solution: object) -> str | None:
    """The answer at the end of a worked solution: its last box, or what its last line of `####` or `A:` says."""
    if not isinstance(solution, str):
        return None
    box = last_box(solution)
    if box is not None:
        return box
    lines = _LAST_LINE.findall(solution)
    return lines[-1] if lines else None


def _verl(row: Mapping) -> tuple[object, object, set[str]]:
    reward = row.get("reward_model")
    if isinstance(reward, str):
        try:
            reward = json.loads(reward)
        except ValueError:
            reward = None
    answer = reward.get("ground_truth") if isinstance(reward, Mapping) else None
    return row.get("prompt"), answer, {"prompt", "reward_model"}


def _orz(row: Mapping) -> tuple[object, object, set[str]]:
    return row.get("prompt"), row.get("final_answer"), {"prompt", "final_answer"}


def _prompt(row: Mapping) -> tuple[object, object, set[str]]:
    name = next((name for name in _ANSWERS if gold_answers(row.get(name))), None)
    answer = row.get(name) if name else None
    return row.get("prompt"), solution_answer(answer) or answer, {"prompt"} | ({name} if name else set())


def _problem(row: Mapping) -> tuple[object, object, set[str]]:
    answer = row.get("answer")
    if not gold_answers(answer):
        answer = solution_answer(row.get("solution"))
    return row.get("problem"), answer, {"problem", "answer"}


def _question(row: Mapping) -> tuple[object, object, set[str]]:
    name = next((name for name in _ANSWERS if gold_answers(row.get(name))), "answer")
    answer = row.get(name)
    return row.get("question"), solution_answer(answer) or answer, {"question", name}


def _fields(row: Mapping) -> tuple[object, object, set[str]]:
    return None, None, set()


_READERS: dict[str, Callable[[Mapping], tuple[object, object, set[str]]]] = {
    "verl": _verl,
    "orz": _orz,
    "trl": _prompt,
    "prompt-only": _prompt,
    "openr1": _problem,
    "big-math": _problem,
    "math": _problem,
    "deepscaler": _problem,
    "gsm8k": _question,
    "question-answer": _question,
    "fields": _fields,
}
