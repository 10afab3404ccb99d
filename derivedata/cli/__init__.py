"""The command line: one module a command group; parse, call, print. Heavy imports happen inside the commands."""

from __future__ import annotations

import os
import signal
import sys
import warnings

import click

from derivedata import __version__
from derivedata.cli.lazy import LazyGroup
from derivedata.errors import UserError

COMMANDS: dict[str, str] = {
    "demo": "derivedata.cli.demo:demo",
    "difficulty": "derivedata.cli.difficulty:difficulty",
    "doctor": "derivedata.cli.doctor:doctor",
    "eta": "derivedata.cli.eta:eta",
    "export": "derivedata.cli.export:export",
    "ingest": "derivedata.cli.ingest:ingest",
    "manifest": "derivedata.cli.query:manifest",
    "mix": "derivedata.cli.mix:mix",
    "paraphrase": "derivedata.cli.paraphrase:paraphrase",
    "problems": "derivedata.cli.problems:problems",
    "query": "derivedata.cli.query:query",
    "repeat": "derivedata.cli.repeat:repeat",
    "report": "derivedata.cli.report:report",
    "rl": "derivedata.cli.rl:rl",
    "sample": "derivedata.cli.sample:sample",
    "serve": "derivedata.cli.serve:serve",
    "status": "derivedata.cli.status:status",
    "styles": "derivedata.cli.styles:styles",
    "subset": "derivedata.cli.subset:subset",
    "sweep": "derivedata.cli.sweep:sweep",
    "tokenize": "derivedata.cli.tokenize:tokenize",
    "tokens": "derivedata.cli.tokens:tokens",
    "train": "derivedata.cli.train:train",
    "tune": "derivedata.cli.tune:tune",
    "verify": "derivedata.cli.verify:verify",
    "verify-answers": "derivedata.cli.verify_answers:verify_answers",
}

# How --help orders them: along the loop.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("demo", "doctor"),
    "Derive": ("ingest", "paraphrase", "styles", "repeat", "subset", "mix"),
    "Account": ("manifest", "query", "tokens", "sample", "report", "status", "verify", "export"),
    "Score problems": ("difficulty", "problems", "verify-answers"),
    "Train": ("tokenize", "train", "sweep"),
    "Measure and plan": ("eta", "rl"),
    "The model's server": ("serve", "tune"),
}


class Sections(LazyGroup):
    """The commands under the headings of SECTIONS."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in SECTIONS.items():
            with formatter.section(heading):
                limit = formatter.width - 6 - max(map(len, COMMANDS))
                commands = [(name, self.get_command(ctx, name)) for name in names if name in COMMANDS]
                formatter.write_dl([(name, command.get_short_help_str(limit)) for name, command in commands])


@click.group(
    cls=Sections, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="derivedata")
def cli() -> None:
    """Derive training data, account for every token, and say what the derived tokens are worth.

    Start with `derivedata demo DIR`: it paraphrases a small built-in corpus with an embedded model.
    """


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _warn(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
    """Our own warnings as one line; those that libraries have for programmers are not for the user of a command."""
    if issubclass(category, UserWarning):
        click.echo(f"derivedata: {' '.join(str(message).split())}", err=True)


def main(args: list[str] | None = None, command: click.Command = cli) -> None:
    """Run the command line; expected failures become one line on stderr and exit code 1."""
    # A batch system's SIGTERM ends a command as Ctrl-C does: what is finished is kept, and no server stays behind.
    signal.signal(signal.SIGTERM, _interrupt)
    warnings.showwarning = _warn
    try:
        # Outside of its standalone mode click returns the code of `ctx.exit(code)` instead of ending with it.
        code = command.main(args=args, prog_name="derivedata", standalone_mode=False)
        if isinstance(code, int) and code:
            sys.exit(code)
    except UserError as error:
        click.echo(f"derivedata: {error.line}", err=True)
        sys.exit(1)
    except click.Abort:
        click.echo("derivedata: stopped", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("derivedata: stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output (head, less) went away: not an error, but Python would complain at shutdown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
