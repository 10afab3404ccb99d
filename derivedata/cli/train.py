"""`derivedata train`: the included trainers, one module a command, imported when it is asked for."""

from __future__ import annotations

import click

from derivedata.cli.lazy import LazyGroup

COMMANDS: dict[str, str] = {
    "lm": "derivedata.cli.train_lm:lm",
    "rl": "derivedata.cli.train_rl:rl",
    "score": "derivedata.cli.train_score:score",
    "sizes": "derivedata.cli.train_lm:sizes",
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def train() -> None:
    """Train models on what the pipelines made, and say what the derived tokens were worth."""
