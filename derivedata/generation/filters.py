"""Is a generation what its style promises? `judge` cleans it and accepts it, or rejects it with a stable reason.

    verdict = judge(completion.text, document.text, style, completion.finish_reason)
    verdict.accepted, verdict.text, verdict.reason, verdict.detail, verdict.changes

Pure, and about a millisecond for a text of 500 words. The repetition rules follow Gopher's (Rae et al. 2021, table A1;
Datatrove's GopherRepetitionFilter has them too), measured here on words, without the markup
of tables and labels that returns by design; importing Datatrove's filter costs a second and a spaCy tokenizer.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from derivedata.generation import cleaning, forms
from derivedata.generation.arithmetic import wrong_calculations
from derivedata.generation.language import differs
from derivedata.generation.measures import numbers, overlap, words
from derivedata.generation.style import AcceptRules, Style

# Every reason a generation can be rejected for. Names are stable: manifests hold them.
REASONS: dict[str, str] = {
    "empty": "nothing is left after taking off white space and the model's own talk",
    "refusal": "the model declines the task or speaks about itself as an AI",
    "prompt_leak": "the output repeats the instruction, its placeholders or the chat template",
    "about_the_text": "it talks about `the text` instead of its subject",
    "repetition": "words, lines or paragraphs return in a loop",
    "truncated": "cut off at max_tokens, and the style takes no part of a text, or no part is complete",
    "too_short": "shorter than the style allows, by itself or against its source",
    "too_long": "longer than the style allows, by itself or against its source",
    "wrong_form": "not the form the style promises: no table, no questions with answers, no solved problem",
    "wrong_arithmetic": "a calculation that it writes out is wrong",
    "copy": "it repeats more of its source word for word than the style allows",
    "off_topic": "it shares too few of its words with its source",
    "invented_numbers": "too many of its numbers are not in its source",
    "other_language": "another script or language than its source",
}

# What was taken off or repaired in an accepted text.
CHANGES: dict[str, str] = {
    "control_characters_removed": "control characters (but tab and line feed) were taken out",
    "thinking_removed": "the block in which a reasoning model thinks aloud was taken off",
    "fence_removed": "a code fence around the whole text was taken off",
    "preamble_removed": "the announcement in front (`Here is a table:`) was taken off",
    "farewell_removed": "the offer at the end (`Let me know if ...`) was taken off",
    "loop_removed": "a loop at the end was taken off, with the question that was left without an answer",
    "cut_to_complete": "cut off at max_tokens: kept up to the last complete sentence, answer or row",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one generation: its text as accepted (or as it came, when rejected) and why."""

    accepted: bool
    text: str
    reason: str | None = None  # a key of REASONS
    detail: str | None = None  # the figure or passage that decided, for people
    changes: tuple[str, ...] = ()  # keys of CHANGES


class _Rejected(Exception):
    def __init__(self, reason: str, detail: str):
        self.reason, self.detail = reason, detail


def judge(text: str, source_text: str, style: Style, finish_reason: str | None) -> Verdict:
    """Judge one generation.

    Args:
        text: what the model wrote.
        source_text: the document, or the piece of it, that the prompt held.
        style: the style that asked for it.
        finish_reason: `length` and vLLM's `repetition` mean cut off; any other, that the model ended by itself.

    Returns:
        The verdict; same arguments, same verdict.
    """
    try:
        cleaned, changes = _clean(text)
        if not cleaned:
            raise _Rejected("empty", "only white space" if not text.strip() else "only talk around a text")
        rules = style.accept
        _check_origin(cleaned, source_text, style)
        if rules.allow_truncated and (kept := cleaning.before_loop(cleaned)) != cleaned:
            cleaned = _without_loop(kept, rules)
            changes.append("loop_removed")
        _check_repetition(cleaned)
        if finish_reason in _CUT and "loop_removed" not in changes:
            cleaned = _cut(cleaned, rules)
            changes.append("cut_to_complete")
        _check_length(cleaned, source_text, rules)
        if missing := forms.CHECKS[rules.form](cleaned):
            raise _Rejected("wrong_form", missing)
        if rules.form == "problem" and (wrong := wrong_calculations(cleaned)):
            raise _Rejected("wrong_arithmetic", wrong[0])
        _check_content(cleaned, source_text, rules)
    except _Rejected as rejected:
        return Verdict(False, text, rejected.reason, rejected.detail[:300])
    return Verdict(True, cleaned, changes=tuple(changes))


