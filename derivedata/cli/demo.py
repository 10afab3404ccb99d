"""`derivedata demo`: the whole job on a small built-in corpus with the embedded model."""

from __future__ import annotations

import click

from derivedata.cli.quantity import Quantity, shorten

QUERY = """
SELECT style, count(*) AS documents, sum(tokens) AS tokens, round(avg(tokens)) AS mean_tokens,
       round(sum(tokens) / sum(prompt_tokens), 2) AS per_prompt_token
FROM documents GROUP BY style ORDER BY style
"""

# A short pass: every fifth of the sixty problems, half the usual samples, in the context that paraphrasing uses.
EVERY, SAMPLES, CONTEXT = 5, 8, 4096


@click.command()
@click.argument("folder", default="demo")
@click.option("--documents", type=click.IntRange(1), help="Use so many of the documents.  [default: all 24]")
@click.option(
    "--params", type=Quantity(), default=14e6, help="Value the tokens for a model of this size.  [default: 14M]"
)
def demo(folder: str, documents: int | None, params: float) -> None:
    """Paraphrase the built-in sample corpus into FOLDER, ask DuckDB what came out, and measure a few problems.

    Needs no GPU and no network: SmolLM2-135M comes in a package and runs in vLLM on the CPU.
    """
    from pathlib import Path

    from derivedata.cli import show
    from derivedata.cli.eta.tokens import corpus_lines
    from derivedata.cli.render import printable, text_table
    from derivedata.corpus.sample import write_sample_corpus
    from derivedata.pipelines.difficulty_options import DifficultyOptions
    from derivedata.pipelines.difficulty_run import measure_difficulty
    from derivedata.pipelines.difficulty_tables import band_rows
    from derivedata.pipelines.one_server import one_server
    from derivedata.pipelines.run import ParaphraseOptions, paraphrase_corpus
    from derivedata.problems.sample import sample_problems
    from derivedata.store.query import run_query

    corpus, output = str(Path(folder) / "corpus"), str(Path(folder) / "derived")
    shards = write_sample_corpus(corpus)
    narrator = show.Narrator()
    narrator.say(f"sample corpus: {len(shards)} Dolma shards in {corpus}")
    options = ParaphraseOptions(corpus=(corpus,), output=output, model="smollm2-135m", documents=documents)
    problems = Path(folder) / "problems.jsonl"
    problems.write_text("".join(sample_problems().read_text().splitlines(keepends=True)[::EVERY]))
    measuring = DifficultyOptions(
        problems=(str(problems),),
        output=str(Path(folder) / "measured"),
        model=options.model,
        samples=SAMPLES,
        max_tokens=48,
        context=CONTEXT,
    )
    with one_server() as serve:
        outcome = paraphrase_corpus(options, narrator, serve=serve)
        measured = measure_difficulty(measuring, narrator, serve=serve)
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
    click.echo(f"\nHow hard {measured.problems.height} built-in problems are for the same model:")
    rows = band_rows(measured)
    click.echo(text_table(rows, list(rows[0])))
    click.echo(NEXT.format(measured=measuring.output, output=output, corpus=corpus))


NEXT = """
What to try next:
  derivedata query {output} "SELECT reason, count(*) FROM rejected GROUP BY ALL"
  derivedata verify {output}
  derivedata paraphrase {corpus} -o {output} --rewrites 2        (goes on from what is there)
  derivedata styles show faq
  derivedata query {measured} "SELECT verdict, truncated, count(*) FROM rollouts GROUP BY ALL"
"""
