"""The books of a stage: everything planned ends accepted, rejected, skipped or outside, or the stage fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from derivedata.errors import UserError

# An account by reason, in the order in which people read it.
BY_REASON = ("rejected", "skipped", "outside")


class BooksError(UserError):
    """Books that do not balance: something was lost or counted twice, which is never the user's fault."""

    def __reduce__(self):
        return (_rebuild, (self.what, self.where, self.value, self.remedy))


def _rebuild(what, where, value, remedy) -> BooksError:
    return BooksError(what, where=where, value=value, remedy=remedy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Books:
    """Counts of one stage or unit; immutable, added with `+`.

    planned: what was to be done (requests: pieces x rewrites x styles; input: rows; rollouts: problems x samples).
    accepted: what became a document (a rollout, a problem).
    rejected, skipped, outside: counts by reason (judged unfit; not applicable; beyond the budget).
    """

    planned: int = 0
    accepted: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    outside: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("planned", "accepted"):
            _check_count(getattr(self, name), name)
        for name in BY_REASON:
            counts = dict(sorted(getattr(self, name).items()))
            for reason, count in counts.items():
                _check_count(count, f"{name}.{reason}")
            # Reasons that never came up say nothing, and would make equal books unequal.
            object.__setattr__(self, name, {reason: count for reason, count in counts.items() if count})

    def __add__(self, other: Books) -> Books:
        if not isinstance(other, Books):
            return NotImplemented
        return Books(
            planned=self.planned + other.planned,
            accepted=self.accepted + other.accepted,
            **{name: _joined(getattr(self, name), getattr(other, name)) for name in BY_REASON},
        )

    def __radd__(self, other: object) -> Books:
        """Lets `sum(books)` start from 0."""
        return self if other == 0 else NotImplemented

    @property
    def settled(self) -> int:
        """Everything that has an outcome."""
        return self.accepted + sum(sum(getattr(self, name).values()) for name in BY_REASON)

    def balance(self, where: object = None) -> Books:
        """These books, if planned = accepted + rejected + skipped + outside. Raises BooksError otherwise."""
        if self.planned != self.settled:
            told = ", ".join(f"{name} {sum(getattr(self, name).values())}" for name in BY_REASON)
            raise BooksError(
                f"the books do not balance: planned {self.planned} is not accepted {self.accepted}, {told}",
                where=where,
                remedy="nothing was committed; this is a defect, please report it",
            )
        return self

    def to_dict(self) -> dict:
        return {"planned": self.planned, "accepted": self.accepted} | {n: dict(getattr(self, n)) for n in BY_REASON}

    @classmethod
    def from_dict(cls, values: Mapping) -> Books:
        return cls(**{name: values[name] for name in ("planned", "accepted", *BY_REASON) if name in values})

    def rows(self) -> list[tuple[str, str | None, int]]:
        """(account, reason, count) rows, as the view `books` shows them."""
        rows: list[tuple[str, str | None, int]] = [("planned", None, self.planned), ("accepted", None, self.accepted)]
        for name in BY_REASON:
            rows += [(name, reason, count) for reason, count in getattr(self, name).items()]
        return rows

    @classmethod
    def from_rows(cls, rows: list[tuple[str, str | None, int]]) -> Books:
        """The sum of `rows` as `Books.rows` gives them."""
        counts: dict = {"planned": 0, "accepted": 0} | {name: {} for name in BY_REASON}
        for account, reason, count in rows:
            if account in BY_REASON:
                counts[account][reason] = counts[account].get(reason, 0) + count
            else:
                counts[account] += count
        return cls(**counts)


def _check_count(count: object, name: str) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise BooksError("a count is a whole number from 0", where=name, value=count)


def _joined(one: Mapping[str, int], two: Mapping[str, int]) -> dict[str, int]:
    return {reason: one.get(reason, 0) + two.get(reason, 0) for reason in one.keys() | two.keys()}
