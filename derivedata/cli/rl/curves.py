"""Tables of evaluations as a Polars frame: run, C, reward (and best, worst), n, B_p, recipe, seed.

A place is a table (CSV, TSV, JSONL, Parquet), the folder of a run (`run.json`, `evaluations.jsonl`), or a folder of
such folders. Names of columns match whatever their case, spaces and hyphens, and a few that other people use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from derivedata.errors import UserError

if TYPE_CHECKING:
    import polars as pl

    from derivedata.scaling.rl.points import Curve

ALIASES: dict[str, tuple[str, ...]] = {
    "run": ("run", "run_id", "run_name", "experiment", "name"),
    "C": ("c", "rollouts", "compute", "gpu_hours", "tokens", "flops"),
    "avg": ("reward", "avg", "avg@k", "avg@4", "avg@16", "mean@16", "val_reward", "pass_rate", "accuracy", "score"),
    "best": ("best", "best@k", "best@4", "pass@4", "pass@k"),
    "worst": ("worst", "worst@k", "worst@4"),
    "n": ("n", "rollouts_per_problem", "rollouts_per_prompt", "num_generations", "group_size"),
    "B_p": ("b_p", "bp", "problems_per_batch", "prompts_per_batch", "num_prompts"),
    "k": ("k",),
    "recipe": ("recipe",),
    "seed": ("seed",),
}
_NUMBERS = ("C", "avg", "best", "worst", "n", "B_p", "k")
COLUMNS = tuple(ALIASES)
METRICS = ("avg", "best", "worst")


def read_frame_of(places: Sequence[str | Path]) -> tuple[pl.DataFrame, list[str]]:
    """Every evaluation of some places, and what to say about them.

    Raises:
        UserError: nothing there, a column is missing, a cell is no number, one name in two places.
    """
    import polars as pl

    frames, notes, came = [], [], {}
    for place in places:
        frame, said = _of_folder(place) if Path(place).is_dir() else _of_table(Path(place))
        notes += said
        for name in frame["run"].unique(maintain_order=True):
            if name in came:
                raise UserError(
                    "two runs under one name",
                    where=place,
                    value=name,
                    remedy=f"rename one; the other is in {came[name]}",
                )
            came[name] = place
        frames.append(frame)
    return pl.concat(frames), notes


def _of_table(path: Path) -> tuple[pl.DataFrame, list[str]]:
    import polars as pl

    from derivedata.store.runs_table import read_frame

    raw = read_frame(path)
    names = {_plain(name): name for name in raw.columns}
    found = {}
    for column, aliases in ALIASES.items():
        match = next((names[alias] for alias in aliases if alias in names), None)
        if match is not None:
            found[column] = raw[match].to_list()
    if "C" not in found or not set(METRICS) & found.keys():
        missing = "C" if "C" not in found else "reward"
        raise UserError(
            f"no column {missing}",
            where=path,
            remedy=f"it has {', '.join(raw.columns[:12])}; wanted are run, C, reward",
        )
    count = raw.height
    if "run" not in found:
        found["run"] = [path.name.split(".")[0]] * count
    columns: dict[str, list] = {}
    for column in COLUMNS:
        cells = found.get(column, [None] * count)
        if column in _NUMBERS:
            columns[column] = [_number(cell, f"{path}, row {i + 1}", column) for i, cell in enumerate(cells)]
        else:
            columns[column] = [None if cell in (None, "") else str(cell) for cell in cells]
    for i, (name, compute) in enumerate(zip(columns["run"], columns["C"], strict=True)):
        where = f"{path}, row {i + 1}"
        if not name:
            raise UserError("a row names no run", where=where)
        if compute is None and any(columns[metric][i] is not None for metric in METRICS):
            raise UserError("a reward without its C", where=where, remedy="give C, or take the row out")
    lost = sum(_is_nan(cell) for metric in METRICS for cell in found.get(metric, ()))
    notes = [f"{path}: {lost} values that are no number (NaN) take no part"] if lost else []
    return pl.DataFrame(columns, schema=_schema(), strict=False), notes


def _is_nan(cell: object) -> bool:
    # An empty cell says that nobody measured; NaN that a measurement went wrong.
    return (isinstance(cell, float) and math.isnan(cell)) or (isinstance(cell, str) and cell.strip().lower() == "nan")


def _schema() -> dict:
    import polars as pl

    return {c: pl.Float64 if c in _NUMBERS else pl.String for c in COLUMNS}


def _number(cell: object, where: str, column: str) -> float | None:
    if cell is None or cell == "":
        return None
    try:
        value = float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UserError(f"{column} is not a number", where=where, value=cell) from None
    return None if math.isnan(value) else value


def _of_folder(place: str | Path) -> tuple[pl.DataFrame, list[str]]:
    import polars as pl

    from derivedata.cli.rl.logs import find_runs, read_log

    rows, notes = [], []
    for folder in find_runs(place):
        log = read_log(folder)
        if not log.evaluations:
            notes.append(f"{log.name}: no evaluations")
        fixed = {
            "run": log.name,
            "n": log.number("rollouts_per_problem"),
            "B_p": log.number("problems_per_batch"),
            "recipe": log.config.get("recipe"),
            "seed": None if log.config.get("seed") is None else str(log.config["seed"]),
        }
        rows += [
            fixed | {"C": row.get("rollouts")} | {m: row.get(m) for m in (*METRICS, "k")} for row in log.evaluations
        ]
    if not rows:
        raise UserError("no run with evaluations", where=place)
    return pl.DataFrame(rows, schema=_schema(), strict=False), notes


def curves_of(frame: pl.DataFrame, metric: str = "avg") -> list[Curve]:
    """One curve a run, checked.

    Raises:
        UserError: what `Curve` refuses; n or B_p that change within a run; best or worst of different k; no value of
            the metric at all.
    """
    from derivedata.scaling.rl.points import Curve

    ks = frame.filter(frame[metric].is_not_null())["k"].drop_nulls().unique().sort().to_list()
    if metric != "avg" and len(ks) > 1:
        shown = ", ".join(f"{k:g}" for k in ks[:6])
        raise UserError(
            f"{metric}@k of different k cannot be compared", value=f"k of {shown}", remedy="take --metric avg"
        )
    found = []
    for (name,), rows in frame.group_by(["run"], maintain_order=True):
        kept = rows.filter(rows[metric].is_not_null() & rows["C"].is_not_null())
        if kept.height == 0:
            continue
        fixed = {}
        for column in ("n", "B_p", "recipe"):
            values = kept[column].drop_nulls().unique().sort().to_list()
            if len(values) > 1:
                raise UserError(
                    f"{column} changes within a run: two runs under one name?",
                    where=f"run {name}",
                    value=", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values[:4]),
                    remedy="give each run its own name in the column run",
                )
            fixed[column] = values[0] if values else None
        found.append(
            Curve(
                run=str(name),
                C=kept["C"].to_numpy(),
                reward=kept[metric].to_numpy(),
                n=_whole(fixed["n"], "n", name),
                problems=_whole(fixed["B_p"], "B_p", name),
                recipe=fixed["recipe"] or "",
            )
        )
    if not found:
        raise UserError(f"no run has values of {metric}", remedy="take --metric avg, or log best and worst")
    return found


def without(frame: pl.DataFrame, metric: str, curves: Sequence[Curve]) -> list[str]:
    """Names of the runs that have no value of the metric."""
    known = {curve.run for curve in curves}
    return [name for name in frame["run"].unique(maintain_order=True).to_list() if name not in known]


def _whole(value: float | None, column: str, run: object) -> int | None:
    if value is None:
        return None
    if value < 1 or value != int(value):
        raise UserError(f"{column} is a whole number of 1 or more", where=f"run {run}", value=value)
    return int(value)


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")
