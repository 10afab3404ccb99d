"""A model's tokenizer as generation uses it: no text from outside becomes a control token. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers

from derivedata.errors import UserError
from derivedata.generation.chat_template import ChatTemplate

_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A fast tokenizer in two readings, and the chat template that goes with it.

    `encode_template` reads control tokens (the template's own text); `encode` takes every text literally: `<|im_end|>`
    in a document is the ten characters, whatever the tokenizer calls it. Both give ids of the model's vocabulary.

    Args:
        name: what messages call it (a hub id or folder).
        definition: content of tokenizer.json.
        chat_template: Jinja text, None for a model without one.
        special_tokens: names such as bos_token with their texts.
    """

    def __init__(
        self, name: str, definition: str, chat_template: str | None = None, special_tokens: dict[str, str] | None = None
    ):
        self.name = name
        self.sha256 = hashlib.sha256(definition.encode()).hexdigest()
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = ChatTemplate(chat_template, self.special_tokens) if chat_template else None
        try:
            structure = json.loads(definition)
            structure["truncation"] = structure["padding"] = None
            self._reading = tokenizers.Tokenizer.from_str(json.dumps(structure))
            self.control_tokens = _control_tokens(structure)
            self._literal = tokenizers.Tokenizer.from_str(json.dumps(_without_control(structure, self.control_tokens)))
        except Exception as error:  # tokenizers raises plain Exception for a file it cannot read
            raise UserError(f"the tokenizer cannot be loaded: {error}", where=name) from None
        self.vocabulary_size = self._reading.get_vocab_size(with_added_tokens=True)
        # Ids may have gaps, so the count of tokens does not bound them.
        self.largest_id = max(self._reading.get_vocab(with_added_tokens=True).values(), default=0)
        unknown = structure["model"].get("unk_token")
        unknown = structure["model"].get("unk_id") if unknown is None else self._reading.token_to_id(unknown)
        # The unknown token is what some tokenizers make of a rare character: no structure hangs on it.
        self._control_ids = frozenset(self.control_tokens.values()) - {unknown}

    def encode(self, text: str) -> list[int]:
        """Ids of a text from outside; lone surrogates become U+FFFD."""
        return self._checked(self._literal.encode(_encodable(text), add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts; other Python threads run meanwhile."""
        encodings = self._literal.encode_batch_fast([_encodable(text) for text in texts], add_special_tokens=False)
        return [self._checked(encoding.ids) for encoding in encodings]

    def encode_joined(self, texts: Sequence[str], end: int) -> tuple[np.ndarray, list[int]]:
        """Ids of many texts from outside in one array of uint32, each text followed by the id `end`; and where each
        ends in it, `end` included."""
        # An array of the standard library takes a list of ids in a third of the time that numpy needs.
        ids, ends = array("I"), []
        for encoding in self._literal.encode_batch_fast([_encodable(text) for text in texts], add_special_tokens=False):
            ids.extend(encoding.ids)
            ids.append(end)
            ends.append(len(ids))
        joined = np.frombuffer(ids, np.dtype(f"u{ids.itemsize}"))
        is_control = np.zeros(max(self.largest_id, end) + 1, bool)
        is_control[list(self._control_ids)] = True
        if int(is_control[joined].sum()) != (len(texts) if is_control[end] else 0):
            raise self._makes_control()
        return joined, ends

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of a text from outside and, for each, the index in `text` of the first character it covers."""
        encoding = self._literal.encode(_encodable(text), add_special_tokens=False)
        return self._checked(encoding.ids), [start for start, _ in encoding.offsets]

    def encode_template(self, text: str) -> list[int]:
        """Ids of text that a chat template wrote, its control tokens read as such."""
        return self._reading.encode(text, add_special_tokens=False).ids

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, without any that the tokenizer would add."""
        return [len(ids) for ids in self.encode_batch(texts)]

    def beginning(self) -> list[int]:
        """What the tokenizer itself puts before a text (a beginning-of-text token, or nothing)."""
        bare = self._reading.encode("a", add_special_tokens=False).ids
        dressed = self._reading.encode("a", add_special_tokens=True).ids
        for start in range(len(dressed) - len(bare) + 1):
            if dressed[start : start + len(bare)] == bare:
                return dressed[:start]
        return []

    def decode(self, ids: Sequence[int], *, with_control: bool = True) -> str:
        """The text of ids, control tokens shown unless told otherwise."""
        return self._reading.decode(list(ids), skip_special_tokens=not with_control)

    def _checked(self, ids: list[int]) -> list[int]:
        if not self._control_ids.isdisjoint(ids):
            raise self._makes_control()
        return ids

    def _makes_control(self) -> UserError:
        return UserError("the tokenizer makes control tokens out of plain text", where=self.name)


def load_tokenizer(folder: Path | str, name: str | None = None) -> Tokenizer:
    """The tokenizer of a model folder.

    Args:
        folder: holds tokenizer.json, or what transformers can make a fast tokenizer of.
        name: what messages call it; default the folder.

    Raises:
        UserError: there is no tokenizer, or it cannot be read.
    """
    folder = Path(folder)
    config = _json(folder / "tokenizer_config.json")
    special = _special_tokens(_json(folder / "special_tokens_map.json") | config)
    template = _template(folder, config)
    if (folder / "tokenizer.json").is_file():
        definition = (folder / "tokenizer.json").read_text("utf-8")
    else:
        definition, template = _converted(folder, template)
    return Tokenizer(name or str(folder), definition, template, special)


def _converted(folder: Path, template: str | None) -> tuple[str, str | None]:
    """tokenizer.json for a folder that has an older kind of tokenizer; transformers (slow to import) converts it."""
    older = ("*.model", "vocab.*", "*.tiktoken", "tekken.json")
    if not any(file for pattern in older for file in folder.glob(pattern)):
        raise UserError(
            "the folder has no tokenizer", where=folder, remedy="tokenizer.json is what models usually have"
        )
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return loaded.backend_tokenizer.to_str(), template or loaded.chat_template
    except (OSError, ValueError, ImportError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"no tokenizer that can be used: {reason}", where=folder) from None


def _control_tokens(structure: dict) -> dict[str, int]:
    """Added tokens by text. Runs of white space are left out: they are how some vocabularies spell plain text."""
    added = structure.get("added_tokens") or []
    return {token["content"]: token["id"] for token in added if token["special"] or token["content"].strip()}


def _without_control(structure: dict, control: dict[str, int]) -> dict:
    """The same tokenizer, in which no text can spell a control token.

    `encode_special_tokens` of the tokenizers library covers only tokens marked special, and removing tokens would move
    the ids of others; so each keeps its id under a name that nobody can guess, in the vocabulary too, and merges that
    lead to one are taken out.
    """
    alias = {token: f"{secrets.token_hex(16)}-{number}" for token, number in control.items()}
    model = dict(structure["model"])
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {alias.get(token, token): number for token, number in vocab.items()}
    elif vocab is not None:  # unigram: pairs of token and score
        model["vocab"] = [[alias.get(token, token), score] for token, score in vocab]
    if model.get("unk_token") in alias:
        model["unk_token"] = alias[model["unk_token"]]
    if model.get("merges"):
        pairs = (pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"])
        model["merges"] = [pair for pair in pairs if alias.keys().isdisjoint((*pair, "".join(pair)))]
    added = [token | {"content": alias.get(token["content"], token["content"])} for token in structure["added_tokens"]]
    return structure | {"model": model, "added_tokens": added, "post_processor": None}


def _encodable(text: str) -> str:
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"not valid JSON: {error}", where=path) from None
    return value if isinstance(value, dict) else {}


def _special_tokens(config: dict) -> dict[str, str]:
    found = {}
    for key, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            found[key] = text
    return found


def _template(folder: Path, config: dict) -> str | None:
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text("utf-8")
    template = config.get("chat_template") or _json(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):  # several named ones
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template
