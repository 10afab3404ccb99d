"""`derivedata sample`: look at documents of a corpus, and at what they were derived from."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from derivedata.corpus.document import Document
    from derivedata.pipelines.draw import Drawn


@click.command()
@click.argument("corpus", nargs=-1, required=True)
@click.option("-n", "count", type=click.IntRange(1), default=20, show_default=True, help="How many documents.")
@click.option("--style", help="Of an output of ours, only documents of this style.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed draws others.")
@click.option("--chars", type=click.IntRange(1), default=600, show_default=True, help="Characters shown of a text.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line, whole texts.")
def sample(*, corpus, count, style, seed, chars, as_json) -> None:
    """Show documents of CORPUS, drawn at random, and under each the document it was derived from.

    CORPUS is an output, a repeat, a mix, or Dolma folders and files. The same seed draws the same documents.
    """
    from derivedata.cli.render import json_row
    from derivedata.pipelines.draw import draw

    drawing = draw(corpus[0] if len(corpus) == 1 else list(corpus), count, seed=seed, style=style)
    for number, one in enumerate(drawing.drawn, start=1):
        if as_json:
            source = one.source.to_dolma() if one.source else None
            row = {"origin": one.origin._asdict(), "uid": one.document.uid, "document": one.document.to_dolma()}
            click.echo(json_row(row | {"derived_from": source}))
        else:
            click.echo("\n".join(_told(number, one, chars)))
    if drawing.note:
        click.echo(f"derivedata: {drawing.note}", err=True)
    if not as_json:
        click.echo(f"{len(drawing.drawn):,} of {drawing.documents:,} documents, seed {seed}", err=True)


def _told(number: int, one: Drawn, chars: int) -> list[str]:
    """The lines of one document."""
    origin = one.origin
    how = [origin.strategy, origin.style, f"epoch {origin.epoch}" if origin.epoch > 1 else None, origin.source]
    head = f"[{number}] {', '.join(part for part in how if part)}: {_where(one.document)}"
    lines = [*_wrapped(head, ""), *_wrapped(_cut(one.document.text, chars), "    ")]
    if one.source is not None:
        lines += [
            *_wrapped(f"derived from {_where(one.source)}", "    "),
            *_wrapped(_cut(one.source.text, chars), "  | "),
        ]
    return [*lines, ""]


def _where(document: Document) -> str:
    name = f"id {document.id}, " if document.id is not None else ""
    return f"{name}{document.path} row {document.row:,}, {len(document.text):,} characters"


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[:chars]} ... ({len(text) - chars:,} characters more)"


def _wrapped(text: str, before: str) -> list[str]:
    """Lines of at most 100 columns without anything that could steer a terminal."""
    from derivedata.cli.render import printable

    lines = []
    for line in text.splitlines() or [""]:
        lines += textwrap.wrap(printable(line), 100, initial_indent=before, subsequent_indent=before) or [
            before.rstrip()
        ]
    return lines
