"""Arrays behind the figures: what to draw of a law and its runs, without drawing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from derivedata.scaling.empirical import eta_empirical
from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.frontier import best_params, spend
from derivedata.scaling.law import Law, eta
from derivedata.scaling.plan import generation_cost
from derivedata.scaling.runs import Runs

# Eta of a run outside this range says that its loss is dominated by noise; it is counted, not drawn.
SHOWN_ETA = (-0.25, 2.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class EtaCurve:
    """Eta against x at one (N, D): the law with its band, and the runs there (x, eta, standard error)."""

    params: float
    fresh_tokens: float
    x: NDArray
    value: NDArray
    low: NDArray | None
    high: NDArray | None
    run_x: NDArray
    run_eta: NDArray
    run_error: NDArray
    hidden: int

    @property
    def tpp(self) -> float:
        """Fresh tokens per parameter."""
        return self.fresh_tokens / self.params


def eta_curves(
    ensemble: Ensemble, runs: Runs, strategy: str, *, most: int = 4, noise: float | None = None
) -> list[EtaCurve]:
    """Eta against x at the size with most runs of a strategy, for up to `most` TPPs spread over those trained.

    `noise`: scatter of ln loss behind the errors of the runs, see `eta_empirical`.
    """
    own = runs.take(runs.of(strategy))
    if not len(own):
        return []
    sizes, counts = np.unique(own.N, return_counts=True)
    size = float(sizes[np.argmax(counts)])
    own = own.take(np.isclose(own.N, size))
    tokens = np.unique(own.D)
    chosen = tokens[np.unique(np.linspace(0, len(tokens) - 1, min(most, len(tokens))).round().astype(int))]
    x = np.geomspace(0.25, max(4.0, float(own.x.max()) * 1.3), 80)
    N = size
    empirical = eta_empirical(own, ensemble, noise=noise)
    found = []
    for D in chosen:
        value, low, high = ensemble.band(lambda law, D=D: law.eta(N, D, x * D, strategy))
        here = (own.D == D) & np.isfinite(empirical.eta)
        seen = here & (empirical.eta >= SHOWN_ETA[0]) & (empirical.eta <= SHOWN_ETA[1])
        found.append(
            EtaCurve(
                params=N,
                fresh_tokens=float(D),
                x=x,
                value=value,
                low=low,
                high=high,
                run_x=own.x[seen],
                run_eta=empirical.eta[seen],
                run_error=empirical.error[seen],
                hidden=int(((own.D == D) & ~seen).sum()),
            )
        )
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Collapse:
    """All runs of a strategy on one curve: eta against x/R*; `hidden` runs lie outside `SHOWN_ETA` or have no eta."""

    x_over_r: NDArray
    eta: NDArray
    curve_x: NDArray
    curve_eta: NDArray
    hidden: int


def collapse(ensemble: Ensemble, runs: Runs, strategy: str) -> Collapse:
    """Eta of every run against x/R* of the law, beside (1 - exp(-z))/z."""
    own = runs.take(runs.of(strategy))
    law = ensemble.law
    z = own.x / law.r_star(own.N, own.D, strategy, own.x)
    value = eta_empirical(own, ensemble).eta
    seen = np.isfinite(value) & (value >= SHOWN_ETA[0]) & (value <= SHOWN_ETA[1])
    saturation = law.saturation(strategy)
    low, high = (float(z.min()), float(z.max())) if len(z) else (0.1, 10.0)
    grid = np.geomspace(low / 1.3, high * 1.3, 120)
    return Collapse(
        x_over_r=z[seen],
        eta=value[seen],
        curve_x=grid,
        curve_eta=saturation.worth * eta(grid, 1.0, saturation.tail),
        hidden=int((~seen).sum()),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A quantity over two logarithmic axes: `value` has shape (len(y), len(x))."""

    x: NDArray
    y: NDArray
    value: NDArray


def r_star_field(law: Law, strategy: str, *, params: tuple[float, float], tpp: tuple[float, float]) -> Field:
    """R* over N (x) and tokens per parameter (y)."""
    N, t = np.geomspace(*params, 60), np.geomspace(*tpp, 60)
    return Field(x=N, y=t, value=np.asarray(law.r_star(N[None], t[:, None] * N[None], strategy)))


@dataclass(frozen=True, kw_only=True, slots=True)
class LossField:
    """The least loss over FLOPs (x) and fresh tokens (y), and the N that reaches it.

    Args:
        loss, params: fields.
        enough: fresh tokens a budget of `loss.x` can use at most: more data buys nothing.
    """

    loss: Field
    params: Field
    enough: NDArray


def loss_field(
    law: Law,
    *,
    flops: tuple[float, float],
    fresh_tokens: tuple[float, float],
    strategies: Sequence[str],
    generator_params: float = 0.0,
    steps: int = 60,
) -> LossField:
    """The compute-data plane: at each budget and stock, the best N and strategy."""
    C, D = np.geomspace(*flops, steps), np.geomspace(*fresh_tokens, steps)
    loss, params = np.full((steps, steps), np.inf), np.zeros((steps, steps))
    for name in strategies:
        N = best_params(law, C[None], D[:, None], name, generator_params)
        reached = law.loss(N, *spend(N, C[None], D[:, None], name, generator_params), name)
        params = np.where(reached < loss, N, params)
        loss = np.minimum(loss, reached)
    endless = best_params(law, C, 1e30, strategies[0], generator_params)
    return LossField(
        loss=Field(x=C, y=D, value=loss),
        params=Field(x=C, y=D, value=params),
        enough=C / (6 * endless),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LossCurve:
    """Loss against FLOPs for one N and D with one strategy (or None: endless fresh tokens), with its band."""

    strategy: str | None
    flops: NDArray
    value: NDArray
    low: NDArray | None
    high: NDArray | None


def loss_curves(
    ensemble: Ensemble, *, params: float, fresh_tokens: float, generator_params: float = 0.0
) -> list[LossCurve]:
    """How loss falls with compute for a model and its tokens: endless fresh ones first, then each strategy."""
    N, D = params, fresh_tokens
    ends = [6 * N * D * 0.25]
    for name in ensemble.law.strategies:
        R = float(ensemble.law.r_star(N, D, name))
        ends.append(D * (6 * N * (1 + 5 * R) + generation_cost(name, generator_params) * 5 * R))
    C = np.geomspace(ends[0], max(ends[1:], default=600 * N * D), 90)
    value, low, high = ensemble.band(lambda law: law.loss(N, C / (6 * N)))
    found = [LossCurve(strategy=None, flops=C, value=value, low=low, high=high)]
    for name in ensemble.law.strategies:
        seen = np.minimum(D, C / (6 * N))
        derived = np.maximum(0.0, C - 6 * N * seen) / (6 * N + generation_cost(name, generator_params))
        value, low, high = ensemble.band(lambda law, s=seen, d=derived, n=name: law.loss(N, s, d, n))
        found.append(LossCurve(strategy=name, flops=C, value=value, low=low, high=high))
    return found
