"""`derivedata eta check FIT.json RUNS`: does the law predict runs it has not seen?"""

from __future__ import annotations

import click

from derivedata.cli.eta import words
from derivedata.cli.eta.fit import n_column_option, n_definition_option, vocabulary_option
from derivedata.cli.eta.inputs import read_fit, read_runs
from derivedata.errors import UserError


@click.command()
@click.argument("fit")
@click.argument("runs")
@click.option("--hold-out", "condition", metavar="CONDITION", help="Runs to predict from the rest: 'n_params>60M'.")
@click.option("--where", metavar="CONDITION", help="Only these runs, fitted or predicted.")
@click.option("--bootstrap", type=click.IntRange(min=10), default=200, show_default=True, help="Refits a hold-out.")
@click.option("--with-dropped", is_flag=True, help="Use the runs that the fit left out, too.")
@n_column_option
@n_definition_option
@vocabulary_option
@words.json_option
def check(*, fit, runs, condition, where, bootstrap, with_dropped, n_column, n_definition, vocab, as_json) -> None:
    """Fit without some runs, with the settings of FIT, and predict them.

    Without --hold-out only the rolling hold-outs are made: each size from all smaller ones, and each doubling of x from
    all smaller x. Coverage is the share of predicted runs inside their 95% prediction interval.

    \b
    derivedata eta check fit.json runs.csv --hold-out 'n_params>60M'
    """
    from derivedata.cli.eta.selection import select
    from derivedata.scaling.holdout import hold_out, options_of, rolling, scored_runs

    fitted = read_fit(fit)
    if fitted.settings.backbone:
        raise UserError(
            "a fit with a frozen backbone cannot be checked on its own runs", where=fit, remedy="fit jointly"
        )
    table, notes = read_runs(runs, where=where, n_column=n_column, n_definition=n_definition, vocabulary=vocab)
    same = table.sha256() == fitted.data_sha256
    if not same:
        notes.append("these are not the runs that the fit was made from")
    elif not with_dropped and fitted.left_out:
        import numpy as np

        gone = [row for row, _ in fitted.left_out]
        table = table.take(~np.isin(table.row, gone))
        notes.append(f"{len(gone)} runs that the fit left out are neither fitted nor predicted")
    options = options_of(fitted.settings)
    made = []
    if condition:
        table_scored = scored_runs(table, **options)
        made.append(
            hold_out(table_scored, select(table_scored, condition), label=condition, bootstrap=bootstrap, **options)
        )
    for by in ("N", "x"):
        made += rolling(table, by, bootstrap=bootstrap, **options)
    if as_json:
        keep = ("label", "trained", "tested", "rmse", "bias", "coverage", "refused")
        words.print_json([{k: v for k, v in _fields(one).items() if k in keep} for one in made])
        return
    width = max((len(one.label) for one in made), default=0) + 2
    click.echo(f"{'held out':<{width}}{'fitted':>7}{'tested':>8}{'RMSE':>9}{'bias':>9}{'coverage':>10}")
    for one in made:
        figures = f"{one.rmse:>9.4f}{one.bias:>+9.4f}{one.coverage:>10.0%}"
        click.echo(
            f"{one.label:<{width}}{one.trained:>7}{one.tested:>8}{'  ' + one.refused if one.refused else figures}"
        )
    click.echo(f"RMSE and bias of ln L; form {fitted.settings.form.name}, delta {fitted.settings.delta:g}")
    click.echo(f"N: {fitted.n_definition}")
    for note in notes:
        click.echo(f"note: {note}")


def _fields(one) -> dict:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}
