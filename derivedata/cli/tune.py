"""`derivedata tune`: measure which server settings are fastest on this machine, and keep them for later runs."""

from __future__ import annotations

import sys
import time

import click

from derivedata.cli.options import parse_pair, server_options
from derivedata.cli.progress import Progress, State
from derivedata.errors import UserError


@click.command()
@server_options
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=15, show_default=True, help="At most.")
@click.option("--long", is_flag=True, help="For jobs of hours: try compiling too, which takes minutes at each start.")
@click.option("--show", is_flag=True, help="Show what is kept, and measure nothing.")
@click.option("--forget", is_flag=True, help="Remove what is kept: back to the defaults.")
def tune(model, minutes, long, show, forget, **options):
    """Measure threads, block size, batch, speculation and compiling with a model on this machine.

    Each change is measured against the best so far in paired rounds and kept where it is faster by more than 3%. Later
    runs of paraphrase and difficulty with the model use what is kept; what an option of theirs says goes first.
    """
    from derivedata.generation import tuning
    from derivedata.generation.embedded import cache_folder
    from derivedata.generation.launch import ServerSettings
    from derivedata.generation.model import resolve_model
    from derivedata.generation.profile import forget_profile, load_profile, profile_path, save_profile

    if show and forget:
        raise UserError("--show and --forget exclude each other", remedy="give one of them")
    say = lambda line: click.echo(line, err=True)  # noqa: E731
    found = resolve_model(model, progress=say)
    if forget:
        click.echo("forgotten" if forget_profile(found) else f"nothing is kept for {found.name}")
        return
    if show:
        kept = load_profile(found)
        if kept is None:
            raise UserError(f"nothing is kept for {found.name} on this machine", remedy="run derivedata tune")
        _print(kept, profile_path(found))
        return
    from derivedata.corpus.sample import sample_documents

    settings = ServerSettings(
        context=options["context"],
        max_num_seqs=options["max_num_seqs"],
        tensor_parallel=options["tensor_parallel"],
        data_parallel=options["data_parallel"],
        trust_remote_code=options["trust_remote_code"],
        extra=tuple(parse_pair(pair, "--vllm-arg") for pair in options["vllm_args"]),
    )
    texts = [document["text"] for document in sample_documents()]
    log = cache_folder() / "logs" / f"tune-{time.strftime('%Y%m%d-%H%M%S')}.log"
    doing = {"what": ""}
    with Progress("tuning", lambda: State(0, None, doing["what"])):
        profile = tuning.tune(
            found,
            settings,
            texts,
            log=log,
            minutes=minutes,
            long=long,
            say=lambda line: click.echo(f"\r{line}" if sys.stderr.isatty() else line, err=True),
            now=lambda what: doing.update(what=what),
        )
    _print(profile, save_profile(found, profile))


def _print(profile, path) -> None:
    from derivedata.cli.render import text_table

    rows = [
        {
            "change": row["change"],
            "new tokens/s": "not measured" if row["ratio"] is None else f"{row['ratio']:.2f}x",
            "pairs": " ".join(f"{ratio:.2f}" for ratio in row["ratios"]),
            "": "kept" if row["kept"] else "",
        }
        for row in profile.measured
    ]
    click.echo(text_table(rows, ["change", "new tokens/s", "pairs", ""]))
    chosen = ", ".join(f"{name} {value}" for name, value in profile.settings.items()) or "the defaults"
    click.echo(f"best: {chosen} ({profile.gain:.2f}x the defaults, with {profile.idle:.1f} cores idle)")
    click.echo(f"kept in {path}")
