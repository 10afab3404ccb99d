"""What a sweep measured: grid.parquet with every run, runs.parquet with the best of each grid for `eta fit`."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from derivedata.scaling.diagnostics import overfitted
from derivedata.scaling.runs import Runs
from derivedata.store.paths import Folder
from derivedata.trainers.cell import Cell

# What makes two runs the same but for their recipe.
_POINT = ("size", "asked_fresh_tokens", "strategy", "passes", "seed")
_GRID = ("lr", "weight_decay")


def read_rows(folder: Folder, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The rows of all finished runs of some cells."""
    rows = []
    for cell in cells:
        for run in cell.runs:
            path = cell.row_path(run)
            if folder.exists(path):
                rows.append(json.loads(folder.read(path)))
    return rows


def judge(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Mark the best of each grid, runs at its edge, and overfitted ones.

    Returns:
        Rows with best, edge (what to widen: "lr low", ...) and overfit (the reason) added, and warnings, one line each.
    """
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in _POINT)].append(dict(row, best=False, edge="", overfit=""))
    warnings, edges, lost = [], defaultdict(list), 0
    for group in groups.values():
        finite = [row for row in group if row["loss"] is not None]
        lost += len(group) - len(finite)
        if not finite:
            warnings.append(f"{_told(group[0])}: every run of its grid diverged; try lower learning rates")
            continue
        best = min(finite, key=lambda row: row["loss"])
        best["best"] = True
        best["edge"] = ", ".join(_edges(best, group))
        for edge in filter(None, best["edge"].split(", ")):
            edges[edge].append(best)
    for edge, found in sorted(edges.items()):
        name, end = edge.split()
        warnings.append(
            f"{len(found)} of {len(groups)} points have their best {name} at the {end} end of the"
            f" grid ({_told(found[0])}{', ...' if len(found) > 1 else ''}): the optimum may lie beyond, widen it"
        )
    if lost:
        warnings.append(f"{lost} runs diverged: they are in grid.parquet with their failure, not in runs.parquet")
    judged = [row for group in groups.values() for row in group]
    warnings += _mark_overfitted([row for row in judged if row["best"]])
    return judged, warnings


def _edges(best: dict[str, Any], group: Sequence[dict[str, Any]]) -> list[str]:
    found = []
    for name in _GRID:
        values = sorted({row[name] for row in group})
        if len(values) > 1 and best[name] in (values[0], values[-1]):
            found.append(f"{name} {'low' if best[name] == values[0] else 'high'}")
    return found


def _mark_overfitted(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    columns = {"N": "n_params", "D": "fresh_tokens", "Dp": "derived_tokens", "loss": "loss", "strategy": "strategy"}
    runs = Runs(**{name: [row[column] for row in rows] for name, column in columns.items()})
    found = overfitted(runs)
    for index, reason in found.items():
        rows[index]["overfit"] = reason
    return [f"{len(found)} runs are overfitted: flagged, and `eta fit` leaves them out"] if found else []


def _told(row: dict[str, Any]) -> str:
    return f"N {row['size']}, D {row['fresh_tokens']:,}, {row['strategy'] or 'fresh'} x {row['x']:.3g}"


def write_tables(folder: Folder, judged: Sequence[dict[str, Any]]) -> int:
    """Write both tables; the number of rows in runs.parquet. Nested columns (curve, losses) are JSON text."""
    import polars as pl

    if not judged:
        return 0
    plain = [
        {name: json.dumps(value) if isinstance(value, (dict, list)) else value for name, value in row.items()}
        for row in judged
    ]
    grid = pl.DataFrame(plain, infer_schema_length=None).sort(*_POINT, *_GRID)
    best = grid.filter(pl.col("best"))
    for name, frame in (("grid.parquet", grid), ("runs.parquet", best)):
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        folder.replace(name, buffer.getvalue())
    return len(best)
