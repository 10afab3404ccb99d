"""Stop sampling a problem when its final label is all but certain, and spend more on those near a band's edge.

The label that counts is the one that all k samples would have given. After m samples the prior, fitted on a random
pilot, predicts the remaining k - m; when one label has at least the wanted probability, the problem stops. `exact`
stops only where the remaining samples can't change the label. Samples must be sent singly for this to save anything:
with four at a time little is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from derivedata.errors import UserError
from derivedata.problems.bands import Bands
from derivedata.problems.passrate import BetaMixture

MODES = ("none", "exact", "0.99", "0.95")


def parse_confidence(text: str) -> float | None:
    """Read `none` (None), `exact` (1.0) or a probability between 0.5 and 1."""
    if text == "none":
        return None
    if text == "exact":
        return 1.0
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.5 < value < 1:
        raise UserError("--early-stop is none, exact, or a probability such as 0.99", value=text)
    return value


def pilot_size(problems: int) -> int:
    """How many problems, drawn at random, are sampled in full to fit the prior: 4 %, at least 100, at most 500."""
    return min(problems, max(100, min(500, problems // 25)))


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When to stop, for every count of right answers: `stop_label[m, c]` is the label's index, or -1 to go on."""

    k: int
    confidence: float | None
    bands: Bands
    stop_label: np.ndarray

    def label(self, correct: int, n: int) -> str | None:
        """The final label after `correct` of `n` samples, or None to go on sampling."""
        index = int(self.stop_label[min(n, self.k), correct])
        return None if index < 0 else self.bands.names[index]

    def may_need(self, correct: int, n: int) -> int:
        """How many further samples are needed at least before the problem can stop (0: it can now).

        That many can be in flight for it without waste.
        """
        for more in range(self.k - n + 1):
            if (self.stop_label[n + more, correct : correct + more + 1] >= 0).any():
                return more
        return 0


def stopping_rule(bands: Bands, k: int, confidence: float | None, prior: BetaMixture | None = None) -> StoppingRule:
    """The rule for k samples.

    Args:
        bands: the bands whose labels are wanted.
        k: samples of a problem when nothing stops it.
        confidence: None never stops early, 1.0 stops where the label is settled, else the wanted probability.
        prior: needed for a probability.
    """
    if confidence is not None and confidence < 1 and prior is None:
        raise UserError("stopping by probability needs a prior from a pilot")
    final = bands.labels_of_counts(k)
    table = np.full((k + 1, k + 1), -1)
    table[k] = final
    for m in range(k if confidence is not None else 0):
        counts = np.arange(m + 1)
        reachable = np.stack([final[c : c + k - m + 1] for c in counts])
        settled = (reachable == reachable[:, :1]).all(axis=1)
        table[m, counts[settled]] = reachable[settled, 0]
        # Nothing is said of a problem that has no sample at all, however sure the prior is.
        if confidence < 1 and m > 0:
            chances = prior.predictive(counts, np.full(m + 1, m), k - m)
            by_label = np.stack(
                [(chances * (reachable == label)).sum(axis=1) for label in range(len(bands.names))], axis=1
            )
            sure = (by_label.max(axis=1) >= confidence) & ~settled
            table[m, counts[sure]] = by_label.argmax(axis=1)[sure]
    return StoppingRule(k, confidence, bands, table)


@dataclass(frozen=True, slots=True)
class Replay:
    """What a rule would have done to samples that were all taken."""

    used: np.ndarray  # samples of each problem
    label: np.ndarray  # index of the label it got
    full_label: np.ndarray  # index of the label that all k samples give
    k: int

    @property
    def saved(self) -> float:
        """Share of the samples that would not have been taken."""
        return 1 - float(self.used.mean()) / self.k

    @property
    def changed(self) -> float:
        """Share of the labels that differ."""
        return float((self.label != self.full_label).mean())


def replay(rule: StoppingRule, outcomes: np.ndarray) -> Replay:
    """Apply a rule to recorded outcomes.

    Args:
        outcomes: shape (problems, k), true or 1 for right, in the order in which they were drawn.
    """
    outcomes = np.asarray(outcomes, int)
    problems, k = outcomes.shape
    if k != rule.k:
        raise UserError("the rule is for another number of samples", value=f"{k} instead of {rule.k}")
    counts = np.concatenate([np.zeros((problems, 1), int), outcomes.cumsum(axis=1)], axis=1)
    labels = rule.stop_label[np.arange(k + 1), counts]
    used = (labels >= 0).argmax(axis=1)
    return Replay(used, labels[np.arange(problems), used], labels[:, k], k)


def replay_with_pilot(
    outcomes: np.ndarray,
    bands: Bands,
    confidence: float | None,
    fit: Callable[[np.ndarray, np.ndarray], BetaMixture],
    rng: np.random.Generator,
) -> Replay:
    """Replay as a run does it: a random pilot in full, the prior from it, the rule for the rest.

    Args:
        outcomes: shape (problems, k), in the order in which they were drawn.
        bands: the bands.
        confidence: as in `stopping_rule`.
        fit: derivedata.problems.passrate.fit_prior, or another.
        rng: draws the pilot.
    """
    outcomes = np.asarray(outcomes, int)
    problems, k = outcomes.shape
    pilot = rng.permutation(problems)[: pilot_size(problems)]
    prior = fit(outcomes[pilot].sum(axis=1), np.full(len(pilot), k))
    done = replay(stopping_rule(bands, k, confidence, prior), outcomes)
    used, label = done.used.copy(), done.label.copy()
    used[pilot], label[pilot] = k, done.full_label[pilot]
    return Replay(used, label, done.full_label, k)


def borderline(
    correct: np.ndarray, n: np.ndarray, bands: Bands, prior: BetaMixture, *, sure: float = 0.9
) -> np.ndarray:
    """Which problems are borderline: the probability that the true rate has the label of c/n is below `sure`.

    Returns a boolean array of the shape of the counts.
    """
    correct, n = np.asarray(correct), np.asarray(n)
    chances = label_chances(correct, n, bands, prior)
    label = bands.of_true_rates()[bands.label_index(correct / n)]
    return np.take_along_axis(chances, label[..., None], axis=-1)[..., 0] < sure


def label_chances(correct: np.ndarray, n: np.ndarray, bands: Bands, prior: BetaMixture) -> np.ndarray:
    """Posterior probability of each label of the true rate (shape of the counts + labels, as in `bands.names`)."""
    correct, n = np.asarray(correct), np.asarray(n)
    edges = sorted({0.0, 1.0, *(band.low for band in bands.bands), *(band.high for band in bands.bands)})
    below = np.stack([prior.cdf(np.full(correct.shape, edge), correct, n) for edge in edges], axis=-1)
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    chances = np.zeros((*correct.shape, len(bands.names)))
    for position, middle in enumerate(middles):
        chances[..., int(bands.label_index(np.asarray(middle)))] += below[..., position + 1] - below[..., position]
    return chances
