"""`derivedata mix`: corpora, repeats and paraphrases by target ratios."""

from __future__ import annotations

import math

import click

from derivedata.cli.options import format_option, restart_option, task_options
from derivedata.cli.quantity import Quantity, shorten
from derivedata.errors import UserError


@click.command()
@click.argument("spec", type=click.Path(exists=True, dir_okay=False))
@click.option("-o", "--output", required=True, help="Folder or URL that receives the mix.")
@click.option("--tokens", type=Quantity(), help="In place of the file's requested_tokens.")
@click.option("--materialize", is_flag=True, help="Write the documents, not only their order.")
@click.option("--params", type=Quantity(), help="Say what the tokens are worth to a model of so many parameters.")
@click.option("--export", type=click.Choice(["olmo-core"]), help="Write OLMo-core's mixture configuration too.")
@click.option("--token-root", help="With --export: folder with the token files, a folder a source.  [default: tokens]")
@click.option("--sequence-length", type=click.IntRange(1), default=4096, show_default=True, help="With --export.")
@click.option("--batch-tokens", type=Quantity(), help="With --export: tokens of a batch.  [default: 256 sequences]")
@format_option
@task_options
@restart_option
def mix(
    spec, output, tokens, materialize, params, export, token_root, sequence_length, batch_tokens, format_, **options
):
    """Mix the sources of SPEC, a YAML file in OLMo-core's words, and say what it gives before it does.

    Derived documents come only from documents in the fresh part, unless a source says `derived_from: anything`.

    \b
    derivedata mix mix.yaml -o mixed --params 1.2B
    derivedata mix mix.yaml -o mixed --export olmo-core
    """
    from derivedata.cli import show
    from derivedata.pipelines.mix import olmo_core_config
    from derivedata.pipelines.mix_run import make_mix
    from derivedata.pipelines.mixture import MixOptions
    from derivedata.store.paths import Folder

    batch = 256 * sequence_length if batch_tokens is None else math.ceil(batch_tokens)
    if export and batch % sequence_length:
        raise UserError("must be a multiple of --sequence-length", where="--batch-tokens", value=batch)

    def announce(mixture) -> None:
        for line in lines(mixture, params):
            click.echo(line)

    mixture = make_mix(
        MixOptions(
            spec=spec,
            output=output,
            tokens=None if tokens is None else math.ceil(tokens),
            materialize=materialize,
            format=format_,
            **options,
        ),
        show.Narrator(),
        announce=announce,
    )
    if export:
        config = olmo_core_config(
            [portion.share.population for portion in mixture.portions],
            requested=mixture.tokens,
            token_root=token_root or Folder(output).url_of("tokens"),
            sequence_length=sequence_length,
            batch=batch,
        )
        folder = Folder(output)
        folder.replace("olmo-core.yaml", config.encode())
        click.echo(f"OLMo-core's configuration: {folder.url_of('olmo-core.yaml')}")


def lines(mixture, params: float | None) -> list[str]:
    """What a mixture gives, as text."""
    from derivedata.cli.eta.tokens import forecast
    from derivedata.cli.render import text_table

    rows = []
    for portion in mixture.portions:
        population, source = portion.share.population, portion.share.population.source
        rows.append(
            {
                "source": source.source_name,
                "ratio": f"{portion.share.tokens / mixture.tokens:.1%}",
                "strategy": portion.strategy if source.style is None else f"{portion.strategy} {source.style}",
                "has": shorten(population.tokens),
                "gives": shorten(portion.share.tokens),
                "passes": f"{portion.share.tokens / population.tokens:.2f} of {population.most:.2f}",
                "documents": portion.documents,
                "left out": portion.orphans,
            }
        )
    fresh, derived = mixture.by_strategy()
    told = " + ".join(f"{shorten(count)} {name}" for name, count in derived.items()) or "none"
    found = [
        text_table(rows, list(rows[0])),
        f"{shorten(mixture.tokens)} tokens, {mixture.stream.documents:,} documents, counted with {mixture.tokenizer}: "
        f"D = {shorten(fresh)} fresh, D' = {told}",
    ]
    if any(row["left out"] for row in rows):
        found.append("left out: derived from documents that are not in the fresh part")
    if mixture.spec.decontaminate:
        by_file = ", ".join(f"{count:,} {name}" for name, count in sorted(mixture.contaminated.items()))
        told = f" ({by_file}; the table `rejected` names them)" if by_file else ""
        found.append(f"contaminated, and in no source: {sum(mixture.contaminated.values()):,} documents{told}")
    if params is not None and derived and fresh:
        found += ["", *forecast({name: float(n) for name, n in derived.items()}, fresh_tokens=fresh, params=params)]
    elif params is None:
        found.append("what that is worth: add --params N")
    return found