_CUT = ("length", "repetition")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_STEPS = (
    ("thinking_removed", cleaning.strip_thinking),
    ("fence_removed", cleaning.strip_fence),
    ("preamble_removed", cleaning.strip_preamble),
    ("fence_removed", cleaning.strip_fence),
    ("farewell_removed", cleaning.strip_farewell),
)


def _clean(text: str) -> tuple[str, list[str]]:
    changes = []
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    if (kept := _CONTROL.sub("", plain)) != plain:
        changes.append("control_characters_removed")
    kept = kept.strip()
    for name, step in _STEPS:
        before, kept = kept, step(kept).strip()
        if kept != before and name not in changes:
            changes.append(name)
    return kept, changes


_REFUSAL = re.compile(
    r"\b(?:as an ai\b|as a (?:large )?language model|i(?:'m| am) (?:just )?an? (?:ai|language model)|"
    r"i(?:'m| am) sorry,? (?:but )?(?:i|as|this|that|there)\b|i apologi[sz]e,? but|"
    r"i (?:cannot|can't|can’t|am unable to|am not able to|won't) (?:help|assist|provide|fulfil|create|generate|write|"
    r"rewrite|comply|answer|complete|do that|access)|ich kann (?:dir|ihnen|das|diese\w*|leider)\b[^.\n]{0,60}\bnicht|"
    r"es tut mir leid|je suis désolée?|je ne peux pas|lo siento,|no puedo (?:ayudar|crear|generar|escribir)|"
    r"mi dispiace|desculpe,|sinto muito)|抱歉|对不起|我无法|作为一个?(?:AI|人工智能)|申し訳|お答えできません",
    re.IGNORECASE,
)
_TEMPLATE = re.compile(
    r"<\|[a-z_]+\|>|\[/?INST\]|<</?SYS>>|</?s>|<(?:start|end)_of_turn>|\A\s*(?:system|user|assistant)\n"
)
_PLACEHOLDER = re.compile(
    r"(?:[:：|]|\A|\n)[ \t*]*(?:\.\.\.|…|"
    r"\[(?:your |the |insert )?(?:question|answer|title|problem|solution|name)\w*[^\]]*\]|"
    r"<(?:question|answer|title|problem|solution)>)[ \t*]*(?=\||\n|\Z)",
    re.IGNORECASE,
)
_ABOUT = re.compile(
    r"\b(?:the|this|that|given|provided|above) (?:\w+ )?(?:text|passage|excerpt|document)s?\b"
    r"|\b(?:der|dem|des|diese[rnm]?) (?:obige\w* )?textes?\b|\b(?:le|ce|du) (?:texte|passage)\b"
    r"|\b(?:el|este|del) texto\b"
    r"|(?:这|该|上面的?|以上)(?:段|篇)?(?:文字|文本|文章)|上記の(?:文章|テキスト)",
    re.IGNORECASE,
)


def _check_origin(text: str, source: str, style: Style) -> None:
    """Refusals, and what comes from the prompt instead of the model."""
    if (refusal := _REFUSAL.search(text[:200])) and not _REFUSAL.search(source):
        raise _Rejected("refusal", refusal.group())
    if (template := _TEMPLATE.search(text)) and template.group() not in source:
        raise _Rejected("prompt_leak", template.group().strip())
    if (placeholder := _PLACEHOLDER.search(text)) and not _PLACEHOLDER.search(source):
        raise _Rejected("prompt_leak", f"placeholder {placeholder.group().strip()}")
    told = words(f"{style.system or ''}\n{style.instruction}")
    ours, theirs = words(text), words(source)
    leaked = _grams(ours, 7) & (_grams(told, 7) - _grams(theirs, 7))
    if leaked:
        raise _Rejected("prompt_leak", " ".join(min(leaked)))
    sentences = max(1, len(re.findall(r"[.!?。！？]+(?=\s|\Z)|[。！？]", text)))
    about = len(_ABOUT.findall(text))
    if about > 0.25 * sentences and not _ABOUT.search(source):
        raise _Rejected("about_the_text", f"{about} mentions in {sentences} sentences")


