"""`derivedata export`: a corpus in the layouts that others read."""

from __future__ import annotations

import click

from derivedata.cli.options import restart_option, task_options
from derivedata.cli.quantity import Quantity


@click.group()
def export() -> None:
    """Write a corpus in a layout that others read.

    The folder can be read with datasets.load_dataset, and uploaded as it is. Run again after an interruption it goes
    on where it was.
    """


def _options(command):
    for option in reversed(
        [
            click.argument("corpus"),
            click.option("-o", "--output", required=True, help="Folder or URL that receives the files."),
            click.option(
                "--file-size", type=Quantity(), default=256e6, help="Compressed bytes in a file.  [default: 256M]"
            ),
            task_options,
            restart_option,
        ]
    ):
        command = option(command)
    return command


@export.command()
@_options
def hub(file_size, **options) -> None:
    """Parquet as the Hugging Face hub shows it: a configuration a style, and a card with all types."""
    _run("hub", file_size, **options)


@export.command()
@_options
@click.option("--source", multiple=True, help="Where the source corpus is now.  [default: where the run record says]")
def finephrase(file_size, **options) -> None:
    """FinePhrase's layout: a folder a style, Parquet, `text` is the source, generations in `rollout_results`."""
    _run("finephrase", file_size, **options)


def _run(layout: str, file_size: float, **options) -> None:
    from dataclasses import asdict

    from derivedata.cli.render import text_table
    from derivedata.cli.show import Narrator
    from derivedata.pipelines.export import ExportOptions
    from derivedata.pipelines.export import export as run

    exported = run(ExportOptions(layout=layout, file_bytes=int(file_size), **options), Narrator())
    rows = [asdict(config) for config in exported.configs]
    click.echo(text_table(rows, ["name", "files", "rows", "documents", "bytes"]))
    for reason, count in exported.left_out.items():
        click.echo(f"left out: {count:,} documents ({reason})")
