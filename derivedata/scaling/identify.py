"""What a set of runs can identify: which parameters are free, which are fixed and why, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from derivedata.errors import UserError
from derivedata.scaling.form import Form
from derivedata.scaling.law import Law
from derivedata.scaling.model import Centre, Parameters
from derivedata.scaling.runs import Runs


@dataclass(frozen=True, slots=True)
class Identified:
    """Parameters, which of them are free, the vector that holds the fixed ones, and a line for each restriction."""

    parameters: Parameters
    free: NDArray
    default: NDArray
    notes: tuple[str, ...]

    def replace(self, free: NDArray, default: NDArray) -> Identified:
        """The same with other free parameters."""
        return replace(self, free=free, default=default)


def identify(runs: Runs, form: Form, backbone: Law | None = None) -> Identified:
    """Decide what can be fitted.

    Args:
        runs: the runs.
        form: the form asked for.
        backbone: law whose E, A, B, alpha, beta are frozen, or None to fit them.

    Raises:
        UserError: when nothing meaningful can be fitted: too few runs, or one number of tokens only.
    """
    parameters = Parameters(form, runs.strategies, Centre.of(runs))
    free, default, notes = parameters.of_form(), parameters.default(), []
    if backbone is not None:
        free[:5] = False
        default[:5] = parameters.from_law(backbone)[:5]
    else:
        notes += _identify_backbone(runs, parameters, free, default)
    for strategy in runs.strategies:
        notes += _identify_strategy(runs, strategy, parameters, free)
    if not runs.strategies:
        free[-4:-1] = False
    if free.sum() >= len(runs):
        raise UserError(
            f"{len(runs)} runs cannot fix {int(free.sum())} constants",
            remedy="add runs, freeze the backbone with --backbone, or use `derivedata eta calibrate`",
        )
    return Identified(parameters, free, default, tuple(notes))


def _identify_backbone(runs: Runs, parameters: Parameters, free: NDArray, default: NDArray) -> list[str]:
    notes = []
    if len(np.unique(runs.D)) == 1 and not runs.strategies:
        raise UserError(
            "all runs have the same number of tokens, so B and beta cannot be told from E",
            value=float(runs.D[0]),
            remedy="add runs with other fresh_tokens",
        )
    if len(np.unique(runs.N)) == 1:
        free[1] = free[3] = False
        default[1] = parameters.low[1]
        free[-1] = False
        notes.append(
            f"one size only (N = {runs.N[0]:.4g}): E stands for its E + A/N^alpha; the fit says nothing of other sizes"
        )
    return notes


def _identify_strategy(runs: Runs, strategy: str, parameters: Parameters, free: NDArray) -> list[str]:
    mine = runs.of(strategy)
    at = parameters.where[f"ln R[{strategy}]"]
    count, N, tpp, x = int(mine.sum()), runs.N[mine], runs.tpp[mine], runs.x[mine]
    notes = []
    if x.max() <= 1 + 1e-9:
        notes.append(
            f"{strategy}: x = D'/D never exceeds 1 and cannot identify R*: one constant R*, its interval wide or open"
        )
        free[at + 1 : at + 6] = False
    elif count < 5:
        word = "run" if count == 1 else "runs"
        notes.append(f"{strategy}: only {count} {word} with derived tokens: one constant R*")
        free[at + 1 : at + 6] = False
    if not free[at + 1]:
        return notes
    sizes, ratios = len(_levels(N)), len(_levels(tpp))
    if ratios == 1:
        free[at + 1] = False
        notes.append(f"{strategy}: one number of tokens per parameter (TPP {tpp[0]:.4g}) cannot identify rho: rho = 0")
    if sizes == 1:
        free[at + 2] = False
        notes.append(f"{strategy}: one size (N = {N[0]:.4g}) cannot identify sigma: sigma = 0")
    if free[at + 1] and free[at + 2]:
        design = np.stack([np.ones(count), np.log(tpp / tpp.mean()), np.log(N / N.mean())])
        if np.linalg.matrix_rank(design @ design.T, tol=1e-6 * count) < 3:
            free[at + 2] = False
            notes.append(f"{strategy}: N and TPP vary together, so rho and sigma cannot be told apart: sigma = 0")
    return notes


def _levels(values: NDArray) -> NDArray:
    """Distinct values, a thousandth apart at least (measured token counts never repeat exactly)."""
    ordered = np.sort(np.log(values))
    return ordered[np.concatenate([[True], np.diff(ordered) > 1e-3])]
