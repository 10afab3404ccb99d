"""Checks one file of documents against its row of the manifest, its rows of the index, and the run's identity."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from derivedata.corpus.files import CorpusFile
from derivedata.corpus.reader import Document, RejectedRow, read_rows
from derivedata.generation.seeds import request_seed
from derivedata.generation.tokenizer import Tokenizer
from derivedata.pipelines.derived import _as_string as as_string
from derivedata.store.adopt import decompressed_frames
from derivedata.store.content import size_and_sha256
from derivedata.store.masking import MASK
from derivedata.store.paths import Folder, Missing
from derivedata.store.tables import FRESH

AT_ONCE = 64  # documents whose tokens are counted in one go
# Columns of the index that a document says of itself, in `metadata.derivedata`.
DERIVATION = (
    "strategy",
    "style",
    "source_uid",
    "source_id",
    "rewrite",
    "piece",
    "epoch",
    "model",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "run_id",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """What the run record says of how documents were made: its identity, and the ids of all runs (None: unknown)."""

    identity: Mapping[str, Any] = field(default_factory=dict)
    runs: frozenset[str] | None = None

    def says(self, name: str) -> Any:
        """A value of the identity; None where it says nothing, or was masked."""
        value = self.identity.get(name)
        return None if isinstance(value, str) and MASK in value else value


def check_shard(
    folder: Folder,
    shard: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] | None,
    *,
    made: Made,
    counter: Tokenizer | None,
) -> Iterator[str]:
    """What is wrong with a shard.

    Args:
        shard: its row of the table shards.
        rows: its rows of the table documents; None when they can't be read.
        made: how it was made.
        counter: counts the tokens again, unless None.
    """
    path = shard["path"]
    try:
        with folder.open(path) as stream:
            size, sha256 = size_and_sha256(stream)
            whole = (size, sha256) == (shard["bytes"], shard["sha256"])
            if not whole:
                sizes = "" if size == shard["bytes"] else f" ({size} bytes instead of {shard['bytes']})"
                yield f"has other content than the manifest says{sizes}"
            else:
                yield from check_frames(stream, shard)
    except Missing:
        yield "is missing"
        return
    yield from _row(shard, rows, made)
    yield from _documents(folder, shard, size, rows, made, counter)


def _row(shard: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] | None, made: Made) -> Iterator[str]:
    """The shard's row of the manifest against its own path, its documents and the run."""
    name = shard["path"].rpartition("/")[2]
    if name != f"{shard['unit']}.{shard['format']}":
        yield f"the manifest says unit {shard['unit']} and format {shard['format']}"
    counted_with = made.says("counted_with")
    if counted_with and shard["tokenizer"] != counted_with:
        yield f"the manifest says tokenizer {shard['tokenizer']}, the run counted with {counted_with}"
    if made.runs is not None and shard["run_id"] not in made.runs:
        yield f"the manifest says run {shard['run_id']}, of which there is no record"
    if rows is None:
        return
    if len({row["row"] for row in rows}) != len(rows) or len(rows) != shard["documents"]:
        yield f"the index has {len(rows)} rows for {shard['documents']} documents"
    for column, named in (("style", "style"), ("strategy", "strategy"), ("source_shard", "source_path")):
        if (column == "source_shard" and shard[column] is None) or shard["strategy"] == "mix":
            continue  # made of several
        others = {row[named] for row in rows} - {shard[column]}
        if others:
            yield f"the manifest says {column} {shard[column]}, the index says {min(map(str, others))}"
    counted = sum(row["tokens"] or 0 for row in rows)
    if counted != (shard["tokens"] or 0):
        yield f"its documents' tokens add up to {counted}, the manifest says {shard['tokens']}"


def _documents(
    folder: Folder,
    shard: Mapping[str, Any],
    size: int,
    rows: Sequence[Mapping[str, Any]] | None,
    made: Made,
    counter: Tokenizer | None,
) -> Iterator[str]:
    path = shard["path"]
    form = "parquet" if path.endswith("parquet") else "jsonl"
    file = CorpusFile(folder.url_of(path), path.removeprefix("documents/"), size, "", form)
    by_row = None if rows is None else {row["row"]: row for row in rows}
    found = tokens = 0
    waiting: list[Document] = []

    def count() -> Iterator[str]:
        nonlocal tokens
        counts = counter.count([document.text for document in waiting]) if counter is not None else []
        for document, number in zip(waiting, counts, strict=False):
            tokens += number
            said = number if by_row is None else by_row.get(document.row, {}).get("tokens", number)
            if number != said:
                yield f"row {document.row}: has {number} tokens, the index says {said}"
        waiting.clear()

    for document in read_rows(file):
        if isinstance(document, RejectedRow):
            yield f"row {document.row} is unreadable: {document.detail}"
            continue
        found += 1
        if by_row is not None and document.row not in by_row:
            yield f"row {document.row} is not in the index"
        yield from _document(document, None if by_row is None else by_row.get(document.row), made)
        waiting.append(document)
        if len(waiting) == AT_ONCE:
            yield from count()
    yield from count()
    if found != shard["documents"]:
        yield f"holds {found} documents, the manifest says {shard['documents']}"
    if counter is not None and shard["tokens"] is not None and tokens != shard["tokens"]:
        yield f"has {tokens} tokens, the manifest says {shard['tokens']}"


