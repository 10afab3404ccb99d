"""`derivedata verify-answers`: check responses against gold answers."""

from __future__ import annotations

from collections import Counter

import click


@click.command("verify-answers")
@click.argument("file")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the verdicts (.jsonl or .parquet).")
@click.option("--gold-field", help="Column of the gold answer; dots reach into structs.  [default: recognised]")
@click.option("--answer-field", help="Column of the response or bare answer.  [default: recognised]")
@click.option(
    "--answers",
    type=click.Choice(["strict", "lenient", "last-number", "math-verify"]),
    default="lenient",
    show_default=True,
    help="How the answer is found in a response.",
)
@click.option(
    "--form",
    type=click.Choice(["boxed", "hashes"]),
    default="boxed",
    show_default=True,
    help="The form that strict demands: \\boxed{} or ####.",
)
@click.option("--verifier", "plugin", metavar="MODULE:FUNCTION", help="Your own check, called as f(gold, response).")
@click.option("--workers", type=int, default=0, help="Processes for what comparison can't decide.  [default: CPUs]")
@click.option("--deadline", type=float, default=3.0, show_default=True, help="Seconds that one answer may take.")
def verify_answers(file, output, gold_field, answer_field, answers, form, plugin, workers, deadline) -> None:
    """Check the responses in FILE (jsonl, json or Parquet; any fsspec URL) against its gold answers.

    Each row gets a verdict: correct, wrong, no_answer, verifier_timeout, verifier_error, or unscored (no gold answer).
    Numbers and strings are compared directly; the rest goes to math-verify, in processes killed at the deadline.

    \b
      derivedata verify-answers answers.jsonl --gold-field gold --answer-field response -o verdicts.parquet
    """
    from derivedata.cli.progress import Progress, State
    from derivedata.problems.answer_file import as_row, check_file, write_outcomes
    from derivedata.problems.verifier import VERDICTS, Verifier
    from derivedata.problems.workers import WorkerLimits

    counts: Counter[str] = Counter()
    deciders: Counter[str] = Counter()

    def look() -> State:
        done = counts.total()
        return State(done, None, f"{done:,} answers, {counts['correct']:,} correct")

    limits = WorkerLimits(workers=workers, deadline=deadline)
    with Verifier(answers=answers, plugin=plugin, limits=limits) as verifier:
        name = verifier.name
        checked = check_file(file, verifier, gold_field=gold_field, answer_field=answer_field, form=form)
        rows = (as_row(one, name) for one in checked)
        with Progress("verifying", look):
            for row in write_outcomes(output, rows) if output else rows:
                counts[row["verdict"]] += 1
                deciders[row["by"] or "none"] += 1
    total = counts.total()
    scored = total - counts["unscored"]
    click.echo(f"{total:,} rows = " + " + ".join(f"{counts[v]:,} {v}" for v in (*VERDICTS, "unscored")))
    if scored:
        click.echo(f"correct {counts['correct'] / scored:.1%} of {scored:,} with a gold answer")
    click.echo("decided by " + ", ".join(f"{by} {count:,}" for by, count in deciders.most_common() if by != "none"))
    click.echo(f"verifier {name}")
    if output:
        click.echo(f"verdicts in {output}")
