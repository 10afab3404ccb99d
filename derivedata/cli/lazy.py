"""A command group whose commands are imported on first use, so that `derivedata --help` stays quick."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A click group over modules.

    Args:
        lazy: command name -> "module:attribute". A module is imported when its command is asked for, or listed by
            --help, so each must import nothing heavier than click at module level.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.lazy)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.lazy:
            return None
        module, attribute = self.lazy[name].split(":")
        return getattr(importlib.import_module(module), attribute)
