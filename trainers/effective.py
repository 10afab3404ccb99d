"""Effective tokens of a run: what it has seen by kind, and what a Compute-Data law makes of it.

D_eff = D + sum over strategies of eta_s D'_s (Qin et al. 2026, arXiv 2607.25271). D counts distinct fresh tokens; a
fresh document that comes again counts as `repeat` from its second epoch on, so the account is right at every moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from derivedata.scaling.law import Law
from derivedata.trainers.packing import Kind
from derivedata.trainers.tokens import FRESH


@dataclass(slots=True)
class Seen:
    """Tokens seen so far, by (strategy, style)."""

    kinds: Counter[Kind] = field(default_factory=Counter)

    def add(self, kinds: Mapping[Kind, int]) -> None:
        self.kinds.update(kinds)

    @property
    def tokens(self) -> int:
        return sum(self.kinds.values())

    @property
    def fresh(self) -> int:
        """D: distinct fresh tokens."""
        return self.kinds[(FRESH, None)]

    def derived(self) -> dict[str, int]:
        """D' by strategy."""
        found: dict[str, int] = {}
        for (strategy, _), count in sorted(self.kinds.items(), key=str):
            if strategy != FRESH and count:
                found[strategy] = found.get(strategy, 0) + count
        return found

    def styles(self) -> dict[str, int]:
        """D' by style, where derived tokens have one."""
        found: dict[str, int] = {}
        for (_, style), count in sorted(self.kinds.items(), key=str):
            if style is not None and count:
                found[style] = found.get(style, 0) + count
        return found

    def to_list(self) -> list:
        """For JSON."""
        return [[strategy, style, count] for (strategy, style), count in sorted(self.kinds.items(), key=str)]

    @classmethod
    def from_list(cls, rows: list) -> Seen:
        return cls(Counter({(strategy, style): count for strategy, style, count in rows}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """What seen tokens are worth to a model.

    effective: D_eff; loss: nats a token that the law expects; both None when no fresh token was seen. unknown: tokens
    of strategies that the law does not know; they are not in D_eff. outside: how the law is extrapolated, in words.
    is_untested: several strategies were added up, which no run behind a law did.
    """

    effective: float | None
    loss: float | None
    unknown: Mapping[str, int]
    outside: tuple[str, ...]
    is_untested: bool


def value_of(seen: Seen, law: Law, n_params: float) -> Value:
    """Value the tokens that a model of `n_params` parameters has seen. A law that knows a style by name uses that."""
    derived: dict[str, float] = {}
    unknown: dict[str, int] = {}
    for (strategy, style), count in seen.kinds.items():
        if strategy == FRESH or count == 0:
            continue
        name = style if style in law.strategies else strategy
        target = derived if name in law.strategies else unknown
        target[name] = target.get(name, 0) + count
    D = seen.fresh
    if D == 0:
        return Value(effective=None, loss=None, unknown=unknown, outside=(), is_untested=False)
    outside = list(law.outside(n_params, D))
    for name, count in derived.items():
        outside += [words for words in law.outside(n_params, D, count / D, name) if words not in outside]
    return Value(
        effective=float(law.effective_tokens(n_params, D, derived)),
        loss=float(law.mixed_loss(n_params, D, derived)),
        unknown=unknown,
        outside=tuple(outside),
        is_untested=len(derived) > 1,
    )


def account(seen: Seen, law: Law, n_params: float) -> dict[str, Any]:
    """What was seen and what it is worth, as a row of metrics: tokens, fresh_tokens, derived_tokens, by_strategy,
    by_style, effective_tokens, law_loss, extrapolated."""
    value = value_of(seen, law, n_params)
    derived = seen.derived()
    return {
        "tokens": seen.tokens,
        "fresh_tokens": seen.fresh,
        "derived_tokens": sum(derived.values()),
        "by_strategy": derived,
        "by_style": seen.styles(),
        "effective_tokens": value.effective,
        "law_loss": value.loss,
        "extrapolated": bool(value.outside),
    }
