"""The options that several commands share, so that the same thing has one name, one default and one help everywhere."""

from __future__ import annotations

import click

from derivedata.errors import UserError

restart_option = click.option("--restart", is_flag=True, help="Throw away what OUTPUT holds and start over.")
bad_input_option = click.option(
    "--max-bad-input", default="5%", show_default=True, help="Share of input rows that may be rejected."
)
format_option = click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl.zst", "jsonl.gz", "parquet"]),
    default="jsonl.zst",
    show_default=True,
    help="Of the shards that are written.",
)


def task_options(command):
    """How many Datatrove tasks, and how many of them at a time."""
    tasks = click.option("--tasks", type=click.IntRange(1), default=1, show_default=True, help="Datatrove tasks.")
    return tasks(click.option("--workers", type=click.IntRange(1), help="Tasks at a time.  [default: all]")(command))


def server_options(command):
    """The options of every command that may start a server."""
    for option in reversed(
        [
            click.option("--model", help="Hub id, folder, or smollm2-135m (the embedded default without a GPU)."),
            click.option(
                "--context",
                type=click.IntRange(64),
                help="Tokens of prompt and answer.  [default: the model's, at most 4096]",
            ),
            click.option(
                "--tensor-parallel", type=click.IntRange(1), default=1, show_default=True, help="GPUs a replica."
            ),
            click.option(
                "--data-parallel", type=click.IntRange(1), help="Replicas.  [default: visible GPUs / tensor-parallel]"
            ),
            click.option("--max-num-seqs", type=click.IntRange(1), help="Requests the engine runs at once."),
            click.option(
                "--vllm-arg", "vllm_args", multiple=True, metavar="KEY=VALUE", help="Passed to vLLM. Repeatable."
            ),
            click.option("--trust-remote-code", is_flag=True, help="Run code from the model's repository."),
        ]
    ):
        command = option(command)
    return command


def model_options(command):
    """The options of every command that has a model at work: a server of its own, or one that runs already."""
    for option in reversed(
        [
            click.option(
                "--endpoint",
                "endpoints",
                multiple=True,
                metavar="URL",
                help="A server that runs already, of any OpenAI-compatible kind; `local`: that of derivedata serve. "
                "Repeatable. --model is then the name it serves; the key is taken from DERIVEDATA_API_KEY.",
            ),
            click.option(
                "--concurrency", type=click.IntRange(1), help="Requests in flight at each endpoint.  [default: 64]"
            ),
        ]
    ):
        command = option(command)
    return server_options(command)


def parse_pair(text: str, option: str) -> tuple[str, str]:
    """KEY=VALUE as a pair."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError("must be key=value", where=option, value=text)
    return key.strip(), value.strip()


def parse_share(text: str, option: str) -> float:
    """A share from 0 to 1, written 5% or 0.05."""
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UserError("must be a share such as 5% or 0.05", where=option, value=text)
    return share
