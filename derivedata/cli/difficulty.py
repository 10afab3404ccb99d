"""`derivedata difficulty`: how hard problems are for a model, and the easy and hard sets."""

from __future__ import annotations

import click

from derivedata.cli.cluster import cluster_options, take_cluster
from derivedata.cli.options import model_options, parse_pair, restart_option, task_options
from derivedata.errors import UserError


@click.command()
@click.argument("problems", nargs=-1, required=True)
@click.option("-o", "--output", required=True, help="Folder or URL that receives the measurement.")
@click.option("--layout", help="Layout of the problems.  [default: recognised by the columns]")
@click.option("--question-field", help="Column of the question; dots reach into structs.")
@click.option("--answer-field", help="Column of the right answer; dots reach into structs.")
@click.option("--samples", type=click.IntRange(1), default=16, show_default=True, help="Rollouts of each problem: k.")
@click.option(
    "--bands",
    default="isocompute",
    show_default=True,
    help="isocompute (hard 0:0.0625, easy 0.3:0.6), names such as hard,easy,very-easy, or own: easy=0.3:0.6.",
)
@click.option(
    "--early-stop",
    default="none",
    show_default=True,
    help="Stop a problem when its band is settled: none, exact, or with a probability such as 0.99.",
)
@click.option(
    "--refine-borderline",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="N more rollouts of problems whose band is uncertain.",
)
@click.option("--rescore", is_flag=True, help="Fresh rollouts of the problems in the bands, to serve as a baseline.")
@click.option("--validation", type=click.IntRange(0), default=0, metavar="N", help="Hold N problems of each band out.")
@click.option(
    "--answers",
    type=click.Choice(["strict", "lenient", "last-number", "math-verify"]),
    default="lenient",
    show_default=True,
    help="How the answer is found in a response.",
)
@click.option("--verifier", metavar="MODULE:FUNCTION", help="Your own check, called as f(gold, response).")
@model_options
@click.option("--tokenizer", help="With --endpoint: folder or hub id of the model's tokenizer.")
@click.option("--temperature", type=float, default=0.6, show_default=True)
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), default=2048, show_default=True, help="New tokens of a rollout.")
@click.option("--template", help="chat, plain, or a file with {question}.  [default: chat where the model has one]")
@click.option("--prompt-suffix", help="Added to each question, unless it demands a form of answer already.")
@click.option("--system", help="System message, in the place of the problems' own.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order and of every rollout.")
@click.option(
    "--chunk-problems", type=click.IntRange(1), default=128, show_default=True, help="Problems committed at once."
)
@task_options
@cluster_options
@click.option(
    "--verify-workers",
    type=click.IntRange(0),
    default=0,
    help="Processes of a task that check answers.  [default: cores]",
)
@click.option(
    "--report", type=click.Path(dir_okay=False), help="HTML page of the result.  [default: OUTPUT/report.html]"
)
@click.option("--dry-run", is_flag=True, help="Say what it would do, and show the first prompt.")
@restart_option
def difficulty(problems, output, report, dry_run, **options) -> None:
    """Measure how often a model solves each of PROBLEMS, and split them into easy, hard and the rest.

    PROBLEMS are files (jsonl, json, Parquet), folders, URLs or Hugging Face data sets. Run again after an interruption
    it goes on where it was.

    \b
      derivedata difficulty train.parquet -o measured --model Qwen/Qwen2.5-1.5B-Instruct
      derivedata problems mix measured easy=.5 hard=.5 --size 5000
    """
    from derivedata.cli.show import Narrator
    from derivedata.pipelines.difficulty_options import DifficultyOptions, forecast_difficulty

    pairs = tuple(parse_pair(pair, "--vllm-arg") for pair in options.pop("vllm_args"))
    cluster = take_cluster(options)
    settings = DifficultyOptions(problems=problems, output=output, vllm_args=pairs, cluster=cluster, **options)
    if dry_run:
        if report:
            raise UserError("--dry-run measures nothing to report on")
        _forecast(forecast_difficulty(settings, Narrator().say))
        return
    from derivedata.pipelines.difficulty_page import write_page
    from derivedata.pipelines.difficulty_run import measure_difficulty

    measured = measure_difficulty(settings, Narrator())
    _told(measured)
    click.echo(f"\nreport in {write_page(output, report)}")


def _forecast(forecast) -> None:
    counts = forecast.counts
    layouts = ", ".join(f"{name} {count:,}" for name, count in sorted(counts["layouts"].items()))
    click.echo(f"problems       {counts['rows']:,} ({layouts})")
    if forecast.refused:
        click.echo("unscored       " + ", ".join(f"{why} {n:,}" for why, n in sorted(forecast.refused.items())))
    click.echo(f"rollouts       at most {forecast.rollouts:,}")
    click.echo(f"prompt tokens  {forecast.prompt_tokens:,}, computed once and shared by the samples")
    click.echo(f"new tokens     at most {forecast.new_tokens:,}")
    if forecast.example:
        from derivedata.cli.render import printable

        click.echo("\nthe first prompt:")
        click.echo("\n".join(printable(line) for line in forecast.example.splitlines()))


def _told(measured) -> None:
    """Print bands, pass rates, what the labels are worth, what was saved, and the books."""
    from derivedata.cli.render import text_table
    from derivedata.pipelines.difficulty_tables import band_rows, books_line, histogram, pass_rows, remarks

    k = measured.k
    click.echo(f"\n{'correct':>7} of {k}")
    for line in histogram(measured):
        click.echo(line)
    click.echo("")
    rows = band_rows(measured)
    click.echo(text_table(rows, list(rows[0])))
    if rows := pass_rows(measured):
        click.echo("")
        click.echo(text_table(rows, list(rows[0])))
    click.echo("")
    for line in remarks(measured):
        click.echo(line)
    click.echo(books_line(measured))
