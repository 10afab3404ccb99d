"""The compute-performance curve of RL training: ScaleRL's sigmoid, and a power law to hold beside it.

    R_C = R_0 + (A - R_0) / (1 + (C_mid / C)^B)

R_0 reward before training, A the asymptote, C_mid the compute at half of the gain, B the steepness (Khatri et al. 2025,
arXiv 2510.13786, equation 1). C may count rollouts, tokens or GPU hours: C_mid has the same unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit


@dataclass(frozen=True, kw_only=True, slots=True)
class Sigmoid:
    """R_0 and A in units of the reward (a share), C_mid in units of C, B without unit."""

    R0: float
    A: float
    C_mid: float
    B: float

    def reward(self, C: ArrayLike) -> NDArray:
        """Expected reward after compute C (0 is allowed)."""
        with np.errstate(divide="ignore"):
            x = np.log(np.asarray(C, float))
        return self.R0 + (self.A - self.R0) * expit(self.B * (x - np.log(self.C_mid)))

    @classmethod
    def of(cls, theta: NDArray) -> Sigmoid:
        """From the vector (R_0, A, ln C_mid, ln B) that the solver moves."""
        return cls(R0=float(theta[0]), A=float(theta[1]), C_mid=float(np.exp(theta[2])), B=float(np.exp(theta[3])))

    @property
    def theta(self) -> NDArray:
        """The vector (R_0, A, ln C_mid, ln B)."""
        return np.array([self.R0, self.A, np.log(self.C_mid), np.log(self.B)])


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerLaw:
    """R_C = A - D / C^b: no plateau in sight of its own, the other shape that the same points may have."""

    A: float
    D: float
    b: float

    def reward(self, C: ArrayLike) -> NDArray:
        """Expected reward after compute C > 0."""
        return self.A - self.D * np.asarray(C, float) ** -self.b


def fit_power_law(C: NDArray, reward: NDArray, *, most: float = 1.0) -> tuple[PowerLaw, float]:
    """Least squares of R = A - D/C^b with A <= `most`, and the RMSE. A and D are linear: only b is searched.

    Args:
        C, reward: (points,), C > 0, three points or more.
    """
    x = np.log(C)
    centre = x.mean()
    grid = np.exp(np.linspace(np.log(0.01), np.log(4.0), 60))
    for _ in range(4):
        shape = np.exp(-grid[:, None] * (x - centre))
        mean = shape.mean(1, keepdims=True)
        inner = shape - mean
        square = (inner**2).sum(1)
        slope = np.divide((inner * reward).sum(1), square, out=np.zeros(len(grid)), where=square > 0)
        A = reward.mean() - slope * mean[:, 0]
        # Above the most that a reward can be the line is turned around that point.
        over = most < A
        turned = ((reward - most) * shape).sum(1) / (shape**2).sum(1)
        A, slope = np.where(over, most, A), np.where(over, turned, slope)
        error = ((A[:, None] + slope[:, None] * shape - reward) ** 2).sum(1)
        best = int(np.argmin(error))
        law = PowerLaw(A=float(A[best]), D=float(-slope[best] * np.exp(grid[best] * centre)), b=float(grid[best]))
        found = law, float(np.sqrt(error[best] / len(C)))
        grid = np.linspace(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)], 21)
    return found
