"""The runs of a study as curves: one sigmoid for each (n, B_p), with draws, and the best B_p of each n.

The IsoCompute Playbook (arXiv 2603.12151) buckets the validation reward, keeps a run's first point in each new bucket
(record-breaking points) and fits a monotone sigmoid of reward in ln C to those. They are picked for being high: on the
toy of `simulate` curves through them lie .01 to .05 above the truth, most for the n that plateau early. So every
evaluation is fitted unless `points="record"` asks for the paper's way. Curves are read inside the range of their own
points only, and points below a fiftieth of the largest C of a run are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from derivedata.errors import UserError
from derivedata.scaling.rl.curve import Sigmoid
from derivedata.scaling.rl.points import Curve
from derivedata.scaling.rl.solver import Curves, fit_many, predict

BUCKET = 0.01
FEWEST_POINTS = 4
SKIPPED_SHARE = 0.02
# A curve is read this far past its last point: budgets are spent in whole steps, so ends differ a little.
REACH = 1.1


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
