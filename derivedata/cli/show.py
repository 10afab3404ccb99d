"""How the commands talk: plain lines, progress of long work, and tables of what came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from derivedata.cli.progress import Progress, State, clock
from derivedata.cli.quantity import shorten


class Narrator:
    """Tells on stderr what a run does, so that stdout holds results alone."""

    def say(self, text: str) -> None:
        click.echo(text, err=True)

    @contextmanager
    def track(self, title: str, look: Callable[[], tuple[float, float | None, str] | None]):
        def state() -> State | None:
            seen = look()
            return None if seen is None else State(*seen)

        with Progress(title, state):
            yield


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as aligned text; numbers to the right, with separators."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max([len(column), *(len(line[i]) for line in cells)]) for i, column in enumerate(columns)]
    right = [all(isinstance(row.get(column), int | float | None) for row in rows) for column in columns]

    def line(values: Sequence[str]) -> str:
        sides = [value.rjust(width) if r else value.ljust(width) for value, width, r in zip(values, widths, right, strict=True)]
        return "  ".join(sides).rstrip()

    return "\n".join([line(list(columns)), line(["-" * width for width in widths]), *(line(row) for row in cells)])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3g}"
    return printable(str(value))


def printable(text: str) -> str:
    """Text from a corpus without what could steer a terminal; line breaks stay."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


__all__ = ["Narrator", "clock", "printable", "shorten", "table"]
