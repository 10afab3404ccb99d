"""What turns text into token ids for a trainer: a model's tokenizer, or the bytes of the text.

`open_tokenizer("bytes")` needs no files: ids 0-255 are the bytes of the text in UTF-8, 256 is the end of a text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from derivedata.errors import UserError

BYTES = "bytes"
# LM heads of this many rows and more are padded, as OLMo-core does, because GPUs like whole tiles.
PAD_FROM, PAD_TO = 1024, 128


class TextTokenizer(Protocol):
    """name: for messages. sha256: of its definition. vocabulary_size: ids. end_of_text: id that ends a document."""

    name: str
    sha256: str
    vocabulary_size: int
    end_of_text: int

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, without an end."""


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """The bytes of a text in UTF-8; characters that are none (lone surrogates) become a question mark."""

    name: str = BYTES
    sha256: str = hashlib.sha256(b"derivedata bytes 257").hexdigest()
    vocabulary_size: int = 257
    end_of_text: int = 256

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode("utf-8", "replace"), np.uint8) for text in texts]


class ModelTokenizer:
    """A tokenizer of `derivedata.generation`: no text from outside becomes a control token."""

    def __init__(self, name: str):
        from derivedata.generation.model import load_tokenizer, resolve_tokenizer

        found = resolve_tokenizer(name)
        self._tokenizer = load_tokenizer(found.path, found.name)
        self.name, self.sha256 = found.name, self._tokenizer.sha256
        self.path = found.path
        self.vocabulary_size = self._tokenizer.vocabulary_size
        ends = [self._tokenizer.special_tokens.get("eos_token"), "<|endoftext|>", "</s>"]
        known = self._tokenizer.control_tokens
        end = next((known[text] for text in ends if text in known), None)
        if end is None:
            raise UserError("the tokenizer has no token that ends a text", where=name, remedy="set its eos_token")
        self.end_of_text = end

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.asarray(ids, np.int64) for ids in self._tokenizer.encode_batch(texts)]


def open_tokenizer(name: str) -> TextTokenizer:
    """`bytes`, `smollm2-135m`, a folder, or a hub id."""
    return ByteTokenizer() if name == BYTES else ModelTokenizer(name)


def head_rows(tokenizer_size: int) -> int:
    """Rows of the LM head for a vocabulary: padded to a multiple of 128 from 1,024 on (100,278 -> 100,352)."""
    return tokenizer_size if tokenizer_size < PAD_FROM else -(-tokenizer_size // PAD_TO) * PAD_TO
