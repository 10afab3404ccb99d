"""Is a run healthy enough to be planned from? Entropy, length, truncation, KL, and training against validation.

A recipe that collapses tells nothing of n: the IsoCompute Playbook (arXiv 2603.12151) chooses KL and entropy by set
before it varies n. Each test compares the last tenth of the steps with the first tenth (five steps at least), and says
its threshold. A quantity that was not logged is not tested, and named as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from derivedata.scaling.rl.points import Curve

# What ends a run's part in a plan. Entropy in nats a token, KL in nats a token, shares otherwise.
COLLAPSE, EXPLOSION = 0.1, 3.0
LENGTH_GROWTH = 2.0
TRUNCATED = 0.10
GAP = 0.10
KL_MOST = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One test: its name, whether it failed (None: not logged), and the figures in words."""

    test: str
    failed: bool | None
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """All tests of a run."""

    run: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the tests that failed."""
        return tuple(f.test for f in self.findings if f.failed)

    @property
    def is_healthy(self) -> bool:
        """Whether no test failed."""
        return not self.failed


def check(run: str, steps: Mapping[str, NDArray], curve: Curve | None = None) -> Health:
    """Test a run.

    Args:
        run: its name.
        steps: columns of the step log (steps,), NaN where unknown: reward, entropy, kl, length, truncated.
        curve: evaluations of avg@k on held-out problems.
    """
    findings = [
        _entropy(_ends(steps, "entropy")),
        _length(_ends(steps, "length")),
        _truncated(_ends(steps, "truncated")),
        _kl(_ends(steps, "kl")),
        _gap(steps, curve),
        _fall(curve),
    ]
    return Health(run=run, findings=tuple(findings))


def _ends(steps: Mapping[str, NDArray], name: str) -> tuple[float, float] | None:
    """Means over the first and last tenth of what was logged; None where nothing was."""
    values = np.asarray(steps.get(name, ()), float)
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return None
    width = min(max(5, len(values) // 10), max(len(values) // 2, 1))
    return float(values[:width].mean()), float(values[-width:].mean())


def _unknown(test: str, column: str) -> Finding:
    return Finding(test=test, failed=None, words=f"{column} not logged")


def _entropy(ends: tuple[float, float] | None) -> Finding:
    if ends is None:
        return _unknown("entropy", "entropy")
    first, last = ends
    if last < COLLAPSE * first:
        return Finding(test="entropy", failed=True, words=f"collapse: {first:.3g} -> {last:.3g} nats (below a tenth)")
    if last > EXPLOSION * first:
        return Finding(test="entropy", failed=True, words=f"explosion: {first:.3g} -> {last:.3g} nats (over threefold)")
    return Finding(test="entropy", failed=False, words=f"{first:.3g} -> {last:.3g} nats")


def _length(ends: tuple[float, float] | None) -> Finding:
    if ends is None:
        return _unknown("length", "length")
    first, last = ends
    return Finding(
        test="length", failed=last > LENGTH_GROWTH * first, words=f"{first:.4g} -> {last:.4g} tokens"
        + (" (over twofold)" if last > LENGTH_GROWTH * first else ""),
    )  # fmt: skip


def _truncated(ends: tuple[float, float] | None) -> Finding:
    if ends is None:
        return _unknown("truncated", "truncated share")
    bad = ends[1] > TRUNCATED
    return Finding(
        test="truncated", failed=bad, words=f"{ends[0]:.1%} -> {ends[1]:.1%}" + (" (over 10%)" if bad else "")
    )


def _kl(ends: tuple[float, float] | None) -> Finding:
    if ends is None:
        return _unknown("KL", "KL")
    bad = ends[1] > KL_MOST
    words = f"{ends[1]:.3g} nats a token at the end" + (f" (over {KL_MOST:g})" if bad else "")
    return Finding(test="KL", failed=bad, words=words)


def _gap(steps: Mapping[str, NDArray], curve: Curve | None) -> Finding:
    """Training reward above validation by more than it was at the start: the set is learnt by heart."""
    ends = _ends(steps, "reward")
    if ends is None or curve is None or len(curve.C) < 2:
        return _unknown("train-validation gap", "training reward or validation")
    reward = np.asarray(steps["reward"], float)
    # A reward of +-1 as a share.
    scale = (lambda r: (r + 1) / 2) if np.nanmin(reward) < 0 else float
    first, last = scale(ends[0]) - curve.reward[0], scale(ends[1]) - curve.reward[-1]
    bad = last - first > GAP
    words = f"{first:+.3f} -> {last:+.3f}"
    if bad:
        words += " (grew by over .10: n too large, or too many passes, for so few problems)"
    return Finding(test="train-validation gap", failed=bad, words=words)


def _fall(curve: Curve | None) -> Finding:
    if curve is None or len(curve.C) < 5:
        return Finding(test="validation", failed=None, words="fewer than five evaluations")
    fall = curve.fall()
    words = f"fell by {fall:.3f} from its best stretch" if fall else f"{curve.reward[0]:.3f} -> {curve.reward[-1]:.3f}"
    return Finding(test="validation", failed=fall > 0, words=words)
