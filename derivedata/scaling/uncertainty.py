"""How sure a fit is: cluster bootstrap, sandwich errors, and profiles that find flat valleys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from derivedata.scaling.model import Model
from derivedata.scaling.solver import huber, solve

# With fewer clusters than this a resample is often one cluster over and over: single runs are resampled instead.
FEWEST_CLUSTERS = 6
# 95% point of chi squared with one degree of freedom.
_CHI2_95 = 3.841459


@dataclass(frozen=True, slots=True)
class Curvature:
    """Mean slope and mean square of Huber's psi over the residuals: what turns objectives into likelihood ratios."""

    slope: float
    square: float

    @classmethod
    def of(cls, residual: NDArray, delta: float, weight: NDArray) -> Curvature:
        """From the residuals of a fit.

        With a delta far below the residuals few lie inside it, so the slope is estimated over a wider window (the
        density of the residuals at 0, as for a median).
        """
        size, used = np.abs(residual), weight > 0
        spread = np.median(size[used]) * 1.4826
        window = max(delta, 0.9 * spread * used.sum() ** -0.2)
        inside = np.average(size <= window, weights=weight)
        psi = np.minimum(size, delta)
        return cls(float(max(inside, 1 / used.sum()) * delta / window), float(np.average(psi**2, weights=weight)))

    def ratio(self, rise: float) -> float:
        """Likelihood-ratio statistic (chi squared, one degree of freedom) of a rise of the objective."""
        return 2 * self.slope / max(self.square, 1e-300) * rise


def sandwich(
    model: Model, theta: NDArray, *, free: NDArray, delta: float, weight: NDArray, cluster: NDArray
) -> NDArray:
    """Covariance (p, p) of the free parameters by the cluster-robust sandwich; zero elsewhere.

    Parameters at a bound are held there. Clusters are what the errors may be correlated in; G/(G-1) (n-1)/(n-p)
    corrects for few of them. With a dozen clusters its intervals still cover a little less than they say.
    """
    value, jacobian = model.value_and_jacobian(theta)
    residual = value - model.lnloss
    at_bound = (theta <= model.parameters.low) | (theta >= model.parameters.high)
    which = np.flatnonzero(free & ~at_bound)
    J = jacobian[which]
    curvature = Curvature.of(residual, delta, weight)
    bread = np.linalg.pinv(curvature.slope * (J * weight) @ J.T, hermitian=True)
    scores = J * (weight * np.clip(residual, -delta, delta))
    labels = np.unique(cluster, return_inverse=True)[1].reshape(-1)
    summed = np.zeros((labels.max() + 1, len(which)))
    np.add.at(summed, labels, scores.T)
    groups, count = len(np.unique(labels[weight > 0])), int((weight > 0).sum())
    few = groups / max(groups - 1, 1) * (count - 1) / max(count - len(which), 1)
    meat = summed.T @ summed * few
    covariance = np.zeros((len(theta), len(theta)))
    covariance[np.ix_(which, which)] = bread @ meat @ bread
    return covariance


def resampled_together(cluster: NDArray, used: NDArray) -> NDArray:
    """Labels (runs,) of what errors are taken to be shared in: the clusters, or each run where they are too few."""
    if len(np.unique(cluster[used])) >= FEWEST_CLUSTERS:
        return cluster
    return np.arange(len(cluster))


def bootstrap_weights(cluster: NDArray, weight: NDArray, draws: int, seed: int) -> NDArray:
    """Weights (draws, runs) of a cluster bootstrap: each cluster counts as often as it was drawn."""
    labels = np.unique(cluster, return_inverse=True)[1].reshape(-1)
    groups = int(labels.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), size=draws)
    return drawn[:, labels] * weight


def profile(
    model: Model,
    theta: NDArray,
    index: int,
    values: NDArray,
    *,
    free: NDArray,
    delta: float,
    weight: NDArray,
) -> NDArray:
    """Least objective with one parameter held at each of some values, starting from the optimum and from there on.

    Each point is solved from the optimum; then once more from its neighbours' solutions, which a valley needs.
    """
    held = free.copy()
    held[index] = False
    starts = np.repeat(theta[None], len(values), axis=0)
    starts[:, index] = values
    options = {"free": held, "delta": delta, "weight": weight}
    solution = solve(model, starts, **options)
    best = solution.objective
    for shift in (1, -1):
        again = np.roll(solution.theta, shift, axis=0)
        again[:, index] = values
        best = np.minimum(best, solve(model, again, **options).objective)
    return best


def profile_interval(
    model: Model, theta: NDArray, index: int, *, free: NDArray, delta: float, weight: NDArray
) -> tuple[float, float]:
    """95% profile interval of a parameter; an end that reaches the bound of its range is infinite (a flat valley)."""
    low, high, here = model.parameters.low[index], model.parameters.high[index], theta[index]
    options = {"free": free, "delta": delta, "weight": weight}
    residual = model.value(theta) - model.lnloss
    least = float((weight * huber(residual, delta)).sum())
    curvature = Curvature.of(residual, delta, weight)

    def within(values: NDArray) -> NDArray:
        rise = profile(model, theta, index, values, **options) - least
        return np.array([curvature.ratio(float(r)) < _CHI2_95 for r in rise])

    ends = []
    for bound, beyond in ((low, -np.inf), (high, np.inf)):
        # A ladder towards the bound keeps every solve near the last one's solution; then the crossing is refined.
        values = np.linspace(here, bound, 8)[1:] if abs(bound - here) > 1e-9 else np.empty(0)
        inside = within(values) if len(values) else np.empty(0, bool)
        if inside.all():
            ends.append(beyond)
            continue
        steps = np.concatenate([[here], values])
        last = int(np.argmin(np.concatenate([[True], inside])))
        fine = np.linspace(steps[last - 1], steps[last], 10)[1:-1]
        inside = within(fine)
        ends.append(float(fine[inside][-1] if inside.any() else steps[last - 1]))
    return ends[0], ends[1]
