"""The Compute-Data law: loss from parameters N, fresh tokens D and derived tokens D', as pure functions over arrays.

    L(N, D, D') = E + A / N^alpha + B / (D + eta D')^beta
    eta         = (R*/x) (1 - exp(-x/R*)),   x = D'/D
    ln R*       = ln K_s + rho_s ln(D/N) + sigma_s ln N          one (K, rho, sigma) a strategy s

Qin, Hamidieh, Alvarez-Melis, "Bridging Compute- and Data-Optimal Pretraining", arXiv 2607.25271. D' = 0 is the law of
Hoffmann et al. 2022; a constant R* (rho = sigma = 0) is that of Muennighoff et al. 2023, whose excess parameters are
`Law.R_N`; D' -> infinity is the data-optimal limit `Law.data_limit`, N and D fixed; `Law.model_limit` is E + A/N^alpha.

`Saturation.tail`, `worth` and `drift`, `Law.D0` and `Law.overfit` go beyond the paper; at their defaults the law is the
published one. Losses are in nats a token. N is the number of parameters in the sense of `Law.n_definition`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from derivedata.errors import UserError

N_NOMINAL = "all parameters but the input embedding, LM head included (nominal sizes)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Saturation:
    """How the tokens of one strategy lose their value: ln R* = lnK + rho ln(D/N) + sigma ln N.

    Args:
        lnK: logarithm of K; with rho = sigma = 0 the constant ln R*.
        rho: exponent of the tokens per parameter D/N.
        sigma: exponent of N.
        tail: 0 for the published exponential; 1 for a hyperbola x R/(R + x); between and beyond, heavier tails.
        worth: value of the first derived token against a fresh one (published: 1).
        drift: exponent of (1 + x) in R* (published: 0).
    """

    lnK: float
    rho: float = 0.0
    sigma: float = 0.0
    tail: float = 0.0
    worth: float = 1.0
    drift: float = 0.0

    @property
    def is_constant(self) -> bool:
        """Whether R* is the same for every N, D and x."""
        return self.rho == 0 and self.sigma == 0 and self.drift == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Overfit:
    """Loss added by too much derived data on too little fresh data: G x^p (N/D)^q."""

    G: float
    p: float
    q: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """The range of the runs a law was fitted to; outside it, every figure is an extrapolation.

    Args:
        N: least and greatest number of parameters.
        tpp: least and greatest fresh tokens per parameter D/N.
        x: greatest x = D'/D by strategy.
    """

    N: tuple[float, float]
    tpp: tuple[float, float]
    x: Mapping[str, float] = field(default_factory=dict)


def saturated_gain(x: ArrayLike, R: ArrayLike, tail: ArrayLike = 0.0) -> NDArray:
    """What x = D'/D derived tokens per fresh token are worth, in fresh tokens per fresh token: eta x.

    R (1 - exp(-x/R)) for tail = 0; R (1 - (1 + tail x/R)^(-1/tail)) otherwise. The limit for x -> infinity is R.
    """
    x, R, tail = np.broadcast_arrays(*(np.asarray(a, float) for a in (x, R, tail)))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = np.where(x > 0, x / R, 0.0)
        bent = np.where(tail > 1e-9, np.log1p(tail * z) / np.where(tail > 1e-9, tail, 1.0), z)
        gain = np.where(np.isinf(R) | (z < 1e-12), x, -R * np.expm1(-bent))
    return np.where(R == 0, 0.0, gain)[()]


def eta(x: ArrayLike, R: ArrayLike, tail: ArrayLike = 0.0) -> NDArray:
    """Mean value of a derived token against a fresh one, (R*/x)(1 - exp(-x/R*)); 1 at x = 0 (arXiv 2607.25271)."""
    x = np.asarray(x, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(x > 0, saturated_gain(x, R, tail) / np.where(x > 0, x, 1.0), 1.0)[()]


def marginal_value(x: ArrayLike, R: ArrayLike, tail: ArrayLike = 0.0) -> NDArray:
    """What the next derived token is worth against a fresh one: d(eta x)/dx, exp(-x/R*) in the published form."""
    x, R, tail = np.broadcast_arrays(*(np.asarray(a, float) for a in (x, R, tail)))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = np.where(x > 0, x / R, 0.0)
        heavy = np.exp(-(1 / np.where(tail > 1e-9, tail, 1.0) + 1) * np.log1p(tail * z))
        return np.where(tail > 1e-9, heavy, np.exp(-z))[()]


def x_at_share(share: ArrayLike, R: ArrayLike, tail: ArrayLike = 0.0) -> NDArray:
    """The x at which eta x reaches a share (0 to 1) of its limit R*: R* ln(1/(1 - share)) in the published form."""
    share, R, tail = np.broadcast_arrays(*(np.asarray(a, float) for a in (share, R, tail)))
    with np.errstate(divide="ignore"):
        left = -np.log1p(-share)
        return (R * np.where(tail > 1e-9, np.expm1(tail * left) / np.where(tail > 1e-9, tail, 1.0), left))[()]


def effective_parameters(N: ArrayLike, D: ArrayLike, law: Law) -> NDArray:
    """Parameters that count when N exceeds what D unique tokens can fill (Muennighoff et al. 2023, eq. 5-7).

    U_N = min(N, the compute-optimal N for D unique tokens), N' = U_N + U_N R_N (1 - exp(-(N/U_N - 1)/R_N)).
    """
    N, D = np.asarray(N, float), np.asarray(D, float)
    if law.R_N is None:
        return np.broadcast_arrays(N, D)[0]
    G = (law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta))
    filled = np.minimum(N, G * (D * G) ** (law.beta / law.alpha))
    return filled * (1 + saturated_gain(N / filled - 1, law.R_N))


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """Constants of a Compute-Data law and what follows from them. All methods broadcast over arrays.

    Args:
        E: irreducible loss, nats.
        A, alpha: parameter term A / N^alpha.
        B, beta: data term B / D_eff^beta.
        strategies: one `Saturation` a strategy, by name; empty for a one-epoch law.
        name: vintage ("qin2026-n370") or file it was fitted from.
        n_definition: what N counts.
        R_N: excess-parameter constant of Muennighoff et al. 2023, or None.
        D0: tokens added to D_eff, so that the loss stays finite for D -> 0 (published: 0).
        overfit: loss added by overfitting, or None.
        support: range of the runs behind it, or None when unknown.
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    strategies: Mapping[str, Saturation] = field(default_factory=dict)
    name: str = ""
    n_definition: str = N_NOMINAL
    R_N: float | None = None
    D0: float = 0.0
    overfit: Overfit | None = None
    support: Support | None = None

    def saturation(self, strategy: str) -> Saturation:
        """The saturation of a strategy; UserError with the known names if there is none."""
        if strategy not in self.strategies:
            known = ", ".join(self.strategies) or "none"
            raise UserError(
                f"{self.name or 'this law'} knows no such strategy", value=strategy, remedy=f"known: {known}"
            )
        return self.strategies[strategy]

    def r_star(self, N: ArrayLike, D: ArrayLike, strategy: str, x: ArrayLike = 0.0) -> NDArray:
        """R*: the limit of eta D'/D, and the x at which the next token is worth 1/e (x matters only with a drift)."""
        s = self.saturation(strategy)
        N, D = np.asarray(N, float), np.asarray(D, float)
        lnR = s.lnK + s.rho * np.log(D / N) + s.sigma * np.log(N)
        # Endless tokens (x infinite) are asked about only where R* does not move with x.
        return np.exp(lnR + s.drift * np.log1p(np.asarray(x, float)) if s.drift else lnR + 0 * np.minimum(x, 1.0))

    def gain(self, N: ArrayLike, D: ArrayLike, Dp: ArrayLike, strategy: str) -> NDArray:
        """eta D'/D of one strategy: derived tokens in fresh-token equivalents, per fresh token."""
        s = self.saturation(strategy)
        x = np.asarray(Dp, float) / np.asarray(D, float)
        return s.worth * saturated_gain(x, self.r_star(N, D, strategy, x), s.tail)

    def eta(self, N: ArrayLike, D: ArrayLike, Dp: ArrayLike, strategy: str) -> NDArray:
        """Mean value of a derived token against a fresh one; 1 where D' = 0 (the run says nothing about eta)."""
        x = np.asarray(Dp, float) / np.asarray(D, float)
        return np.where(x > 0, self.gain(N, D, Dp, strategy) / np.where(x > 0, x, 1.0), 1.0)[()]

    def marginal_value(self, N: ArrayLike, D: ArrayLike, Dp: ArrayLike, strategy: str) -> NDArray:
        """What the next derived token of this strategy is worth against a fresh one."""
        s = self.saturation(strategy)
        x = np.asarray(Dp, float) / np.asarray(D, float)
        if s.drift == 0:
            return s.worth * marginal_value(x, self.r_star(N, D, strategy), s.tail)
        step = 1e-6 * (1 + x)
        D = np.asarray(D, float)
        return (self.gain(N, D, (x + step) * D, strategy) - self.gain(N, D, x * D, strategy)) / step

    def x_at_share(self, share: ArrayLike, N: ArrayLike, D: ArrayLike, strategy: str) -> NDArray:
        """The x = D'/D at which a share of the limit R* D is reached (.9 by x = R* ln 10 in the published form)."""
        s = self.saturation(strategy)
        return x_at_share(share, self.r_star(N, D, strategy), s.tail)

    def effective_tokens(self, N: ArrayLike, D: ArrayLike, derived: Mapping[str, ArrayLike]) -> NDArray:
        """D_eff = D + sum over strategies of eta_s D'_s. The sum over several strategies is untested by any data."""
        D = np.asarray(D, float)
        return D * (1 + sum((self.gain(N, D, Dp, s) for s, Dp in derived.items()), np.zeros(())))

    def loss(
        self, N: ArrayLike, D: ArrayLike, Dp: ArrayLike = 0.0, strategy: str | Sequence[str] | None = None
    ) -> NDArray:
        """Loss in nats a token.

        Args:
            N, D, Dp: parameters, fresh tokens, derived tokens; broadcast against each other.
            strategy: one name for all, or one a run (ignored where Dp = 0); None for a one-epoch law.
        """
        N, D, Dp = np.broadcast_arrays(*(np.asarray(a, float) for a in (N, D, Dp)))
        gain = np.zeros(D.shape)
        names = np.broadcast_to(np.asarray("" if strategy is None else strategy, dtype=object), D.shape)
        for name in {str(s) for s in names[Dp > 0].ravel()}:
            mine = (names == name) & (Dp > 0)
            gain[mine] = self.gain(N[mine], D[mine], Dp[mine], name)
        return self.loss_of_tokens(N, D, D * (1 + gain)) + self.penalty(N, D, Dp)

    def mixed_loss(self, N: ArrayLike, D: ArrayLike, derived: Mapping[str, ArrayLike]) -> NDArray:
        """Loss when several strategies are used at once (untested: no run behind any preset mixes them)."""
        total = sum((np.asarray(Dp, float) for Dp in derived.values()), np.zeros(()))
        return self.loss_of_tokens(N, D, self.effective_tokens(N, D, derived)) + self.penalty(N, D, total)

    def loss_of_tokens(self, N: ArrayLike, D: ArrayLike, D_eff: ArrayLike) -> NDArray:
        """Loss of a model of N parameters that saw D_eff effective tokens; D (fresh) matters only with R_N."""
        with np.errstate(divide="ignore"):
            data = self.B / (np.asarray(D_eff, float) + self.D0) ** self.beta
        return (self.E + self.A / effective_parameters(N, D, self) ** self.alpha + data)[()]

    def penalty(self, N: ArrayLike, D: ArrayLike, Dp: ArrayLike) -> NDArray | float:
        """Loss added by overfitting; 0 in the published form."""
        if self.overfit is None:
            return 0.0
        N, D, Dp = (np.asarray(a, float) for a in (N, D, Dp))
        return (self.overfit.G * (Dp / D) ** self.overfit.p * (N / D) ** self.overfit.q)[()]

    def data_limit(self, N: ArrayLike, D: ArrayLike, strategy: str) -> NDArray:
        """L_D = E + A/N^alpha + B/(D (1 + R*))^beta: the loss that endless derived tokens of a strategy approach."""
        s = self.saturation(strategy)
        return self.loss_of_tokens(N, D, np.asarray(D, float) * (1 + s.worth * self.r_star(N, D, strategy)))

    def model_limit(self, N: ArrayLike) -> NDArray:
        """L_N = E + A/N^alpha: the loss that no amount of data takes a model of N parameters below."""
        return (self.E + self.A / np.asarray(N, float) ** self.alpha)[()]

    def outside(self, N: float, D: float, x: float = 0.0, strategy: str | None = None) -> tuple[str, ...]:
        """Which of N, TPP and x lie beyond the runs behind the law, in words; empty when none or when unknown."""
        if self.support is None:
            return ()
        found = []
        for label, value, (low, high) in (("N", N, self.support.N), ("TPP", D / N, self.support.tpp)):
            if not low * (1 - 1e-9) <= value <= high * (1 + 1e-9):
                found.append(f"{label} {value:.4g} is outside {low:.4g} to {high:.4g}")
        reach = self.support.x.get(strategy, 0.0) if strategy else np.inf
        if x > reach * (1 + 1e-9):
            found.append(f"x {x:.4g} is beyond {reach:.4g} for {strategy}")
        return tuple(found)