def _document(document: Document, row: Mapping[str, Any] | None, made: Made) -> Iterator[str]:
    """What a document says against what the index and the run say of it; the first difference."""
    derivation = (document.metadata or {}).get("derivedata")
    derivation = derivation if isinstance(derivation, dict) else {}
    if row is not None:
        said = {
            "uid": document.uid,
            "id": as_string(document.id),
            "source": document.source,
            "text_sha256": hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).hexdigest(),
            "chars": len(document.text),
        }
        if row.get("strategy") != FRESH or derivation:
            said |= {name: derivation.get(name) for name in DERIVATION}
        for name, value in said.items():
            if value != row.get(name):
                yield f"row {document.row}: {name} is {value!r}, the index says {row.get(name)!r}"
                return
    for name, value, expected in _as_run(document, derivation, made):
        if expected is not None and value != expected:
            yield f"row {document.row}: {name} is {value!r}, by the run record it should be {expected!r}"
            return


def _as_run(document: Document, derivation: Mapping[str, Any], made: Made) -> Iterator[tuple[str, Any, Any]]:
    """(name, value in the document, value by the run record, None for any) of what the run's identity settles."""
    if made.says("job") != "paraphrase":
        return
    yield "added", document.added, made.says("added")
    yield "model", derivation.get("model"), made.says("model")
    yield "model_revision", derivation.get("model_revision"), made.says("model_revision")
    style = derivation.get("style")
    yield "style_sha256", derivation.get("style_sha256"), (made.says("styles") or {}).get(style)
    sampling = derivation.get("params") or {}
    for name, told in (("temperature", "temperature"), ("top_p", "top_p"), ("max_tokens", "max_new")):
        yield name, sampling.get(name), made.says(told)
    uid, rewrite, piece = (derivation.get(name) for name in ("source_uid", "rewrite", "piece"))
    before, after = f"{uid}-", f"-{rewrite}-{piece}"
    kind = str(document.id).removeprefix(before).removesuffix(after)
    yield "id", document.id, f"{before}{kind}{after}"
    if made.says("seed") is not None:
        yield "seed", derivation.get("seed"), request_seed(made.says("seed"), uid, kind, rewrite, piece)
    if made.runs is not None and derivation.get("run_id") not in made.runs:
        yield "run_id", derivation.get("run_id"), "one with a record"


def check_frames(stream: IO[bytes], shard: Mapping[str, Any]) -> Iterator[str]:
    """Whether each frame that the manifest names is one, can be read alone, and holds the rows it is said to hold."""
    frames = [tuple(frame[name] for name in ("offset", "length", "first_row", "rows")) for frame in shard["frames"]]
    try:
        there = _row_groups(stream) if shard["format"] == "parquet" else _alone(stream, shard["format"], frames)
        for said, found in zip(frames, there, strict=False):
            if said != found:
                yield f"the manifest names a frame (offset, length, first row, rows) {said}, there is {found}"
                return
    except (ValueError, zstandard.ZstdError, zlib.error, pa.ArrowException, OSError) as error:
        yield f"the manifest names a frame that can't be read alone: {error}"
        return
    rows = sum(frame[3] for frame in frames)
    whole = len(there) == len(frames) if shard["format"] == "parquet" else _end(frames) == shard["bytes"]
    if rows != shard["documents"] or not whole:
        yield f"the manifest names frames with {rows} rows that end at byte {_end(frames)} of {shard['bytes']}"


def _end(frames: Sequence[tuple[int, int, int, int]]) -> int:
    return frames[-1][0] + frames[-1][1] if frames else 0


def _alone(stream: IO[bytes], form: str, said: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """The frames that begin where the ones before end and have the lengths that are said."""
    found, offset, first = [], 0, 0
    for _, length, _, _ in said:
        stream.seek(offset)
        contents = [content for _, _, content in decompressed_frames(stream.read(length), form)]
        if len(contents) != 1:
            raise ValueError(f"{length} bytes at byte {offset} are {len(contents)} frames")
        rows = contents[0].count(b"\n")
        found.append((offset, length, first, rows))
        offset, first = offset + length, first + rows
    return found


def _row_groups(stream: IO[bytes]) -> list[tuple[int, int, int, int]]:
    stream.seek(0)
    metadata, found, first = pq.ParquetFile(stream).metadata, [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(index) for index in range(group.num_columns)]
        start = min(column.dictionary_page_offset or column.data_page_offset for column in columns)
        length = sum(column.total_compressed_size for column in columns)
        found.append((start, length, first, group.num_rows))
        first += group.num_rows
    return found
