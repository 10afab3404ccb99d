"""`derivedata tokens`: how many tokens a corpus holds, exactly, by source, strategy and style."""

from __future__ import annotations

import click

from derivedata.cli.options import task_options

SHOWN_ROWS = 40


@click.command()
@click.argument("corpus", nargs=-1, required=True)
@click.option("--tokenizer", required=True, help="Folder or hub id; its name is what the counts are kept under.")
@click.option("-o", "--output", help="Folder that keeps the counts of a corpus without a manifest.")
@task_options
@click.option("--json", "as_json", is_flag=True, help="One JSON array instead of a table.")
@click.option("--restart", is_flag=True, help="Throw away the counts in OUTPUT and start over.")
def tokens(*, corpus, tokenizer, output, tasks, workers, as_json, restart) -> None:
    """Count the tokens of CORPUS with a tokenizer, and keep the counts in its manifest.

    Counts of several tokenizers stand side by side; what is counted already is not counted again. For a corpus without
    a manifest (Dolma folders, files or patterns) name a folder for the counts with -o, or they are only printed.

    \b
    derivedata tokens derived --tokenizer allenai/dolma2-tokenizer
    derivedata query derived "SELECT tokenizer, style, sum(tokens) FROM token_counts GROUP BY ALL"
    """
    from derivedata.cli.render import json_row, text_table
    from derivedata.cli.show import Narrator
    from derivedata.pipelines.count import count_tokens

    narrator = Narrator()
    counts = count_tokens(
        corpus, tokenizer, output=output, tasks=tasks, workers=workers, restart=restart, listener=narrator
    )
    if as_json:
        click.echo("[" + ",\n ".join(json_row(row) for row in counts.frame.to_dicts()) + "]")
        return
    click.echo(text_table(counts.frame.head(SHOWN_ROWS).to_dicts(), counts.frame.columns))
    if counts.frame.height > SHOWN_ROWS:
        click.echo(f"and {counts.frame.height - SHOWN_ROWS:,} more rows; --json or the view token_counts has all")
    for name, documents, total in counts.totals():
        click.echo(f"{total:,} tokens in {documents:,} documents, counted with {name}")
    if counts.skipped:
        narrator.say(f"{counts.skipped:,} rows are no documents and were not counted")
    if counts.kept_in is None:
        narrator.say("the counts are kept nowhere: name a folder for them with -o")
