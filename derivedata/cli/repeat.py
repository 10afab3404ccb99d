"""`derivedata repeat`: a corpus several times, each epoch in another order."""

from __future__ import annotations

import math

import click

from derivedata.cli.options import bad_input_option, format_option, parse_share, restart_option, task_options
from derivedata.cli.quantity import Quantity, shorten


@click.command()
@click.argument("corpus", nargs=-1, required=True)
@click.option("-o", "--output", required=True, help="Folder or URL that receives the repeated corpus.")
@click.option("--epochs", type=Quantity(), help="How often, the first time included; fractions too: 2.5.")
@click.option("--tokens", type=Quantity(), help="Instead: how many tokens in all, e.g. 2B.")
@click.option("--virtual", is_flag=True, help="Write the order only; what reads the corpus follows it.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order.")
@click.option(
    "--tokenizer",
    help="Folder or hub id of the tokenizer that counts.  [default: the corpus's own, or the embedded model's]",
)
@click.option(
    "--count/--no-count",
    "count_tokens",
    default=True,
    help="Count tokens; a --virtual repeat counts when asked with --tokens or --tokenizer.",
)
@format_option
@click.option("--shard-size", type=Quantity(), default=128e6, help="Bytes of text in a shard, about.  [default: 128M]")
@task_options
@bad_input_option
@restart_option
def repeat(corpus, output, format_, tokens, shard_size, max_bad_input, **options):
    """Repeat CORPUS (Dolma folders, files, patterns, or an output), each epoch in another order.

    The first epoch is the corpus itself, in manifests `fresh`; the others are `repeat`. With more --epochs or --tokens
    the same command extends the output.

    \b
    derivedata repeat corpus -o repeated --epochs 4
    derivedata repeat corpus -o repeated --tokens 2B --virtual
    """
    from derivedata.cli import show
    from derivedata.corpus.windows import WINDOW_BYTES
    from derivedata.pipelines.repeat_run import RepeatOptions, repeat_corpus

    outcome = repeat_corpus(
        RepeatOptions(
            corpus=corpus,
            output=output,
            format=format_,
            tokens=None if tokens is None else math.ceil(tokens),
            windows_per_shard=max(1, round(shard_size / WINDOW_BYTES)),
            max_bad_input=parse_share(max_bad_input, "--max-bad-input"),
            **options,
        ),
        show.Narrator(),
    )
    for line in lines(outcome):
        click.echo(line)


def lines(outcome) -> list[str]:
    """What a repeat came to, as text."""
    from derivedata.cli.render import text_table

    whole, extra = outcome.epochs, outcome.extra
    partial = f" and {extra:,} documents of one more" if extra else ""
    first = min(outcome.documents, outcome.total_documents)
    first_tokens = outcome.tokens if whole else outcome.total_tokens
    total = outcome.total_tokens
    rows = [
        {"strategy": outcome.first, "epochs": "1", "documents": first, "tokens": shorten(first_tokens)},
        {
            "strategy": "repeat",
            "epochs": f"2-{whole + bool(extra)}" if whole + bool(extra) > 2 else "2",
            "documents": outcome.total_documents - first,
            "tokens": shorten(None if total is None or first_tokens is None else total - first_tokens),
        },
    ]
    mixing = outcome.mixing
    found = [
        text_table(rows[: 1 + (outcome.total_documents > first)], ["strategy", "epochs", "documents", "tokens"]),
        f"{whole} epochs{partial} of {outcome.documents:,} documents"
        + (f", counted with {outcome.tokenizer}" if outcome.tokenizer else "; tokens not counted"),
        _mixing(mixing),
    ]
    if outcome.copied:
        found.append(f"{outcome.copied} shards can't be read from the middle: a framed copy of each is in plan/blocks")
    return found


def _mixing(mixing) -> str:
    """How well the order mixes, as text."""
    if mixing.windows == 1:
        return f"order: one window of {mixing.blocks:,} blocks, so each epoch is a full shuffle"
    return (
        f"order: {mixing.windows:,} windows of {mixing.blocks:,} blocks; neighbours come from one block in "
        f"{mixing.neighbours:.1%} of cases (after a full shuffle {mixing.ideal:.1%}); of two documents in one window "
        f"{mixing.together:.0%} meet again in the next epoch"
    )
