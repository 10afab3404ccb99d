"""`derivedata styles`: list, show, make and check the files that say how documents are rewritten."""

from __future__ import annotations

from pathlib import Path

import click

from derivedata.errors import UserError


@click.group()
def styles() -> None:
    """List, show, make and check styles (YAML files that say how documents are rewritten)."""


@styles.command("list")
def list_styles() -> None:
    """List the shipped styles."""
    from derivedata.generation.style import load_style, shipped_styles

    loaded = [load_style(name) for name in shipped_styles()]
    width = max(len(style.name) for style in loaded)
    click.echo(f"{'name':<{width}}  version  description")
    for style in loaded:
        click.echo(f"{style.name:<{width}}  {style.version:>7}  {style.description}")


@styles.command()
@click.argument("style", metavar="NAME|FILE")
def show(style: str) -> None:
    """Print a style's file, then its rules in words."""
    from derivedata.generation.style import load_style
    from derivedata.generation.wording import rules_in_words

    loaded = load_style(style)
    click.echo(Path(loaded.path).read_text("utf-8-sig").rstrip())
    click.echo(f"\nIn words ({loaded.path}, sha256 {loaded.sha256[:16]}):")
    for line in rules_in_words(loaded):
        click.echo(f"  {line}")


@styles.command()
@click.argument("name")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="File to write.  [default: NAME.yaml]")
def new(name: str, output: str | None) -> None:
    """Write a commented file for a style of your own, ready to be edited."""
    from derivedata.generation.style import check_name
    from derivedata.generation.wording import template

    check_name(name)
    path, text = Path(output or f"{name}.yaml"), template(name)
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UserError("is there already", where=path, remedy="name another file with -o") from None
    except OSError as error:
        raise UserError(f"can't be written: {error.strerror}", where=path) from None
    click.echo(
        f"wrote {path}; edit it, then `derivedata styles check {path}` and `derivedata paraphrase --style {path}`"
    )


@styles.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
def check(files: tuple[str, ...]) -> None:
    """Check style files; print each problem as one line and exit with 1 if there are any."""
    from derivedata.generation.style import load_style, resolve_fallbacks

    loaded, problems = {}, 0
    for file in files:
        try:
            style = load_style(file)
            if style.name in loaded and loaded[style.name].path != style.path:
                raise UserError(f"has the name of {loaded[style.name].path}", where=style.path, value=style.name)
            loaded[style.name] = style
        except UserError as error:
            problems += 1
            click.echo(error.line)
    for style in loaded.values():
        try:
            resolve_fallbacks(style, loaded)
        except UserError as error:
            problems += 1
            click.echo(error.line)
            continue
        click.echo(f"{style.path}: {style.name} version {style.version} is good")
    if problems:
        raise SystemExit(1)
