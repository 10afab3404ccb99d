"""`derivedata eta design`: a sweep that can measure eta, as the table a sweep trainer takes."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from derivedata.cli.eta import words
from derivedata.cli.quantity import Quantities, Quantity, shorten
from derivedata.errors import UserError

if TYPE_CHECKING:
    from derivedata.scaling.design import Design

COLUMNS = ("run", "n_params", "fresh_tokens", "derived_tokens", "strategy", "x", "epochs", "seed", "flops")


@click.command()
@click.option(
    "--sizes", type=Quantities(), required=True, metavar="N,N,...", help=f"Sizes to train. {words.PARAMS_HELP}"
)
@click.option("--budget", type=Quantity(), required=True, help="FLOPs for all runs together (1e20).")
@click.option(
    "--strategy", "strategies", multiple=True, help="What to measure. Repeatable.  [default: those of the law]"
)
@click.option(
    "--ask", default="r-star,rho,sigma", show_default=True, metavar="WHAT,...", help="What the sweep must identify."
)
@click.option("--tpp", type=Quantities(), default=None, metavar="T,...", help="Tokens per parameter to choose from.")
@click.option("--x", "levels", default=None, metavar="X,...", help="D'/D to choose from.")
@click.option("--max-runs", type=click.IntRange(1, 2000), default=120, show_default=True)
@click.option("--noise", type=float, default=0.01, show_default=True, help="Standard deviation of ln loss of a run.")
@words.law_option
@click.option("-o", "--output", metavar="FILE.csv", help="Write the runs there.  [default: print them]")
@words.json_option
def design(*, sizes, budget, strategies, ask, tpp, levels, max_runs, noise, law, output, as_json) -> None:
    """Choose the runs that measure R*, rho and sigma best for a budget, with the standard errors to expect.

    \b
    derivedata eta design --sizes 14M,60M,190M --budget 1e20 -o sweep.csv
    derivedata eta design --sizes 14M --budget 1e19 --strategy repeat --ask r-star,rho
    """
    from derivedata.cli.eta.inputs import read_ensemble
    from derivedata.scaling.design import DEFAULT_TPP, DEFAULT_X
    from derivedata.scaling.design import design as make_design

    if not 0 < noise < 1:
        raise UserError(
            "the noise of ln loss is a small positive number", where="--noise", value=noise, remedy="for example .01"
        )
    found = make_design(
        read_ensemble(law).law,
        sizes=sizes,
        budget=budget,
        strategies=strategies or None,
        ask=tuple(part.strip() for part in ask.split(",") if part.strip()),
        tpp=tpp or DEFAULT_TPP,
        x=_levels(levels) if levels else DEFAULT_X,
        max_runs=max_runs,
        noise=noise,
    )
    if as_json:
        words.print_json(found)
        return
    rows = [_row(i, run) for i, run in enumerate(found.runs)]
    if output:
        _write(output, rows)
    else:
        shown = [
            {**row, **{k: shorten(float(row[k])) for k in ("n_params", "fresh_tokens", "derived_tokens", "flops")}}
            for row in rows
        ]
        words.say(words.table(shown))
        words.say("")
    _summary(found, output)


def _levels(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UserError("no list of numbers", where="--x", value=text, remedy="write 1,3,7,15") from None
    if not values or not all(0 <= value < 1e6 for value in values):
        raise UserError("x = D'/D is zero or more", where="--x", value=text)
    return values


def _row(index: int, run) -> dict[str, str]:
    whole = {key: str(round(getattr(run, key))) for key in ("n_params", "fresh_tokens", "derived_tokens")}
    return {
        "run": f"{index:03d}",
        **whole,
        "strategy": run.strategy,
        "x": f"{run.x:g}",
        "epochs": f"{run.epochs:g}",
        "seed": str(run.seed),
        "flops": f"{run.flops:.4g}",
    }


def _write(path: str, rows: list[dict[str, str]]) -> None:
    try:
        with Path(path).open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise UserError("cannot be written", where=path, value=error.strerror) from None


def _summary(found: Design, output: str | None) -> None:

    kinds = Counter(run.strategy for run in found.runs)
    parts = ", ".join(f"{count} {name}" for name, count in sorted(kinds.items()))
    where = f" in {output}" if output else ""
    words.say(f"{len(found.runs)} runs{where} ({parts}), {found.flops:.3g} of {found.budget:.3g} FLOPs for training")
    words.say(
        f"\nstandard errors to expect, if {found.guess} is about right and ln loss has a noise of {found.noise:g}:"
    )
    rows = [
        {
            "strategy": e.strategy,
            "R* at the centre": words.figure(e.r_star),
            "of ln R*": words.figure(e.ln_r),
            "of rho": words.figure(e.rho),
            "of sigma": words.figure(e.sigma),
        }
        for e in found.errors
    ]
    words.say(words.table(rows))
    words.say(f"identifies: {', '.join(found.identifies)}")
    for line in words.footnotes((), found.notes):
        words.say(line)
    words.say(
        "N: all parameters except the input embedding, LM head counted; generation of derived tokens not in FLOPs"
    )
