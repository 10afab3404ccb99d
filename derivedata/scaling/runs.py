"""The runs a law is fitted to: one row a trained model, as arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from derivedata.scaling.law import N_NOMINAL


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Runs:
    """Trained models and their losses.

    Args:
        N: parameters; D: fresh tokens; Dp: derived tokens; loss: nats a token. Float arrays of one length.
        strategy: name of what made the derived tokens, one a run; means nothing where Dp = 0.
        weight: weight of a run in the objective; ones by default.
        cluster: label of what is resampled together; (N, D) cells by default.
        seed: seed or None; runs that differ in it alone are replicates, not duplicates.
        row: 1-based row in the user's table, for messages.
        n_definition: what N counts.
    """

    N: NDArray
    D: NDArray
    Dp: NDArray
    loss: NDArray
    strategy: NDArray
    weight: NDArray = field(default=None)
    cluster: NDArray = field(default=None)
    seed: NDArray = field(default=None)
    row: NDArray = field(default=None)
    n_definition: str = N_NOMINAL

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("N", "D", "Dp", "loss"):
            put(self, name, np.asarray(getattr(self, name), float))
        count = len(self.N)
        put(self, "strategy", np.broadcast_to(np.asarray(self.strategy, dtype=object), (count,)).copy())
        put(self, "weight", np.ones(count) if self.weight is None else np.asarray(self.weight, float))
        if self.cluster is None:
            cells = np.unique(np.stack([self.N, self.D]), axis=1, return_inverse=True)[1]
            put(self, "cluster", cells.reshape(-1))
        else:
            put(self, "cluster", np.unique(np.asarray(self.cluster).astype(str), return_inverse=True)[1])
        put(self, "seed", np.full(count, None, object) if self.seed is None else np.asarray(self.seed, object))
        put(self, "row", np.arange(1, count + 1) if self.row is None else np.asarray(self.row, int))

    @classmethod
    def of_columns(cls, columns: Mapping[str, NDArray], n_definition: str = N_NOMINAL) -> Runs:
        """From columns n_params, fresh_tokens, derived_tokens, strategy, loss and, if given, seed, weight, cluster."""
        return cls(
            N=columns["n_params"],
            D=columns["fresh_tokens"],
            Dp=columns["derived_tokens"],
            loss=columns["loss"],
            strategy=columns["strategy"],
            n_definition=n_definition,
            **{name: columns.get(name) for name in ("weight", "cluster", "seed")},
        )

    def __len__(self) -> int:
        return len(self.N)

    @property
    def x(self) -> NDArray:
        """Derived tokens per fresh token."""
        return self.Dp / self.D

    @property
    def tpp(self) -> NDArray:
        """Fresh tokens per parameter."""
        return self.D / self.N

    @property
    def strategies(self) -> tuple[str, ...]:
        """Strategies that have runs with derived tokens, sorted by name."""
        return tuple(sorted({str(s) for s in self.strategy[self.Dp > 0]}))

    def of(self, strategy: str) -> NDArray:
        """Mask of the runs that have derived tokens of a strategy."""
        return (self.Dp > 0) & (self.strategy == strategy)

    def take(self, which: NDArray | Sequence[int]) -> Runs:
        """The runs of a mask or of indices, rows and clusters kept."""
        which = np.asarray(which)
        if which.dtype != bool:
            which = which.astype(int)
        names = ("N", "D", "Dp", "loss", "strategy", "weight", "cluster", "seed", "row")
        return replace(self, **{name: getattr(self, name)[which] for name in names})

    def sha256(self) -> str:
        """Hash of what a fit depends on: N, D, Dp, loss, strategy, weight, cluster."""
        digest = hashlib.sha256()
        for array in (self.N, self.D, self.Dp, self.loss, self.weight, self.cluster.astype(float)):
            digest.update(np.ascontiguousarray(array, "<f8").tobytes())
        digest.update("\n".join(map(str, self.strategy)).encode())
        return digest.hexdigest()
