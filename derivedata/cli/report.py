"""`derivedata report CORPUS -o report.html`: a corpus on one page."""

from __future__ import annotations

import click


@click.command()
@click.argument("corpus", nargs=-1, required=True)
@click.option("-o", "--output", default="report.html", show_default=True, metavar="FILE.html")
@click.option("--examples", type=click.IntRange(0), default=3, show_default=True, help="Documents shown of each style.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed shows other documents.")
def report(*, corpus, output, examples, seed) -> None:
    """Put CORPUS on one page that needs no network: where it comes from, what is in it, and how it reads.

    Lineage, counts by style, lengths, what was rejected and why, and documents beside the ones they were derived from,
    with what both say in the same words marked.

    \b
    derivedata report derived -o report.html
    """
    from derivedata.pipelines.corpus_report import write_report

    place = corpus[0] if len(corpus) == 1 else list(corpus)
    written = write_report(place, output, examples=examples, seed=seed)
    click.echo(f"written to {written}")
