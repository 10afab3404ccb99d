"""Conditions on runs as people write them: `n_params>60M and strategy==repeat`. Parsed, never evaluated as code."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from derivedata.errors import UserError
from derivedata.quantity import parse_quantity

if TYPE_CHECKING:
    from derivedata.scaling.runs import Runs

_TOKEN = re.compile(r"\s*(?:(<=|>=|==|!=|<|>|=|\(|\))|'([^']*)'|\"([^\"]*)\"|([\w.+\-]+))")
_COMPARE = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
}
_NUMBERS = {
    "n_params": lambda runs: runs.N,
    "fresh_tokens": lambda runs: runs.D,
    "derived_tokens": lambda runs: runs.Dp,
    "loss": lambda runs: runs.loss,
    "weight": lambda runs: runs.weight,
    "x": lambda runs: runs.x,
    "tpp": lambda runs: runs.tpp,
    "row": lambda runs: runs.row,
}
_WORDS = {
    "strategy": lambda runs: runs.strategy.astype(str),
    "seed": lambda runs: np.array([str(s) for s in runs.seed]),
}


def select(runs: Runs, condition: str, others: Mapping[str, NDArray] | None = None) -> NDArray:
    """Mask of the runs that meet a condition.

    Comparisons of n_params, fresh_tokens, derived_tokens, loss, weight, x, tpp, row with numbers (60M, 1e9) and of
    strategy and seed with words, joined by `and`, `or`, `not` and parentheses. `others` are further columns of the
    table (one entry a row of it), compared as numbers where they are numbers.
    """
    parser = _Parser(condition, runs, others or {})
    mask = parser.either()
    if parser.peek() is not None:
        raise parser.error(f"{parser.peek()!r} was not expected")
    return mask


class _Parser:
    def __init__(self, condition: str, runs: Runs, others: Mapping[str, NDArray]):
        self.condition, self.runs, self.others, self.at = condition, runs, others, 0
        self.tokens: list[str] = []
        end = len(condition.rstrip())
        place = 0
        while place < end:
            match = _TOKEN.match(condition, place)
            if match is None:
                raise self.error(f"{condition[place:].strip()[:1]!r} means nothing here")
            self.tokens.append(next(group for group in match.groups() if group is not None))
            place = match.end()

    def error(self, what: str) -> UserError:
        known = ", ".join([*_NUMBERS, *_WORDS, *self.others])
        return UserError(
            f"condition not understood: {what}",
            value=self.condition,
            remedy=f"write for example 'n_params>60M and strategy==repeat'; columns are {known}",
        )

    def peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self) -> str:
        if self.at >= len(self.tokens):
            raise self.error("it ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def either(self) -> NDArray:
        mask = self.both()
        while self.peek() == "or":
            self.take()
            mask = mask | self.both()
        return mask

    def both(self) -> NDArray:
        mask = self.one()
        while self.peek() == "and":
            self.take()
            mask = mask & self.one()
        return mask

    def one(self) -> NDArray:
        if self.peek() == "not":
            self.take()
            return ~self.one()
        if self.peek() == "(":
            self.take()
            mask = self.either()
            if self.take() != ")":
                raise self.error("a parenthesis is not closed")
            return mask
        return self.comparison()

    def comparison(self) -> NDArray:
        column, sign, value = self.take(), self.take(), self.take()
        if sign not in _COMPARE:
            raise self.error(f"{sign!r} is no comparison")
        if column in _WORDS:
            if sign not in ("==", "=", "!="):
                raise self.error(f"{column} can only be compared by == and !=")
            return np.asarray(_COMPARE[sign](_WORDS[column](self.runs), value), bool)
        if column in _NUMBERS:
            return np.asarray(_COMPARE[sign](_NUMBERS[column](self.runs), self._number(value)), bool)
        if column not in self.others:
            raise self.error(f"there is no column {column!r}")
        return self._other(self.others[column][self.runs.row - 1], sign, value)

    def _number(self, value: str) -> float:
        try:
            return float(value) if re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", value, re.I) else parse_quantity(value)
        except ValueError:
            raise self.error(f"{value!r} is no number") from None

    def _other(self, cells: NDArray, sign: str, value: str) -> NDArray:
        try:
            numbers = np.array([np.nan if cell in (None, "") else float(cell) for cell in cells])
        except (TypeError, ValueError):
            if sign not in ("==", "=", "!="):
                raise self.error("words can only be compared by == and !=") from None
            return np.asarray(_COMPARE[sign](np.array([str(cell) for cell in cells]), value), bool)
        return np.asarray(_COMPARE[sign](numbers, self._number(value)), bool)