def _check_repetition(text: str) -> None:
    """Loops: the same lines, the same words over and over, or one phrase that fills the text."""
    lines = [line.strip(" *_#|-").lower() for line in text.split("\n") if len(line.strip()) > 12]
    again = len(lines) - len(set(lines))
    if len(lines) >= 4 and again > 0.3 * len(lines):
        raise _Rejected("repetition", f"{again} of {len(lines)} lines are repeated")
    found = words(text)
    if len(found) < 20:
        return
    for n, limit in ((3, 0.18), (5, 0.20), (10, 0.10)):
        grams = list(zip(*(found[i:] for i in range(n)), strict=False))
        if n == 3:
            (gram, count) = Counter(grams).most_common(1)[0]
            # A phrase three times is style; what counts is how much of the text it fills.
            share = count * n / len(found) if count > 3 else 0.0
            detail = f"`{' '.join(gram)}` {count} times"
        else:
            share = 1 - len(set(grams)) / len(grams)
            detail = f"{share:.0%} of {n}-word sequences are repeated"
        if share > limit:
            raise _Rejected("repetition", detail)


def _without_loop(kept: str, rules: AcceptRules) -> str:
    """What stands before a loop (whole lines), if it is a text by itself."""
    whole = forms.drop_unanswered(kept) if rules.form in ("qa", "faq") else kept
    if len(whole) < rules.min_chars:
        raise _Rejected("repetition", f"a loop after {len(kept)} characters")
    return whole


def _cut(text: str, rules: AcceptRules) -> str:
    if not rules.allow_truncated:
        raise _Rejected("truncated", "the style takes complete texts only")
    kept = cleaning.complete_part(text)
    if rules.form in ("qa", "faq"):
        kept = forms.drop_unanswered(kept)
    if not kept:
        raise _Rejected("truncated", "no complete sentence")
    return kept


def _check_length(text: str, source: str, rules: AcceptRules) -> None:
    ratio = len(text) / max(1, len(source))
    if len(text) < rules.min_chars:
        raise _Rejected("too_short", f"{len(text)} characters, {rules.min_chars} needed")
    if ratio < rules.min_ratio:
        raise _Rejected("too_short", f"{ratio:.2f} of its source, {rules.min_ratio:g} needed")
    if rules.max_chars is not None and len(text) > rules.max_chars:
        raise _Rejected("too_long", f"{len(text)} characters, {rules.max_chars} allowed")
    if rules.max_ratio is not None and ratio > rules.max_ratio:
        raise _Rejected("too_long", f"{ratio:.1f} of its source, {rules.max_ratio:g} allowed")


_NUMBERED = re.compile(r"^[ \t>#*_\-•|]*+(?:[A-Za-z]{1,12}[ \t]*+)?+\d{1,3}[ \t]*+[.):|]", re.MULTILINE)


def _check_content(text: str, source: str, rules: AcceptRules) -> None:
    """Against the source: not a copy, not about something else, not in another language."""
    ours, theirs = words(text), words(source)
    if rules.same_language and (how := differs(text, source)):
        raise _Rejected("other_language", how)
    if rules.max_overlap < 1 and (share := overlap(ours, theirs)) > rules.max_overlap:
        raise _Rejected(
            "copy", f"{share:.0%} of its 8-word sequences are in its source, {rules.max_overlap:.0%} allowed"
        )
    if rules.min_shared_words > 0:
        known, long = set(theirs), [word for word in ours if len(word) > 4]
        if len(long) >= 8 and (share := sum(w in known for w in long) / len(long)) < rules.min_shared_words:
            raise _Rejected("off_topic", f"{share:.0%} of its long words are in its source")
    if rules.min_known_numbers > 0:
        found, known = numbers(_NUMBERED.sub(" ", text)), set(numbers(source))
        if len(found) >= 3 and (share := sum(n in known for n in found) / len(found)) < rules.min_known_numbers:
            raise _Rejected("invented_numbers", f"{share:.0%} of its {len(found)} numbers are in its source")


def _grams(found: list[str], n: int) -> set[tuple[str, ...]]:
    return set(zip(*(found[i:] for i in range(n)), strict=False))
