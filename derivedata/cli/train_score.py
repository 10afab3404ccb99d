"""`derivedata train score RUN`: a trained model on held-out text and on task files."""

from __future__ import annotations

import click

from derivedata.cli.quantity import Quantity
from derivedata.errors import UserError


@click.command()
@click.argument("run", metavar="RUN|MODEL")
@click.option("--text", multiple=True, metavar="CORPUS", help="Bits per byte by source and style. Repeatable.")
@click.option("--lambada", metavar="FILE.jsonl", help='LAMBADA: lines {"text": ...}.')
@click.option("--squad", metavar="FILE.json", help="SQuAD 1.1 or 2.0, or a file of its format.")
@click.option("--tokenizer", help="bytes, folder or hub id.  [default: the model's own, else bytes]")
@click.option("--tokens", type=Quantity(), default=1_000_000, help="Of --text, at most.  [default: 1M]")
@click.option("--batch", type=click.IntRange(1), default=16, show_default=True, help="Items at once.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: a GPU when there is one]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def score(*, run, text, lambada, squad, tokenizer, tokens, batch, device, as_json) -> None:
    """Score a trained model on text and tasks of your own.

    \b
    derivedata train score run --text held-out
    derivedata train score run --lambada lambada_test.jsonl --squad dev-v1.1.json
    """
    if not (text or lambada or squad):
        raise UserError("nothing to score on", remedy="give --text, --lambada or --squad")
    import torch

    from derivedata.trainers.downstream import open_model, read_lambada, read_squad, score_task, score_text

    # Task files are read before the model is: what is wrong with them is told at once.
    tasks = {"LAMBADA": lambada and read_lambada(lambada), "SQuAD": squad and read_squad(squad)}
    model, own = open_model(run, tokenizer, device or ("cuda" if torch.cuda.is_available() else "cpu"))
    found: dict = {
        "tasks": [score_task(name, items, model, own, batch=batch) for name, items in tasks.items() if items]
    }
    if text:
        length = min(2048, model.config.max_position_embeddings)
        losses, bits, scored = score_text(text, model, own, tokens=round(tokens), length=length)
        found["text"] = {"tokens": scored, "nats_per_token": losses, "bits_per_byte": bits}
    _show(found, as_json)


def _show(found: dict, as_json: bool) -> None:
    from derivedata.cli.eta.words import figure, print_json, say, table

    if as_json:
        print_json(found)
        return
    if "text" in found:
        told = found["text"]
        rows = [
            {"text": name, "nats a token": f"{loss:.4f}", "bits a byte": f"{told['bits_per_byte'][name]:.4f}"}
            for name, loss in told["nats_per_token"].items()
            if name in told["bits_per_byte"]
        ]
        say(table(rows))
        say(f"{told['tokens']:,} tokens scored\n")
    if found["tasks"]:
        rows = [
            {
                "task": one.task,
                "items": one.items,
                "accuracy": f"{one.accuracy.value:.1%} [{one.accuracy.low:.1%}, {one.accuracy.high:.1%}]",
                "nats a target": f"{figure(one.nats.value)} [{figure(one.nats.low)}, {figure(one.nats.high)}]",
                "bits a byte": f"{one.bits_per_byte:.4f}",
            }
            for one in found["tasks"]
        ]
        say(table(rows))
