"""What the manifest holds: the schemas of its tables, and the part that one commit adds.

A table is an index without text, one small Parquet file a commit (`manifest/<table>/<name>.parquet`). Stages that need
other tables declare them with `declare`; everything else (commit, compaction, views) takes tables by name.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from derivedata.errors import UserError
from derivedata.store.books import Books

MANIFEST = "manifest"
UNITS = f"{MANIFEST}/units"
# Folders of the manifest that are no tables of parts.
RESERVED = frozenset({"units", "snapshots", "kinds", "runs", "shards", "books"})
BOOKS_KEY = b"derivedata"
FRESH = "fresh"  # the strategy of documents that are derived from nothing

_text, _whole, _small = pa.string(), pa.int64(), pa.int32()

FRAMES = pa.list_(
    pa.struct([("offset", _whole), ("length", _whole), ("first_row", _whole), ("rows", _whole)]),
)
# One row a file of documents. tokens is null when nobody counted, never 0; tokenizer says with what.
SHARDS = pa.schema(
    [
        ("path", _text),
        ("sha256", _text),
        ("bytes", _whole),
        ("documents", _whole),
        ("tokens", _whole),
        ("tokenizer", _text),
        ("strategy", _text),
        ("style", _text),
        ("source_shard", _text),
        ("run_id", _text),
        ("unit", _text),
        ("format", _text),
        ("frames", FRAMES),
    ]
)
# One row a derived document; `shard` is the path in SHARDS, `row` the 0-based row in that file.
DOCUMENTS = pa.schema(
    [
        ("uid", _text),
        ("id", _text),
        ("source", _text),
        ("strategy", _text),
        ("style", _text),
        ("shard", _text),
        ("row", _whole),
        ("tokens", _small),
        ("chars", _small),
        ("text_sha256", _text),
        ("source_uid", _text),
        ("source_id", _text),
        ("source_path", _text),
        ("source_row", _whole),
        ("rewrite", _small),
        ("piece", _small),
        ("epoch", _small),
        ("model", _text),
        ("finish_reason", _text),
        ("prompt_tokens", _small),
        ("completion_tokens", _small),
        ("run_id", _text),
    ]
)
# One row a rejected input row or generation; the text stands in rejected/*.jsonl.zst only.
REJECTED = pa.schema(
    [
        ("stage", _text),
        ("reason", _text),
        ("detail", _text),
        ("path", _text),
        ("line", _whole),
        ("source_uid", _text),
        ("style", _text),
        ("rewrite", _small),
        ("piece", _small),
        ("completion_tokens", _small),
        ("run_id", _text),
    ]
)
# The books in long form, as the view `books` shows them; reason is null for planned and accepted.
BOOKS = pa.schema([("unit", _text), ("stage", _text), ("account", _text), ("reason", _text), ("count", _whole)])
# What a snapshot covers; files: the further files (no shards) that each part brought.
FILES = pa.list_(pa.struct([("path", _text), ("sha256", _text)]))
UNIT_NAMES = pa.schema([("name", _text), ("stage", _text), ("files", FILES)])

# Columns that have another value in nearly every row.
DIFFERENT = frozenset(
    ("uid", "id", "text_sha256", "source_uid", "source_id", "row", "tokens", "chars", "source_row", "sha256")
)

TABLES: dict[str, pa.Schema] = {"documents": DOCUMENTS, "rejected": REJECTED}

_TABLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_PART_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,180}")


def declare(name: str, schema: pa.Schema) -> pa.Schema:
    """Make `name` a table that parts may hold (the same declaration twice is fine)."""
    if not _TABLE_NAME.fullmatch(name) or name in RESERVED:
        raise ValueError(f"not a name for a table: {name}")
    if name in TABLES and not TABLES[name].equals(schema):
        raise ValueError(f"table {name} is declared with another schema")
    TABLES[name] = schema
    return schema


def rows_to_table(rows: Sequence[Mapping], schema: pa.Schema) -> pa.Table:
    """A table of `schema` from dicts; absent keys are null, unknown keys an error."""
    known = set(schema.names)
    for row in rows:
        if not row.keys() <= known:
            raise ValueError(f"no such column: {sorted(row.keys() - known)}")
    return pa.Table.from_pylist(list(rows), schema=schema)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry:
    """A file of documents that a commit adds.

    path: relative to the output. local: the finished file on this machine. sha256, bytes: of that file.
    documents, tokens: counted in it, tokens with `tokenizer`. frames: (offset, length, first_row, rows) of its
    independently compressed frames, in bytes and rows.
    """

    path: str
    local: Path
    sha256: str
    bytes: int
    documents: int
    tokens: int | None = None
    tokenizer: str | None = None
    strategy: str
    style: str | None = None
    source_shard: str | None = None
    run_id: str | None = None
    format: str
    frames: Sequence[tuple[int, int, int, int]] = ()

    def row(self, unit: str) -> dict:
        """The row of SHARDS."""
        names = ("offset", "length", "first_row", "rows")
        return {name: getattr(self, name) for name in SHARDS.names if name not in ("unit", "frames")} | {
            "unit": unit,
            "frames": [dict(zip(names, frame, strict=True)) for frame in self.frames],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one commit adds: shards, rows of index tables, the balanced books.

    tables: name -> rows; the schema must be the declared one. files: further files (rejected text) as relative path ->
    local file, created like shards but not listed among them. stage: whose books these are ('generation', 'input').
    """

    books: Books
    stage: str = "generation"
    shards: Sequence[ShardEntry] = ()
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.books.balance(self.stage)
        for name, table in self.tables.items():
            if name not in TABLES:
                raise ValueError(f"table {name} is not declared")
            if not table.schema.equals(TABLES[name]):
                raise ValueError(f"table {name} has another schema than declared:\n{table.schema}\n{TABLES[name]}")

    def account(self, files: Mapping[str, str] | None = None) -> bytes:
        """What the units part holds beside its rows: stage, books, how many rows of each table belong to it, and the
        sha256 of each of its `files`, index files among them, by path."""
        rows = {name: table.num_rows for name, table in self.tables.items() if table.num_rows}
        fields = {"version": 1, "stage": self.stage, "books": self.books.to_dict(), "rows": rows, "files": files or {}}
        return json.dumps(fields, sort_keys=True).encode()


def part_path(table: str, name: str) -> str:
    """Where the part `name` of a table (or of 'units') stands. Raises UserError for names that could leave it."""
    if not _PART_NAME.fullmatch(name) or ".." in name:
        raise UserError("not a name for a part of the manifest", value=name)
    return f"{MANIFEST}/{table}/{name}.parquet"


def write_parquet(table: pa.Table, *, metadata: Mapping[bytes, bytes] | None = None) -> bytes:
    """Parquet bytes that depend on the content alone (and on the version of Arrow)."""
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    # Without the copy of the Arrow schema a part of a few rows is half the size; all our types come back the same.
    # Nor a dictionary of values that are all different: without it, and with level 1, the index of documents is written
    # in half the time and is a fifth smaller.
    named = [name for name in table.schema.names if name not in DIFFERENT]
    how = {"compression": "zstd", "compression_level": 1, "use_dictionary": named, "store_schema": False}
    with pq.ParquetWriter(sink, table.schema, **how) as writer:
        writer.write_table(table, row_group_size=1 << 17)
        if metadata:
            writer.add_key_value_metadata(dict(metadata))
    return sink.getvalue()
