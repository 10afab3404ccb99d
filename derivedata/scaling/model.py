"""ln L and its analytic Jacobian over centred parameters, for many parameter vectors at once.

    ln L = logsumexp(e, a - alpha n, b - beta [d + ln(1 + g)]),   g = eta x
    n = ln(N/N0), d = ln(D/D0), ln R* = k + rho ln(TPP/TPP0) + sigma n

Centred at the geometric means of the data: uncentred, the condition number is 4e8 instead of 1e4, and ln K and sigma
correlate at -0.995. Vectors of shape (..., p) give values (..., runs) and Jacobians (..., p, runs), so that bootstrap
refits, starts, folds and profiles are solved together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from derivedata.scaling.form import Form
from derivedata.scaling.law import Law, Overfit, Saturation
from derivedata.scaling.runs import Runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Centre:
    """Where the parameters are centred: geometric means of N (parameters) and D (fresh tokens)."""

    N: float
    D: float

    @classmethod
    def of(cls, runs: Runs) -> Centre:
        """The geometric means over the runs."""
        return cls(N=float(np.exp(np.log(runs.N).mean())), D=float(np.exp(np.log(runs.D).mean())))

    @property
    def tpp(self) -> float:
        """Fresh tokens per parameter at the centre."""
        return self.D / self.N


class Parameters:
    """Names, bounds and meaning of the entries of a parameter vector."""

    def __init__(self, form: Form, strategies: tuple[str, ...], centre: Centre):
        self.form, self.strategies, self.centre = form, strategies, centre
        names, low, high = ["ln E", "ln A0", "ln B0", "alpha", "beta"], [-6, -40, -40, 0.02, 0.02], [3, 8, 8, 3, 3]
        for strategy in strategies:
            names += [f"{name}[{strategy}]" for name in ("ln R", "rho", "sigma", "tail", "ln w", "drift")]
            low += [-9, -6, -6, 0, -4, -3]
            high += [14, 6, 6, 5, 4, 3]
        names += ["ln D0", "ln G", "p", "q", "ln R_N"]
        low += [np.log(centre.D) - 30, -30, 0.05, -4, -6]
        high += [np.log(centre.D) + 3, 3, 6, 4, 9]
        self.names = tuple(names)
        self.low, self.high = np.array(low, float), np.array(high, float)
        self.where = {name: i for i, name in enumerate(names)}

    def __len__(self) -> int:
        return len(self.names)

    def of_form(self) -> NDArray:
        """Mask of what the form leaves free."""
        form, free = self.form, np.zeros(len(self), bool)
        free[:5] = True
        for strategy in self.strategies:
            at = self.where[f"ln R[{strategy}]"]
            free[at : at + 6] = True, form.power, form.power, form.tail is None, form.worth, form.drift
        free[-5:] = form.offset, form.overfit, form.overfit, form.overfit, form.excess
        return free

    def default(self) -> NDArray:
        """A vector whose non-free entries are those of the published law."""
        theta = np.zeros(len(self))
        theta[:5] = 0.5, 0.0, 0.0, 0.35, 0.37
        for strategy in self.strategies:
            at = self.where[f"ln R[{strategy}]"]
            theta[at], theta[at + 3] = 2.0, (0.3 if self.form.tail is None else self.form.tail)
        # Absent unless the form has them: D0 as small as the bound, no overfitting.
        theta[-5:] = (np.log(self.centre.D) - 4 if self.form.offset else -np.inf), -5.0, 1.0, 1.0, 2.0
        return theta

    def to_law(self, theta: NDArray, **rest) -> Law:
        """The uncentred law of a vector."""
        lnE, a, b, alpha, beta = (float(v) for v in theta[:5])
        lnN, lnD = np.log(self.centre.N), np.log(self.centre.D)
        strategies = {}
        for strategy in self.strategies:
            at = self.where[f"ln R[{strategy}]"]
            k, rho, sigma, tail, worth, drift = (float(v) for v in theta[at : at + 6])
            # At the upper bound the tokens never fade: R* is infinite, not some number the bound stands for.
            lnK = np.inf if k >= self.high[at] - 1e-6 else k - rho * (lnD - lnN) - sigma * lnN
            strategies[strategy] = Saturation(
                lnK=float(lnK), rho=rho, sigma=sigma, tail=tail, worth=float(np.exp(worth)), drift=drift
            )
        lnD0, lnG, p, q, lnR_N = (float(v) for v in theta[-5:])
        return Law(
            E=float(np.exp(lnE)),
            A=float(np.exp(a + alpha * lnN)),
            B=float(np.exp(b + beta * lnD)),
            alpha=alpha,
            beta=beta,
            strategies=strategies,
            R_N=float(np.exp(lnR_N)) if self.form.excess else None,
            D0=float(np.exp(lnD0)),
            # G is centred at x = 1 and the mean N/D.
            overfit=Overfit(G=float(np.exp(lnG + q * (lnD - lnN))), p=p, q=q) if self.form.overfit else None,
            **rest,
        )

    def from_law(self, law: Law) -> NDArray:
        """The vector of a law; strategies the law lacks keep their default."""
        theta = self.default()
        lnN, lnD = np.log(self.centre.N), np.log(self.centre.D)
        with np.errstate(divide="ignore"):
            theta[:5] = (
                np.log(law.E), np.log(law.A) - law.alpha * lnN, np.log(law.B) - law.beta * lnD, law.alpha, law.beta
            )  # fmt: skip
            for strategy, s in law.strategies.items():
                at = self.where.get(f"ln R[{strategy}]")
                if at is not None:
                    k = s.lnK + s.rho * (lnD - lnN) + s.sigma * lnN
                    theta[at : at + 6] = k, s.rho, s.sigma, s.tail, np.log(s.worth), s.drift
            theta[-5] = np.log(law.D0)
        if law.overfit is not None:
            G, p, q = law.overfit.G, law.overfit.p, law.overfit.q
            theta[-4:-1] = np.log(G) - q * (lnD - lnN), p, q
        if law.R_N is not None:
            theta[-1] = np.log(law.R_N)
        return theta


class Model:
    """Predictions for one set of runs. `value(theta)` and `value_and_jacobian(theta)` batch over leading axes."""

    def __init__(self, runs: Runs, parameters: Parameters):
        self.parameters, self.form = parameters, parameters.form
        centre = parameters.centre
        self.n, self.d = np.log(runs.N / centre.N), np.log(runs.D / centre.D)
        self.t, self.x = self.d - self.n, runs.x
        self.lnloss = np.log(runs.loss)
        with np.errstate(divide="ignore"):
            self.lnx = np.log(self.x)
        self.rows = [(np.flatnonzero(runs.of(s)), parameters.where[f"ln R[{s}]"]) for s in parameters.strategies]

    def value(self, theta: NDArray) -> NDArray:
        """ln L, shape (..., runs)."""
        return self._evaluate(np.asarray(theta, float), False)[0]

    def value_and_jacobian(self, theta: NDArray) -> tuple[NDArray, NDArray]:
        """ln L (..., runs) and its derivative by each parameter (..., p, runs)."""
        return self._evaluate(np.asarray(theta, float), True)

    def _evaluate(self, theta: NDArray, with_jacobian: bool):
        batch = theta.shape[:-1]
        e, a, b, alpha, beta = (theta[..., i, None] for i in range(5))
        jacobian = np.zeros((*batch, len(self.parameters), len(self.n))) if with_jacobian else None
        lngain = np.zeros((*batch, len(self.n)))
        for rows, at in self.rows:
            lngain[..., rows] = self._gain(theta[..., at : at + 6], rows, at, jacobian)
        s = self.d + lngain
        share = 1.0
        if self.form.offset:
            lnD0 = theta[..., -5, None] - np.log(self.parameters.centre.D)
            total = np.logaddexp(s, lnD0)
            share, s = np.exp(s - total), total
        n = self.n
        if self.form.excess:
            n, by = self._excess(theta)
        terms = [np.broadcast_to(e, s.shape), a - alpha * n, b - beta * s]
        if self.form.overfit:
            lnG, p, q = (theta[..., i, None] for i in (-4, -3, -2))
            terms.append(lnG + p * self.lnx - q * self.t)
        top = np.maximum(np.maximum(terms[0], terms[1]), terms[2])
        parts = [np.exp(term - top) for term in terms]
        whole = sum(parts[1:], parts[0])
        lnL = top + np.log(whole)
        if not with_jacobian:
            return lnL, None
        wE, wA, wB = parts[0] / whole, parts[1] / whole, parts[2] / whole
        J = jacobian
        through = -beta * wB * share
        for rows, at in self.rows:
            J[..., at : at + 6, rows] *= through[..., None, rows]
        J[..., 0, :], J[..., 1, :], J[..., 2, :], J[..., 3, :], J[..., 4, :] = wE, wA, wB, -wA * n, -wB * s
        if self.form.offset:
            J[..., -5, :] = -beta * wB * (1 - share)
        if self.form.overfit:
            wG = parts[3] / whole
            J[..., -4, :], J[..., -3, :], J[..., -2, :] = wG, wG * np.where(self.x > 0, self.lnx, 0.0), -wG * self.t
        if self.form.excess:
            for i, slope in by.items():
                J[..., i, :] -= alpha * wA * slope
        return lnL, J

    def _gain(self, own: NDArray, rows: NDArray, at: int, jacobian: NDArray | None) -> NDArray:
        """ln(1 + eta x) of one strategy; its derivatives by the strategy's six parameters go into the Jacobian."""
        k, rho, sigma, tail, lnw, drift = (own[..., i, None] for i in range(6))
        x, t, n = self.x[rows], self.t[rows], self.n[rows]
        lnR = k + rho * t + sigma * n
        if self.form.drift:
            lnR = lnR + drift * np.log1p(x)
        R = np.exp(np.clip(lnR, -50, 50))
        z = x / R
        if self.form.tail == 0:
            bent, slope = z, z
        else:
            u = np.maximum(tail, 1e-6)
            bent = np.log1p(u * z) / u
            slope = z / (1 + u * z)
        left = np.exp(-bent)
        w = np.exp(lnw) if self.form.worth else 1.0
        gain = -w * R * np.expm1(-bent)
        lngain = np.log1p(gain)
        if jacobian is not None:
            inner = 1 / (1 + gain)
            by_R = inner * (gain - w * R * left * slope)
            J = jacobian
            J[..., at, rows], J[..., at + 1, rows], J[..., at + 2, rows] = by_R, by_R * t, by_R * n
            if self.form.tail is None:
                J[..., at + 3, rows] = inner * w * R * left * (slope - bent) / u
            if self.form.worth:
                J[..., at + 4, rows] = inner * gain
            if self.form.drift:
                J[..., at + 5, rows] = by_R * np.log1p(x)
        return lngain

    def _excess(self, theta: NDArray) -> tuple[NDArray, dict[int, NDArray]]:
        """ln(N'/N0) with Muennighoff's excess parameters, and its derivatives by ln A0, ln B0, alpha, beta, ln R_N."""
        lnN0, lnD0 = np.log(self.parameters.centre.N), np.log(self.parameters.centre.D)
        _, a, b, alpha, beta = (theta[..., i, None] for i in range(5))
        R = np.exp(theta[..., -1, None])
        lnN, lnD, both = self.n + lnN0, self.d + lnD0, alpha + beta
        g = (np.log(alpha) + a + alpha * lnN0 - np.log(beta) - b - beta * lnD0) / both
        u = g + beta / alpha * (lnD + g)
        # Far beyond any model: keeps exp finite while a fit wanders.
        u = np.maximum(u, lnN - 300)
        over = lnN > u
        u_used = np.where(over, u, lnN)
        ratio = np.exp(lnN - u_used)
        z = (ratio - 1) / R
        gain = -R * np.expm1(-z)
        value = u_used + np.log1p(gain) - lnN0
        by_u = np.where(over, 1 - np.exp(-z) * ratio / (1 + gain), 0.0)
        by_g = by_u * both / alpha
        by = {
            1: by_g / both,
            2: -by_g / both,
            3: by_g * (1 / alpha + lnN0 - g) / both - by_u * beta / alpha**2 * (lnD + g),
            4: by_g * (-1 / beta - lnD0 - g) / both + by_u / alpha * (lnD + g),
            len(self.parameters) - 1: (gain - R * np.exp(-z) * z) / (1 + gain),
        }
        return value, by
