"""What is taken off a generation before it is judged: the model's talk around the text, and an unfinished end.

Each function returns the text and, when it changed something, is named in the verdict's `changes`.
"""

from __future__ import annotations

import re

_I = re.IGNORECASE

_THINKING = re.compile(r"\A\s*<(think|thinking|reasoning)>.*?</\1>\s*", re.DOTALL | _I)
_FENCE = re.compile(r"\A```[a-z]*[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL | _I)

# Openings by which a model announces its answer. A whole first paragraph goes only if it announces and ends like an
# announcement; the bare courtesy ("Sure!") goes by itself. The task's words keep "Here is where the river bends:" in.
_COURTESY = re.compile(
    r"\A(?:sure(?: thing)?|certainly|of course|absolutely|okay|ok|great|gladly|"
    r"(?:sure, )?(?:i can|i'd be happy to|i'll be happy to|happy to|glad to|let me) help(?: you)?(?: with that)?|"
    r"(?:natürlich|gerne|selbstverständlich)|(?:bien sûr|volontiers|d'accord|certainement)|"
    r"(?:claro(?: que sí)?|por supuesto|con gusto)|(?:certo|certamente|ecco)|(?:claro|com certeza)|"
    r"当然(?:可以)?|好的|もちろん(?:です)?|はい)\s*[!.,:。！，、]+\s*",
    _I,
)
_TASK = (
    r"questions?|answers?|q ?& ?a|q\/a|faq|frequently asked|table|summary|summari[sz]ation|math|maths|mathematical|"
    r"word problem|problem|solution|rewrit\w+|version|document|text|passage|article|overview|list|example|page|"
    r"fragen?|antworten?|tabelle|aufgabe|zusammenfassung|réponses?|tableau|problème|résumé|"
    r"preguntas?|respuestas?|tabla|problema|resumen|domande?|risposte?|tabella|perguntas?|respostas?|tabela"
)
_ANNOUNCES = re.compile(
    rf"\A(?:[^\n]{{0,80}}?\b)?(?:here(?:'s|’s| is| are)|below (?:is|are)|the following (?:is|are)|this is|these are|"
    rf"i(?:'ll|’ll| will| have|'ve|’ve| can)|let's|let me|hier (?:ist|sind|folgt|folgen)|im folgenden|"
    rf"voici|ci-dessous|aquí (?:está|están|tienes)|a continuación|ecco|di seguito|aqui (?:está|estão)|a seguir)"
    rf"\b[^\n]{{0,200}}\b(?:{_TASK})\b[^\n]{{0,120}}[:.!]\**\s*(?:\n|\Z)",
    _I,
)
_ANNOUNCES_CJK = re.compile(r"\A(?:以下是|下面是|这是|以下は|こちらは|次の)[^\n]{0,80}[:：。]\s*\n")
_RULE = re.compile(r"\A(?:-{3,}|\*{3,}|={3,})[ \t]*\n+")

_FAREWELL = re.compile(
    r"\n\s*(?:-{3,}\s*\n\s*)?(?:i hope (?:this|that|these)\b|hope this helps|let me know\b|feel free to\b|"
    r"please let me know\b|if you (?:have any|need|would like|want)\b[^\n]*\b(?:let me know|questions|ask|help)|"
    r"would you like me to\b|is there anything else\b|ich hoffe, (?:das|dies)|n'hésitez pas|espero que (?:esto|isto)|"
    r"希望(?:这|以上)|ご不明な点)[^\n]{0,300}\s*\Z",
    _I,
)

_LINE_LABEL = re.compile(r"\A[ \t>#*_\-•|]*+(?:[A-Za-zÀ-ɏ]{1,12}[ \t]*)?\d{0,3}[ \t]*+[*_]*+[.):：]")
_CLOSERS = "\"'”’»)]*_」』）"
_SENTENCE_END = re.compile(rf"(?:[.!?…]+[{re.escape(_CLOSERS)}]*(?=\s|\Z)|[。！？]+[{re.escape(_CLOSERS)}]*)")
_NUMBERING = re.compile(r"(?:\A|\n)\s*(?:[-*#]+\s*)?\**\d{1,3}\.\Z")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|approx|Dr|Mr|Mrs|Ms|St|No|vs|ca|z\.B|bzw|[A-Z])\.\Z")


def strip_thinking(text: str) -> str:
    """Without the block in which a reasoning model thinks aloud before its answer."""
    return _THINKING.sub("", text)


def strip_fence(text: str) -> str:
    """Without a code fence around the whole text."""
    match = _FENCE.match(text)
    return match.group(1).strip() if match and "```" not in match.group(1) else text


def strip_preamble(text: str) -> str:
    """Without the model's announcement in front: "Sure! Here is a table of the key facts:"."""
    rest = text
    for _ in range(3):
        before = rest
        rest = _COURTESY.sub("", rest, count=1)
        for pattern in (_ANNOUNCES, _ANNOUNCES_CJK):
            rest = pattern.sub("", rest, count=1).lstrip()
        if rest != before:
            rest = _RULE.sub("", rest)
        else:
            break
    return rest


def strip_farewell(text: str) -> str:
    """Without the model's offer of more at the end: "Let me know if you need anything else!"."""
    return _FAREWELL.sub("", text).rstrip()


def before_loop(text: str) -> str:
    """The text up to the first line that it has had before, when at least half of what follows is repeated too.

    Models that run on often end in a loop; what stands before it can be a good text. Labels and numbering don't make
    lines different, short lines and table rules don't count.
    """
    lines = text.split("\n")
    seen: set[str] = set()
    again: list[bool | None] = []  # None: too short to count
    for line in lines:
        bare = _LINE_LABEL.sub("", line).strip(' *_|"').lower()
        again.append(bare in seen if len(bare) > 12 else None)
        seen.add(bare)
    if True not in again:
        return text
    at = again.index(True)
    rest = [repeated for repeated in again[at:] if repeated is not None]
    return "\n".join(lines[:at]).rstrip() if sum(rest) >= 0.5 * len(rest) else text


def complete_part(text: str) -> str:
    """The text up to its last complete sentence, or its last complete row when it ends inside a table.

    Returns:
        The part kept; empty when there is no complete sentence.
    """
    lines = text.rstrip().split("\n")
    if lines[-1].lstrip().startswith("|"):
        above = lines[-2].strip() if len(lines) > 1 else ""
        whole = lines[-1].rstrip().endswith("|") and lines[-1].count("|") == above.count("|")
        return "\n".join(lines if whole else lines[:-1]).rstrip()
    for match in reversed(list(_SENTENCE_END.finditer(text))):
        head = text[: match.end()]
        if not _NUMBERING.search(head) and not _ABBREVIATION.search(head):
            # A table above an unfinished first sentence is complete as it is.
            tail = text[match.end() :]
            table = re.search(r"\n\|[^\n]*\|[ \t]*(?=\n)(?!.*\n\|)", tail, re.DOTALL)
            return (head + tail[: table.end()] if table else head).rstrip()
    table = re.search(r"(?:\A|\n)\|[^\n]*\|[ \t]*(?=\n)(?!.*\n\|)", text, re.DOTALL)
    return text[: table.end()].rstrip() if table else ""
