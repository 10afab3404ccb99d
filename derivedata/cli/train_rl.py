"""`derivedata train rl`: reinforcement learning on problems, with the logs that the planner reads."""

from __future__ import annotations

import click


@click.command()
@click.option("--problems", multiple=True, required=True, help="Problems, e.g. OUT/splits/easy.parquet; repeatable.")
@click.option("--model", required=True, help="Name or folder of the model that is trained.")
@click.option("-o", "--output", required=True, metavar="RUN", help="Local folder of the run.")
@click.option(
    "--recipe",
    type=click.Choice(["easy", "hard", "mixed", "scalerl"]),
    default="easy",
    show_default=True,
    help="easy: KL and entropy; hard, mixed: neither; scalerl: CISPO and what belongs to it.",
)
@click.option("--problems-per-batch", type=click.IntRange(1), metavar="B_p", help="Problems of an optimizer step.")
@click.option("--rollouts", type=click.IntRange(1), metavar="n", help="Rollouts of a problem.")
@click.option("--iterations", type=click.IntRange(1), metavar="M", help="Optimizer steps.")
@click.option("--budget", type=click.IntRange(1), metavar="C", help="Rollouts in all, with any two of the above.")
@click.option("--lr-at-1024", type=float, help="Learning rate at B = 1,024, scaled by sqrt(B/1024).  [default: recipe]")
@click.option("--kl", type=float, help="Weight of the KL divergence.  [default: recipe]")
@click.option("--entropy", type=float, help="Weight of the entropy bonus.  [default: recipe]")
@click.option("--staleness", type=click.IntRange(0), metavar="k", help="Steps that rollouts lag.  [default: recipe]")
@click.option("--temperature", type=float, help="Of the rollouts.  [default: recipe]")
@click.option("--thinking-tokens", type=click.IntRange(0), help="Thinking ends by force here; 0: never.")
@click.option("--max-tokens", type=click.IntRange(1), default=2048, show_default=True, help="New tokens of a rollout.")
@click.option(
    "--answers",
    type=click.Choice(["strict", "lenient", "last-number", "math-verify"]),
    default="lenient",
    show_default=True,
    help="How the answer is found in a response.",
)
@click.option("--validation", help="Held-out problems.  [default: <split>-validation.parquet beside the problems]")
@click.option("--validation-problems", type=click.IntRange(1), help="At most so many of them.")
@click.option(
    "--eval-samples", type=click.IntRange(1), default=4, show_default=True, help="k of avg@k, best@k, worst@k."
)
@click.option("--eval-every", type=click.IntRange(1), help="Steps between evaluations.  [default: M/10]")
@click.option("--save-every", type=click.IntRange(1), help="Steps between checkpoints.  [default: as evaluations]")
@click.option("--micro-batch", type=click.IntRange(1), help="Rollouts of one pass.  [default: all of a step]")
@click.option("--peft", is_flag=True, help="Train a LoRA adapter.")
@click.option("--report-to", type=click.Choice(["none", "wandb", "tensorboard"]), default="none", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--cpu", is_flag=True, help="Run on the CPU even where there is a GPU.")
@click.option("--restart", is_flag=True, help="Throw away what RUN holds and start over.")
def rl(*, restart, **given) -> None:
    """Train a model on problems with verified answers (TRL's GRPOTrainer; extra `rl`).

    C = B_p x n x M rollouts: give all three, or two and --budget. Run again after an interruption it goes on from the
    last checkpoint.

    \b
      derivedata train rl --problems measured/splits/easy.parquet --model Qwen/Qwen2.5-1.5B-Instruct \\
        --recipe easy --problems-per-batch 64 --rollouts 16 --budget 102400 -o runs/easy
      derivedata rl plan runs/* --budget 1e6
    """
    from derivedata.cli.show import Narrator
    from derivedata.trainers.rl import train_rl
    from derivedata.trainers.rl_options import RLOptions

    options = RLOptions(**given)
    budget = options.resolved_budget()
    narrator = Narrator()
    narrator.say(
        f"C = {budget.problems:,} problems x {budget.rollouts:,} rollouts x {budget.iterations:,} iterations = "
        f"{budget.total:,} rollouts"
    )
    run = train_rl(options, restart=restart, tell=narrator.say)
    if run.resumed_at:
        click.echo(f"resumed        at step {run.resumed_at:,}; {run.lost_steps:,} steps behind it were done again")
    click.echo(f"learning rate  {run.learning_rate:.3g}")
    for row in (run.evaluations[:1] + run.evaluations[-1:]) if len(run.evaluations) > 1 else run.evaluations:
        scores = "  ".join(f"{name}@{row['k']} {row[name]:.3f}" for name in ("avg", "best", "worst"))
        click.echo(f"C {row['rollouts']:<12,} {scores}  ({row['problems']:,} held-out problems)")
    if run.retired:
        click.echo(f"retired        {run.retired:,} problems")
    if run.stopped:
        click.echo(f"stopped early  {run.stopped}")
    click.echo(f"model in {run.output}/model, logs in {run.output}/steps.jsonl, problems.jsonl, evaluations.jsonl")
