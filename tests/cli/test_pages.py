"""Every command that a page shows exists, with the options it is shown with; every link of a page leads somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from derivedata.cli import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "pipelines/*.md", "trainers/*.md", "styles/*.md", "derivedata/**/*.md")
    for path in ROOT.glob(pattern)
)


def commands(page: Path) -> list[list[str]]:
    """The derivedata command lines in the code blocks of a page, as words."""
    found = []
    for block in re.findall(r"```[a-z]*\n(.*?)```|((?:^ {4}[^\n]*\n)+)", page.read_text("utf-8"), re.S | re.M):
        for line in "".join(block).replace("\\\n", " ").splitlines():
            if shown := re.match(r"\s*(?:\$ )?derivedata (?=[a-z])(.+)", line):
                try:
                    found.append(shlex.split(shown[1], comments=True))
                except ValueError:  # a quote that ends on the next line
                    found.append(shown[1].split())
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_shown_as_they_are(page):
    for words in commands(page):
        command, rest = cli, list(words)
        context = click.Context(cli)
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            inner = command.get_command(context, rest[0])
            assert inner is not None, f"no command {rest[0]!r}: derivedata {' '.join(words)}"
            command, rest = inner, rest[1:]
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        unknown = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in options]
        assert unknown in ([], ["--help"]), f"derivedata {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
        assert "://" in link or (page.parent / link).exists(), link
