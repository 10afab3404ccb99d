"""Tables and figures of the study: eta at fixed x with its interval over seeds, and loss over passes.

A run's eta is the one that gives it exactly its loss under the fitted one-epoch law; the interval is that over seeds
(Student's t), which holds the noise of training and of the order of the data, not the error of the law.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl

from derivedata.report.charts import Axis, Curve, Points, Words, lines
from derivedata.report.style import Picture, colour
from derivedata.scaling.diagnostics import noise
from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.fitted import Fit
from derivedata.scaling.runs import Runs

# Two-sided 95% of Student's t by degrees of freedom.
T95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776}


def interval(values: Iterable[float]) -> tuple[float, float | None]:
    """Mean and half width of its 95% interval (Student's t); None for a single value."""
    values = np.array(list(values))
    if len(values) < 2:
        return float(values.mean()), None
    return float(values.mean()), float(T95[len(values) - 1] * values.std(ddof=1) / np.sqrt(len(values)))


def by_point(rows: Iterable[dict]) -> dict[tuple, list[dict]]:
    """Runs that differ in their seed alone."""
    found = defaultdict(list)
    for row in rows:
        found[row["size"], row["asked_fresh_tokens"], row["strategy"], row["passes"]].append(row)
    return dict(sorted(found.items()))


def _rows(runs: Path) -> list[dict]:
    return pl.read_parquet(runs).to_dicts()


def _as_runs(rows: list[dict]) -> Runs:
    columns = {"N": "n_params", "D": "fresh_tokens", "Dp": "derived_tokens", "loss": "loss", "strategy": "strategy"}
    return Runs(**{name: [row[column] for row in rows] for name, column in columns.items()})


def seed_noise(runs: Path) -> str:
    """The scatter of ln loss between seeds, in words."""
    return f"Runs that differ in their seed alone scatter by {100 * noise(_as_runs(_rows(runs))):.2f}% of the loss."


def with_eta(rows: list[dict], fit: Path) -> list[dict]:
    """The rows with derived tokens, each with its eta under the fitted law (NaN where it has none)."""
    import json

    from derivedata.scaling.empirical import eta_empirical

    ensemble: Ensemble = Fit.from_dict(json.loads(fit.read_text())).ensemble
    found = eta_empirical(_as_runs(rows), ensemble)
    return [{**row, "eta": float(eta)} for row, eta in zip(rows, found.eta, strict=True) if row["derived_tokens"]]


def eta_table(runs: Path, fit: Path) -> list[str]:
    """Markdown: eta by size, D, strategy and x, with its interval over seeds."""
    told = ["| size | D | strategy | x | runs | loss | eta | 95% over seeds |", "|---|---|---|---|---|---|---|---|"]
    for (size, _, strategy, _), group in by_point(with_eta(_rows(runs), fit)).items():
        mean, half = interval(row["eta"] for row in group)
        x = np.mean([row["x"] for row in group])
        loss = np.mean([row["loss"] for row in group])
        width = "one seed" if half is None else f"{mean - half:.2f} to {mean + half:.2f}"
        cells = (size, f"{group[0]['fresh_tokens']:,}", strategy, f"{x:.2f}", len(group), f"{loss:.4f}", f"{mean:.2f}")
        told.append(f"| {' | '.join(map(str, cells))} | {width} |")
    return told


def figures(runs: Path, fit: Path) -> list[Picture]:
    """Eta over x and loss over x at the smallest size, strategies beside each other."""
    rows = _rows(runs)
    groups = by_point(with_eta(rows, fit))
    smallest = min(rows, key=lambda row: row["n_params"])["size"]
    found = []
    for column, title in (("eta", "eta"), ("loss", "held-out loss, nats a byte")):
        curves, points = [], []
        kinds = sorted({(key[1], key[2]) for key in groups if key[0] == smallest})
        shades = {fresh: colour(i) for i, fresh in enumerate(sorted({fresh for fresh, _ in kinds}))}
        for fresh, strategy in kinds:
            mine = [group for key, group in groups.items() if key[:3] == (smallest, fresh, strategy)]
            if len(mine) < 2:  # a single point is in the table
                continue
            mine.sort(key=lambda group: group[0]["x"])
            x = np.array([group[0]["x"] for group in mine])
            means, halves = zip(*(interval(row[column] for row in group) for group in mine), strict=True)
            name, own = f"{strategy}, D {fresh:,}", shades[fresh]
            curves.append(Curve(name=name, x=x, y=np.array(means), dashed=strategy != "repeat", colour=own))
            error = np.array([half or 0.0 for half in halves])
            points.append(Points(name="", x=x, y=np.array(means), error=error, colour=own))
        caption = f"{smallest} parameters; bars are 95% intervals over seeds. Dashed: paraphrases."
        words = Words(name=f"study-{column}", title=f"{title} over x = D'/D", caption=caption)
        found.append(lines(words, Axis(label="x = D'/D", log=True), Axis(label=title), curves=curves, points=points))
    return found
