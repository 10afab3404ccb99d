"""`derivedata ingest`: documents out of what people have, into a corpus with a manifest."""

from __future__ import annotations

import click

from derivedata.cli.quantity import Quantity


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SRC...")
@click.option("-o", "--output", required=True, help="Folder or URL that receives the corpus.")
@click.option("--text-field", default="text", show_default=True, help="Field that holds the text; a.b reaches deeper.")
@click.option("--id-field", default="id", show_default=True, help="Field that holds the id.")
@click.option("--source", help="The source of every document. Default: its own, or the name of SRC.")
@click.option("--text-files", is_flag=True, help="Each file is one document, whatever its name.")
@click.option("--config", help="Configuration of a Hugging Face data set.")
@click.option("--split", help="Split of a Hugging Face data set. Default: train.")
@click.option("--attributes", multiple=True, metavar="NAME|FOLDER", help="Dolma attributes to join on id. Repeatable.")
@click.option("--tokenizer", help="Folder or hub id of the tokenizer that counts. Default: tokens are not counted.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl.zst", "jsonl.gz", "parquet"]),
    default="jsonl.zst",
    show_default=True,
    help="Of the shards.",
)
@click.option("--chunk-size", type=Quantity(), default=128e6, help="Bytes of text in a shard. [default: 128M]")
@click.option("--tasks", type=click.IntRange(1), default=1, show_default=True, help="Datatrove tasks.")
@click.option("--workers", type=click.IntRange(1), help="Tasks at a time. Default: all.")
@click.option("--max-bad-input", default="5%", show_default=True, help="Share of rows that may be rejected.")
@click.option("--restart", is_flag=True, help="Throw away what OUTPUT holds and start over.")
def ingest(sources, output, format_, chunk_size, max_bad_input, **options):
    """Take documents in: Dolma shards with a manifest, from SRC.

    SRC is a file, folder, pattern or URL of .jsonl, .json, .parquet, .arrow or .txt (compressed or not); a folder that
    save_to_disk wrote; or a data set of the Hugging Face hub, as a folder or as OWNER/NAME.

    Fields that Dolma has no place for are kept in `metadata`. Rows that are no documents are kept in rejected/, with
    file, line and reason. Run again after an interruption it goes on where it was.
    """
    from derivedata.cli import show
    from derivedata.cli.paraphrase import parse_share
    from derivedata.pipelines.ingest import IngestOptions
    from derivedata.pipelines.ingest import ingest as run

    settings = IngestOptions(
        sources=sources,
        output=output,
        format=format_,
        chunk_bytes=int(chunk_size),
        max_bad_input=parse_share(max_bad_input, "--max-bad-input"),
        **options,
    )
    tell(run(settings, show.Narrator()))


def tell(ingested) -> None:
    """Print what an ingestion left: documents, tokens and bytes, rejects by reason, the books."""
    from derivedata.cli.query import _told

    click.echo("\n".join(_told(ingested.summary)))
    if ingested.attributes is not None:
        joined, missing, left = ingested.attributes
        click.echo(f"attributes: {joined:,} documents got some; {missing:,} had no row; {left:,} rows had no document")
