"""`derivedata verify`: is an output what it says it is?"""

from __future__ import annotations

import sys

import click


@click.command()
@click.argument("corpus")
@click.option("--source", multiple=True, help="Where the source corpus is now. Default: where the run record says.")
@click.option("--no-tokens", is_flag=True, help="Don't count the tokens again.")
@click.option("--tasks", type=click.IntRange(1), default=1, show_default=True, help="Datatrove tasks.")
@click.option("--workers", type=click.IntRange(1), help="Tasks at a time. Default: all.")
def verify(corpus: str, source: tuple[str, ...], no_tokens: bool, tasks: int, workers: int | None) -> None:
    """Check CORPUS: hashes, counts, identities, lineage to the source, and the books.

    Prints a line for each thing that is wrong, naming the file, and exits with 1 if there is any. Changes nothing.
    """
    from derivedata.cli.render import printable
    from derivedata.pipelines.verify import verify_corpus

    found = verify_corpus(corpus, source=source, count_tokens=not no_tokens, tasks=tasks, workers=workers or tasks)
    for note in found.notes:
        click.echo(printable(note), err=True)
    for problem in found.problems:
        click.echo(printable(f"{problem.where}: {problem.what}"))
    counted = "tokens counted again" if found.tokens_counted else "tokens not counted again"
    click.echo(
        f"{found.shards:,} shards, {found.documents:,} documents ({counted}), {found.sources:,} source files: "
        + (f"{len(found.problems):,} problems" if found.problems else "all as it should be")
    )
    sys.exit(1 if found.problems or found.notes else 0)
