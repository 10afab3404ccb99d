"""`derivedata rl import LOG... -o RUNS`: logs of verl and TRL, and plain tables, as folders of runs."""

from __future__ import annotations

from pathlib import Path

import click

from derivedata.cli.eta import words
from derivedata.errors import UserError


@click.command("import")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True)
@click.option("-o", "--output", required=True, metavar="RUNS", help="Folder for the runs, a folder each.")
@click.option("--problems-per-batch", type=click.IntRange(1), help="B_p of these runs (verl: data.train_batch_size).")
@click.option("--rollouts", type=click.IntRange(1), help="n of these runs (verl: rollout.n; TRL: num_generations).")
@click.option("--recipe", help="Name of the recipe; runs of one recipe are its seeds.")
@click.option("--run", "name", help="Name of the run.  [default: name of the log]")
@click.option("--source", help="Which validation set of verl's log.")
@click.option("--training-reward", is_flag=True, help="Take the training reward where nothing was evaluated.")
def import_logs(*, logs, output, problems_per_batch, rollouts, recipe, name, source, training_reward) -> None:
    """Make runs of other people's logs, for `rl fit`, `rl plan` and `rl check`.

    LOG is verl's console output or file log, TRL's trainer_state.json or its log lines as JSONL, or a table with
    columns run, C, reward, n, B_p. C is step x B_p x n.

    \b
    derivedata rl import verl.log --problems-per-batch 512 --rollouts 8 -o runs
    derivedata rl import curves.csv -o runs
    """
    if name and len(logs) > 1:
        raise UserError("--run names one run", where="--run", value=name, remedy="import one log at a time")
    for log in logs:
        path = Path(log)
        if path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".parquet")):
            _table(path, Path(output))
        else:
            _log(path, Path(output), problems_per_batch, rollouts, recipe, name, source, training_reward)


def _table(path: Path, output: Path) -> None:
    from derivedata.cli.rl.curves import METRICS, curves_of, read_frame_of

    frame, _ = read_frame_of([path])
    metrics = [m for m in METRICS if frame[m].null_count() < frame.height]
    # What fits are made of is checked before anything is written.
    for metric in metrics:
        curves_of(frame, metric)
    for (run,), rows in frame.group_by(["run"], maintain_order=True):
        rows = rows.sort("C")
        first = rows.row(0, named=True)
        config = {
            "recipe": first["recipe"],
            "problems_per_batch": None if first["B_p"] is None else int(first["B_p"]),
            "rollouts_per_problem": None if first["n"] is None else int(first["n"]),
            "seed": first["seed"],
        }
        evaluations = [
            {"step": None, "rollouts": row["C"], **{m: row[m] for m in METRICS}, "k": None, "problems": None}
            for row in rows.iter_rows(named=True)
        ]
        _write(output, str(run), config, path, [], evaluations)


def _log(
    path: Path,
    output: Path,
    problems: int | None,
    rollouts: int | None,
    recipe: str | None,
    name: str | None,
    source: str | None,
    training_reward: bool,
) -> None:
    from derivedata.cli.rl.foreign import read_foreign

    if problems is None or rollouts is None:
        raise UserError(
            "logs of verl and TRL do not say B_p and n", where=path,
            remedy="give --problems-per-batch and --rollouts, from the run's configuration",
        )  # fmt: skip
    found = read_foreign(path, source=source)
    batch = problems * rollouts
    empty = dict.fromkeys(("tokens", "reward", "entropy", "kl", "length", "truncated", "zero_variance"))
    steps = [
        {"step": step, "B_p": problems, "n": rollouts, "rollouts": step * batch} | empty | metrics
        for step, metrics in sorted(found.steps.items())
        if step > 0
    ]
    seen = found.evaluations
    if not seen and training_reward:
        seen = {step: {"avg": row["reward"], "k": rollouts} for step, row in found.steps.items() if "reward" in row}
        words.say(f"note: {path}: nothing evaluated; the training reward stands in, whose problems are not held out")
    evaluations = [
        {"step": step, "rollouts": step * batch, **dict.fromkeys(("avg", "best", "worst")), **row, "problems": None}
        for step, row in sorted(seen.items())
    ]
    if not evaluations:
        raise UserError(
            "no evaluation in this log", where=path,
            remedy="log validation (verl: trainer.test_freq; TRL: eval_strategy), or add --training-reward",
        )  # fmt: skip
    config = {"recipe": recipe, "problems_per_batch": problems, "rollouts_per_problem": rollouts, "seed": None}
    _write(output, name or path.name.split(".")[0], config | {"trainer": found.kind}, path, steps, evaluations)


def _write(output: Path, run: str, config: dict, path: Path, steps: list[dict], evaluations: list[dict]) -> None:
    from derivedata.cli.rl.logs import write_log

    if "/" in run:
        raise UserError("not a name for a run's folder", where=path, value=run, remedy="name it with --run")
    folder = output / run
    record = {"command": ["rl", "import"], "imported": path.name, "config": config}
    write_log(folder, record, steps=steps, evaluations=evaluations)
    words.say(f"{folder}: {len(steps)} steps, {len(evaluations)} evaluations")
