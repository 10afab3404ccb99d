"""What training does to single problems: pass rates over time, problems that fell to 0, sharpening or coverage.

A rising mean hides problems that get worse (interference, IsoCompute Playbook, arXiv 2603.12151). The histogram of
per-problem pass rates shows it over time. best@k that rises is coverage: problems solved at all. worst@k that rises
while best@k does not is sharpening: problems solved already, solved more surely.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln

# Edges of the histogram: 0 and 1 stand alone.
EDGES = np.array([0.0, 1e-9, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1 - 1e-9, 1.0])
LABELS = ("0", "0-.12", ".12-.25", ".25-.38", ".38-.5", ".5-.62", ".62-.75", ".75-.88", ".88-1", "1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Interference:
    """Per-problem pass rates in windows of training.

    Args:
        steps: (windows + 1,) the steps between the windows.
        histogram: (windows, bins) share of the problems seen in the window, bins of `EDGES`.
        seen: (windows,) problems seen.
        compared: problems seen in the first and in the last window, solved at least once in the first.
        fallen: share of those never solved in the last.
        by_chance: the share to expect if nothing had changed (few samples are all wrong now and then).
        risen: share of the problems never solved in the first window that were solved in the last.
    """

    steps: NDArray
    histogram: NDArray
    seen: NDArray
    compared: int
    fallen: float
    by_chance: float
    risen: float


def interference(step: NDArray, problem: NDArray, k: NDArray, n: NDArray, *, windows: int = 6) -> Interference | None:
    """Pass rates by problem over equal stretches of steps; None without two steps.

    Args:
        step, problem, k, n: (groups,) when, which problem (any labels), how many right of how many.
    """
    step, k, n = (np.asarray(v, float) for v in (step, k, n))
    if len(step) == 0 or step.min() == step.max():
        return None
    label = np.unique(np.asarray(problem), return_inverse=True)[1].reshape(-1)
    count = int(label.max()) + 1
    edges = np.linspace(step.min(), step.max() + 1, windows + 1)
    window = np.clip(np.searchsorted(edges, step, side="right") - 1, 0, windows - 1)
    right, asked = np.zeros((windows, count)), np.zeros((windows, count))
    np.add.at(right, (window, label), k)
    np.add.at(asked, (window, label), n)
    rate = np.divide(right, asked, out=np.full(right.shape, np.nan), where=asked > 0)
    histogram = np.array([_shares(row[np.isfinite(row)]) for row in rate])
    both = (asked[0] > 0) & (asked[-1] > 0)
    solved = both & (right[0] > 0)
    unsolved = both & (right[0] == 0)
    return Interference(
        steps=edges,
        histogram=histogram,
        seen=(asked > 0).sum(1),
        compared=int(solved.sum()),
        fallen=float((right[-1][solved] == 0).mean()) if solved.any() else float("nan"),
        by_chance=_by_chance(right[0], asked[0], asked[-1], solved),
        risen=float((right[-1][unsolved] > 0).mean()) if unsolved.any() else float("nan"),
    )


def _by_chance(right: NDArray, asked: NDArray, later: NDArray, solved: NDArray) -> float:
    """Expected share of the solved problems with no right answer later, if each kept its rate.

    A problem solved once of four is likely luck: its rate is that of a Beta prior fitted to all problems of the first
    window (by likelihood over its concentration), given its answers.
    """
    if not solved.any():
        return float("nan")
    seen = asked > 0
    k, n = right[seen], asked[seen]
    mean = np.clip(k.sum() / n.sum(), 1e-6, 1 - 1e-6)
    sizes = np.geomspace(0.2, 2000, 60)[:, None]
    a, b = mean * sizes, (1 - mean) * sizes
    best = int(np.argmax((betaln(k + a, n - k + b) - betaln(a, b)).sum(1)))
    a, b = a[best, 0] + right[solved], b[best, 0] + (asked - right)[solved]
    return float(np.exp(betaln(a, b + later[solved]) - betaln(a, b)).mean())


def _shares(rates: NDArray) -> NDArray:
    where = np.clip(np.searchsorted(EDGES, rates, side="right") - 1, 0, len(LABELS) - 1)
    return np.bincount(where, minlength=len(LABELS)) / max(len(rates), 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """best@k and worst@k before and after, and what to call it."""

    best: tuple[float, float]
    worst: tuple[float, float]
    kind: str


def sharpening_or_coverage(evaluations: Mapping[str, NDArray], problems: int) -> Change | None:
    """Whether training solved more problems or the same ones more surely; None without best@k and worst@k.

    Args:
        evaluations: columns best and worst (points,), in order of C.
        problems: evaluated each time; a change counts beyond two standard errors of a difference of shares.
    """
    best, worst = (np.asarray(evaluations.get(name, ()), float) for name in ("best", "worst"))
    if len(best) < 2 or len(worst) < 2 or not np.isfinite([best[0], best[-1], worst[0], worst[-1]]).all():
        return None
    changed = []
    for values in (best, worst):
        noise = np.sqrt(sum(v * (1 - v) for v in (values[0], values[-1])) / max(problems, 1))
        rise = values[-1] - values[0]
        changed.append(int(np.sign(rise)) if abs(rise) > 2 * noise else 0)
    kind = {
        (1, 1): "coverage and sharpening: more problems are solved, and more surely",
        (1, 0): "coverage: more problems are solved at all",
        (0, 1): "sharpening: the same problems are solved, more surely",
        (-1, 1): "sharpening at the cost of coverage: fewer problems are solved, those more surely",
        (-1, -1): "loss: fewer problems are solved, and less surely",
        (-1, 0): "loss of coverage: fewer problems are solved at all",
        (0, -1): "less sure: the same problems are solved, less often",
        (1, -1): "spread: more problems are solved, less surely",
    }.get((changed[0], changed[1]), "no change beyond the noise of the evaluation")
    return Change(best=(float(best[0]), float(best[-1])), worst=(float(worst[0]), float(worst[-1])), kind=kind)
