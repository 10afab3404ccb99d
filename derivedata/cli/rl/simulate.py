"""`derivedata rl simulate -o RUNS`: toy runs with the logs of real ones, and the optimum that a planner should find."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from derivedata.cli.eta import words
from derivedata.cli.quantity import Quantities, Quantity, shorten
from derivedata.errors import UserError

if TYPE_CHECKING:
    from derivedata.scaling.rl.simulate import Trace, World


@click.command()
@click.option("-o", "--output", required=True, metavar="RUNS", help="Folder for the runs, a folder each.")
@click.option("--world", type=click.Choice(["easy", "hard"]), default="hard", show_default=True, help="Problem set.")
@click.option("--budget", type=Quantity(), default=60_000.0, show_default=True, help="Rollouts of each run.")
@click.option("--rollouts", type=Quantities(), default=(4, 8, 16, 32, 64, 128, 256), metavar="N,...",
              help="n to train.  [default: 4,8,16,32,64,128,256]")  # fmt: skip
@click.option("--problems-per-batch", type=Quantities(), default=(16,), metavar="B_P,...", help="B_p.  [default: 16]")
@click.option(
    "--evaluations", type=click.IntRange(4, 1000), default=24, show_default=True, help="Each run, even in ln C."
)
@click.option(
    "--repeats", type=click.IntRange(2, 64), default=8, show_default=True, help="Runs that the optimum is from."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the problems and the runs.")
@words.json_option
def simulate(
    *, output, world, budget, rollouts, problems_per_batch, evaluations, repeats, seed, as_json
) -> None:  # fmt: skip
    """Train a toy model on problems of latent difficulty, once for each (B_p, n), and say which n was truly best.

    Skills move as GRPO moves them on average; problems that need different skills interfere. It is a toy: its figures
    are for learning and testing the planner, not for planning.

    \b
    derivedata rl simulate -o toy
    derivedata rl plan toy --budget 60k
    """
    from dataclasses import replace

    from derivedata.scaling.rl.simulate import WORLDS, train, true_optimum

    ns, batches = _whole(rollouts, "--rollouts"), _whole(problems_per_batch, "--problems-per-batch")
    place = Path(output)
    if place.exists() and any(place.iterdir()):
        raise UserError("this folder is not empty", where=output, remedy="name a new one")
    toy = replace(WORLDS[world], seed=seed)
    settings = {"budget": budget, "evaluations": evaluations}
    optima = {}
    for problems in batches:
        rewards = {}
        for n in ns:
            trace = train([toy], n=n, problems_per_batch=problems, seed=seed, log=True, **settings)
            write_run(place / f"bp{problems}-n{n}", trace, toy, world, seed)
            many = train([toy] * repeats, n=n, problems_per_batch=problems, seed=seed + 1, **settings)
            rewards[n] = (many.C, many.reward.mean(0))
        optima[problems] = true_optimum(rewards, 0.99 * budget)
    if as_json:
        words.print_json(
            [{"B_p": b, "best_n": best, "reward": reward} for b, (best, reward) in optima.items()]
        )  # fmt: skip
        return
    rows = [
        {"B_p": b, "n": n, "true reward": f"{value:.4f}", "": "best" if n == best else ""}
        for b, (best, reward) in optima.items()
        for n, value in reward.items()
    ]
    count = len(ns) * len(batches)
    words.say(f"{count} runs in {output}; true reward at C = {shorten(budget)}, mean of {repeats} more runs of each")
    words.say(words.table(rows))


def _whole(values: tuple[float, ...], option: str) -> list[int]:
    for value in values:
        if value != int(value) or value < 1:
            raise UserError("whole numbers are wanted", where=option, value=value)
    return sorted({int(value) for value in values})


def write_run(folder: Path, trace: Trace, toy: World, world: str, seed: int) -> None:
    """The four files of a run."""
    from derivedata.cli.rl.logs import write_log
    from derivedata.scaling.rl.simulate import measured

    batch = trace.n * trace.problems_per_batch
    config = {
        "recipe": f"toy-{world}",
        "model": "toy",
        "problems_per_batch": trace.problems_per_batch,
        "rollouts_per_problem": trace.n,
        "iterations": len(trace.steps),
        "seed": seed,
        "problems": {"count": toy.problems},
    }
    groups = [
        {"step": step, "problem": f"toy-{which}", "k": int(k), "n": trace.n}
        for step, members, right in trace.groups
        for which, k in zip(members.tolist(), right.tolist(), strict=True)
    ]
    seen = measured(trace, k=4, seed=seed)
    evaluations = [
        {"step": round(C / batch), "rollouts": int(C)}
        | {name: float(values[0, i]) for name, values in seen.items()}
        | {"k": 4, "problems": toy.held_out}
        for i, C in enumerate(trace.C.tolist())
    ]
    record = {"command": ["rl", "simulate"], "config": config}
    write_log(folder, record, steps=trace.steps, problems=groups, evaluations=evaluations)
