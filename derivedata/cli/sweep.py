"""`derivedata sweep DESIGN.csv -o RUNS`: train the runs of a design into the table that `eta fit` reads."""

from __future__ import annotations

import sys

import click

from derivedata.cli.train_lm import learning_options, read_recipe, read_share
from derivedata.errors import UserError


@click.command()
@click.argument("design")
@click.option("-o", "--output", required=True, metavar="RUNS", help="Local folder of the sweep.")
@click.option("--fresh", multiple=True, required=True, metavar="CORPUS", help="The fresh corpus. Repeatable.")
@click.option(
    "--derived", "derived", multiple=True, metavar="STRATEGY=CORPUS", help="Made from it. CORPUS#STYLE: one style."
)
@click.option(
    "--score", "scored", multiple=True, metavar="NAME=CORPUS", help="Score every run on other text, too. Repeatable."
)
@click.option("--lr", default="", metavar="LR,...", help="Grid of peak learning rates.  [default: one, by size]")
@click.option("--weight-decay", default="0.1", show_default=True, metavar="WD,...", help="Grid of weight decays.")
@click.option("--warmup-share", default="10%", show_default=True, help="Warm-up, as a share of one epoch of D.")
@learning_options
@click.option("--data-seed", type=int, default=0, show_default=True, help="Of the order of which every D is a prefix.")
@click.option("--workers", type=click.IntRange(1), help="Cells at a time.  [default: one a GPU, or one a core]")
@click.option("--restart", is_flag=True, help="Throw away what RUNS holds and start over.")
def sweep(*, design, output, fresh, derived, scored, lr, weight_decay, warmup_share, micro_batch, z_loss, clip,
          precision, decay, holdout, eval_data, vocab, **options):  # fmt: skip
    """Train the models of DESIGN (from `eta design`, or by hand) and measure what derived tokens did to them.

    \b
    derivedata eta design --sizes .044M,.14M --budget 1e15 -o design.csv
    derivedata sweep design.csv --fresh corpus --derived paraphrase=derived --holdout 5% -o runs
    derivedata eta fit runs/runs.parquet -o fit.json

    DESIGN has n_params, fresh_tokens, derived_tokens or x, strategy, seed; by hand also lr, weight_decay. The runs of
    one N, D and recipe share a WSD trunk. Run again it trains what is missing.
    """
    from derivedata.cli.show import Narrator
    from derivedata.trainers.sweep import SweepOptions, run_sweep

    for name in ("batch_tokens", "eval_tokens"):
        options[name] = None if options[name] is None else round(options[name])
    settings = SweepOptions(
        design=design,
        output=output,
        fresh=fresh,
        derived=dict(_named(pair, "--derived") for pair in derived),
        scored=dict(_named(pair, "--score") for pair in scored),
        lr=_numbers(lr, "--lr"),
        weight_decay=_numbers(weight_decay, "--weight-decay"),
        warmup_share=read_share(warmup_share, "--warmup-share"),
        decay=read_share(decay, "--decay"),
        holdout=None if holdout is None else read_share(holdout, "--holdout"),
        eval_data=eval_data,
        vocabulary=vocab,
        recipe=read_recipe(0.1, micro_batch, z_loss, clip, precision, options["device"]),
        **options,
    )
    found = run_sweep(settings, Narrator())
    for warning in found["warnings"]:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{found['runs']} runs in {found['grid']}, the {found['rows']} best of their grids in {found['table']}")
    for cell, said in found["failures"].items():
        click.echo(f"failed: {cell}: {said}", err=True)
    if found["failures"]:
        click.echo("derivedata: run the same command again to train what is missing", err=True)
        sys.exit(1)


def _named(pair: str, option: str) -> tuple[str, str]:
    name, equals, place = pair.partition("=")
    if not equals or not name.strip() or not place.strip():
        raise UserError("must be name=corpus", where=option, value=pair, remedy="for example paraphrase=derived")
    if not all(c.isalnum() or c in "._-" for c in name.strip()):
        raise UserError("a plain name is wanted", where=option, value=name)
    return name.strip(), place.strip()


def _numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",") if part.strip()))
    except ValueError:
        raise UserError("no list of numbers", where=option, value=text, remedy="write .003,.01,.03") from None
