"""`derivedata verify`: is an output what it says it is? And `--repair`: make it so again."""

from __future__ import annotations

import sys

import click

from derivedata.cli.options import task_options
from derivedata.errors import UserError


@click.command()
@click.argument("corpus")
@click.option("--source", multiple=True, help="Where the source corpus is now.  [default: where the run record says]")
@click.option("--no-tokens", is_flag=True, help="Don't count the tokens again.")
@task_options
@click.option("--repair", is_flag=True, help="Make anew what is missing or damaged, and nothing else.")
@click.option("--model", help="With --repair: where the model is now.  [default: where the run record says]")
@click.option("--endpoint", "endpoints", multiple=True, help="With --repair: a server that runs already. Repeatable.")
@click.option("--style", "styles", multiple=True, help="With --repair: file of a style that is not a shipped one.")
def verify(
    corpus: str,
    source: tuple[str, ...],
    no_tokens: bool,
    tasks: int,
    workers: int | None,
    repair: bool,
    model: str | None,
    endpoints: tuple[str, ...],
    styles: tuple[str, ...],
) -> None:
    """Check CORPUS: hashes, counts, identities, lineage to the source, and the books.

    Prints a line for each thing that is wrong, naming the file, and exits with 1 if there is any, or if something
    could not be checked. Changes nothing, unless --repair is given: then the damaged parts of an output of paraphrase
    or difficulty are made again. What is sound of them is kept, a model is started only where something is lost, and
    damaged files are moved to CORPUS/quarantine.
    """
    if (model or styles or endpoints) and not repair:
        raise UserError("--model, --endpoint and --style need --repair")
    if repair:
        verified = _repaired(corpus, source, not no_tokens, tasks, workers or tasks, model, endpoints, styles)
    else:
        from derivedata.pipelines.verify import verify_corpus

        how = {"source": source, "count_tokens": not no_tokens, "tasks": tasks, "workers": workers or tasks}
        verified = verify_corpus(corpus, **how)
    _tell(verified)
    sys.exit(1 if verified.problems or verified.notes else 0)


def _repaired(corpus, source, count_tokens, tasks, workers, model, endpoints, styles):
    """Mend the output and say what was done."""
    from derivedata.cli.show import Narrator
    from derivedata.pipelines.repair import repair_corpus
    from derivedata.pipelines.repair_job import Given

    done = repair_corpus(
        corpus,
        given=Given(source=source, styles=styles, model=model, endpoints=endpoints),
        count_tokens=count_tokens,
        tasks=tasks,
        workers=workers,
        listener=Narrator(),
    )
    if done.parts:
        parts = f"{len(done.parts):,} part" + ("s" if len(done.parts) != 1 else "")
        click.echo(f"made anew: {parts}; {done.kept:,} outcomes were sound, {done.asked:,} were asked for again")
    for path in done.restored:
        click.echo(f"written anew: {path}")
    for path in done.quarantined:
        click.echo(f"moved to quarantine/: {path}")
    if done.unfinished:
        click.echo("the job itself was interrupted: run its command again to go on with it")
    return done.verified


def _tell(verified) -> None:
    from derivedata.cli.render import printable

    for note in verified.notes:
        click.echo(printable(note), err=True)
    for problem in verified.problems:
        click.echo(printable(f"{problem.where}: {problem.what}"))
    counted = "tokens counted again" if verified.tokens_counted else "tokens not counted again"
    result = "all as it should be"
    if verified.problems:
        result = f"{len(verified.problems):,} problems"
    elif verified.notes:
        result = "nothing wrong was found, but not everything could be checked"
    looked = f"{verified.files:,} files"  # of rollouts or of tokens: such outputs hold no documents
    if verified.shards:
        looked = f"{verified.shards:,} shards, {verified.documents:,} documents ({counted})"
    click.echo(f"{looked}, {verified.sources:,} source files: {result}")
