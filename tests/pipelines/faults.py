"""Ways to break a good output, one at a time; each is a function of the output's folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from derivedata.store.fingerprint import RunConfig
from derivedata.store.paths import Folder
from derivedata.store.runs import current_run, save_run
from derivedata.store.tables import BOOKS_KEY, write_parquet

Fault = Callable[[Path], Any]


def first(out: Path, pattern: str) -> Path:
    """The first file of a pattern: of the manifest's tables, the first unit that generated."""
    return sorted(out.glob(pattern))[0]


def flip(pattern: str) -> Fault:
    """Change a byte in the middle."""

    def fault(out: Path) -> None:
        path = first(out, pattern)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 255
        path.write_bytes(bytes(data))

    return fault


def cut(pattern: str) -> Fault:
    """Throw the second half away."""

    def fault(out: Path) -> None:
        path = first(out, pattern)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return fault


def delete(pattern: str, *, every: bool = False) -> Fault:
    """Remove the first file of a pattern, or all of them."""

    def fault(out: Path) -> None:
        for path in sorted(out.glob(pattern))[: None if every else 1]:
            path.unlink()

    return fault


def write(path: str, text: str) -> Fault:
    """Put a file there, or another content."""
    return lambda out: (out / path).write_text(text)


def alter(table: str, column: str, change: Callable[[int, Any], Any], *, sealed: bool = True) -> Fault:
    """Change a column of an index file (or of a units part). sealed: the units part has the hash of the new file, as if
    the index had been wrong from the beginning, so that only a look at its content can tell."""

    def fault(out: Path) -> None:
        path = first(out, f"manifest/{table}/*.parquet")
        old = pq.ParquetFile(path)
        rows = old.read().replace_schema_metadata(None)
        number = rows.schema.get_field_index(column)
        values = [change(row, value) for row, value in enumerate(rows[column].to_pylist())]
        rows = rows.set_column(number, rows.schema.field(column), pa.array(values, rows.schema.field(column).type))
        metadata = {BOOKS_KEY: old.metadata.metadata[BOOKS_KEY]} if table == "units" else None
        path.write_bytes(write_parquet(rows, metadata=metadata))
        if sealed and table != "units":
            seal(out)

    return fault


def constant(value: Any) -> Callable[[int, Any], Any]:
    return lambda row, old: value


def seal(out: Path) -> None:
    """Give every units part the hashes of the files that are there now."""

    def change(fields: dict) -> None:
        for path in fields["files"]:
            if (out / path).exists():
                fields["files"][path] = hashlib.sha256((out / path).read_bytes()).hexdigest()

    for path in (out / "manifest" / "units").glob("*.parquet"):
        account(path, change)


def account(path: Path, change: Callable[[dict], Any]) -> None:
    """Change what a units part holds beside its rows."""
    old = pq.ParquetFile(path)
    fields = json.loads(old.metadata.metadata[BOOKS_KEY])
    change(fields)
    rows = old.read().replace_schema_metadata(None)
    path.write_bytes(write_parquet(rows, metadata={BOOKS_KEY: json.dumps(fields, sort_keys=True).encode()}))


def books(change: Callable[[dict], Any]) -> Fault:
    """Change the books of a units part."""
    return lambda out: account(first(out, "manifest/units/*.parquet"), lambda fields: change(fields["books"]))


def rejected_row(**values: Any) -> Fault:
    """Change the first row that a file of rejects keeps, and seal."""

    def fault(out: Path) -> None:
        path = first(out, "rejected/*.jsonl.zst")
        with zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True) as stream:
            line, _, rest = stream.read().partition(b"\n")
        changed = json.dumps(json.loads(line) | values).encode() + b"\n" + rest
        path.write_bytes(zstandard.ZstdCompressor().compress(changed))
        seal(out)

    return fault


def other_text(out: Path) -> None:
    """Give the first document of a shard another text, in an archive that is whole."""
    path = first(out, "documents/*/*.jsonl.zst")
    with zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True) as stream:
        line, _, rest = stream.read().partition(b"\n")
    changed = json.dumps(json.loads(line) | {"text": "Something else."}).encode() + b"\n" + rest
    path.write_bytes(zstandard.ZstdCompressor().compress(changed))


def both(*faults: Fault) -> Fault:
    return lambda out: [fault(out) for fault in faults]


def edit_record(*, everywhere: bool, **identity: Any) -> Fault:
    """Change the identity in run.json; everywhere: in its copy too, with a fingerprint that fits."""

    def fault(out: Path) -> None:
        if everywhere:
            record = current_run(Folder(out))
            config = RunConfig(
                identity=record.identity | identity, extent=record.config.extent, execution=record.config.execution
            )
            save_run(Folder(out), replace(record, config=config))
            return
        fields = json.loads((out / "run.json").read_text())
        fields["config"]["identity"] |= identity
        (out / "run.json").write_text(json.dumps(fields))

    return fault


def edit_run(**values: Any) -> Fault:
    """Change other fields of run.json."""

    def fault(out: Path) -> None:
        fields = json.loads((out / "run.json").read_text())
        (out / "run.json").write_text(json.dumps(fields | values))

    return fault


def forget_unit(pattern: str) -> Fault:
    """Remove a unit with everything that is its own."""

    def fault(out: Path) -> None:
        name = first(out, pattern).name.removesuffix(".parquet")
        for path in out.rglob(f"{name}.*"):
            path.unlink()

    return fault
