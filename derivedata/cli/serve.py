"""`derivedata serve`: one vLLM server for several commands, since a start takes half a minute."""

from __future__ import annotations

import click

from derivedata.cli.options import parse_pair, server_options


@click.command()
@server_options
@click.option(
    "--log", type=click.Path(dir_okay=False), help="File for what the server prints.  [default: in the cache]"
)
def serve(model, context, vllm_args, log, **options) -> None:
    """Start vLLM and keep it until Ctrl-C (or SIGTERM).

    Other commands of the same user take it with `--endpoint local`; model and key are known to them.

    \b
      derivedata serve --model HuggingFaceTB/SmolLM2-1.7B-Instruct
      derivedata paraphrase corpus -o derived --endpoint local
    """
    from derivedata.cli.show import Narrator
    from derivedata.pipelines.job import ModelOptions
    from derivedata.pipelines.keep import keep_serving

    pairs = tuple(parse_pair(pair, "--vllm-arg") for pair in vllm_args)
    settings = ModelOptions(model=model, context=context, vllm_args=pairs, **options)
    with keep_serving(settings, Narrator(), log=log) as kept:
        served = kept.served
        click.echo(f"{served.model.name} answers at {served.endpoint.url}, log in {kept.log}")
        click.echo("take it with: --endpoint local")
        kept.wait()
