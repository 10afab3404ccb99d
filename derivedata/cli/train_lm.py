"""`derivedata train lm` and `derivedata train sizes`: a language model on fresh and derived tokens."""

from __future__ import annotations

import os

import click

from derivedata.cli.options import parse_share, restart_option
from derivedata.cli.quantity import Quantity
from derivedata.errors import UserError


def learning_options(command):
    """The options that `train lm` and `sweep` have in common."""
    for option in reversed(
        [
            click.option("--tokenizer", help="bytes, folder or hub id.  [default: that of token shards, else bytes]"),
            click.option(
                "--vocab", type=click.IntRange(2), help="Rows of the LM head.  [default: the tokenizer's, padded]"
            ),
            click.option("--sequence-length", type=click.IntRange(2), help="Tokens of a block.  [default: by size]"),
            click.option("--batch-tokens", type=Quantity(), help="Tokens of a step.  [default: by size]"),
            click.option("--micro-batch", type=click.IntRange(1), default=8, show_default=True, help="Blocks at once."),
            click.option("--decay", default="20%", show_default=True, help="Share of the run in which WSD falls."),
            click.option("--z-loss", type=float, default=1e-5, show_default=True),
            click.option("--clip", type=float, default=1.0, show_default=True, help="Greatest norm of the gradient."),
            click.option("--eval", "eval_data", multiple=True, metavar="CORPUS", help="Held-out text. Repeatable."),
            click.option("--holdout", help="Share of the documents to hold out, with all that derives from them."),
            click.option("--eval-tokens", type=Quantity(), default=262_144, help="Held-out tokens.  [default: 262k]"),
            click.option("--device", help="cpu or cuda.  [default: a GPU when there is one]"),
            click.option("--precision", type=click.Choice(["float32", "bf16"]), help="[default: bf16 on a GPU]"),
        ]
    ):
        command = option(command)
    return command


@click.command()
@click.option("--data", multiple=True, required=True, help="Corpus, output, subset, repeat, mix, tokens. Repeatable.")
@click.option("--size", required=True, help="Of the ladder, see `derivedata train sizes`: 14M, 190M, .044M.")
@click.option("-o", "--output", required=True, help="Folder or URL of the run.")
@click.option("--tokens", type=Quantity(), help="Tokens to train on.  [default: all the data, once]")
@click.option("--lr", type=float, help="Peak learning rate.  [default: by size]")
@click.option("--weight-decay", type=float, default=0.1, show_default=True)
@click.option("--schedule", type=click.Choice(["wsd", "cosine"]), default="wsd", show_default=True)
@click.option("--warmup", type=Quantity(), help="Tokens of warm-up.  [default: a twentieth of the run]")
@learning_options
@click.option("--compile", is_flag=True, help="Let torch compile the model.")
@click.option("--eval-every", type=Quantity(), help="Tokens between evaluations.  [default: a tenth of the run]")
@click.option("--law", default="qin2026-n370", show_default=True, metavar="NAME|FIT.json", help="Values the tokens.")
@click.option("--checkpoint-minutes", type=float, default=10.0, show_default=True, help="Between checkpoints.")
@click.option("--keep", type=click.IntRange(1), default=2, show_default=True, help="Checkpoints that stay.")
@click.option("--log-every", type=click.IntRange(1), default=10, show_default=True, help="Steps between log lines.")
@click.option("--report-to", type=click.Choice(["none", "wandb", "tensorboard"]), default="none", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and order.")
@restart_option
def lm(*, data, eval_data, size, law, lr, weight_decay, micro_batch, z_loss, clip, precision, decay, holdout, vocab,
       **options):  # fmt: skip
    """Train an OLMo3 model and say what its tokens were worth.

    \b
    derivedata train lm --data mix --size 14M --tokenizer smollm2-135m --holdout 1% -o run
    derivedata train lm --data derived --data corpus --size .044M --holdout 5% -o run
    torchrun --nproc-per-node 8 -m derivedata.trainers.pretrain --data mix --size 190M ...

    Run again after an interruption it goes on from its last checkpoint.
    """
    from derivedata.cli.eta.inputs import read_ensemble
    from derivedata.cli.show import Narrator
    from derivedata.trainers.options import TrainOptions
    from derivedata.trainers.pretrain import train_lm
    from derivedata.trainers.summary import lines

    for name in ("tokens", "batch_tokens", "warmup", "eval_tokens", "eval_every"):
        options[name] = None if options[name] is None else round(options[name])
    settings = TrainOptions(
        data=data,
        eval_data=eval_data,
        size=read_size(size),
        learning_rate=lr,
        vocabulary=vocab,
        recipe=read_recipe(weight_decay, micro_batch, z_loss, clip, precision, options["device"]),
        decay=read_share(decay, "--decay"),
        holdout=None if holdout is None else read_share(holdout, "--holdout"),
        **options,
    )
    summary = train_lm(settings, read_ensemble(law).law, Narrator())
    # Under torchrun every process comes here.
    if os.environ.get("RANK", "0") == "0":
        for line in lines(summary):
            click.echo(line)


def read_size(text: str):
    """A size of the ladder, by its name or its number of parameters."""
    from derivedata.quantity import parse_quantity
    from derivedata.trainers.ladder import LADDER, find_size

    if text in LADDER:
        return LADDER[text]
    try:
        return find_size(parse_quantity(text))
    except ValueError as error:
        raise UserError(str(error), where="--size", remedy=f"there are {', '.join(LADDER)}") from None


def read_recipe(weight_decay, micro_batch, z_loss, clip, precision, device):
    """How the weights are changed; the precision follows the device unless it is given."""
    from derivedata.trainers.learner import Recipe

    if precision is None:
        import torch

        precision = "bf16" if device != "cpu" and torch.cuda.is_available() else "float32"
    if weight_decay < 0 or z_loss < 0 or clip <= 0:
        raise UserError(
            "weight decay and z-loss are zero or more, the clip is positive", value=(weight_decay, z_loss, clip)
        )
    return Recipe(weight_decay=weight_decay, micro_batch=micro_batch, z_loss=z_loss, clip=clip, precision=precision)


def read_share(text: str, option: str) -> float:
    """A share from 0 to 1, written 5% or 0.05."""

    return parse_share(text, option)


@click.command()
@click.option("--vocab", type=click.IntRange(2), default=100_352, show_default=True, help="Rows of the LM head.")
def sizes(*, vocab) -> None:
    """Show the ladder of model sizes. N: all parameters except the input embedding, LM head counted."""
    from derivedata.cli.render import text_table
    from derivedata.trainers.ladder import LADDER

    rows = []
    for size in LADDER.values():
        counts = size.count(vocab)
        rows.append(
            {
                "size": size.name,
                "width": size.width,
                "layers": size.layers,
                "heads": size.heads,
                "mlp": size.mlp,
                "N": f"{counts.N:,}",
                "layers alone": f"{counts.layers:,}",
                "all": f"{counts.total:,}",
            }
        )
    click.echo(text_table(rows, list(rows[0])))
