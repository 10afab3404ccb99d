"""`derivedata tokenize`: token shards for OLMo-core or nanotron."""

from __future__ import annotations

import math

import click

from derivedata.cli.options import restart_option, task_options
from derivedata.cli.quantity import Quantity


@click.command()
@click.argument("corpus", nargs=-1, required=True)
@click.option("-o", "--output", required=True, help="Folder or URL that receives the tokens.")
@click.option("--tokenizer", required=True, help="Folder or hub id.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["olmo", "nanotron"]),
    default="olmo",
    show_default=True,
    help="OLMo-core's .npy and .csv.gz, or nanotron's .ds.",
)
@click.option("--style", help="Of an output of ours, only the documents of this style.")
@click.option("--eos", metavar="TOKEN", help="Ends each document.  [default: what the tokenizer calls its end of text]")
@click.option("--shard-size", type=Quantity(), default=256e6, help="Bytes of text in a shard, about.  [default: 256M]")
@task_options
@restart_option
def tokenize(*, corpus, format_, shard_size, **options) -> None:
    """Write CORPUS (a mix, a repeat, an output, or Dolma folders) as token shards, in its exact order.

    What looks like a control token in a text stays text. Run again after an interruption it goes on where it was.

    \b
    derivedata tokenize mix -o tokens --tokenizer allenai/dolma2-tokenizer --format olmo
    """
    from derivedata.cli.show import Narrator
    from derivedata.pipelines.tokenize import TokenizeOptions, tokenize_corpus

    settings = TokenizeOptions(corpus=corpus, format=format_, shard_bytes=math.ceil(shard_size), **options)
    found = tokenize_corpus(settings, Narrator())
    click.echo(
        f"{found.tokens:,} tokens of {found.documents:,} documents in {found.shards:,} "
        f"{'shard' if found.shards == 1 else 'shards'} ({found.dtype}, each document ended by {found.eos}, "
        f"encoded with {found.tokenizer})"
    )
