"""A problem of reinforcement learning: a prompt, the right answer, and where both came from.

The fields are verl's (`data_source, prompt, ability, reward_model.ground_truth, extra_info`). What is ours stands
beside them: the key `uid`, the layout that was recognised, pass rates that other people measured, and the reason why a
problem can't be scored, if it can't.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from derivedata.problems.golds import gold_answers

_COMPRESSION = (".gz", ".zst", ".bz2", ".xz", ".lz4")


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One problem as it was read. Nothing is ever dropped: what can't be scored says why in `unscored`."""

    uid: str  # 32 hexadecimal characters; two rows never share one, even when their texts do
    data_source: str
    prompt: tuple[dict[str, str], ...]  # messages with role and content, as they came
    ability: str
    ground_truth: str | None  # alternatives as a JSON list of strings, as verl writes them
    extra_info: dict = field(default_factory=dict)  # what else the row held, unchanged
    carried: dict[str, float | None] = field(default_factory=dict)  # other people's pass rates; None: not measured
    layout: str
    path: str  # the file (or data set) it came from, relative to the sources' common folder
    row: int  # 0-based row there; blank lines are no rows
    unscored: str | None = None  # unreadable_row, unknown_layout, empty_question, no_answer
    repaired: bool = False  # doubled backslashes of the answer were halved

    @property
    def golds(self) -> tuple[str, ...]:
        """The right answers; one is enough."""
        return gold_answers(self.ground_truth)

    @property
    def question(self) -> str:
        """The text of the last user message; "" without one."""
        return next((m["content"] for m in reversed(self.prompt) if m["role"] == "user"), "")

    @property
    def text_sha256(self) -> str:
        """Hash of the prompt's text without regard to spacing and case: the same for a problem that is repeated."""
        text = "\n".join(" ".join(m["content"].split()).lower() for m in self.prompt)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def prompt_text(self) -> str:
        """All messages in one string, to look for the form of answer that they demand."""
        return "\n".join(m["content"] for m in self.prompt)


def problem_uid(path: str, row: int, content: str) -> str:
    """The key of a problem: it survives recompressing and moving its folder, and tells equal rows apart."""
    for suffix in _COMPRESSION:
        path = path.removesuffix(suffix)
    inner = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
    return hashlib.sha256(f"{path}\0{row}\0{inner}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def with_suffix(problem: Problem, suffix: str) -> tuple[dict[str, str], ...]:
    r"""The prompt with an instruction added to its last user message, unless it demands a form of answer already.

    A suffix that asks for `\boxed` or `####` is left out where the prompt has asked for either; any other is left out
    where the prompt holds the same words.
    """
    text = problem.prompt_text
    demands = [mark for mark in ("\\boxed", "####") if mark in suffix]
    if (demands and ("\\boxed" in text or "####" in text)) or suffix.strip() in text:
        return problem.prompt
    last = max((i for i, m in enumerate(problem.prompt) if m["role"] == "user"), default=None)
    if last is None:
        return problem.prompt
    changed = {**problem.prompt[last], "content": f"{problem.prompt[last]['content'].rstrip()} {suffix.strip()}"}
    return (*problem.prompt[:last], changed, *problem.prompt[last + 1 :])


def count_problems(problems: list[Problem]) -> dict:
    """The books of a reading: rows = scorable + unscored (by reason), and what there is to know about them."""
    unscored: dict[str, int] = {}
    layouts: dict[str, int] = {}
    for problem in problems:
        layouts[problem.layout] = layouts.get(problem.layout, 0) + 1
        if problem.unscored:
            unscored[problem.unscored] = unscored.get(problem.unscored, 0) + 1
    return {
        "rows": len(problems),
        "scorable": len(problems) - sum(unscored.values()),
        "unscored": unscored,
        "layouts": layouts,
        "repaired_backslashes": sum(problem.repaired for problem in problems),
        "repeated_texts": len(problems) - len({problem.text_sha256 for problem in problems}),
    }


def ground_truth_string(golds: tuple[str, ...]) -> str | None:
    """How right answers are written into one string column: alone as it is, several as a JSON list."""
    if not golds:
        return None
    return golds[0] if len(golds) == 1 else json.dumps(list(golds), ensure_ascii=False)
