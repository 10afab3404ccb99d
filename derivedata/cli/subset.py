"""`derivedata subset`: nested subsets of a corpus, without copying it."""

from __future__ import annotations

import math

import click

from derivedata.cli.options import bad_input_option, parse_share, restart_option, task_options
from derivedata.cli.quantity import Quantities, shorten


@click.command()
@click.argument("corpus", nargs=-1, required=True)
@click.option("-o", "--output", required=True, help="Folder or URL that receives a small folder a subset.")
@click.option("--tokens", type=Quantities(), required=True, help="Sizes in tokens, e.g. .1B,.6B,2.4B.")
@click.option("--validation", default="1%", show_default=True, help="Share of the documents that is held out of all.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of all documents.")
@click.option("--tokenizer", help="Folder or hub id of what counts.  [default: as the corpus, or the embedded model's]")
@task_options
@bad_input_option
@restart_option
def subset(corpus, tokens, validation, max_bad_input, **options):
    """Take subsets of CORPUS, each a prefix of one seeded order of its documents: a larger one contains the smaller.

    Every command that reads documents (paraphrase, ingest, repeat, mix, tokens, sample, report, tokenize, train) takes
    a subset by its folder. It has no manifest of its own: query, verify and export want the corpus.

    \b
    derivedata subset corpus -o subsets --tokens .1B,.6B,2.4B
    derivedata paraphrase subsets/100M -o derived --style faq
    """
    from derivedata.cli import show
    from derivedata.cli.render import text_table
    from derivedata.pipelines.subset_run import SubsetOptions, take_subsets

    taken, tokenizer = take_subsets(
        SubsetOptions(
            corpus=corpus,
            tokens=tuple(math.ceil(size) for size in tokens),
            validation=parse_share(validation, "--validation"),
            max_bad_input=parse_share(max_bad_input, "--max-bad-input"),
            **options,
        ),
        show.Narrator(),
    )
    rows = [
        {
            "subset": one.folder,
            "asked for": "held out" if one.wanted is None else shorten(one.wanted),
            "documents": one.cut.documents,
            "tokens": one.cut.tokens,
        }
        for one in taken
    ]
    click.echo(text_table(rows, ["subset", "asked for", "documents", "tokens"], widest=90))
    click.echo(f"counted with {tokenizer}; nested prefixes of one order, nothing copied")
