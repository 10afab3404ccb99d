"""`derivedata paraphrase`: rewrite a corpus in several styles."""

from __future__ import annotations

import math

import click

from derivedata.cli.cluster import cluster_options, take_cluster
from derivedata.cli.options import (
    bad_input_option,
    format_option,
    model_options,
    parse_pair,
    parse_share,
    restart_option,
    task_options,
)
from derivedata.cli.quantity import Quantity
from derivedata.errors import UserError


@click.command()
@click.argument("corpus", nargs=-1, required=True)
@click.option("-o", "--output", required=True, help="Folder or URL that receives the derived corpus.")
@click.option(
    "--style", "styles", multiple=True, help="Name or file of a style. Repeatable.  [default: the four shipped]"
)
@click.option("--every-style", is_flag=True, help="Each document in each style (the default).")
@click.option("--style-mix", metavar="S=W,...", help="One style a document and rewrite, drawn with these weights.")
@click.option(
    "--rewrites", type=click.IntRange(1), default=1, show_default=True, help="Samples of each document and style."
)
@click.option("--tokens", type=Quantity(), help="Stop at so many derived tokens, e.g. 500M.")
@click.option("--documents", type=click.IntRange(1), help="Use so many source documents.")
@model_options
@click.option(
    "--tokenizer",
    help="Folder or hub id of the tokenizer that counts (with --endpoint, that of the model).  [default: the model's]",
)
@click.option("--temperature", type=float, help="[default: each style's own]")
@click.option("--top-p", type=float, help="[default: each style's own]")
@click.option("--max-tokens", type=click.IntRange(1), help="New tokens of a generation.  [default: each style's own]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order and of every sample.")
@click.option("--filter", "filter_", metavar="MODULE:FUNCTION", help="Asked about each generation before it is kept.")
@format_option
@click.option(
    "--chunk-size", type=Quantity(), default=128e6, help="Bytes of source text committed at once.  [default: 128M]"
)
@task_options
@cluster_options
@bad_input_option
@click.option("--dry-run", is_flag=True, help="Say what it would do and how long that takes.")
@click.option("--rate", type=Quantity(), help="With --dry-run: new tokens a second to reckon with.")
@click.option("--params", type=Quantity(), help="With --dry-run: say what the tokens are worth to so large a model.")
@restart_option
def paraphrase(
    corpus, output, dry_run, rate, params, every_style, style_mix, styles, filter_, format_, max_bad_input, **options
):
    """Rewrite the documents of CORPUS (Dolma folders, files or patterns) with a model.

    Run again after an interruption it goes on where it was; with more --tokens, --documents, --rewrites or another
    --style it extends the output.
    """
    if every_style and style_mix:
        raise UserError("--every-style and --style-mix exclude each other", remedy="give one of them")
    if (rate or params) and not dry_run:
        raise UserError("--rate and --params need --dry-run")
    from derivedata.cli import show
    from derivedata.pipelines.forecast import forecast_paraphrase
    from derivedata.pipelines.run import ParaphraseOptions, paraphrase_corpus

    settings = ParaphraseOptions(
        corpus=corpus,
        output=output,
        styles=styles,
        style_mix=parse_mix(style_mix) if style_mix else None,
        filter=filter_,
        format=format_,
        max_bad_input=parse_share(max_bad_input, "--max-bad-input"),
        vllm_args=tuple(parse_pair(pair, "--vllm-arg") for pair in options.pop("vllm_args")),
        tokens=_whole(options.pop("tokens")),
        chunk_bytes=_whole(options.pop("chunk_size")),
        cluster=take_cluster(options),
        **options,
    )
    if dry_run:
        show.forecast(forecast_paraphrase(settings, rate=rate, say=show.Narrator().say), params)
        return
    show.outcome(paraphrase_corpus(settings, show.Narrator()))


def parse_mix(text: str) -> dict[str, float]:
    """Weights of a style mix: question=1,math=1,faq=2."""
    mix: dict[str, float] = {}
    for part in text.split(","):
        name, value = parse_pair(part, "--style-mix")
        try:
            weight = float(value)
        except ValueError:
            weight = -1.0
        if not 0 < weight < float("inf"):
            raise UserError("a weight must be a number above 0", where="--style-mix", value=part)
        if name in mix:
            raise UserError("names a style twice", where="--style-mix", value=name)
        mix[name] = weight
    return mix


def _whole(value: float | None) -> int | None:
    return None if value is None else math.ceil(value)
