"""Made-up documents of a wanted length, the same for the same seed, and four instructions of usual length."""

from __future__ import annotations

import random

from derivedata.generation.tokenizer import Tokenizer

_NOUNS = (
    *("river", "harbour", "library", "orchard", "engine", "museum", "garden", "bridge", "market", "valley", "workshop"),
    *("station", "council", "teacher", "surveyor", "glacier", "archive", "season", "harvest", "signal", "reservoir"),
    *("lantern", "quarry", "merchant", "canal", "plateau", "orchestra", "telescope"),
)
_VERBS = ("supports", "records", "explains", "attracts", "produces", "carries", "protects", "connects", "measures")
_WHEN = ("in the spring", "after the flood", "since the last century", "at night", "before the war", "by law")

INSTRUCTIONS = {
    "question": "Write questions and answers about the text above. Ask about its most important facts and answer each "
    "in one to three complete sentences, in your own words. Use only what the text says.",
    "math": "Write a mathematical word problem with numbers from the text above, and solve it step by step. State the "
    "problem so that it can be understood without the text, and end with the result.",
    "faq": "Turn the text above into a page of frequently asked questions, from the basic to the special, each "
    "followed by an answer of two to four sentences. Keep names and numbers exact.",
    "table": "Arrange the information of the text above in a Markdown table with a header row and at least three "
    "rows, then explain in two or three sentences what it shows. Write nothing else.",
}


def documents(tokenizer: Tokenizer, count: int, seed: int, *, low: int, high: int) -> list[str]:
    """`count` different documents of `low` to `high` tokens, evenly spread."""
    draw, made = random.Random(seed), []
    for number in range(count):
        wanted = low + (high - low) * number // max(count - 1, 1)
        text = f"Report {seed}-{number}."
        while True:
            sentence = (
                f" The {draw.choice(_NOUNS)} of {draw.choice(_NOUNS)} {draw.randrange(2, 900)} {draw.choice(_VERBS)}"
                f" the {draw.choice(_NOUNS)} {draw.choice(_WHEN)}."
            )
            if len(tokenizer.encode(text + sentence)) > wanted:
                break
            text += sentence
        made.append(text)
    return made
