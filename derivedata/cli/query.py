"""`derivedata query` and `derivedata manifest`: what outputs hold, by SQL and as a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from derivedata.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

    from derivedata.store.summary import Summary

# What a terminal shows of a long result; the other formats give all of it.
SHOWN_ROWS = 1000


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="CORPUS... SQL")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    show_default=True,
    help="parquet needs -o.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the result to this file.")
def query(arguments: tuple[str, ...], form: str, output: str | None) -> None:
    """Ask SQL (DuckDB's) of one or more outputs.

    Views: shards (a row a file), documents (a row a document, without text), rejected, runs, books. documents.shard
    is shards.path. Several corpora are named, and the first needs no name in the SQL:

    \b
      derivedata query out "SELECT style, count(*), sum(tokens) FROM documents GROUP BY style"
      derivedata query a=out1 b=out2 "SELECT * FROM a.documents JOIN b.documents USING (source_uid)"

    Read-only, and confined to these manifests. CSV cells that a spreadsheet would run get an apostrophe in front.
    """
    if len(arguments) < 2:
        raise UserError("a corpus and an SQL statement are wanted", value=arguments[0])
    *places, sql = arguments
    if form == "parquet" and output is None:
        raise UserError("--format parquet needs -o FILE")
    corpora = _corpora(places)
    from derivedata.store.query import open_query

    with open_query(corpora, sql) as reader:
        if output is None:
            _print(reader, form)
        else:
            rows = _write(reader, form, output)
            click.echo(f"{rows:,} {'row' if rows == 1 else 'rows'} in {output}", err=True)


@click.command()
@click.argument("corpus")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def manifest(corpus: str, as_json: bool) -> None:
    """Print what an output holds: documents, tokens and bytes by style, rejects by reason, the books."""
    import json

    from derivedata.store.manifest import Manifest

    summary = Manifest(corpus).summary()
    if as_json:
        click.echo(json.dumps(summary.to_dict(), indent=1, ensure_ascii=False))
        return
    click.echo("\n".join(_told(summary)))


def _corpora(places: list[str]) -> dict[str, str]:
    corpora: dict[str, str] = {}
    for number, place in enumerate(places):
        name, equals, path = place.partition("=")
        if not equals or not name.isidentifier():
            if len(places) > 1:
                raise UserError("several corpora need names", value=place, remedy="write name=path for each")
            name, path = f"corpus{number or ''}", place
        if name in corpora:
            raise UserError("two corpora have the same name", value=name)
        corpora[name] = path
    return corpora


def _print(reader: pa.RecordBatchReader, form: str) -> None:
    from derivedata.cli.render import printable, text_table

    if form != "table":
        for text in _texts(reader, form):
            click.echo(text, nl=False)
        return
    if reader.schema.names == ["explain_key", "explain_value"]:
        for line in "\n".join(reader.read_all()["explain_value"].to_pylist()).splitlines():
            click.echo(printable(line))
        return
    rows: list[dict] = []
    total = 0
    for batch in reader:
        total += batch.num_rows
        if len(rows) < SHOWN_ROWS:
            rows += batch.slice(0, SHOWN_ROWS - len(rows)).to_pylist()
    click.echo(text_table(rows, reader.schema.names))
    told = f"({total:,} {'row' if total == 1 else 'rows'})"
    if total > len(rows):
        told = f"({len(rows):,} of {total:,} rows; --format csv, json or parquet gives all)"
    click.echo(told)


def _texts(reader: pa.RecordBatchReader, form: str):
    """The result as pieces of CSV or of one JSON array, a row a line."""
    from derivedata.cli.render import csv_lines, json_row

    columns = reader.schema.names
    if form == "csv":
        yield csv_lines([], columns)
        for batch in reader:
            yield csv_lines(batch.to_pylist(), columns, header=False)
        return
    before = "[\n"
    for batch in reader:
        for row in batch.to_pylist():
            yield before + json_row(row)
            before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def _write(reader: pa.RecordBatchReader, form: str, output: str) -> int:
    """Write the result to a file, complete or not at all; the number of rows."""
    import os

    part = f"{output}.part{os.getpid()}"
    counted = _Counted(reader)
    try:
        if form == "parquet":
            import pyarrow.parquet as pq

            with pq.ParquetWriter(part, reader.schema, compression="zstd") as writer:
                for batch in counted:
                    writer.write_batch(batch)
        else:
            with open(part, "w", encoding="utf-8", newline="") as file:
                file.writelines(_file_texts(counted, form))
        os.replace(part, output)
    except OSError as error:
        from derivedata.store.faults import explain

        raise explain(error, output) or error from error
    finally:
        if os.path.exists(part):
            os.unlink(part)
    return counted.rows


def _file_texts(reader: _Counted, form: str):
    from derivedata.cli.render import text_table

    if form == "table":
        rows = [row for batch in reader for row in batch.to_pylist()]
        yield text_table(rows, reader.schema.names) + "\n"
    else:
        yield from _texts(reader, form)


class _Counted:
    """A reader that counts the rows that pass."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self.schema, self.rows, self._reader = reader.schema, 0, reader

    def __iter__(self):
        for batch in self._reader:
            self.rows += batch.num_rows
            yield batch


def _told(summary: Summary) -> list[str]:
    from derivedata.cli.render import text_table

    lines = [text_table(summary.styles.to_dicts(), summary.styles.columns)]
    lines.append(
        f"{summary.documents:,} documents, {summary.tokens_told}, {summary.bytes:,} bytes in {summary.shards:,} shards"
    )
    if summary.counts.height:
        lines += ["", "counted:", text_table(summary.counts.to_dicts(), summary.counts.columns)]
    if summary.rejected.height:
        lines += ["", "rejected:", text_table(summary.rejected.to_dicts(), summary.rejected.columns)]
    for stage, books in sorted(summary.books.items()):
        told = [f"accepted {books.accepted:,}"]
        for account in ("rejected", "skipped", "outside"):
            counts = getattr(books, account)
            if counts:
                reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
                told.append(f"{account} {sum(counts.values()):,} ({reasons})")
        balance = "" if books.planned == books.settled else "  THE BOOKS DO NOT BALANCE"
        lines.append(f"\nbooks of {stage}: planned {books.planned:,} = {' + '.join(told)}{balance}")
    return lines
