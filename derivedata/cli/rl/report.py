"""`derivedata rl report RUNS -o report.html`: curves, plan and health on one self-contained page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from derivedata.cli.eta import words
from derivedata.cli.quantity import Quantity, shorten
from derivedata.cli.rl.fit import metric_option
from derivedata.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from derivedata.report.page import Page
    from derivedata.report.style import Picture


@click.command()
@click.argument("places", metavar="RUNS...", nargs=-1, required=True)
@click.option("--budget", type=Quantity(), help="Rollouts to plan for.  [default: the largest C]")
@metric_option
@click.option("--batch", type=click.IntRange(2), help="Hold B = B_p x n in the plan.")
@click.option("--plots", metavar="DIR", help="Also write the figures there, as PNG and SVG.")
@click.option("-o", "--output", default="rl-report.html", show_default=True, metavar="FILE.html")
def report(*, places, budget, metric, batch, plots, output) -> None:
    """Put fits, extrapolation, the frontier by n, the plan and the health of runs on one self-contained page.

    \b
    derivedata rl report runs --budget 1e6 -o report.html
    """
    from derivedata.cli.eta.drawings import write_page
    from derivedata.cli.rl.curves import curves_of, read_frame_of
    from derivedata.report.page import Page

    if not Path(output).resolve().parent.is_dir():
        raise UserError("no such folder", where=Path(output).resolve().parent)
    frame, notes = read_frame_of(places)
    curves = curves_of(frame, metric)
    largest = max(float(curve.C.max()) for curve in curves)
    page = Page(
        title="What RL buys for its compute",
        summary=f"{len(curves)} runs, {metric} on held-out problems, C up to {shorten(largest)}.",
        footer="Made by derivedata rl report. R_C = R_0 + (A - R_0)/(1 + (C_mid/C)^B) after ScaleRL (arXiv 2510.13786);"
        " n*(C) after the IsoCompute Playbook (arXiv 2603.12151).",
    )
    pictures: list[Picture] = []
    _plan(page, pictures, places, budget or largest, metric, batch)
    _curves(page, pictures, curves, metric)
    _health(page, pictures, places)
    for note in notes:
        page.note(note, warning=True)
    write_page(page, output, pictures, plots)


def _show(page: Page, pictures: list[Picture], made: Sequence[Picture]) -> None:
    for picture in made:
        page.picture(picture)
        pictures.append(picture)


def _plan(page: Page, pictures: list[Picture], places, budget: float, metric: str, batch: int | None) -> None:
    from derivedata.cli.rl import plan as words_of
    from derivedata.cli.rl.drawings import plan_pictures

    page.section(f"A plan for {shorten(budget)} rollouts")
    try:
        advice, notes = words_of.make(places, budget=budget, metric=metric, batch=batch)
    except UserError as error:
        page.note(f"no plan: {error.line}", warning=True)
        return
    page.prose(f"{words_of.headline(advice)}.", f"{words_of.why(advice)}.")
    for flag in advice.flags:
        page.note(flag, warning=True)
    _show(page, pictures, plan_pictures(advice))
    page.table(words_of.n_rows(advice), caption=f"Reward after {shorten(advice.read_at)} rollouts by n.")
    if advice.cells:
        page.table(words_of.cell_rows(advice), caption=f"By (B_p, n), each after {shorten(advice.read_at)} rollouts.")
    page.prose(words_of.best_n_line(advice))
    left = [{"run": run, "left out because": reason} for run, reason in advice.left_out.items()]
    page.table(left, caption="Runs that take no part in the plan.")
    page.points(*words.footnotes((), [*advice.notes, *notes]))


def _curves(page: Page, pictures: list[Picture], curves, metric: str) -> None:
    from derivedata.cli.rl.drawings import curve_pictures
    from derivedata.cli.rl.fit import common_lines, common_of, fit_row, forecast_row, seed_row
    from derivedata.scaling.rl.compare import over_seeds
    from derivedata.scaling.rl.fit import fit_curve

    page.section("Curves")
    fits = []
    for curve in curves:
        try:
            fits.append(fit_curve(curve))
        except UserError as error:
            page.note(f"not fitted: {error.line}", warning=True)
    if not fits:
        return
    _show(page, pictures, curve_pictures(fits, metric))
    page.table([fit_row(one) for one in fits], caption="Constants with 95% profile intervals.")
    page.table([forecast_row(one) for one in fits], caption="Forecasts at twice the largest C.")
    seeds = over_seeds(fits)
    page.table([seed_row(one) for one in seeds], caption="Recipes over their seeds.")
    common = common_of(fits)
    if common is not None:
        page.prose(common_lines(common)[0])
    for fit in fits:
        for flag in fit.flags:
            page.note(f"{fit.curve.run}: {flag}", warning=True)


def _health(page: Page, pictures: list[Picture], places) -> None:
    from derivedata.cli.rl.check import interference_lines
    from derivedata.cli.rl.drawings import histogram_picture
    from derivedata.cli.rl.logs import find_runs, read_log

    logs = [read_log(folder) for place in places if Path(place).is_dir() for folder in find_runs(place)]
    if not logs:
        return
    page.section("Health and interference")
    rows = []
    for log in logs:
        health = log.health()
        marks = {None: "? ", True: "FAIL: ", False: ""}
        found = {one.test: f"{marks[one.failed]}{one.words}" for one in health.findings}
        rows.append({"run": log.name, "verdict": "healthy" if health.is_healthy else "unhealthy", **found})
    page.table(rows, caption="The healthy-recipe test; a run that fails takes no part in the plan.")
    for log in logs:
        seen = log.interference()
        if seen is not None:
            _show(page, pictures, [histogram_picture(log.name, seen)])
    for log in logs:
        for line in interference_lines(log.interference(), log.change()):
            if line.startswith(("best@k", "interference: of")):
                page.points(f"{log.name}: {line}")
