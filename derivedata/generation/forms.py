"""Forms a style can ask for, and how an output shows that it has one: questions with answers, a table, a problem.

Each check takes the text and returns what is missing, in words, or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from derivedata.generation.measures import NUMBER, count_words

_I = re.IGNORECASE
# Possessive: what looks like markup is taken whole, or long runs of it would be tried in every way.
_MARK = r"[ \t>#*_\-•]*+(?:\d{1,2}[.):][ \t]*+)?+[*_]*+[ \t]*+"
_QUESTION_LABEL = re.compile(
    rf"\A{_MARK}(?:questions?|q|frage|f|preguntas?|p|domanda|d|pergunta|vraag|вопрос|问题?|問題?|質問|问)"
    r"[ \t]*+\d{0,2}+[ \t]*+[*_]*+[ \t]*+[:：.)][*_]*+",
    _I,
)
_ANSWER_LABEL = re.compile(
    rf"\A{_MARK}(?:answers?|a|antwort|réponse|r|respuesta|risposta|resposta|antwoord|ответ|回答|答案?|答え)"
    r"[ \t]*+\d{0,2}+[ \t]*+[*_]*+[ \t]*+[:：.)][*_]*+",
    _I,
)
_ASKS = re.compile(r"[?？][\s*_\"”»)]*+\Z")
# Small models write these instead of an answer.
_HOLLOW = re.compile(r"\A(?:the )?(?:answer|explanation)s?(?: is)?\s*:?\s*\Z", _I)
_HEADING = re.compile(r"\A\s*(?:#{1,6}\s|\*\*[^*]+\*\*\s*\Z)")


def pairs(text: str) -> list[tuple[str, str]]:
    """The questions of a text, each with what is said below it (empty when nothing is).

    A question is a line that is labelled as one or ends in a question mark; a line that asks and answers in one, as
    `Question: ... Answer: ...`, is taken apart.
    """
    found: list[list[str]] = []
    # Some models write a pair in one line.
    text = re.sub(
        r"(?<=[?？])[ \t]*[*_]*(?=(?:answer|a|antwort|réponse|respuesta|答案?|回答)\s*[:：])", "\n", text, flags=_I
    )
    for line in text.split("\n"):
        answer = _ANSWER_LABEL.match(line)
        question = _QUESTION_LABEL.match(line)
        if question and line[question.end() :].strip(" *_"):
            found.append([line[question.end() :].strip(" *_"), ""])
        elif answer and found:
            found[-1][1] = f"{found[-1][1]} {line[answer.end() :].strip()}".strip()
        elif not question and not answer and _ASKS.search(line):
            found.append([line.strip(" *_#"), ""])
        elif found and line.strip() and not (_HEADING.match(line) and found[-1][1]):
            found[-1][1] = f"{found[-1][1]} {line.strip()}".strip()
    return [(question, _HOLLOW.sub("", answer)) for question, answer in found]


def drop_unanswered(text: str) -> str:
    """The text without a last question that has no answer (it was cut off there)."""
    lines = text.rstrip().split("\n")
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at]
        if not line.strip() or (_HEADING.match(line) and not _ASKS.search(line)):
            continue
        bare = _ANSWER_LABEL.match(line) and not line[_ANSWER_LABEL.match(line).end() :].strip(" *_")
        if _QUESTION_LABEL.match(line) or _ASKS.search(line) or bare:
            continue
        return "\n".join(lines[: at + 1])
    return ""


def missing_questions(text: str, least: int) -> str | None:
    """Fewer than `least` different questions with an answer."""
    found = pairs(text)
    answered = {question.lower() for question, answer in found if count_words(answer) >= 1}
    if len(answered) < least:
        return f"{len(answered)} different questions with an answer, {least} needed"
    if len(answered) < 0.6 * len(found):
        return f"{len(found) - len(answered)} of {len(found)} questions are repeated or have no answer"
    return None


_SEPARATOR = re.compile(r"\A\s*\|?\s*:?-{1,}:?\s*(?:\|\s*:?-{1,}:?\s*)+\|?\s*\Z")


def tables(text: str) -> list[list[list[str]]]:
    """The Markdown tables of a text: header and data rows, each a list of cells."""
    found, lines = [], text.split("\n")
    for at in range(1, len(lines)):
        if not _SEPARATOR.match(lines[at]) or "|" not in lines[at - 1]:
            continue
        rows = [_cells(lines[at - 1])]
        for line in lines[at + 1 :]:
            if "|" not in line:
                break
            if not _SEPARATOR.match(line):
                rows.append(_cells(line))
        found.append(rows)
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))]


def missing_table(text: str) -> str | None:
    """No table with a header, two columns and two different rows that fit the header and aren't mostly empty."""
    found = tables(text)
    if not found:
        return "no Markdown table of two columns or more (header row, separator row, data rows)"
    rows = max(found, key=len)
    header, data = rows[0], rows[1:]
    filled = {tuple(row) for row in data if sum(map(bool, row)) >= 2 and set("".join(row)) - set(". -…")}
    if len(filled) < 2:
        return f"a table with {len(filled)} different filled rows, 2 needed"
    if sum(len(row) == len(header) for row in data) < 0.8 * len(data):
        return "rows of a table don't have as many cells as its header"
    return None


_CALCULATES = re.compile(r"[=≈]|\d\s*[-+*/×÷·−–]\s*\d|\\(?:times|frac|div|cdot)|\d\s*%")
_SOLVES = re.compile(
    r"\b(?:solution|solve|step 1|answer|result|therefore|lösung|antwort|ergebnis|réponse|résultat|solución|respuesta|"
    r"soluzione|risposta|solução|resposta)\b|解|答",
    _I,
)
_ORDERS = re.compile(
    r"\b(?:find|calculate|determine|compute|work out|berechne\w*|calcule\w*|calcula)\b|求|计算|計算", _I
)


def missing_problem(text: str) -> str | None:
    """No problem with two numbers and a question, followed by a solution that calculates and reaches a number."""
    solves = [match.start() for match in _SOLVES.finditer(text) if match.start() > 30]
    if not solves:
        return "no solution after the problem"
    problem, solution = text[: solves[0]], text[solves[0] :]
    if len(NUMBER.findall(problem)) < 2:
        return "fewer than two numbers in the problem"
    if not re.search(r"[?？]", problem) and not _ORDERS.search(problem):
        return "the problem asks nothing"
    if not _CALCULATES.search(solution):
        return "the solution calculates nothing"
    if not NUMBER.search(solution[-300:]):
        return "no number in the answer"
    return None


def missing_prose(text: str) -> str | None:
    """Mostly lists, tables or headings instead of sentences."""
    lines = [line for line in text.split("\n") if line.strip()]
    marked = sum(bool(re.match(r"\s*(?:[-*•|#]|\d+[.)])\s?", line)) for line in lines)
    return f"{marked} of {len(lines)} lines are list items, rows or headings" if marked > 0.5 * len(lines) else None


CHECKS: dict[str, Callable[[str], str | None]] = {
    "any": lambda text: None,
    "prose": missing_prose,
    "qa": lambda text: missing_questions(text, 1),
    "faq": lambda text: missing_questions(text, 2),
    "table": missing_table,
    "problem": missing_problem,
}
