"""A unit of work on its way through a derivation: what is planned for it, what has an outcome."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from derivedata.generation.request import Prompt, Sampling
from derivedata.store.units import Unit


@dataclass(kw_only=True, slots=True)
class Planned:
    """One key that must have an outcome: a request to send, or an outcome that is known without one."""

    key: str
    position: int  # of its document in the unit's order
    prompt: Prompt | None = None
    prompt_tokens: int = 0  # about, where the server makes the tokens
    group: str = ""  # of keys whose prompts begin alike
    sampling: Sampling | None = None
    seed: int = 0
    outcome: dict[str, Any] | None = None  # known without a request (skipped)
    info: dict[str, Any] = field(default_factory=dict)  # goes into the record
    source_text: str = ""  # what the answer is judged against; not recorded


class UnitRun:
    """A unit on its way: what is planned, what has an outcome, and the tokens of the finished prefix."""

    def __init__(self, unit: Unit, journal, found: dict[str, dict[str, Any]]):
        self.unit, self.journal = unit, journal
        self.found = found  # outcomes that an earlier run journalled, by key
        self.open: Counter[int] = Counter()  # position -> keys without an outcome
        self.tokens: Counter[int] = Counter()  # position -> accepted tokens
        self.planned = 0
        self.fed = unit.first  # positions before this have all their keys planned
        self.finished_feeding = False
        self._prefix = [0, unit.first]

    def plan(self, planned: Planned) -> None:
        self.planned += 1
        self.open[planned.position] += 1

    def hold(self, position: int) -> None:
        """Keep a position open though all keys planned so far may have their outcomes: more may be planned."""
        self.open[position] += 1

    def release(self, position: int) -> None:
        """Nothing more will be planned for a position that was held."""
        self.open[position] -= 1
        if not self.open[position]:
            del self.open[position]

    def settle(self, position: int, record: dict[str, Any]) -> None:
        self.release(position)
        self.tokens[position] += record["tokens"] if record["outcome"] == "accepted" else 0

    @property
    def complete(self) -> bool:
        return self.finished_feeding and not self.open

    def prefix_tokens(self) -> tuple[int, int]:
        """Accepted tokens of the positions before the first open one, and that position."""
        tokens, end = self._prefix
        while end < self.fed and end not in self.open:
            tokens, end = tokens + self.tokens[end], end + 1
        self._prefix = [tokens, end]
        return tokens, end
