"""Prompts: document first, instruction last, so that all styles of a document share its prefill.

As token ids where the server takes them; as one text or as chat messages where it doesn't.
"""

from __future__ import annotations

import re
from functools import lru_cache

import jinja2

from derivedata.errors import UserError
from derivedata.generation.pieces import OnLong, Piece, split_document
from derivedata.generation.request import Prompt, PromptForm
from derivedata.generation.tokenizer import Tokenizer

_JOINT = "\n\n"  # between document and instruction
# Tokens kept free where the server tokenises: its template is not ours, and texts joined are not their tokens joined.
MARGIN = 64
# Stand for the texts while the template is rendered, so that a template never sees, trims or interprets a document.
_SYSTEM, _DOCUMENT, _INSTRUCTION = (f"derivedata5b1c{name}c9e4" for name in ("system", "document", "instruction"))
# How the templates of common models spell their structure, for servers whose tokenizer isn't known here.
_MARKUP = re.compile(
    r"<\|[^<>|\n]{1,40}\|>|<｜[^<>｜\n]{1,40}｜>|</?s>|\[/?INST\]|<</?SYS>>|</?(?:start|end)_of_turn>|</?think>"
)


class PromptBuilder:
    """Builds the prompts of one model.

    The parts are tokenised one by one: what a document holds cannot change the structure around it, and its tokens are
    the same in front of every instruction.

    Args:
        tokenizer: the model's. Without a chat template the prompt is plain text.
        system: system text; a template that knows no system message gets it in front of the document.
        thinking: let a template that can (`enable_thinking`) begin a chain of thought.
        form: how prompts are sent. In text and messages control tokens that a document spells are broken by a space.

    Raises:
        UserError: the template cannot be rendered, or changes what it is given.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        system: str | None = None,
        thinking: bool = False,
        form: PromptForm = "tokens",
    ):
        self.tokenizer, self.system, self.form, self._thinking = tokenizer, system, form, thinking
        if tokenizer.chat_template is None:
            self._texts = (system + _JOINT if system else "", _JOINT)
            self._prefix = tokenizer.beginning() + (tokenizer.encode(system + _JOINT) if system else [])
            self._end = tokenizer.encode(_JOINT)
        else:
            before, after = self._render()
            # A server that is given text puts the beginning of a text before it, as its tokenizer does.
            begin = tokenizer.special_tokens.get("bos_token", "") if tokenizer.beginning() else ""
            self._texts = (before.replace(_SYSTEM, self._plain(system or "")).removeprefix(begin), after)
            self._prefix = self._read(before)
            self._end = self._read(after)
        self._suffix = lru_cache(maxsize=256)(self._after_document)

    def build(self, document_text: str, instruction: str, opening: str = "") -> list[int]:
        """The prompt for a document and an instruction, as token ids; `opening` begins the model's answer."""
        return self.join(self.tokenizer.encode(document_text), instruction, opening)

    def join(self, document_tokens: list[int], instruction: str, opening: str = "") -> list[int]:
        """The prompt for a document that is tokenised already (`tokenizer.encode`, or a `Piece`)."""
        return [*self._prefix, *document_tokens, *self._suffix(instruction, opening)]

    def ask(self, text: str) -> list[int]:
        """The prompt for a text alone, without a document (a problem to solve)."""
        return [*self._prefix, *self.tokenizer.encode(text), *self._end]

    def prompt(self, piece: Piece, instruction: str, opening: str = "") -> tuple[Prompt, int]:
        """The prompt for a piece of `split_document` in this builder's form, and its tokens (about, but for ids)."""
        if self.form == "tokens":
            ids = self.join(piece.tokens, instruction, opening)
            return ids, len(ids)
        tokens = len(piece.tokens) + self.overhead(instruction, opening)
        if self.form == "chat":
            return self.messages(piece.text, _worded(instruction, opening)), tokens
        before, after = self._texts
        return before + self._plain(piece.text) + _JOINT + instruction + after + opening, tokens

    def messages(self, document_text: str, instruction: str) -> list[dict[str, str]]:
        """The same prompt as messages, for servers that take no token ids; control tokens are broken by a space."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        content = self._plain(document_text) + _JOINT + instruction
        return [*system, {"role": "user", "content": content}]

    def overhead(self, instruction: str, opening: str = "") -> int:
        """Tokens of a prompt that are not the document's."""
        own = MARGIN if self.form != "tokens" else 0
        if self.form == "chat":
            instruction, opening = _worded(instruction, opening), ""
        return len(self._prefix) + len(self._suffix(instruction, opening)) + own

    def budget(self, instruction: str, opening: str = "", *, context: int, max_tokens: int) -> int:
        """Tokens left for the document in a context of `context` tokens beside `max_tokens` new ones; may be below 1.

        To be kept to: vLLM shortens the generation without a word where prompt and new tokens exceed the context.
        """
        return context - max_tokens - self.overhead(instruction, opening)

    def split_document(
        self, text: str, max_tokens: int, on_long: OnLong = "split", *, draw: float = 0.0
    ) -> list[Piece]:
        """See `pieces.split_document`; texts that the server will tokenise are neutralised first, and counted so."""
        text = text if self.form == "tokens" else self._plain(text)
        return split_document(self.tokenizer, text, max_tokens, on_long, draw=draw)

    def _plain(self, text: str) -> str:
        return neutralise(text, self.tokenizer.control_tokens)

    def _after_document(self, instruction: str, opening: str) -> tuple[int, ...]:
        encode = self.tokenizer.encode
        return (*encode(_JOINT + instruction), *self._end, *(encode(opening) if opening else ()))

    def _render(self) -> tuple[str, str]:
        user = {"role": "user", "content": _DOCUMENT + _INSTRUCTION}
        attempts = [[user]]
        if self.system:
            inside = {"role": "user", "content": _SYSTEM + _JOINT + user["content"]}
            attempts = [[{"role": "system", "content": _SYSTEM}, user], [inside]]
        for messages in attempts:
            try:
                text = self.tokenizer.chat_template.render(messages, enable_thinking=self._thinking)
            except (jinja2.TemplateError, TypeError, ValueError) as error:
                refusal = f"the model's chat template cannot be rendered: {error}"
                continue
            if text.count(_DOCUMENT + _INSTRUCTION) == 1 and text.count(_SYSTEM) == bool(self.system):
                before, _, after = text.partition(_DOCUMENT + _INSTRUCTION)
                return before, after
            refusal = "the model's chat template changes or repeats the text it is given"
        raise UserError(refusal, where=self.tokenizer.name)

    def _read(self, rendered: str) -> list[int]:
        """Ids of a rendered part of the template, the system text in it taken literally."""
        before, here, after = rendered.partition(_SYSTEM)
        middle = self.tokenizer.encode(self.system) if here else []
        return self.tokenizer.encode_template(before) + middle + self.tokenizer.encode_template(after)


def _worded(instruction: str, opening: str) -> str:
    """The instruction for a server that lets nobody begin its answer: it is asked to begin it so."""
    return f'{instruction}\n\nBegin the answer with "{opening}".' if opening else instruction


def neutralise(text: str, control_tokens: dict[str, int] | None = None) -> str:
    """The text with everything that a chat template or tokenizer could take for structure broken by a space.

    Args:
        text: any text.
        control_tokens: the tokens of the model, where its tokenizer is known; the common spellings are always broken.
    """
    known = sorted((token for token in control_tokens or () if len(token) > 1), key=len, reverse=True)
    pattern = re.compile("|".join([_MARKUP.pattern, *map(re.escape, known)]))
    while True:
        # Again until nothing is found: a space put into one token can complete another.
        broken = pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
        if broken == text:
            return text
        text = broken
