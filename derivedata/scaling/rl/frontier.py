"""Which number of rollouts is best at which compute: record-breaking points, curves by n, their upper envelope, n*(C).

The IsoCompute Playbook (arXiv 2603.12151): bucket the validation reward and keep a run's first point in each new bucket
(record-breaking points); fit a monotone sigmoid of reward in ln C for every n; the frontier is the upper envelope, and
n*(C) the n on it. Then

    log2 n*(C) = L / (1 + exp(-k (log10 C - c0))) + b

is fitted along the frontier. Curves are read inside the range of their own points only, and points below a fiftieth of
the largest C of a run are skipped. Record-breaking points are picked for being high: on the toy of `simulate` curves
through them lie .01 to .05 above the truth, most for the n that plateau early. So every evaluation is fitted unless
`points="record"` asks for the paper's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from derivedata.errors import UserError
from derivedata.scaling.rl.curve import Sigmoid
from derivedata.scaling.rl.points import Curve
from derivedata.scaling.rl.solver import Curves, fit_many, predict

BUCKET = 0.01
SKIPPED_SHARE = 0.02
# A curve is read this far past its last point: budgets are spent in whole steps, so ends differ a little.
REACH = 1.1
FEWEST_POINTS = 4
GRID = 120
K_RANGE = (0.2, 50.0)


def record_breaking(curve: Curve, bucket: float = BUCKET) -> NDArray:
    """Indices of a run's points that are the first in a new, higher bucket of the reward; C = 0 is none."""
    kept, best = [], -1
    for i, (C, reward) in enumerate(zip(curve.C, curve.reward, strict=True)):
        # A little below its edge a reward belongs to the bucket: .3 / .1 is 2.9999...
        level = int(np.floor(reward / bucket + 1e-9))
        if C > 0 and level > best:
            kept.append(i)
            best = level
    return np.array(kept, int)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The runs of one (n, B_p) as one curve.

    Args:
        n, problems: rollouts a problem; problems a batch, None where the runs do not say.
        C, reward: points that were fitted; all_C, all_reward: every evaluation that is not early.
        law: the sigmoid.
        draws: (draws, 4) vectors of a bootstrap of the residuals.
        low, high: range of C in which the curve is read.
    """

    n: int
    problems: int | None
    runs: tuple[str, ...]
    C: NDArray
    reward: NDArray
    all_C: NDArray
    all_reward: NDArray
    law: Sigmoid
    draws: NDArray
    low: float
    high: float

    def at(self, C: ArrayLike) -> NDArray:
        """Reward at C, NaN outside the range of the points."""
        C = np.asarray(C, float)
        return np.where(self._reaches(C), self.law.reward(C), np.nan)

    def spread(self, C: ArrayLike) -> NDArray:
        """Rewards of the draws (draws, points), NaN outside the range of the points."""
        C = np.atleast_1d(np.asarray(C, float))
        return np.where(self._reaches(C), predict(self.draws, np.log(C)[None]), np.nan)

    def _reaches(self, C: NDArray) -> NDArray:
        return (self.low / REACH <= C) & (self.high * REACH >= C)


@dataclass(frozen=True, kw_only=True, slots=True)
class ByN:
    """All that was tried with one n: the reward of an n is that of its best B_p."""

    n: int
    members: tuple[Group, ...]

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of the runs."""
        return tuple(run for one in self.members for run in one.runs)

    @property
    def low(self) -> float:
        """Least C at which it is read."""
        return min(one.low for one in self.members)

    @property
    def high(self) -> float:
        """Largest C that was trained to."""
        return max(one.high for one in self.members)

    def at(self, C: ArrayLike) -> NDArray:
        """Reward at C with the best B_p, NaN where no run reaches."""
        values = np.array([one.at(C) for one in self.members])
        least = np.where(np.isfinite(values), values, -np.inf).max(0)
        return np.where(np.isfinite(least), least, np.nan)

    def spread(self, C: ArrayLike) -> NDArray:
        """Rewards of the draws (draws, points) with the B_p that is best at C in each draw."""
        values = np.array([one.spread(C) for one in self.members])
        least = np.where(np.isfinite(values), values, -np.inf).max(0)
        return np.where(np.isfinite(least), least, np.nan)

    def best_member(self, C: float) -> Group | None:
        """The (n, B_p) with the highest reward at C."""
        reaching = [one for one in self.members if np.isfinite(one.at(C))]
        return max(reaching, key=lambda one: float(one.at(C)), default=None)


