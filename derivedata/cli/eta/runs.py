"""`derivedata eta runs RUNS`: the eta of each single run, with its error."""

from __future__ import annotations

import click

from derivedata.cli.eta import words
from derivedata.cli.eta.fit import n_column_option, n_definition_option, vocabulary_option
from derivedata.cli.eta.inputs import read_fit, read_runs
from derivedata.cli.quantity import shorten
from derivedata.errors import UserError


@click.command()
@click.argument("runs")
@words.law_option
@click.option("--noise", type=float, help="Scatter of ln L of a run.  [default: that of the fit; 0.0326 for a preset]")
@click.option("--where", metavar="CONDITION", help="Only these runs: 'strategy==repeat and x>=7'.")
@n_column_option
@n_definition_option
@vocabulary_option
@words.json_option
def runs(*, runs, law, noise, where, n_column, n_definition, vocab, as_json) -> None:
    """Show the eta that would give each run exactly its loss.

    Above 1 is normal (noise, or tokens better than fresh ones) and is never clipped. A loss at or below E + A/N^alpha
    has no eta. Where the table holds one-epoch runs of a run's size, `measured` is its eta without any law, read
    between their losses; ">" how much it is at least where its loss lies below all of them.
    """
    from derivedata.cli.eta.inputs import read_ensemble
    from derivedata.scaling.empirical import NO_DERIVED, eta_between, eta_empirical
    from derivedata.scaling.presets import PRESETS

    if noise is not None and not 0 <= noise < 1:
        raise UserError("the noise of ln loss is a small number of zero or more", where="--noise", value=noise)
    table, notes = read_runs(runs, where=where, n_column=n_column, n_definition=n_definition, vocabulary=vocab)
    ensemble = read_ensemble(law)
    if noise is None and law not in PRESETS:
        noise = read_fit(law).residual_sd
    found, between = eta_empirical(table, ensemble, noise=noise), eta_between(table)
    rows = [
        {
            "row": int(table.row[i]),
            "strategy": str(table.strategy[i]),
            "n_params": float(table.N[i]),
            "tpp": float(table.tpp[i]),
            "x": float(table.x[i]),
            "loss": float(table.loss[i]),
            "eta": float(found.eta[i]),
            "error": float(found.error[i]),
            "law_eta": float(found.predicted[i]),
            "measured": float(between.eta[i]),
            "measured_at_least": float(between.least[i]),
            "flag": str(found.flag[i]),
        }
        for i in range(len(table))
        if found.flag[i] != NO_DERIVED
    ]
    if as_json:
        words.print_json(
            {"law": ensemble.law.name, "n_definition": ensemble.law.n_definition, "runs": rows, "notes": notes}
        )
        return
    has = any(_measured(row) for row in rows)
    head = f"{'row':>5}  {'strategy':<14}{'N':>7}{'TPP':>8}{'x':>8}{'loss':>9}{'eta':>9}{'+-':>8}{'law':>8}"
    click.echo(f"{head}{'measured':>10}  flag" if has else f"{head}  flag")
    for row in rows:
        click.echo(
            f"{row['row']:>5}  {row['strategy']:<14}{shorten(row['n_params']):>7}{row['tpp']:>8.4g}{row['x']:>8.3g}"
            f"{row['loss']:>9.4f}{row['eta']:>9.3f}{row['error']:>8.2f}{row['law_eta']:>8.3f}"
            + (f"{_measured(row):>10}" if has else "")
            + f"  {row['flag']}"
        )
    silent = len(table) - len(rows)
    for name in dict.fromkeys(row["strategy"] for row in rows):
        mine = [row["flag"] for row in rows if row["strategy"] == name]
        undefined = sum(flag not in ("", ">1", "<0") for flag in mine)
        click.echo(
            f"{name}: {len(mine)} runs, {mine.count('>1')} above 1, {mine.count('<0')} below 0, {undefined} undefined"
        )
    if silent:
        click.echo(f"{silent} runs without derived tokens say nothing of eta")
    for line in [*words.standing(ensemble), *(f"note: {note}" for note in notes)]:
        click.echo(line)


def _measured(row: dict) -> str:
    if row["measured"] == row["measured"]:
        return f"{row['measured']:.3f}"
    return f">{row['measured_at_least']:.2f}" if row["measured_at_least"] > 0 else ""
