"""Pass rates from k correct of n samples: avg@k, best@k, worst@k, pass@k, intervals, and the prior behind them.

Pure functions of NumPy arrays. `correct` and `n` are whole numbers of any shapes that broadcast. A problem's true rate
p is what infinitely many samples would give; its prior is the distribution of p over the problems of a set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from derivedata.errors import UserError
from derivedata.problems.bands import Bands


def avg_at_k(correct: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Share of samples that are right: the pass rate. NaN where n is 0."""
    correct, n = np.asarray(correct, float), np.asarray(n, float)
    return np.divide(correct, n, out=np.full(np.broadcast(correct, n).shape, np.nan), where=n > 0)


def pass_at_k(correct: np.ndarray, n: np.ndarray, k: int) -> np.ndarray:
    """Unbiased estimate of the chance that at least one of k samples is right: 1 - C(n-c, k)/C(n, k).

    NaN where there are fewer than k samples. Source: Chen et al. 2021 (arXiv 2107.03374), equation 1.
    """
    return 1 - _all_drawn_from(np.asarray(n) - np.asarray(correct), n, k)


def worst_at_k(correct: np.ndarray, n: np.ndarray, k: int) -> np.ndarray:
    """Unbiased estimate of the chance that all of k samples are right: C(c, k)/C(n, k). NaN with fewer than k."""
    return _all_drawn_from(correct, n, k)


def _all_drawn_from(part: np.ndarray, n: np.ndarray, k: int) -> np.ndarray:
    """Chance that k samples drawn without replacement from n all belong to `part` of them."""
    part, n = np.broadcast_arrays(np.asarray(part, float), np.asarray(n, float))
    if k < 1:
        raise UserError("k must be at least 1", value=k)
    drawn = np.arange(k)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.clip(part[..., None] - drawn, 0, None) / (n[..., None] - drawn)
    return np.where(n >= k, np.prod(factors, axis=-1), np.nan)


