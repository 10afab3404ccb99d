"""`derivedata problems`: sets for training out of measured problems."""

from __future__ import annotations

import click


@click.group()
def problems() -> None:
    """Make training sets of problems that `derivedata difficulty` has measured."""


@problems.command()
@click.argument("measured")
@click.argument("shares", nargs=-1, required=True, metavar="BAND=SHARE...")
@click.option("--size", type=click.IntRange(1), required=True, help="Problems of the mixture.")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws and shuffles.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Parquet file.  [default: in MEASURED/mixes]")
def mix(measured: str, shares: tuple[str, ...], size: int, seed: int, output: str | None) -> None:
    """Draw a set with the given shares of the splits of MEASURED, disjoint from its validation problems.

    \b
      derivedata problems mix measured easy=.5 hard=.5 --size 5000
    """
    from derivedata.pipelines.splits import describe, file_name, parse_shares
    from derivedata.pipelines.splits import mix as draw
    from derivedata.store.paths import Folder

    folder, wanted = Folder(measured), parse_shares(shares)
    table = draw(folder, wanted, size=size, seed=seed)
    if output is None:
        output = _write(folder, f"mixes/{file_name(wanted, size, seed)}.parquet", table)
    else:
        _write_file(output, table)
    told = ", ".join(f"{name} {count:,}" for name, count in describe(table).items())
    click.echo(f"{table.num_rows:,} problems ({told}) in {output}")


@problems.group()
def export() -> None:
    """Write a split in the form that a trainer reads."""


@export.command()
@click.argument("measured")
@click.option("--split", default="easy", show_default=True, help="A file of MEASURED/splits, such as hard.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Parquet file.  [default: SPLIT-trl.parquet]")
def trl(measured: str, split: str, output: str | None) -> None:
    """For TRL: `prompt` (messages) and `answer`."""
    from derivedata.pipelines.splits import as_trl, read_split
    from derivedata.store.paths import Folder

    table = as_trl(read_split(Folder(measured), split))
    output = output or f"{split}-trl.parquet"
    _write_file(output, table)
    click.echo(f"{table.num_rows:,} problems in {output}")


def _write(folder, path: str, table) -> str:
    from derivedata.problems.write import table_bytes

    folder.replace(path, table_bytes(table))
    return folder.url_of(path)


def _write_file(path: str, table) -> None:
    import os

    from derivedata.store.paths import Folder

    head, name = os.path.split(os.path.abspath(path))
    _write(Folder(head), name, table)
