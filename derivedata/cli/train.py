"""`derivedata train`: the included trainers, one module a command, imported when it is asked for."""

from __future__ import annotations

import importlib

import click

# Command name -> "module:attribute".
COMMANDS: dict[str, str] = {
    "lm": "derivedata.cli.train_lm:lm",
    "rl": "derivedata.cli.train_rl:rl",
    "sizes": "derivedata.cli.train_lm:sizes",
}


class LazyTrainGroup(click.Group):
    """A click group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name].split(":")
        return getattr(importlib.import_module(module), attribute)


@click.group(cls=LazyTrainGroup)
def train() -> None:
    """Train models on what the pipelines made, and say what the derived tokens were worth."""
