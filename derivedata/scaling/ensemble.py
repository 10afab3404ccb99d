"""A law together with its uncertainty: the fitted constants and draws of them, and what follows from both.

Every figure of advice is a function of a `Law`; its interval is the spread of that function over the draws (a bootstrap
of the fit, or a posterior). A published law without a covariance has no draws, and its figures have no interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from derivedata.scaling.law import Law

NO_INTERVAL = "no interval published"


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A figure and its interval; `low` and `high` are None when nothing is known about its error."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def has_interval(self) -> bool:
        """Whether an interval is known."""
        return self.low is not None

    def map(self, increasing: Callable[[float], float]) -> Estimate:
        """The estimate of an increasing function of this figure."""
        ends = (None, None) if self.low is None else (float(increasing(self.low)), float(increasing(self.high)))
        return Estimate(value=float(increasing(self.value)), low=ends[0], high=ends[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Ensemble:
    """A law and draws of it.

    Args:
        law: the law whose figures are reported.
        draws: laws that vary as the data allow; empty when no covariance is known.
        interval: what the intervals are, in words.
        level: share of the draws inside an interval.
    """

    law: Law
    draws: tuple[Law, ...] = ()
    interval: str = NO_INTERVAL
    level: float = 0.95

    def estimate(self, figure: Callable[[Law], float]) -> Estimate:
        """A figure of the law with the interval of its draws.

        An end that a 2.5% share of the draws puts at infinity is infinite. Draws where the figure does not exist (NaN)
        are left out; when they are more than half, no interval is given.
        """
        value, low, high = self.band(lambda law: np.atleast_1d(np.asarray(figure(law), float)))
        if low is None or np.isnan(low[0]):
            return Estimate(value=float(value[0]))
        return Estimate(value=float(value[0]), low=float(low[0]), high=float(high[0]))

    def band(self, figure: Callable[[Law], NDArray]) -> tuple[NDArray, NDArray | None, NDArray | None]:
        """An array of figures with the lower and upper ends of its pointwise intervals.

        Ends are None without draws, and NaN where more than half of the draws have no such figure.
        """
        value = np.asarray(figure(self.law), float)
        if not self.draws:
            return value, None, None
        spread = np.array([figure(law) for law in self.draws], float)
        rare = np.isnan(spread).mean(axis=0) > 0.5
        spread = np.where(rare, 0.0, spread)
        tail = (1 - self.level) / 2
        # "lower" and "higher" take draws as they are: interpolating between infinities would give NaN.
        low = np.where(rare, np.nan, np.nanquantile(spread, tail, axis=0, method="lower"))
        high = np.where(rare, np.nan, np.nanquantile(spread, 1 - tail, axis=0, method="higher"))
        return value, low, high
