"""The ladder of OLMo3 models: the paper's seven sizes and five for CPUs, with exact parameter counts.

`derivedata train sizes` shows it. A size is named by its nominal N: all parameters except the input embedding, LM head
counted. The paper's (arXiv 2607.25271) have that N at a vocabulary of 100,352, the small ones at 257 (bytes and an end
of text); with another vocabulary N is another, and `Size.count` gives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from derivedata.errors import UserError

if TYPE_CHECKING:
    from transformers import Olmo3Config, Olmo3ForCausalLM

PAPER_VOCABULARY = 100_352


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Exact parameter counts of a model.

    N: without the input embedding, LM head counted. layers: blocks and final norm alone. total: everything.
    """

    N: int
    layers: int
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A model of the ladder.

    name: nominal N as people write it. nominal: the same as a number. width, layers, heads, mlp: of the transformer.
    sequence_length: tokens of a block unless told otherwise.
    """

    name: str
    nominal: float
    width: int
    layers: int
    heads: int
    mlp: int
    sequence_length: int

    def count(self, vocabulary: int) -> Counts:
        """Parameters with an LM head of `vocabulary` rows, not tied to the input embedding."""
        # Attention (q, k, v, o), gated MLP, norms of q and k and after each of the two.
        layer = 4 * self.width**2 + 3 * self.width * self.mlp + 4 * self.width
        layers = self.layers * layer + self.width
        head = vocabulary * self.width
        return Counts(N=layers + head, layers=layers, total=layers + 2 * head)

    def config(self, vocabulary: int, sequence_length: int, end_of_text: int | None = None) -> Olmo3Config:
        """The transformers configuration: OLMo3 blocks, full attention where a block fits the sliding window."""
        from transformers import Olmo3Config

        return Olmo3Config(
            vocab_size=vocabulary,
            hidden_size=self.width,
            intermediate_size=self.mlp,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=sequence_length,
            # Padding would make one row of the embedding untrainable; blocks are packed full.
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=end_of_text,
            tie_word_embeddings=False,
        )

    def model(self, vocabulary: int, sequence_length: int, end_of_text: int | None = None) -> Olmo3ForCausalLM:
        """A new model with random weights, from torch's global generator."""
        from transformers import Olmo3ForCausalLM

        return Olmo3ForCausalLM(self.config(vocabulary, sequence_length, end_of_text))


def _size(name: str, nominal: float, width: int, layers: int, heads: int, mlp: int, sequence_length: int) -> Size:
    return Size(
        name=name,
        nominal=nominal,
        width=width,
        layers=layers,
        heads=heads,
        mlp=mlp,
        sequence_length=sequence_length,
    )


# fmt: off
LADDER: dict[str, Size] = {size.name: size for size in (
    _size(".044M", 44e3, 32, 2, 2, 144, 256),
    _size(".14M", 140e3, 64, 2, 2, 240, 256),
    _size(".44M", 440e3, 96, 3, 3, 352, 256),
    _size("1.4M", 1.4e6, 128, 6, 4, 416, 256),
    _size("4.4M", 4.4e6, 256, 5, 4, 784, 256),
    _size("14M", 14e6, 128, 4, 2, 512, 2048),
    _size("30M", 30e6, 256, 4, 4, 768, 2048),
    _size("60M", 60e6, 384, 8, 6, 1536, 2048),
    _size("100M", 100e6, 512, 12, 8, 2048, 2048),
    _size("190M", 190e6, 768, 12, 12, 3072, 2048),
    _size("370M", 370e6, 1024, 16, 16, 4096, 2048),
    _size("600M", 600e6, 1280, 16, 20, 5120, 2048),
)}
# fmt: on


def find_size(n_params: float, *, within: float = 0.1, where: object = "--size") -> Size:
    """The size whose nominal N is nearest to `n_params`.

    Args:
        n_params: N, without the input embedding.
        within: how far, as a share, the nominal N may be off.
        where: what a message names.

    Raises:
        UserError: no size is so near; it names the ladder.
    """
    from math import log

    nearest = min(LADDER.values(), key=lambda size: abs(log(size.nominal / n_params)))
    if abs(nearest.nominal / n_params - 1) > within:
        raise UserError(
            "no model of the ladder has so many parameters",
            where=where,
            value=f"{n_params:g}",
            remedy=f"there are {', '.join(LADDER)}",
        )
    return nearest
