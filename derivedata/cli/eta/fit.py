"""`derivedata eta fit RUNS -o FIT.json`: fit a law and say how far it can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from derivedata.cli.eta import words
from derivedata.cli.eta.inputs import read_ensemble, read_runs, write_json
from derivedata.cli.quantity import shorten

if TYPE_CHECKING:
    from derivedata.scaling.fitted import Fit

n_column_option = click.option("--n-column", metavar="COLUMN", help="Column that holds N.  [default: n_params]")
n_definition_option = click.option("--n-definition", metavar="TEXT", help="What N counts, for every output of the fit.")
vocabulary_option = click.option("--vocab", type=int, help="Vocabulary size V; losses above ln V are refused.")


@click.command()
@click.argument("runs")
@click.option("-o", "--output", metavar="FIT.json", help="Write the fit with covariance and draws.")
@click.option("--form", default="published", show_default=True, help="Form of the law; `--form list` shows them.")
@click.option("--staged", is_flag=True, help="Fit the one-epoch law first and freeze it, instead of all at once.")
@click.option(
    "--delta",
    type=float,
    help="Where the Huber loss of ln L turns linear.  [default: 0.1 with derived tokens, 0.001 for one-epoch runs]",
)
@click.option(
    "--drop", type=click.IntRange(min=0), default=0, help="Leave out the K greatest residuals, one at a time."
)
@click.option("--backbone", metavar="NAME|FIT.json", help="Freeze E, A, B, alpha, beta at those of this law.")
@click.option("--keep-overfitted", is_flag=True, help="Keep runs whose loss rose again with more epochs.")
@click.option("--where", metavar="CONDITION", help="Only these runs: 'n_params<=190M and strategy!=faq'.")
@click.option("--bootstrap", type=click.IntRange(min=0), default=400, show_default=True, help="Refits; 0: sandwich.")
@click.option("--seed", type=int, default=0, help="Seed of the bootstrap.")
@click.option("--name", help="Name of the law.  [default: name of the table]")
@n_column_option
@n_definition_option
@vocabulary_option
def fit(
    *, runs, output, form, staged, delta, drop, backbone, keep_overfitted, where, bootstrap, seed, name,
    n_column, n_definition, vocab,
) -> None:  # fmt: skip
    """Fit a Compute-Data law to a table of runs.

    RUNS is CSV, JSONL or Parquet with columns n_params, fresh_tokens, derived_tokens (or epochs, or total_tokens),
    strategy and loss; seed, weight and cluster are optional. Any number of strategies by any name.

    \b
    derivedata eta fit runs.csv -o fit.json
    derivedata eta fit runs.csv --drop 15 --form offset
    derivedata eta fit c4.csv --form muennighoff --backbone muennighoff2023 --delta 1e-3
    """
    from pathlib import Path

    from derivedata.scaling.fit import fit as fit_law
    from derivedata.scaling.form import FORMS

    if form == "list":
        for known in FORMS.values():
            click.echo(f"{known.name:<12}{known.about}")
        return
    table, notes = read_runs(runs, where=where, n_column=n_column, n_definition=n_definition, vocabulary=vocab)
    fitted = fit_law(
        table,
        form=form,
        mode="staged" if staged else "joint",
        delta=delta,
        drop=drop,
        backbone=None if backbone is None else read_ensemble(backbone).law,
        overfit="keep" if keep_overfitted else "leave-out",
        bootstrap=bootstrap,
        seed=seed,
        name=name or Path(runs).name.split(".")[0],
    )
    if output:
        write_json(output, fitted.to_dict())
    for line in report(fitted, notes):
        click.echo(line)
    if output:
        click.echo(f"wrote {output}")


def report(fitted: Fit, notes: list[str]) -> list[str]:
    """What a fit says, as lines for people."""
    settings = fitted.settings
    frozen = f", backbone of {settings.backbone} frozen" if settings.backbone else ""
    lines = [
        f"{fitted.name}: {fitted.used} of {fitted.count} runs, form {settings.form.name}, {settings.mode} fit{frozen}",
        f"N: {fitted.n_definition}",
        f"objective: {fitted.objective:.8g} (sum of Huber of ln L, delta {settings.delta:g})"
        + "".join(f"; {value:.6g} at {label}" for label, value in fitted.objectives.items()),
        f"starts: {fitted.starts[0]} of {fitted.starts[1]} reach this optimum",
        "",
        f"constants ({fitted.ensemble.interval})",
    ]
    width = max(len(name) for name in fitted.constants()) + 2
    for name, estimate in fitted.constants().items():
        # What was not fitted has no interval: one of no width would say that it is known.
        if not _free(name, fitted):
            lines.append(f"  {name:<{width}}{_constant(estimate.value)} held")
            continue
        flag = "  not identified (at its bound)" if _parameter(name) in fitted.at_bound else ""
        lines.append(f"  {name:<{width}}{words.interval(estimate, _constant)}{flag}")
    centre = fitted.centre
    if fitted.strategies:
        lines.append(
            f"  R* at the centre: N = {shorten(centre.N)}, D = {shorten(centre.D)}, {centre.tpp:.3g} tokens a parameter"
        )
    lines += ["", "E_eff(N) = E + A/N^alpha, identified where E, A and alpha are not"]
    limits = list(fitted.model_limits().items())
    shown = limits if len(limits) <= 12 else [limits[round(i * (len(limits) - 1) / 11)] for i in range(12)]
    lines += [f"  N = {shorten(N):<8}{words.interval(estimate, words.nats)}" for N, estimate in shown]
    lines += ["", "RMSE of ln L"]
    lines += [f"  {name:<14}{rmse:.5f}   {count} runs" for name, (count, rmse) in fitted.rmse.items()]
    lines += ["", *_sensitivity(fitted)]
    lines += _listed("left out", [f"row {row}: {reason}" for row, reason in fitted.left_out], 20)
    lines += _listed("held, since these runs cannot identify it", list(fitted.restrictions))
    lines += _listed("warnings", list(fitted.warnings))
    lines += _listed("about the table", notes)
    return lines


def _constant(value: float) -> str:
    return words.figure(value) if value == 0 or abs(value) == float("inf") else f"{value:.5g}"


def _parameter(name: str) -> str:
    """The parameter of a fit that a constant is."""
    plain = name.replace("R*", "ln R").replace("worth", "ln w").replace("R_N", "ln R_N").replace("D0", "ln D0")
    return {"E": "ln E", "A": "ln A0", "B": "ln B0", "G": "ln G"}.get(plain, plain)


def _free(name: str, fitted: Fit) -> bool:
    """Whether a constant was fitted; lnK moves with any of R*, rho and sigma."""
    at = fitted.parameters.where.get(_parameter(name.replace("lnK", "R*")))
    return at is None or bool(fitted.free[at])


def _sensitivity(fitted: Fit) -> list[str]:
    rows = fitted.sensitivity_row()
    if not rows:
        return []
    columns = list(rows[0])
    cells = [columns, *[[_cell(row[name]) for name in columns] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = ["sensitivity to what is dropped (the greatest residuals, one at a time)"]
    return lines + ["  " + "  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in cells]


def _cell(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _listed(title: str, entries: list[str], most: int = 30) -> list[str]:
    if not entries:
        return []
    more = [f"  and {len(entries) - most} more"] if len(entries) > most else []
    return ["", title, *(f"  {entry}" for entry in entries[:most]), *more]
