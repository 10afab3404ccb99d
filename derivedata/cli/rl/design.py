"""`derivedata rl design --budget C`: the (B_p, n) grid to train before planning."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from derivedata.cli.eta import words
from derivedata.cli.quantity import Quantity, shorten
from derivedata.errors import UserError

COLUMNS = ("run", "problems_per_batch", "rollouts_per_problem", "iterations", "rollouts", "seed", "line")


@click.command()
@click.option("--budget", type=Quantity(), required=True, help="Rollouts for all runs together.")
@click.option("--problems", type=click.IntRange(1), help="Size of the training set.")
@click.option("--least-n", type=click.IntRange(2), default=4, show_default=True, help="Smallest n.")
@click.option("--most-n", type=click.IntRange(2), default=512, show_default=True, help="Largest n, if it pays.")
@click.option("--problems-per-batch", type=click.IntRange(1), default=32, show_default=True, help="Of the line of n.")
@click.option("--iterations", type=click.IntRange(1), default=40, show_default=True, help="Fewest iterations a run.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Repeats of every run.")
@click.option("-o", "--output", metavar="GRID.csv", help="Write the runs there.")
@words.json_option
def design(*, budget, problems, least_n, most_n, problems_per_batch, iterations, seeds, output, as_json) -> None:
    """Propose runs of equal compute: a line of n at one B_p, and a line of (B_p, n) at one B.

    \b
    derivedata rl design --budget 1e6 --problems 6000 -o grid.csv
    """
    from derivedata.cli.render import csv_lines
    from derivedata.scaling.rl.design import design as make_design

    grid = make_design(
        budget, problems=problems, least_n=least_n, most_n=most_n, problems_per_batch=problems_per_batch,
        iterations=iterations, seeds=seeds,
    )  # fmt: skip
    rows = []
    for run in grid.runs:
        name = f"bp{run.problems_per_batch}-n{run.rollouts_per_problem}" + (f"-s{run.seed}" if seeds > 1 else "")
        rows.append({"run": name, **asdict(run)})
    if output:
        try:
            Path(output).write_text(csv_lines(rows, COLUMNS))
        except OSError as error:
            raise UserError("cannot be written", where=output, value=error.strerror) from None
    if as_json:
        words.print_json({"runs": rows, "rollouts": grid.rollouts, "each": grid.each, "notes": grid.notes})
        return
    heads = {"problems_per_batch": "B_p", "rollouts_per_problem": "n", "line": "shows"}
    shown = [{heads.get(name, name): row[name] for name in COLUMNS if name != "seed"} for row in rows]
    words.say(words.table(shown))
    words.say(f"{len(rows)} runs of {shorten(grid.each)} rollouts each, {shorten(grid.rollouts)} in all")
    for line in words.footnotes((), grid.notes):
        words.say(line)
    words.say(
        "each: derivedata train rl --problems-per-batch B_p --rollouts n --iterations M -o runs/RUN;"
        f" then derivedata rl plan runs --budget {shorten(grid.each)}"
    )
    if output:
        words.say(f"written to {output}")
