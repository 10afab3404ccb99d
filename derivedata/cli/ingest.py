"""`derivedata ingest`: documents out of what people have, into a corpus with a manifest."""

from __future__ import annotations

import click

from derivedata.cli.options import bad_input_option, format_option, parse_share, restart_option, task_options
from derivedata.cli.quantity import Quantity
from derivedata.errors import UserError


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SRC...")
@click.option("-o", "--output", required=True, help="Folder or URL that receives the corpus.")
@click.option("--text-field", default="text", show_default=True, help="Field that holds the text; a.b reaches deeper.")
@click.option("--id-field", default="id", show_default=True, help="Field that holds the id.")
@click.option("--source", help="The source of every document.  [default: its own, or the name of SRC]")
@click.option("--text-files", is_flag=True, help="Each file is one document, whatever its name.")
@click.option("--config", help="Configuration of a Hugging Face data set.")
@click.option("--split", help="Split of a Hugging Face data set.  [default: train]")
@click.option("--attributes", multiple=True, metavar="NAME|FOLDER", help="Dolma attributes to join on id. Repeatable.")
@click.option("--strategy", help="SRC was derived by others: by this strategy (paraphrase, distill, ...).")
@click.option("--derived-from", metavar="CORPUS", help="With --strategy: the corpus it was derived from.")
@click.option("--style", help="With --strategy: its style.  [default: what the rows or their folder say]")
@click.option("--model", help="With --strategy: the model that made it.")
@click.option("--source-id-field", help="With --strategy: field that holds the id of the source.")
@click.option(
    "--unmatched",
    type=click.Choice(["reject", "keep"]),
    default="reject",
    show_default=True,
    help="With --strategy: what becomes of a generation whose source is not in CORPUS.",
)
@click.option("--tokenizer", help="Folder or hub id of the tokenizer that counts.  [default: tokens are not counted]")
@format_option
@click.option("--chunk-size", type=Quantity(), default=128e6, help="Bytes of text in a shard.  [default: 128M]")
@task_options
@bad_input_option
@restart_option
def ingest(sources, output, format_, chunk_size, max_bad_input, **options):
    """Take documents in: Dolma shards with a manifest, from SRC.

    SRC is a file, folder, pattern or URL of .jsonl, .json, .parquet, .arrow or .txt (compressed or not); a folder that
    save_to_disk wrote; or a data set of the Hugging Face hub, as a folder or as OWNER/NAME.

    Fields that Dolma has no place for are kept in `metadata`. Rows that are no documents are kept in rejected/, with
    file, line and reason. Run again after an interruption it goes on where it was.

    With --strategy SRC is what others derived: FinePhrase, Nemotron-CC, Cosmopedia, or rows with the id of their
    source. It becomes what `derivedata paraphrase` writes, with its source looked up in CORPUS.
    """
    from derivedata.cli import show

    settings = {
        "sources": sources,
        "output": output,
        "format": format_,
        "chunk_bytes": int(chunk_size),
        "max_bad_input": parse_share(max_bad_input, "--max-bad-input"),
    }
    fresh, derived = _split(options)
    if options["strategy"] is None:
        from derivedata.pipelines.ingest import IngestOptions
        from derivedata.pipelines.ingest import ingest as run

        tell(run(IngestOptions(**settings, **fresh), show.Narrator()))
        return
    from derivedata.pipelines.derived_from import DerivedOptions, ingest_derived

    tell(ingest_derived(DerivedOptions(**settings, **derived), show.Narrator()))


FRESH_ONLY = {"id_field": "id", "source": None, "text_files": False, "attributes": ()}
DERIVED_ONLY = {
    "strategy": None,
    "derived_from": None,
    "style": None,
    "model": None,
    "source_id_field": None,
    "unmatched": "reject",
}


def _split(options: dict) -> tuple[dict, dict]:
    """The options of the two kinds of ingestion; one that the other kind has no use for is refused."""
    if options["strategy"] is None:
        others, what = DERIVED_ONLY, "needs --strategy"
    else:
        others, what = FRESH_ONLY, "does not go with --strategy"
    for name, default in others.items():
        if options[name] != default:
            raise UserError(what, where=f"--{name.replace('_', '-')}")
    fresh = {name: value for name, value in options.items() if name not in DERIVED_ONLY}
    derived = {name: value for name, value in options.items() if name not in FRESH_ONLY}
    return fresh, derived


def tell(ingested) -> None:
    """Print what an ingestion left: documents, tokens and bytes, and the books with rejects by reason."""
    from derivedata.cli.render import text_table

    styles = ingested.summary.styles.to_dicts()
    columns = ["strategy", "style", "documents", "tokens", "bytes"]
    if all(row["style"] is None for row in styles):
        columns.remove("style")
    click.echo(text_table(styles, columns))
    for stage, told in (("input", "rows {:,} = {}"), ("generation", "generations {:,} = {}")):
        if (books := ingested.summary.books.get(stage)) is None:
            continue
        accepted = "documents" if stage == "generation" or len(ingested.summary.books) == 1 else "read"
        parts = [f"{accepted} {books.accepted:,}"]
        if books.rejected:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in books.rejected.items())
            parts.append(f"rejected {sum(books.rejected.values()):,} ({reasons})")
        click.echo(told.format(books.planned, " + ".join(parts)))
    if ingested.attributes is not None:
        joined, missing, left = ingested.attributes
        click.echo(f"attributes: {joined:,} documents got some; {missing:,} had no row; {left:,} rows had no document")
