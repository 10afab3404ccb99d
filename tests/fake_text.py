"""What the fake server answers: text that looks like what was asked for, a pure function of prompt and seed."""

from __future__ import annotations

import random
import re

SUBJECTS = [
    "river",
    "harbour",
    "library",
    "orchard",
    "engine",
    "museum",
    "garden",
    "bridge",
    "market",
    "valley",
    "workshop",
    "station",
]
_VERBS = [
    "supports",
    "records",
    "explains",
    "attracts",
    "produces",
    "carries",
    "protects",
    "connects",
    "measures",
    "changes",
]
_PLACES = ("near", "before", "behind", "beside", "with", "without", "under", "after", "between", "like", "against")
_QUESTIONS = (
    "What makes the {0} important",
    "How has the {0} changed over time",
    "Why do people value the {0}",
    "Who takes care of the {0}",
    "When is the {0} used the most",
    "Where does the {0} get its support",
)


def reply(prompt: str, seed: int) -> str:
    """An answer in the form that the end of the prompt asks for: table, FAQ, word problem, questions or prose."""
    draw = random.Random(seed)
    asked = prompt[-1000:].lower()
    numbers = re.findall(r"\d+", prompt[:4000])[:2] or ["12", "30"]
    words = list(dict.fromkeys(re.findall(r"[A-Za-z]{5,}", prompt[:4000])))
    subjects = draw.sample(SUBJECTS, 6)
    if len(words) >= 6:  # of the document, so that the answer is about it
        subjects = [word.lower() for word in draw.sample(words[:80], 6)]
    if "word problem" in asked:
        return _problem(draw, subjects, numbers)
    if "frequently asked" in asked:
        return _faq(draw, subjects)
    if "table" in asked:
        return _table(draw, subjects, numbers)
    if "question" in asked:
        pairs = (f"Question: {_ask(draw, s)}?\nAnswer: {prose(draw, [s, *subjects], 2)}" for s in subjects[:4])
        return "\n\n".join(pairs)
    return prose(draw, subjects, 8)


def prose(draw: random.Random, subjects: list[str], sentences: int) -> str:
    return " ".join(
        f"The {draw.choice(subjects)} {draw.choice(_VERBS)} the {draw.choice(subjects)}"
        f" {draw.choice(_PLACES)} the {draw.choice(subjects)}."
        for _ in range(sentences)
    )


def _ask(draw: random.Random, subject: str) -> str:
    return draw.choice(_QUESTIONS).format(subject)


def _faq(draw: random.Random, subjects: list[str]) -> str:
    parts = [f"# Questions about the {subjects[0]}"]
    parts += [f"**{_ask(draw, subject)}?**\n\n{prose(draw, [subject, *subjects], 2)}" for subject in subjects[:5]]
    return "\n\n".join(parts)


def _table(draw: random.Random, subjects: list[str], numbers: list[str]) -> str:
    rows = [f"| {s} | {draw.choice(_VERBS)} the {draw.choice(subjects)} | {draw.choice(numbers)} |" for s in subjects]
    head = ["| Subject | What it does | Number |", "| --- | --- | --- |"]
    return "\n".join(head + rows) + "\n\n" + prose(draw, subjects, 2)


def _problem(draw: random.Random, subjects: list[str], numbers: list[str]) -> str:
    first, second = (numbers * 2)[:2]
    total = int(first) + int(second)
    return (
        f"Problem: {prose(draw, subjects, 2)} The {subjects[0]} counted {first} boxes in the morning and {second} in"
        f" the afternoon. How many boxes were counted on that day?\nSolution: The boxes of the morning and of the"
        f" afternoon are added. {first} + {second} = {total}, so {total} boxes were counted.\nAnswer: {total}"
    )
