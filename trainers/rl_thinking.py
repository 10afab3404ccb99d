"""Forced end of thinking: a completion that still thinks at a limit is told that its time is up, and then answers.

ScaleRL (arXiv 2510.13786, section 2) puts a sentence and the end-of-thinking mark behind such a completion and lets the
model go on. Generation is cut in two, so the same piece serves transformers and vLLM. The forced tokens are not the
policy's, so they don't count in the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from derivedata.errors import UserError

SENTENCE = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"
MARK = "</think>"


@dataclass(frozen=True, kw_only=True, slots=True)
class ThinkingLimit:
    """When thinking ends, and what is put there."""

    limit: int  # new tokens after which thinking is ended
    total: int  # new tokens of the whole completion, the forced ones included
    forced: tuple[int, ...]  # the tokens that are put there
    mark: tuple[int, ...]  # the tokens that end thinking
    ends: frozenset[int]  # tokens that end a completion

    def __post_init__(self):
        if self.limit < 1 or self.limit + len(self.forced) >= self.total:
            raise UserError(
                "the forced end of thinking leaves no room for an answer",
                where="--thinking-tokens",
                value=f"{self.limit} of {self.total} tokens, {len(self.forced)} for the sentence",
                remedy="raise --max-tokens or lower --thinking-tokens",
            )

    @property
    def rest(self) -> int:
        """New tokens that may follow the forced ones."""
        return self.total - self.limit - len(self.forced)

    def interrupted(self, completion: Sequence[int]) -> bool:
        """Whether a first part of a completion is still in thought at the limit."""
        if len(completion) < self.limit or (completion and completion[-1] in self.ends):
            return False
        return not holds(completion, self.mark)

    def continued(self, completion: Sequence[int]) -> bool:
        """Whether a first part goes on after the limit (in thought or in its answer)."""
        return len(completion) >= self.limit and completion[-1] not in self.ends


def holds(tokens: Sequence[int], mark: Sequence[int]) -> bool:
    """Whether `mark` stands somewhere in `tokens`."""
    width = len(mark)
    return any(tuple(tokens[i : i + width]) == tuple(mark) for i in range(len(tokens) - width + 1))


def thinking_limit(tokenizer, ends: Sequence[int], *, limit: int, total: int) -> ThinkingLimit:
    """The limit in a tokenizer's tokens.

    Args:
        tokenizer: of the model.
        ends: tokens that end a completion.
        limit: new tokens after which thinking is ended.
        total: new tokens of a completion.
    """
    return ThinkingLimit(
        limit=limit,
        total=total,
        forced=tuple(tokenizer.encode(SENTENCE, add_special_tokens=False)),
        mark=tuple(tokenizer.encode(MARK, add_special_tokens=False)),
        ends=frozenset(ends),
    )
