"""In which script, and in which of some common European languages, a text is written. A guess that may say unknown.

Enough to see that a model answered a German document in English; no replacement for a language classifier.
"""

from __future__ import annotations

import re
from collections import Counter

from derivedata.generation.measures import words

_SCRIPTS = {
    "kana": re.compile("[\u3040-\u30ff]"),
    "han": re.compile("[\u3400-\u9fff]"),
    "hangul": re.compile("[\uac00-\ud7af]"),
    "cyrillic": re.compile("[\u0400-\u04ff]"),
    "arabic": re.compile("[\u0600-\u06ff]"),
    "hebrew": re.compile("[\u0590-\u05ff]"),
    "greek": re.compile("[\u0370-\u03ff]"),
    "devanagari": re.compile("[\u0900-\u097f]"),
    "thai": re.compile("[\u0e00-\u0e7f]"),
    "latin": re.compile("[A-Za-z\u00c0-\u024f]"),
}

# The commonest short words of each language that few of the others share.
_COMMON = {
    "en": "the of and to in is that it was for with are this from which by have be not they",
    "de": "der die und das ist nicht mit ein eine den dem von zu auf für sich auch wird sie werden",
    "fr": "le la les des et est une dans pour qui que du pas sur au il par plus avec ce",
    "es": "el la los las y es una en por que del con para se su no lo como más fue",
    "it": "il la di e che è un una per non con del della sono si le gli nel più da",
    "pt": "o a os as e é um uma em para que do da com não se por mais foi no",
    "nl": "de het een en van is niet dat op te zijn voor met die aan er ook worden door naar",
}
_LANGUAGES_OF: dict[str, list[str]] = {}
for _language, _list in _COMMON.items():
    for _word in _list.split():
        _LANGUAGES_OF.setdefault(_word, []).append(_language)


def script(text: str) -> str | None:
    """The script most letters belong to; None for a text with fewer than 20 letters or without a clear majority.

    Japanese mixes kana and Chinese characters: some kana make a text `kana`.
    """
    counts = {name: len(pattern.findall(text)) for name, pattern in _SCRIPTS.items()}
    # A Chinese character says about as much as a word of five letters, so quoted Latin names don't outweigh them.
    counts["han"], counts["kana"] = counts["han"] * 3, counts["kana"] * 3
    if counts["kana"] > 0.2 * counts["han"]:
        counts["kana"] += counts.pop("han")
    total = sum(counts.values())
    best = max(counts, key=counts.__getitem__)
    return best if total >= 20 and counts[best] > 0.6 * total else None


def language(text: str) -> str | None:
    """One of en, de, fr, es, it, pt, nl by its commonest words; None when unsure or in another language."""
    score: Counter[str] = Counter()
    found = words(text)
    for word in found:
        for name in _LANGUAGES_OF.get(word, ()):
            score[name] += 1
    best = score.most_common(2)
    if not best or best[0][1] < 5 or best[0][1] < 0.08 * len(found):
        return None
    if len(best) > 1 and best[0][1] < 1.5 * best[1][1]:
        return None
    return best[0][0]


def differs(text: str, source: str) -> str | None:
    """How the languages of two texts differ, in words; None when they don't, or when it can't be said."""
    ours, theirs = script(text), script(source)
    if ours and theirs and ours != theirs:
        return f"{ours} script, the source is in {theirs}"
    ours, theirs = language(text), language(source)
    if ours and theirs and ours != theirs:
        return f"{ours}, the source is {theirs}"
    return None
