"""`derivedata demo`: the whole job on a small built-in corpus with the embedded model."""

from __future__ import annotations

import click

from derivedata.cli.quantity import Quantity, shorten

QUERY = """
SELECT style, count(*) AS documents, sum(tokens) AS tokens, round(avg(tokens)) AS mean_tokens,
       round(sum(tokens) / sum(prompt_tokens), 2) AS per_prompt_token
FROM documents GROUP BY style ORDER BY style
"""


@click.command()
@click.argument("folder", default="demo")
@click.option("--documents", type=click.IntRange(1), help="Use so many of the documents. Default: all 24.")
@click.option(
    "--params", type=Quantity(), default=14e6, help="Value the tokens for a model of this size. [default: 14M]"
)
def demo(folder: str, documents: int | None, params: float) -> None:
    """Paraphrase the built-in sample corpus into FOLDER, and ask DuckDB what came out.

    Needs no GPU and no network: SmolLM2-135M comes in a package and runs in vLLM on the CPU.
    """
    from pathlib import Path

    from derivedata.cli import show
    from derivedata.cli.eta.tokens import corpus_lines
    from derivedata.cli.render import printable, text_table
    from derivedata.corpus.sample import write_sample_corpus
    from derivedata.pipelines.run import ParaphraseOptions, paraphrase_corpus
    from derivedata.store.query import run_query

    corpus, output = str(Path(folder) / "corpus"), str(Path(folder) / "derived")
    shards = write_sample_corpus(corpus)
    narrator = show.Narrator()
    narrator.say(f"sample corpus: {len(shards)} Dolma shards in {corpus}")
    options = ParaphraseOptions(corpus=(corpus,), output=output, model="smollm2-135m", documents=documents)
    outcome = paraphrase_corpus(options, narrator)
    show.outcome(outcome)
    click.echo("\nTwo of the documents:")
    for document in show.examples(output, ("faq", "question")):
        click.echo(
            f"\n[{document['metadata']['derivedata']['style']}] from {document['metadata']['derivedata']['source_id']}"
        )
        click.echo("\n".join(printable(line) for line in document["text"].splitlines()))
    click.echo(f'\n$ derivedata query {output} "{" ".join(QUERY.split())}"')
    rows = run_query({"corpus": output}, QUERY)
    click.echo(text_table(rows.to_pylist(), rows.column_names))
    click.echo(f"\n$ derivedata eta tokens {output} --params {shorten(params)}")
    for line in corpus_lines([output], params=params):
        click.echo(line)
    click.echo(NEXT.format(output=output, corpus=corpus))


NEXT = """
What to try next:
  derivedata query {output} "SELECT reason, count(*) FROM rejected GROUP BY ALL"
  derivedata verify {output}
  derivedata paraphrase {corpus} -o {output} --rewrites 2        (goes on from what is there)
  derivedata styles show faq
"""
