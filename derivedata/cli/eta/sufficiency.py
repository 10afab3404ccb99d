"""`derivedata eta sufficiency RUNS --metric COLUMN`: does validation loss say all, whatever the strategy?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from derivedata.cli.eta import words
from derivedata.cli.eta.inputs import read_column, read_runs

if TYPE_CHECKING:
    from derivedata.scaling.sufficiency import Sufficiency


@click.command()
@click.argument("runs_file", metavar="RUNS")
@click.option("--metric", required=True, metavar="COLUMN", help="Downstream figure of each run.")
@click.option("--where", metavar="CONDITION", help="Only these runs: 'n_params<=190M'.")
@click.option("--plots", metavar="DIR", help="Also draw the metric over the loss there, as PNG and SVG.")
@words.json_option
def sufficiency(*, runs_file, metric, where, plots, as_json) -> None:
    """Test the claim that validation loss is a sufficient statistic across strategies.

    The metric (bits per byte of other text, accuracy) is regressed on validation loss with a term a strategy; runs on
    fresh tokens alone are the baseline. An offset whose interval excludes 0 contradicts the claim.

    \b
    derivedata eta sufficiency runs/runs.parquet --metric bits_per_byte_on_older --plots figures
    """
    from derivedata.scaling.sufficiency import sufficiency as test

    runs, notes = read_runs(runs_file, where=where)
    values = read_column(runs_file, metric)[runs.row - 1]
    found = test(runs, values)
    if as_json:
        drawn = replace(found, curve=tuple(axis.tolist() for axis in found.curve))
        words.print_json({"metric": metric, "test": drawn, "notes": notes})
    else:
        _print(found, metric, notes)
    if plots:
        from derivedata.cli.eta.drawings import save_all, sufficiency_picture

        click.echo(
            f"figures: {', '.join(save_all([sufficiency_picture(runs, values, metric, found)], plots))}", err=True
        )


def _print(found: Sufficiency, metric: str, notes: list[str]) -> None:
    powers = {1: "a line", 2: "a parabola", 3: "a cubic"}[found.degree]
    words.say(f"{metric} over validation loss: {powers} through {found.runs} runs in {found.cells} (N, D) cells")
    words.say(f"residual scatter {words.figure(found.scatter)}; slope {words.figure(found.slope)} a nat\n")
    rows = [
        {
            "strategy": one.strategy,
            "runs": one.runs,
            "cells": one.cells,
            "offset at equal loss": "unknown" if one.why else words.interval(one.offset, signed),
            "a nat more": words.interval(one.change, signed),
            "as validation loss, nats": "unknown" if one.why else words.interval(one.in_loss, signed),
            "verdict": one.why or ("differs" if one.differs else f"none seen; at most {words.figure(one.within)}"),
        }
        for one in found.effects
    ]
    words.say(words.table(rows))
    if found.size is not None:
        words.say(f"an e-fold of N at equal loss: {words.interval(found.size, signed)}")
    words.say(_verdict(found))
    words.say("baseline: runs on fresh tokens alone; intervals: 95%, leaving out an (N, D) cell at a time")
    for line in words.footnotes((), [*found.warnings, *notes]):
        words.say(line)


def _verdict(found: Sufficiency) -> str:
    differing = [one.strategy for one in found.effects if one.differs]
    p = "" if found.p != found.p else f" (all offsets zero: p = {found.p:.2g})"
    if differing:
        return f"validation loss is not sufficient for this metric: {', '.join(differing)} differs at equal loss{p}"
    return f"these runs do not contradict that validation loss is sufficient for this metric{p}"


def signed(value: float) -> str:
    """+0.031, -1.2."""
    return f"+{words.figure(value)}" if value > 0 else words.figure(value)
