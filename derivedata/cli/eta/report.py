"""`derivedata eta report -o report.html`: a law, its fit and its advice on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from derivedata.cli.eta import words
from derivedata.cli.quantity import Quantity, shorten
from derivedata.errors import UserError

if TYPE_CHECKING:
    from derivedata.report.page import Page
    from derivedata.scaling.ensemble import Ensemble
    from derivedata.scaling.fitted import Fit
    from derivedata.scaling.runs import Runs


@click.command()
@click.argument("runs_file", metavar="[RUNS]", required=False)
@words.law_option
@words.params_option
@click.option("--fresh-tokens", type=Quantity(), help="D of the plan.  [default: 20 a parameter]")
@click.option("--flops", type=Quantity(), help="Budget of the plan.")
@words.generator_option
@click.option("--hold-out/--no-hold-out", default=True, show_default=True, help="Refit RUNS for the rolling hold-outs.")
@click.option("--plots", metavar="DIR", help="Also write the figures there, as PNG and SVG.")
@click.option("-o", "--output", default="report.html", show_default=True, metavar="FILE.html")
def report(*, runs_file, law, params, fresh_tokens, flops, generator_params, hold_out, plots, output) -> None:
    """Put the law, how it fits RUNS, and its advice on one self-contained page.

    \b
    derivedata eta report runs.csv --law FIT.json --params 190M --fresh-tokens 3.8B -o report.html
    """
    from derivedata.cli.eta.drawings import write_page
    from derivedata.cli.eta.inputs import read_ensemble, read_runs
    from derivedata.report.page import Page

    ensemble = read_ensemble(law)
    if not ensemble.law.strategies:
        raise UserError("this law was fitted without derived tokens", value=law, remedy="take qin2026-n370")
    if not Path(output).resolve().parent.is_dir():
        raise UserError("no such folder", where=Path(output).resolve().parent)
    fit = _fit_behind(law)
    runs, notes = read_runs(runs_file) if runs_file else (None, [])
    params = params or _middle(ensemble)
    builder = _Builder(ensemble, fit, runs, generator_params)
    page = Page(
        title="What derived tokens are worth",
        summary=_summary(ensemble, runs, runs_file),
        footer="Made by derivedata eta report. L(N, D, D') = E + A/N^alpha + B/(D + eta D')^beta,"
        " eta = (R*/x)(1 - exp(-x/R*)), x = D'/D (arXiv 2607.25271).",
    )
    builder.plan_section(page, params, fresh_tokens or 20 * params, flops)
    if runs is not None:
        builder.eta_section(page)
    builder.field_section(page)
    builder.frontier_section(page)
    if runs is not None:
        builder.fit_section(page, hold_out=hold_out)
    builder.law_section(page)
    for note in notes:
        page.note(note, warning=True)
    write_page(page, output, builder.pictures, plots)


class _Builder:
    """The sections of the page; keeps the pictures for --plots."""

    def __init__(self, ensemble: Ensemble, fit: Fit | None, runs: Runs | None, generator_params: float):
        self.ensemble, self.fit, self.runs, self.generator_params = ensemble, fit, runs, generator_params
        self.pictures: list = []

    def _show(self, page: Page, pictures) -> None:
        for picture in pictures:
            page.picture(picture)
            self.pictures.append(picture)

    def law_section(self, page: Page) -> None:
        """Constants with intervals, E_eff, sensitivity, warnings."""
        page.section("The law behind it")
        if self.fit is None:
            page.table([{"constant": name, "value": words.interval(e)} for name, e in self._published().items()])
            return
        page.table([{"constant": n, "value": words.interval(e)} for n, e in self.fit.constants().items()])
        page.table(
            [
                {"N": shorten(N), "E + A/N^alpha, nats": words.interval(e, words.nats)}
                for N, e in self.fit.model_limits().items()
            ],
            caption="The loss no data takes a model below: identified where E, A and alpha are not.",
        )
        rows = [
            {key: (value if key == "drop" else words.figure(value)) for key, value in row.items()}
            for row in self.fit.sensitivity_row()
        ]
        page.table(rows, caption="Sensitivity: constants after dropping the runs with the greatest residuals.")
        for line in (*self.fit.restrictions, *self.fit.warnings):
            page.note(line, warning=True)
        if self.fit.left_out:
            page.table(
                [{"row": row, "left out because": reason} for row, reason in self.fit.left_out],
                caption=f"{len(self.fit.left_out)} of {self.fit.count} runs were left out.",
            )

    def _published(self) -> dict:
        estimate, found = self.ensemble.estimate, {}
        for name in ("E", "A", "B", "alpha", "beta"):
            found[name] = estimate(lambda law, n=name: getattr(law, n))
        for strategy in self.ensemble.law.strategies:
            for name in ("lnK", "rho", "sigma"):
                found[f"{name}[{strategy}]"] = estimate(lambda law, n=name, s=strategy: getattr(law.strategies[s], n))
        return found

    def eta_section(self, page: Page) -> None:
        """Eta against x."""
        from derivedata.cli.eta.drawings import eta_pictures

        pictures = eta_pictures(self.ensemble, self.runs, None if self.fit is None else self.fit.residual_sd)
        if pictures:
            page.section("Eta of the runs")
            self._show(page, pictures)

    def field_section(self, page: Page) -> None:
        """R* and epochs over (N, TPP)."""
        from derivedata.cli.eta.drawings import field_pictures

        page.section("How far derived tokens go")
        self._show(page, field_pictures(self.ensemble, self.runs))

    def plan_section(self, page: Page, params: float, fresh_tokens: float, flops: float | None) -> None:
        """Regimes and milestones for one model."""
        from derivedata.cli.eta.drawings import regime_picture
        from derivedata.cli.eta.plan import choice_lines, milestone_row, pairs, regime_row
        from derivedata.scaling.choice import choose
        from derivedata.scaling.plan import plan

        N, D, G = params, fresh_tokens, self.generator_params
        page.section(f"A plan for {shorten(N)} parameters and {shorten(D)} fresh tokens")
        advice = plan(self.ensemble, params=N, fresh_tokens=D, flops=flops, generator_params=G)
        self._show(page, [regime_picture(self.ensemble, params=N, fresh_tokens=D, generator_params=G)])
        where = "after one epoch" if flops is None else f"at the end of {shorten(flops)} FLOPs"
        page.table(
            [regime_row(one) for one in advice.strategies.values()],
            caption=f"Regime {where}; gaps in nats: what derived tokens, fresh tokens, parameters can still win.",
        )
        beyond = [o for one in advice.strategies.values() for stop in (*one.milestones, one.now) for o in stop.outside]
        for one in advice.strategies.values():
            page.table(
                [milestone_row(stop, one, G) for stop in one.milestones],
                caption=f"{one.strategy}: R* = {words.interval(one.r_star)}. At 90% of the limit the next token is"
                " worth a tenth of a fresh one: the recommended stop.",
            )
        for first, second in pairs(advice.strategies):
            choice = choose(
                self.ensemble, params=N, fresh_tokens=D, first=first, second=second, flops=flops, generator_params=G
            )
            page.prose(f"{choice.first} or {choice.second}:")
            page.points(*choice_lines(choice, advice))
            beyond += choice.outside
        page.points(*words.footnotes(beyond, advice.notes, law=self.ensemble.law))

    def frontier_section(self, page: Page) -> None:
        """Iso-loss contours and the frontier as a table."""
        from derivedata.cli.eta.drawings import frontier_picture
        from derivedata.cli.eta.frontier import frontier_row
        from derivedata.scaling.frontier import frontier

        page.section("Compute against data")
        self._show(page, [frontier_picture(self.ensemble, generator_params=self.generator_params)])
        points = frontier(
            self.ensemble,
            flops=(1e19, 1e20, 1e21, 1e22),
            fresh_tokens=(1e9, 1e10, 1e11),
            generator_params=self.generator_params,
        )
        best = [point for point in points if point.is_on_frontier]
        page.table([frontier_row(point) for point in best], caption="Points on the frontier, all fresh tokens used.")
        page.points(*words.footnotes((o for point in best for o in point.outside), law=self.ensemble.law))

    def fit_section(self, page: Page, *, hold_out: bool) -> None:
        """Parity, residuals, rolling hold-out."""
        from derivedata.cli.eta.drawings import fit_pictures, hold_out_picture
        from derivedata.scaling.holdout import options_of, rolling

        left_out = [row for row, _ in self.fit.left_out] if self.fit else []
        page.section("How well it fits")
        self._show(page, fit_pictures(self.ensemble, self.runs, left_out))
        if self.fit is not None:
            page.table(
                [
                    {"runs": name, "number": count, "RMSE of ln L": f"{rmse:.4f}"}
                    for name, (count, rmse) in self.fit.rmse.items()
                ]
            )
        if self.fit is None or not hold_out:
            return
        import numpy as np

        kept = self.runs.take(~np.isin(self.runs.row, left_out))
        options = options_of(self.fit.settings)
        made = [one for by in ("N", "x") for one in rolling(kept, by, bootstrap=50, **options)]
        if any(not one.refused for one in made):
            self._show(page, [hold_out_picture(made, self.fit.rmse["all"][1])])
        for one in made:
            if one.refused:
                page.note(f"{one.label}: not made, {one.refused}")


def _fit_behind(law: str) -> Fit | None:
    """The fit a law comes from, when it is a file of `eta fit`."""
    from derivedata.cli.eta.inputs import read_fit
    from derivedata.scaling.presets import PRESETS

    if law in PRESETS:
        return None
    try:
        return read_fit(law)
    except UserError:
        # A calibration: it has a law and draws, but no residuals of its own.
        return None


def _middle(ensemble: Ensemble) -> float:
    support = ensemble.law.support
    return 190e6 if support is None else float((support.N[0] * support.N[1]) ** 0.5)


def _summary(ensemble: Ensemble, runs: Runs | None, path: str | None) -> str:
    names = ", ".join(ensemble.law.strategies)
    text = (
        f"Law {ensemble.law.name or 'unnamed'} with {names}; intervals: {ensemble.interval}."
        f" N: {ensemble.law.n_definition}."
    )
    return text if runs is None else f"{text} Runs: {len(runs)} of {Path(path).name}."
