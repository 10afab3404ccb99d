"""Tables and figures of the study: eta at fixed x with its interval over seeds, and loss over passes.

A run's eta is read between the measured losses of one-epoch runs of its size and seed; where its loss lies below all
of them it is known from below alone. Beside it stands the eta that gives the run its loss under the fitted law.
Intervals are Student's t over seeds: they hold the noise of training and of the order of the data. That of the law's
eta does not hold the error of the law, which can be the greater one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl
from scipy.special import stdtrit

from derivedata.report.charts import Axis, Curve, Points, Words, lines
from derivedata.report.style import Picture, colour
from derivedata.scaling.diagnostics import noise
from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.fitted import Fit
from derivedata.scaling.runs import Runs


def interval(values: Iterable[float]) -> tuple[float, float | None]:
    """Mean and half width of its 95% interval (Student's t); None for a single value."""
    values = np.array(list(values))
    if len(values) < 2:
        return float(values.mean()), None
    return float(values.mean()), float(stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values)))


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
    columns["seed"] = "seed"
    return Runs(**{name: [row[column] for row in rows] for name, column in columns.items()})


def seed_noise(runs: Path) -> str:
    """The scatter of ln loss between seeds, in words."""
    return f"Runs that differ in their seed alone scatter by {100 * noise(_as_runs(_rows(runs))):.2f}% of the loss."


def with_eta(rows: list[dict], fit: Path) -> list[dict]:
    """The rows with derived tokens, each with eta between measured losses, its least, and law_eta (NaN where none)."""
    import json

    from derivedata.scaling.empirical import eta_between, eta_empirical

    ensemble: Ensemble = Fit.from_dict(json.loads(fit.read_text())).ensemble
    runs = _as_runs(rows)
    between, by_law = eta_between(runs), eta_empirical(runs, ensemble).eta
    figures = zip(rows, between.eta.tolist(), between.least.tolist(), by_law.tolist(), strict=True)
    return [
        {**row, "eta": eta, "least": least, "law_eta": law} for row, eta, least, law in figures if row["derived_tokens"]
    ]


def span(values: Iterable[float]) -> str:
    """Mean and interval of values over seeds, for a table."""
    mean, half = interval(values)
    return f"{mean:.2f}" if half is None else f"{mean:.2f} [{mean - half:.2f}, {mean + half:.2f}]"


def measured(group: list[dict]) -> str:
    """Eta over seeds where every one lies between measured losses; else how little it can be."""
    etas = [row["eta"] for row in group]
    if np.isfinite(etas).all():
        return span(etas)
    bounds = [row["least"] if np.isnan(row["eta"]) else row["eta"] for row in group]
    if np.isnan(bounds).any() or np.mean(bounds) <= 0:
        return "not measured"
    return f"at least {np.mean(bounds):.2f} (beyond in {np.isnan(etas).sum()} of {len(group)})"


def eta_table(runs: Path, fit: Path) -> list[str]:
    """Markdown: eta by size, D, strategy and x, with its interval over seeds."""
    told = ["| size | D | strategy | x | runs | loss | eta between measured losses | eta by the law |"]
    told.append("|---|---|---|---|---|---|---|---|")
    for (size, _, strategy, _), group in by_point(with_eta(_rows(runs), fit)).items():
        x = np.mean([row["x"] for row in group])
        loss = np.mean([row["loss"] for row in group])
        fresh = f"{group[0]['fresh_tokens']:,}"
        cells = (size, fresh, strategy, f"{x:.2f}", len(group), f"{loss:.4f}", measured(group))
        told.append(f"| {' | '.join(map(str, cells))} | {span(row['law_eta'] for row in group)} |")
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
            mine = [group for group in mine if np.isfinite([row[column] for row in group]).all()]
            if not mine:
                continue
            mine.sort(key=lambda group: group[0]["x"])
            x = np.array([group[0]["x"] for group in mine])
            means, halves = zip(*(interval(row[column] for row in group) for group in mine), strict=True)
            name, own = f"{strategy}, D {fresh:,}", shades[fresh]
            curves.append(Curve(name=name, x=x, y=np.array(means), dashed=strategy != "repeat", colour=own))
            error = np.array([half or 0.0 for half in halves])
            points.append(Points(name="", x=x, y=np.array(means), error=error, colour=own))
        caption = f"{smallest} parameters; bars are 95% intervals over seeds. Dashed: paraphrases."
        if column == "eta":
            caption += " Points of which a seed lies beyond the measured losses are in the table alone."
        words = Words(name=f"study-{column}", title=f"{title} over x = D'/D", caption=caption)
        found.append(lines(words, Axis(label="x = D'/D", log=True), Axis(label=title), curves=curves, points=points))
    return found