def jeffreys_interval(correct: np.ndarray, n: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Equal-tailed interval of the true rate under Jeffreys' prior Beta(1/2, 1/2); 0 and 1 are its ends at 0 and n.

    Source: Brown, Cai, DasGupta 2001, section 4.1 (with their modification at the ends).
    """
    from scipy.special import betaincinv

    correct, n = np.broadcast_arrays(np.asarray(correct, float), np.asarray(n, float))
    tail = (1 - level) / 2
    low = betaincinv(correct + 0.5, n - correct + 0.5, tail)
    high = betaincinv(correct + 0.5, n - correct + 0.5, 1 - tail)
    return np.where(correct == 0, 0.0, low), np.where(correct == n, 1.0, high)


@dataclass(frozen=True, slots=True)
class BetaMixture:
    """A prior of the true rate: a mixture of Beta(a, b), one entry a component."""

    weights: tuple[float, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]

    def posterior_weights(self, correct: np.ndarray, n: np.ndarray) -> np.ndarray:
        """Weights of the components after `correct` of `n` (shape of the counts + components)."""
        log = np.log(np.asarray(self.weights)) + self._log_evidence(correct, n)
        log -= log.max(axis=-1, keepdims=True)
        weights = np.exp(log)
        return weights / weights.sum(axis=-1, keepdims=True)

    def _log_evidence(self, correct: np.ndarray, n: np.ndarray) -> np.ndarray:
        from scipy.special import betaln

        c, n = np.asarray(correct, float)[..., None], np.asarray(n, float)[..., None]
        a, b = np.asarray(self.a), np.asarray(self.b)
        return betaln(a + c, b + n - c) - betaln(a, b)

    def predictive(self, correct: np.ndarray, n: np.ndarray, more: int) -> np.ndarray:
        """Distribution of the count of right ones among `more` further samples (shape of the counts + more + 1)."""
        from scipy.special import betaln, gammaln

        c, n = np.asarray(correct, float)[..., None, None], np.asarray(n, float)[..., None, None]
        j = np.arange(more + 1)
        a, b = np.asarray(self.a) + c, np.asarray(self.b) + n - c
        choose = gammaln(more + 1) - gammaln(j + 1) - gammaln(more - j + 1)
        each = np.exp(choose[:, None] + betaln(a + j[:, None], b + (more - j)[:, None]) - betaln(a, b))
        return (each * self.posterior_weights(correct, n_of(n))[..., None, :]).sum(axis=-1)

    def cdf(self, rate: np.ndarray, correct: np.ndarray, n: np.ndarray) -> np.ndarray:
        """Posterior probability that the true rate is at most `rate` (shapes broadcast)."""
        from scipy.special import betainc

        rate, c, n = np.broadcast_arrays(*(np.asarray(x, float) for x in (rate, correct, n)))
        weights = self.posterior_weights(c, n)
        a, b = np.asarray(self.a), np.asarray(self.b)
        return (betainc(a + c[..., None], b + (n - c)[..., None], rate[..., None]) * weights).sum(axis=-1)

    def to_dict(self) -> dict:
        """Plain lists for JSON."""
        return {"weights": list(self.weights), "a": list(self.a), "b": list(self.b)}


def n_of(n: np.ndarray) -> np.ndarray:
    """Take off the two axes that `predictive` added."""
    return n[..., 0, 0]


def fit_prior(correct: np.ndarray, n: np.ndarray, components: int = 3) -> BetaMixture:
    """Fit the prior to the counts of a *random* sample of problems, by maximum likelihood.

    An ordered sample (the first problems of a file) is not a random one: files are sorted by source and difficulty.

    Args:
        correct: right answers of each problem.
        n: samples of each problem.
        components: how many Beta distributions to mix at most; fewer for small samples.

    Raises:
        UserError: there is not one problem with a sample.
    """
    from scipy.optimize import minimize
    from scipy.special import betaln, digamma, logsumexp

    correct, n = np.asarray(correct, float).ravel(), np.asarray(n, float).ravel()
    correct, n = correct[n > 0], n[n > 0]
    if not len(n):
        raise UserError("a prior needs at least one problem with a sample")
    pairs, times = np.unique(np.stack([correct, n]), axis=1, return_counts=True)
    c, m = pairs[:, :, None]
    components = min(components, 1 + len(n) // 50)

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        split, log_a, log_b = parameters.reshape(3, components)
        a, b = np.exp(log_a), np.exp(log_b)
        log_weights = split - logsumexp(split)
        each = log_weights + betaln(a + c, b + m - c) - betaln(a, b)
        likelihood = logsumexp(each, axis=-1, keepdims=True)
        share = times[:, None] * np.exp(each - likelihood)
        both = digamma(a + b) - digamma(a + b + m)
        slope_a = (share * (digamma(a + c) - digamma(a) + both)).sum(axis=0) * a
        slope_b = (share * (digamma(b + m - c) - digamma(b) + both)).sum(axis=0) * b
        slope_split = share.sum(axis=0) - times.sum() * np.exp(log_weights)
        # A weak pull of a and b towards 1 keeps a pilot of zeros from running off to infinity.
        value = 0.02 * (log_a**2 + log_b**2).sum() - (times * likelihood[:, 0]).sum()
        return value, np.concatenate([-slope_split, 0.04 * log_a - slope_a, 0.04 * log_b - slope_b])

    best = None
    for low, high in ((0.03, 0.5), (0.01, 0.2), (0.2, 0.8)):
        means = np.linspace(low, high, components) if components > 1 else np.array([correct.sum() / n.sum()])
        means = np.clip(means, 0.01, 0.99)
        start = np.concatenate([np.zeros(components), np.log(2 * means), np.log(2 * (1 - means))])
        bounds = [(-8, 8)] * components + [(np.log(0.01), np.log(300))] * (2 * components)
        found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds)
        if best is None or found.fun < best.fun:
            best = found
    split, log_a, log_b = best.x.reshape(3, components)
    weights = np.exp(split - logsumexp(split))
    return BetaMixture(
        tuple((weights / weights.sum()).tolist()), tuple(np.exp(log_a).tolist()), tuple(np.exp(log_b).tolist())
    )


@dataclass(frozen=True, slots=True)
class LabelQuality:
    """What labels from k samples are worth, as the prior has it."""

    mislabelled: float  # share of problems whose label is not that of their true rate
    agreement: float  # share that would get the same label from k fresh samples


def label_quality(prior: BetaMixture, bands: Bands, k: int) -> LabelQuality:
    """Expected share of mislabelled problems, and of equal labels on measuring again, for labels from k samples."""
    from scipy.stats import beta, binom

    # Quantiles of each component: equal masses of problems, so that bands near 0 get the points they need.
    masses = (np.arange(2_000) + 0.5) / 2_000
    labels, true_labels = bands.labels_of_counts(k), bands.of_true_rates()
    mislabelled = agreement = 0.0
    for weight, a, b in zip(prior.weights, prior.a, prior.b, strict=True):
        rates = np.clip(beta.ppf(masses, a, b), 0, 1)
        chances = binom.pmf(np.arange(k + 1), k, rates[:, None])
        by_label = np.stack([chances[:, labels == label].sum(axis=1) for label in range(len(bands.names))], axis=1)
        right = true_labels == true_labels[bands.label_index(rates)][:, None]
        mislabelled += weight * (1 - (by_label * right).sum(axis=1)).mean()
        agreement += weight * (by_label**2).sum(axis=1).mean()
    return LabelQuality(float(mislabelled), float(agreement))
