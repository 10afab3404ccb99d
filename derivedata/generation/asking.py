"""Prompts for problems: a model's chat template over all messages, plain text, or a template of one's own.

    Asker(tokenizer, template="chat").ask([{"role": "user", "content": "What is 2 + 2?"}])      # list of token ids

As token ids where the server takes them; as one text or as messages where it doesn't (`Asker.prompt`). The messages are
tokenised apart from what stands around them, so that no text in a problem can end its own turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2

from derivedata.errors import UserError
from derivedata.generation.prompt import MARGIN, neutralise
from derivedata.generation.request import Prompt, PromptForm
from derivedata.generation.tokenizer import Tokenizer

CHAT, PLAIN = "chat", "plain"
QUESTION = "{question}"
_PLAIN = f"{QUESTION}\n\n"
# Stand for the texts while the template is rendered, so that it never sees, trims or interprets a problem.
_MARK = "derivedata7e2f{}d8a1"
_MARKS = re.compile(r"derivedata7e2f(\d+)d8a1")


def read_template(name: str | None, tokenizer: Tokenizer, form: PromptForm = "tokens") -> str:
    """What `Asker` takes, for the name of a template: chat, plain, a file with {question} in it, or None.

    None is chat where the model has a chat template (or the server asks for messages) and plain where it has none (a
    base model).

    Raises:
        UserError: the file can't be read or has no {question}, or the model has no chat template.
    """
    if name is None:
        return CHAT if tokenizer.chat_template is not None or form == "chat" else PLAIN
    if name == PLAIN:
        return PLAIN
    if name == CHAT:
        if tokenizer.chat_template is None and form != "chat":
            raise UserError("the model has no chat template", where=tokenizer.name, remedy="use --template plain")
        return CHAT
    try:
        text = Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            "the template can't be read", where=name, value=str(error), remedy="or use chat or plain"
        ) from None
    if text.count(QUESTION) != 1:
        raise UserError(f"the template must hold {QUESTION} once", where=name, value=text.count(QUESTION))
    return text


class Asker:
    """Makes the prompts of one model.

    Args:
        tokenizer: the model's.
        template: chat, plain, or a text with {question} (see `read_template`).
        form: how prompts are sent. In text and messages control tokens that a problem spells are broken by a space.
    """

    def __init__(self, tokenizer: Tokenizer, *, template: str = CHAT, form: PromptForm = "tokens"):
        self.tokenizer, self.template, self.form = tokenizer, template, form

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> tuple[Prompt, int]:
        """The prompt in this asker's form, and its tokens (about, but for ids).

        Raises:
            UserError: as `ask`.
        """
        if self.form == "tokens":
            ids = self.ask(messages)
            return ids, len(ids)
        plain = [
            {"role": m["role"], "content": neutralise(m["content"], self.tokenizer.control_tokens)} for m in messages
        ]
        if self.form == "chat":
            return plain, sum(self.tokenizer.count([m["content"] for m in plain])) + MARGIN
        if self.template == CHAT:
            pieces = self._rendered(plain)
            parts = [plain[int(piece)]["content"] if i % 2 else piece for i, piece in enumerate(pieces)]
            # A server that is given text puts the beginning of a text before it, as its tokenizer does.
            begin = self.tokenizer.special_tokens.get("bos_token", "") if self.tokenizer.beginning() else ""
            text = "".join(parts).removeprefix(begin)
        else:
            text = self._around("\n\n".join(m["content"] for m in plain))
        return text, len(self.tokenizer.encode_template(text)) + len(self.tokenizer.beginning())

    def ask(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The prompt as token ids, up to where the answer begins.

        Raises:
            UserError: the chat template refuses these messages, or changes them.
        """
        if self.template == CHAT:
            return self._chat(messages)
        question = "\n\n".join(message["content"] for message in messages)
        return [*self.tokenizer.beginning(), *self.tokenizer.encode(self._around(question))]

    def _around(self, question: str) -> str:
        before, _, after = (_PLAIN if self.template == PLAIN else self.template).partition(QUESTION)
        return before + question + after

    def _chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        ids: list[int] = []
        for i, piece in enumerate(self._rendered(messages)):
            content = messages[int(piece)]["content"] if i % 2 else None
            ids += self.tokenizer.encode_template(piece) if content is None else self.tokenizer.encode(content)
        return ids

    def _rendered(self, messages: Sequence[Mapping[str, str]]) -> list[str]:
        """The template around the messages: its own text, a message's number, its own text, and so on."""
        marked = [{"role": m["role"], "content": _MARK.format(i)} for i, m in enumerate(messages)]
        try:
            text = self.tokenizer.chat_template.render(marked)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise UserError(
                f"the model's chat template refuses the messages: {error}", where=self.tokenizer.name
            ) from None
        pieces = _MARKS.split(text)
        if [int(number) for number in pieces[1::2]] != list(range(len(messages))):
            raise UserError("the model's chat template changes, drops or repeats messages", where=self.tokenizer.name)
        return pieces


def with_system(messages: Sequence[Mapping[str, str]], system: str | None) -> list[Mapping[str, str]]:
    """The messages with `system` in the place of their own system messages (None: as they are)."""
    if system is None:
        return list(messages)
    return [{"role": "system", "content": system}, *(m for m in messages if m["role"] != "system")]