def group(
    curves: Sequence[Curve], *, points: str = "all", draws: int = 200, seed: int = 0
) -> tuple[tuple[ByN, ...], tuple[str, ...]]:
    """Fit a sigmoid to the runs of each (n, B_p), and say which had too few points.

    Args:
        curves: with n known.
        points: "all" for every evaluation, "record" for record-breaking points.
        draws: bootstrap refits a curve.
    """
    if points not in ("record", "all"):
        raise UserError("points are 'record' or 'all'", value=points)
    members: dict[tuple, list[Curve]] = {}
    for curve in curves:
        members.setdefault((curve.n, curve.problems), []).append(curve)
    kept, notes = [], []
    for key in sorted(members, key=lambda key: (key[0], key[1] or 0)):
        runs = members[key]
        taken = [record_breaking(c) if points == "record" else _late(c) for c in runs]
        C = np.concatenate([c.C[i] for c, i in zip(runs, taken, strict=True)])
        reward = np.concatenate([c.reward[i] for c, i in zip(runs, taken, strict=True)])
        if len(C) < FEWEST_POINTS:
            name = f"n = {key[0]}" + (f", B_p = {key[1]}" if key[1] else "")
            notes.append(f"{name}: {len(C)} {'record-breaking ' if points == 'record' else ''}points are too few")
            continue
        kept.append((key, runs, C, reward))
    fitted = _fit_groups(kept, draws, seed) if kept else ()
    by_n = {n: tuple(one for one in fitted if one.n == n) for n in sorted({one.n for one in fitted})}
    return tuple(ByN(n=n, members=own) for n, own in by_n.items()), tuple(notes)


def _late(curve: Curve) -> NDArray:
    return np.flatnonzero((curve.C > 0) & (SKIPPED_SHARE * curve.C.max(initial=0) <= curve.C))


def _fit_groups(kept: list[tuple], draws: int, seed: int) -> tuple[Group, ...]:
    longest = max(len(C) for *_, C, _ in kept)
    x = np.array([np.pad(np.log(C), (0, longest - len(C)), mode="edge") for *_, C, _ in kept])
    y = np.array([np.pad(reward, (0, longest - len(reward))) for *_, reward in kept])
    weight = np.array([np.arange(longest) < len(C) for *_, C, _ in kept], float)
    begun = [run.start_reward for _, runs, *_ in kept for run in runs if run.start_reward is not None]
    # The same R_0 for all: every run begins at the same model.
    known = float(np.mean(begun)) if begun else None
    best = fit_many(Curves.of(x, y, weight), r0=known)
    drawn = _redrawn(predict(best, x), y, weight, 4 if known is None else 3, draws, seed)
    again = Curves.of(np.repeat(x, draws, axis=0), drawn, np.repeat(weight, draws, axis=0))
    spread = fit_many(again, r0=known).reshape(len(kept), draws, 4)
    theta = np.concatenate([best[:, None], spread], axis=1)
    found = []
    for (key, runs, C, reward), one in zip(kept, theta, strict=True):
        every = np.concatenate([c.C[_late(c)] for c in runs])
        found.append(
            Group(
                n=key[0],
                problems=key[1],
                runs=tuple(c.run for c in runs),
                C=C,
                reward=reward,
                all_C=every,
                all_reward=np.concatenate([c.reward[_late(c)] for c in runs]),
                law=Sigmoid.of(one[0]),
                draws=one[1:],
                low=float(every.min()),
                high=float(every.max()),
            )
        )
    return tuple(found)


def _redrawn(fitted: NDArray, y: NDArray, weight: NDArray, free: int, draws: int, seed: int) -> NDArray:
    """Rewards (curves x draws, points) with residuals drawn anew, widened for the constants that were fitted."""
    rng = np.random.default_rng(seed)
    rows = []
    for value, seen, used in zip(fitted, y, weight > 0, strict=True):
        left = (seen - value)[used]
        wider = np.sqrt(len(left) / max(len(left) - free, 1))
        rows.append(value + wider * rng.choice(left - left.mean(), (draws, len(value))))
    return np.clip(np.concatenate(rows), 0, 1)


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
