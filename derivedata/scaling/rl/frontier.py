"""Which number of rollouts is best at which compute: the upper envelope over n, its peak between the n, and n*(C).

After the IsoCompute Playbook (arXiv 2603.12151): the frontier is the upper envelope of the curves by n, n*(C) the n on
it, and

    log2 n*(C) = L / (1 + exp(-k (log10 C - c0))) + b

is fitted along it. Here it is fitted along the peak of a parabola through the best n and its neighbours, which single
lucky runs move less; n* is never outside the n that were tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from derivedata.errors import UserError
from derivedata.scaling.rl.groups import ByN

GRID = 120
K_RANGE = (0.2, 50.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Frontier:
    """The upper envelope on a grid of C, where two n or more can be read.

    Args:
        C, reward, n: (points,); n is one of those tried.
        peak: (points,) where the reward peaks between the n tried, by `peak_of`: less at the mercy of one run.
        falls: (C, from n, to n) where the peak falls by more than a factor of two as C rises.
    """

    C: NDArray
    reward: NDArray
    n: NDArray
    peak: NDArray
    falls: tuple[tuple[float, int, int], ...]

    @property
    def risen(self) -> NDArray:
        """Where a tenth of the gain is there: before it all n are alike, and the best of them is luck."""
        return has_risen(self.reward)


def has_risen(reward: NDArray) -> NDArray:
    """Where rewards lie above their least by a tenth of their range."""
    return reward >= reward.min() + 0.1 * np.ptp(reward)


def envelope(groups: Sequence[ByN]) -> Frontier:
    """The best n at every C.

    Raises:
        UserError: no compute at which two n can be compared.
    """
    ends = sorted((g.low, g.high) for g in groups)
    # From where the second curve begins to where the last but one ends: elsewhere nothing is compared.
    low = sorted(low for low, _ in ends)[1] if len(ends) > 1 else np.inf
    high = sorted(high for _, high in ends)[-2] if len(ends) > 1 else -np.inf
    if low >= high:
        raise UserError(
            "no compute at which two n can be compared",
            value=", ".join(f"n = {g.n}: C {g.low:.3g} to {g.high:.3g}" for g in groups),
            remedy="train the n of a study to the same C",
        )
    C = np.geomspace(low, high, GRID)
    rewards = np.array([g.at(C) for g in groups])
    compared = np.isfinite(rewards).sum(0) >= 2
    C, rewards = C[compared], rewards[:, compared]
    best = np.nanargmax(np.where(np.isfinite(rewards), rewards, -np.inf), 0)
    ns = np.array([g.n for g in groups])
    peak = np.array([peak_of(ns, column) for column in rewards.T])
    reward = rewards[best, np.arange(len(C))]
    risen = has_risen(reward)
    return Frontier(C=C, reward=reward, n=ns[best], peak=peak, falls=_falls(C[risen], peak[risen]))


def peak_of(ns: NDArray, reward: NDArray) -> float:
    """The n at which a parabola in log2 n through the best n and two neighbours on either side peaks.

    Runs near the optimum differ by little, so the best of single runs is partly luck; neighbours share it out. NaN
    rewards are left out; where the parabola has no peak the best n stands.
    """
    seen = np.isfinite(reward)
    x, y = np.log2(ns[seen]), reward[seen]
    best = int(np.argmax(y))
    near = slice(max(best - 2, 0), best + 3)
    x, y, here = x[near], y[near], x[best]
    if len(x) < 3:
        return float(2.0**here)
    bend, slope, _ = np.polyfit(x - here, y, 2)
    if bend >= 0:
        return float(2.0**here)
    return float(2.0 ** np.clip(here - slope / (2 * bend), x[0], x[-1]))


def _falls(C: NDArray, peak: NDArray) -> tuple[tuple[float, int, int], ...]:
    """The deepest fall of the peak below what it had reached, if it is more than a factor of two."""
    reached = np.maximum.accumulate(np.log2(peak))
    drop = reached - np.log2(peak)
    at = int(np.argmax(drop))
    return ((float(C[at]), round(2 ** reached[at]), round(peak[at])),) if drop[at] > 1 else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class BestN:
    """log2 n*(C) = L/(1 + exp(-k (log10 C - c0))) + b.

    Args:
        low_n, high_n: smallest and largest n tried; n* is never outside them.
        rmse: of log2 n* along the frontier.
        bounds: which constants ended at the bound of their range.
    """

    L: float
    k: float
    c0: float
    b: float
    low_n: int
    high_n: int
    rmse: float
    bounds: tuple[str, ...]

    def n(self, C: ArrayLike) -> NDArray:
        """n* at C, within the n that were tried."""
        log2 = self.L * expit(self.k * (np.log10(np.asarray(C, float)) - self.c0)) + self.b
        return np.clip(2.0**log2, self.low_n, self.high_n)


def fit_best_n(frontier: Frontier, tried: Sequence[int]) -> BestN | None:
    """Least squares along the peak over a grid of (k, c0), L >= 0 and b solved; None where it spans no octave.

    A curve needs a range of n to be seen: with fewer than three n tried, or a peak that hardly moves, there is none.
    """
    x, y = np.log10(frontier.C[frontier.risen]), np.log2(frontier.peak[frontier.risen])
    if len(tried) < 3 or np.ptp(y) < 1:
        return None
    ks = np.geomspace(*K_RANGE, 40)
    centres = np.linspace(x[0] - 0.5, x[-1] + 0.5, 61)
    for _ in range(3):
        s = expit(ks[:, None, None] * (x - centres[None, :, None]))
        mean = s.mean(-1, keepdims=True)
        square = ((s - mean) ** 2).sum(-1)
        L = ((s - mean) * y).sum(-1) / np.maximum(square, 1e-9)
        L = np.clip(L, 0, 14)
        b = y.mean() - L * mean[..., 0]
        error = ((L[..., None] * s + b[..., None] - y) ** 2).mean(-1)
        i, j = np.unravel_index(np.argmin(error), error.shape)
        best = (L[i, j], ks[i], centres[j], b[i, j], error[i, j])
        ks = np.geomspace(ks[max(i - 1, 0)], ks[min(i + 1, len(ks) - 1)], 15)
        centres = np.linspace(centres[max(j - 1, 0)], centres[min(j + 1, len(centres) - 1)], 15)
    L, k, c0, b, error = (float(value) for value in best)
    bounds = [name for name, hit in (
        ("k", k < K_RANGE[0] * 1.01 or k > K_RANGE[1] * 0.99),
        ("L", L < 1e-6 or L > 13.99),
        ("c0", c0 < x[0] - 0.49 or c0 > x[-1] + 0.49),
    ) if hit]  # fmt: skip
    return BestN(
        L=L, k=k, c0=c0, b=b, low_n=min(tried), high_n=max(tried), rmse=float(np.sqrt(error)), bounds=tuple(bounds)
    )


# Read from the authors' plots; C in rollouts. Fitted on 4-8B models and their problem sets.
PAPER = {
    "easy problems, B_p 32": BestN(L=6.09, k=4.75, c0=5.84, b=2.73, low_n=1, high_n=2048, rmse=0, bounds=()),
    "hard problems, B_p 32": BestN(L=4.47, k=7.23, c0=5.84, b=2.79, low_n=1, high_n=512, rmse=0, bounds=()),
    "easy problems, all free": BestN(L=5.67, k=8.84, c0=6.08, b=3.08, low_n=1, high_n=2048, rmse=0, bounds=()),
    "hard problems, all free": BestN(L=3.97, k=50.0, c0=6.13, b=3.04, low_n=1, high_n=512, rmse=0, bounds=("k",)),
}
NOT_TRANSFERABLE = (
    "an example of the paper, not transferable: its own settings differ by a factor of 4 to 9 at one budget,"
    " and other models level off at n of 16 to 64"
)
