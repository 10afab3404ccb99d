"""`derivedata train sizes`: the models of the ladder with their exact counts."""

from __future__ import annotations

import click


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
