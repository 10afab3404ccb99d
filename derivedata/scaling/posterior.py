"""Posterior of one strategy's ln R*, rho and sigma given a few runs, a Gaussian prior and draws of the backbone.

Sampled by importance: a backbone is one of its draws, the three others come from a Student t around the mode, mixed
with their prior. Where the runs leave R* open at one end the posterior follows the prior there, which a Gaussian at
the mode would not; and the backbone keeps its crooked shape (E, A and alpha trade off along a bend).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from derivedata.scaling.model import Model

BACKBONE = 5
OWN = slice(BACKBONE, BACKBONE + 3)
# Fewer effective draws than this make rough intervals: sampling goes on for some rounds.
FEW_DRAWS = 100
_DOF = 5.0
_ROUNDS = (3, 12)


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """How far runs lie from the law, in ln L: standard deviations within and between (N, D) cells.

    The defaults are close to those of the 355 runs of Qin et al. 2026 around their own fit.
    """

    run: float = 0.025
    cell: float = 0.02


@dataclass(frozen=True, slots=True)
class Sample:
    """Weighted draws: indices of backbones, (ln R*, rho, sigma) (S, 3), normalised weights.

    `is_marginal`: the runs chose among the three only; backbones are drawn as they were before.
    """

    backbone: NDArray
    own: NDArray
    weight: NDArray
    is_marginal: bool = False

    @property
    def effective_size(self) -> float:
        """How many equally weighted draws these are worth."""
        return float(1 / (self.weight**2).sum())


class Posterior:
    """Density and sample of (ln R*, rho, sigma) of the one strategy of a model.

    Args:
        model: predictions for the runs.
        backbones: (S, 5) draws of ln E, ln A0, ln B0, alpha, beta; the first is the central one.
        mean, cov: of the Gaussian prior of the three.
        noise: of the runs; `noise` is what it was raised to.

    `misfit` is by how much the noise had to be raised: runs that no R* brings within it and the backbones' spread
    (beyond chance, 1 in 100) are noisier than was said, or follow another law; either way they say less.
    """

    def __init__(self, model: Model, backbones: NDArray, mean: NDArray, cov: NDArray, noise: Noise):
        self.model, self.backbones, self.mean, self.cov = model, backbones, mean, cov
        self.precision = np.linalg.inv(cov)
        same = np.isclose(model.n[:, None], model.n) & np.isclose(model.d[:, None], model.d)
        self.error = noise.run**2 * np.eye(len(model.n)) + noise.cell**2 * same
        self.allowed, self.misfit = self.error, self._misfit()
        self.error = self.misfit**2 * self.allowed
        self.noise = Noise(run=self.misfit * noise.run, cell=self.misfit * noise.cell)

    def vectors(self, own: NDArray, backbone: NDArray | int = 0) -> NDArray:
        """Parameter vectors of the model."""
        whole = np.broadcast_to(self.model.parameters.default(), (*own.shape[:-1], len(self.model.parameters))).copy()
        whole[..., :BACKBONE] = self.backbones[backbone]
        whole[..., OWN] = own
        return whole

    def mode(self) -> tuple[NDArray, NDArray]:
        """Mode and its inverse Hessian, the backbones' spread counted as error; the best of several starts."""
        inverse = np.linalg.inv(self.error + self._backbone_spread())
        starts = [self.mean + np.array([shift, 0.0, 0.0]) for shift in np.linspace(-1.5, 3.0, 5)]
        return max((self._climb(start, inverse) for start in starts), key=lambda found: found[2])[:2]

    def _misfit(self) -> float:
        """Root mean square of what the best R* leaves of the runs, in units of what is allowed; 1 within chance."""
        from scipy.stats import chi2

        at, spread, spare = self.mode()[0], self._backbone_spread(), max(len(self.model.n) - 3, 1)

        def square(factor: float) -> float:
            residual = self.model.value(self.vectors(at)) - self.model.lnloss
            return float(residual @ np.linalg.solve(factor * self.error + spread, residual))

        if square(1.0) <= chi2.ppf(0.99, spare):
            return 1.0
        # The noise alone is raised, until what is left is what chance leaves.
        factor = 1.0
        while square(factor) > spare:
            factor *= 1.1
        return float(np.sqrt(factor))

    def _backbone_spread(self) -> NDArray:
        """Covariance of the runs' ln L over the backbones, the strategy at its prior mean."""
        count = len(self.backbones)
        value = self.model.value(self.vectors(np.repeat(self.mean[None], count, 0), np.arange(count)))
        return np.atleast_2d(np.cov(value, rowvar=False))

    def _climb(self, own: NDArray, inverse: NDArray) -> tuple[NDArray, NDArray, float]:
        def height(at: NDArray) -> float:
            residual, shift = self.model.value(self.vectors(at)) - self.model.lnloss, at - self.mean
            return -0.5 * float(residual @ inverse @ residual + shift @ self.precision @ shift)

        best, damping, hessian = height(own), 1e-3, self.precision
        for _ in range(60):
            value, jacobian = self.model.value_and_jacobian(self.vectors(own))
            J = jacobian[OWN]
            hessian = J @ inverse @ J.T + self.precision
            slope = J @ inverse @ (value - self.model.lnloss) + self.precision @ (own - self.mean)
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), slope)
            trial = height(own - step)
            if trial < best:
                damping *= 10
                continue
            own, gained, best, damping = own - step, trial - best, trial, damping / 5
            if gained < 1e-10:
                break
        return own, np.linalg.inv(hessian), best

    def sample(self, rng: np.random.Generator) -> Sample:
        """Draws of backbone and strategy together, or of the strategy alone where that is beyond the draws.

        Many runs, or runs that no drawn backbone describes, put all weight on a draw or two, which would pretend to
        know. Then the backbones' spread counts as correlated error of the runs, and only the three are updated.
        """
        found = self._sample(rng)
        return self._sample(rng, marginal=True) if found.effective_size < FEW_DRAWS else found

    def _sample(self, rng: np.random.Generator, *, marginal: bool = False, count: int = 4000) -> Sample:
        """Adaptive importance sampling: each round proposes around the last one's moments."""
        at, cov = self.mode()
        found = None
        inverse = np.linalg.inv(self.error + (self._backbone_spread() if marginal else 0.0))
        for done in range(_ROUNDS[1]):
            if done >= _ROUNDS[0] and found.effective_size >= FEW_DRAWS:
                break
            scale = 1.3 * cov
            near = rng.multivariate_normal(np.zeros(3), scale, size=count)
            near = at + near / np.sqrt(rng.chisquare(_DOF, size=count) / _DOF)[:, None]
            own = np.concatenate([near, rng.multivariate_normal(self.mean, self.cov, size=count // 3)])
            backbone = rng.integers(len(self.backbones), size=len(own))
            residual = self.model.value(self.vectors(own, 0 if marginal else backbone)) - self.model.lnloss
            prior = _normal(own - self.mean, self.precision)
            likelihood = -0.5 * np.einsum("si,ij,sj->s", residual, inverse, residual)
            proposal = np.logaddexp(np.log(0.75) + _student(own - at, scale), np.log(0.25) + prior)
            log_weight = likelihood + prior - proposal
            weight = np.exp(log_weight - log_weight.max())
            found = Sample(backbone, own, weight / weight.sum(), marginal)
            at = found.weight @ own
            cov = (found.weight[:, None] * (own - at)).T @ (own - at) + 1e-8 * np.eye(3)
        return found

    def surprise(self) -> float:
        """Mean squared deviation of the runs from the prior's prediction, in units of what prior and noise allow."""
        rng = np.random.default_rng(0)
        own = rng.multivariate_normal(self.mean, self.cov, size=2000)
        value = self.model.value(self.vectors(own, rng.integers(len(self.backbones), size=len(own))))
        spread = np.atleast_2d(np.cov(value, rowvar=False)) + self.allowed
        deviation = self.model.lnloss - value.mean(axis=0)
        return float(deviation @ np.linalg.solve(spread, deviation)) / len(deviation)


def _normal(shift: NDArray, precision: NDArray) -> NDArray:
    square = np.einsum("si,ij,sj->s", shift, precision, shift)
    return 0.5 * (np.linalg.slogdet(precision)[1] - shift.shape[1] * np.log(2 * np.pi) - square)


def _student(shift: NDArray, scale: NDArray) -> NDArray:
    from scipy.stats import multivariate_t

    return multivariate_t.logpdf(shift, shape=scale, df=_DOF)
