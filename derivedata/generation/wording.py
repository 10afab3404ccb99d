"""A style's rules in words, and the commented file that a style of one's own begins with."""

from __future__ import annotations

from derivedata.generation.style import Style

_FORMS = {
    "any": "any text",
    "prose": "prose: sentences, not mostly lists, rows or headings",
    "qa": "questions with answers",
    "faq": "at least two different questions with answers",
    "table": "a Markdown table with a header row and two different rows",
    "problem": "a problem with two numbers and a question, a solution that calculates, and no wrong calculation",
}
_ON_LONG = {
    "split": "split into pieces at paragraphs and sentences",
    "window": "cut to one window, drawn by the seed",
    "truncate": "cut at the end",
    "skip": "skipped",
}


def rules_in_words(style: Style) -> list[str]:
    """One line a rule, in the order in which they take effect."""
    source, when, sampling, accept = style.source, style.applies_when, style.sampling, style.accept
    limit = "what the model's context leaves" if source.max_tokens is None else f"{source.max_tokens} tokens"
    lines = [
        f"documents under {source.min_tokens} tokens are skipped; those above {limit} are {_ON_LONG[source.on_long]}",
    ]
    needs = [f"{n} {what}" for n, what in ((when.min_numbers, "numbers"), (when.min_words, "words")) if n]
    if needs:
        otherwise = f"go to the style {style.fallback}" if style.fallback else "are skipped"
        lines.append(f"documents with fewer than {' or '.join(needs)} {otherwise}")
    top_k = "all tokens" if sampling.top_k == -1 else f"the {sampling.top_k} likeliest tokens"
    lines.append(
        f"drawn at temperature {sampling.temperature:g} from {top_k} within {sampling.top_p:.0%} of the probability, "
        f"{sampling.max_tokens} tokens at most"
        + (f", with a frequency penalty of {sampling.frequency_penalty:g}" if sampling.frequency_penalty else "")
    )
    if style.opening:
        lines.append(f"every answer begins with {style.opening!r}")
    lines.append(f"accepted: {_FORMS[accept.form]}")
    longest = f" to {accept.max_chars}" if accept.max_chars else ""
    lines.append(f"accepted: {accept.min_chars}{longest} characters{'' if longest else ' or more'}" + _ratio(style))
    if accept.max_overlap < 1:
        lines.append(f"accepted: at most {accept.max_overlap:.0%} of its 8-word sequences copied from the document")
    if accept.min_shared_words:
        lines.append(f"accepted: at least {accept.min_shared_words:.0%} of its longer words are in the document")
    if accept.min_known_numbers:
        lines.append(f"accepted: at least {accept.min_known_numbers:.0%} of its numbers are in the document")
    if accept.same_language:
        lines.append("accepted: in the language of the document")
    cut = "kept up to the last complete sentence, answer or row" if accept.allow_truncated else "rejected"
    lines.append(f"cut off at the most tokens: {cut}")
    return lines


def _ratio(style: Style) -> str:
    low, high = style.accept.min_ratio, style.accept.max_ratio
    parts = ([f"at least {low:g}"] if low else []) + ([f"at most {high:g}"] if high is not None else [])
    return f", and {' and '.join(parts)} times as long as the document" if parts else ""


def template(name: str) -> str:
    """A complete, commented style file of the given name."""
    return f"""\
# A style says how a model rewrites a document. Only name, description and instruction have to be here;
# what you leave out takes the value that is shown. `derivedata styles check FILE` checks the file.

name: {name}            # lower-case letters, digits, - and _; part of folder and column names
version: 1              # for people; what the text depends on is hashed by itself
description: What a reader gets, in one sentence.

# The model reads the document first and this instruction after it, so "the text above" is the document.
instruction: |
  Explain the text above to a curious twelve-year-old.

  Keep every fact, name and number, put difficult ideas in plain words, and write in the language of the text. Write
  only the explanation.

# The first characters of the answer can be written for the model; they hold it to a form: a table begins with "|".
# opening: "|"

# system: A system message. Styles that share it (or have none) share the work of reading the document.

sampling:
  temperature: 0.7      # 0: always the likeliest token
  top_p: 0.95           # share of the probability that tokens are drawn from
  top_k: 50             # number of tokens they are drawn from; -1: all
  frequency_penalty: 0  # up to 2; taken from a token's logit for each time it was written already: against loops
  max_tokens: 512       # new tokens of one generation

source:
  min_tokens: 40        # shorter documents are skipped [1]
  max_tokens: 1500      # of one piece [null: what the model's context leaves]
  on_long: split        # longer documents: split | window | truncate | skip

applies_when:
  min_numbers: 0        # the document must have that many numbers
  min_words: 0          # and that many words
  otherwise: skip       # or the name of the style that takes the document instead

accept:
  form: prose           # any | prose | qa | faq | table | problem [any]
  min_chars: 100        # [1]
  max_chars: null
  min_ratio: 0.2        # length against the document's, in characters [0]
  max_ratio: 5          # [null: no limit]
  max_overlap: 0.6      # share of 8-word sequences copied from the document [1: no limit]
  min_shared_words: 0.2   # share of its longer words that the document has too [0: any]
  min_known_numbers: 0.5  # share of its numbers that the document has too [0: any]
  allow_truncated: true   # cut off at max_tokens: keep the complete part [false]
  same_language: true
"""
