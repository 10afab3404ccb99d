"""What the eta commands read: tables of runs, and laws by preset name or fit file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from derivedata.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from derivedata.scaling.ensemble import Ensemble
    from derivedata.scaling.fitted import Fit
    from derivedata.scaling.runs import Runs

Built = TypeVar("Built")


def read_runs(
    path: str | Path,
    *,
    where: str | None = None,
    n_column: str | None = None,
    n_definition: str | None = None,
    vocabulary: int | None = None,
) -> tuple[Runs, list[str]]:
    """Runs of a table that meet a condition, checked, and what to say about them (rows left out, doubts)."""
    from derivedata.cli.eta.selection import select
    from derivedata.scaling.diagnostics import check_runs
    from derivedata.scaling.runs import Runs
    from derivedata.store.runs_table import read_runs_table

    table = read_runs_table(path, n_column=n_column)
    meaning = n_definition or f"column {n_column or 'n_params'} as the table gives it"
    runs = Runs.of_columns(table.columns, meaning)
    if where:
        runs = runs.take(select(runs, where, table.others))
        if len(runs) == 0:
            raise UserError("no run meets the condition", where=path, value=where)
    _one_tokenizer(runs, table.others, path)
    runs, notes = check_runs(runs, vocabulary)
    return runs, [*table.notes, *notes]


def _one_tokenizer(runs: Runs, others: dict[str, NDArray], path: str | Path) -> None:
    """Losses a token of several tokenizers are not losses of one law: what a table says of them must be one thing."""
    for name in ("tokenizer", "vocabulary"):
        if name in others and len(found := sorted({str(v) for v in others[name][runs.row - 1] if v is not None})) > 1:
            raise UserError(
                "runs of several tokenizers in one table: their losses a token cannot be compared",
                where=path,
                value=f"{name} {', '.join(found[:4])}",
                remedy=f"fit one with --where '{name}=={found[0]}'",
            )


def read_column(path: str | Path, name: str) -> NDArray:
    """A column of numbers of a table of runs, NaN where a cell is empty; UserError with the columns there are."""
    import numpy as np

    from derivedata.store.runs_table import read_frame

    frame = read_frame(Path(path))
    if name not in frame.columns:
        raise UserError("no such column", where=path, value=name, remedy=f"there are {', '.join(frame.columns)}")
    try:
        return np.array([np.nan if cell in (None, "") else float(cell) for cell in frame[name].to_list()])
    except (TypeError, ValueError):
        raise UserError("a column of numbers is wanted", where=path, value=name) from None


def read_fit(path: str | Path) -> Fit:
    """The fit in a file of `derivedata eta fit`."""
    from derivedata.scaling.fitted import Fit

    return _rebuild(path, _read_json(path), Fit.from_dict)


def read_ensemble(name: str) -> Ensemble:
    """A law with its draws: the name of a preset, or a file of `eta fit` or `eta calibrate`."""
    from derivedata.scaling.calibrated import KIND, calibration_from_dict
    from derivedata.scaling.fitted import Fit
    from derivedata.scaling.presets import PRESETS, preset_ensemble

    if name in PRESETS:
        return preset_ensemble(name)
    if not Path(name).exists():
        raise UserError("no such law", value=name, remedy=f"known are {', '.join(PRESETS)}, or a file of `eta fit`")
    data = _read_json(name)
    if data.get("kind") == KIND:
        return _rebuild(name, data, calibration_from_dict)
    return _rebuild(name, data, Fit.from_dict).ensemble


def _read_json(path: str | Path) -> dict:
    try:
        data = json.loads(Path(path).read_text())
    except FileNotFoundError:
        raise UserError("no such fit", where=path) from None
    except (OSError, ValueError) as error:
        raise UserError("not a fit of `derivedata eta fit`", where=path, value=str(error)) from None
    if not isinstance(data, dict):
        raise UserError("not a fit of `derivedata eta fit`", where=path)
    return data


def _rebuild(path: str | Path, data: dict, build: Callable[[dict], Built]) -> Built:
    try:
        return build(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError("a damaged fit", where=path, value=repr(error), remedy="fit again") from None


def write_json(path: str | Path, data: dict) -> None:
    """Write a JSON file whole or not at all."""
    import os

    path = Path(path)
    if not path.parent.is_dir():
        raise UserError("no such folder", where=path.parent)
    waiting = path.with_name(path.name + ".part")
    waiting.write_text(json.dumps(data, indent=1) + "\n")
    os.replace(waiting, path)
