"""What the eta commands read: tables of runs, and laws by preset name or fit file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from derivedata.errors import UserError

if TYPE_CHECKING:
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
    runs, notes = check_runs(runs, vocabulary)
    return runs, [*table.notes, *notes]


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
