"""What is known of each document of a corpus before it is written again: one pass, kept under `plan/rows`.

`IndexRows` is the Datatrove step. For each file it keeps an Arrow file, a batch a block, with what the manifest and the
derivation of a copy need, so that writing an epoch parses nothing. A shard that can't be read from the middle (one long
gzip member, a JSON array, Parquet) is rewritten once into frames, under `plan/blocks`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import zstandard
from datatrove.pipeline.base import PipelineStep

from derivedata.corpus.blocks import Blocks
from derivedata.corpus.blocks_lines import block_lines
from derivedata.corpus.document import Document
from derivedata.corpus.files import CorpusFile
from derivedata.corpus.reader import read_rows
from derivedata.corpus.stream_virtual import FRAMES, with_frames
from derivedata.corpus.strict import BadRow, is_plain, parse_row
from derivedata.corpus.writer import encode_row
from derivedata.errors import UserError
from derivedata.pipelines.derived import _as_string as as_string
from derivedata.pipelines.repeat_splice import find_place
from derivedata.pipelines.repeat_tokens import TokenCounts
from derivedata.store.paths import Folder

ROWS = "plan/rows"
BLOCKS = "plan/blocks"
SUMMARY = "plan/rows.json"
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("uid", pa.string()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("tokens", pa.int32()),
        ("chars", pa.int32()),
        ("text_sha256", pa.string()),
        ("start", pa.int64()),  # of the row's line, in bytes of the block
        ("length", pa.int32()),  # of the line, with its break
        ("head", pa.large_binary()),  # how the derivation of every copy begins
        ("kind", pa.int8()),  # where it goes: repeat_splice.Place
        ("at", pa.int32()),
        ("cut", pa.int32()),
    ]
)


def row_name(path: str) -> str:
    """How the files of a shard are called under plan/."""
    return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class IndexRows(PipelineStep):
    """Index each file once, as tasks share them; a file that is indexed is passed over.

    Args:
        blocks: the corpus.
        copy: for each file, whether it is rewritten into frames.
        output: the folder of the repeat.
        tokens: counts the tokens of documents; None leaves them unknown.
        rows: keep what copies need; without it only tokens are counted.
    """

    name = "Rows"
    type = "🔎 - SOURCE"

    def __init__(
        self, blocks: Blocks, copy: Sequence[bool], output: str, *, tokens: TokenCounts | None, rows: bool = True
    ):
        super().__init__()
        self.blocks, self.copy, self.output, self.tokens, self.rows = blocks, list(copy), output, tokens, rows

    @cached_property
    def folder(self) -> Folder:
        return Folder(self.output)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        done = set(self.folder.names(f"{ROWS}/"))
        for number in range(rank, len(self.blocks.files), world_size):
            name = f"{ROWS}/{row_name(self.blocks.files[number].path)}"
            if f"{name}.json" not in done:
                with self.track_time("file"), self.folder.scratch() as scratch:
                    self._index(number, name, scratch)

    def _index(self, number: int, name: str, scratch: Path) -> None:
        file, copy = self.blocks.files[number], self.copy[number]
        told: dict[str, Any] = {"path": file.path, "tokens": None if self.tokens is None else [], "frames": []}
        with contextlib.ExitStack() as stack:
            if self.rows:
                index = stack.enter_context(pa.OSFile(str(scratch / "rows.arrow"), "wb"))
                batches = stack.enter_context(pa.ipc.new_file(index, SCHEMA))
            frames = stack.enter_context((scratch / "blocks.zst").open("wb")) if copy else None
            read = self._documents if copy or not self.rows else self._lines
            for block, lines, documents in read(number):
                self.blocks.check(block, block + 1, len(documents))
                counts = [None] * len(documents)
                if self.tokens is not None:
                    counts = self.tokens.count(file, documents)
                    told["tokens"].append(sum(counts))
                self.stat_update("documents", value=len(documents))
                if self.rows:
                    batches.write_batch(_batch(lines, documents, counts, int(self.blocks.table["first"][block])))
                if frames:
                    told["frames"].append([frames.tell(), frames.write(_frame(lines))])
        if self.rows:
            self.folder.create_from(f"{name}.arrow", scratch / "rows.arrow")
        if copy:
            self.folder.create_from(f"{BLOCKS}/{row_name(file.path)}.jsonl.zst", scratch / "blocks.zst")
        self.folder.create(f"{name}.json", json.dumps(told).encode())

    def _lines(self, number: int) -> Iterator[tuple[int, list[bytes], list[Document]]]:
        file = self.blocks.files[number]
        for block in np.flatnonzero(self.blocks.table["file"] == number).tolist():
            lines = block_lines(self.blocks, block)
            first = int(self.blocks.table["first"][block])
            rows = np.arange(first, first + len(lines))
            wanted = rows if file.selection is None else rows[file.selection.holds(file.path, rows)]
            documents = []
            for row in wanted.tolist():
                fields = _parsed(lines[row - first])
                if fields is not None:
                    documents.append(Document.from_fields(fields, file.path, row))
            yield block, lines, documents

    def _documents(self, number: int) -> Iterator[tuple[int, list[bytes], list[Document]]]:
        """The same of a file that gives no lines: rows that are no documents become lines that are none either."""
        file, table = self.blocks.files[number], self.blocks.table
        own = np.flatnonzero(table["file"] == number).tolist()
        rows = iter(read_rows(file))
        row = next(rows, None)
        for block in own:
            first, stop = int(table["first"][block]), int(table["stop"][block])
            lines, documents = [b"{}"] * (stop - first), []
            while row is not None and row.row < stop:
                if row.__class__ is Document:
                    documents.append(row)
                    lines[row.row - first] = encode_row(row.fields) if self.copy[number] else b""
                row = next(rows, None)
            yield block, lines, documents


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A row as the reader takes it; None where it is no document."""
    try:
        fields = orjson.loads(line)
    except ValueError:
        fields = None
    if (
        type(fields) is dict
        and type(text := fields.get("text")) is str
        and text[:1].isalnum()
        and is_plain(fields.values())
    ):
        return fields
    try:
        return parse_row(line)
    except BadRow:
        return None


def _batch(
    lines: Sequence[bytes], documents: Sequence[Document], tokens: Sequence[int | None], first: int
) -> pa.RecordBatch:
    places = [find_place(lines[document.row - first], document.fields) for document in documents]
    ids = [as_string(document.id) for document in documents]
    heads = [
        orjson.dumps({"source_id": name, "source_uid": document.uid})[:-1]
        for name, document in zip(ids, documents, strict=True)
    ]
    starts = np.concatenate([[0], np.cumsum([len(line) + 1 for line in lines], dtype=np.int64)])
    rows = np.array([document.row for document in documents], np.int64) - first
    columns = [
        [document.row for document in documents],
        [document.uid for document in documents],
        ids,
        [as_string(document.source) for document in documents],
        list(tokens),
        [len(document.text) for document in documents],
        [hashlib.sha256(document.text.encode()).hexdigest() for document in documents],
        starts[rows],
        np.diff(starts)[rows],
        heads,
        [place.kind for place in places],
        [place.at for place in places],
        [place.cut for place in places],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _frame(lines: Sequence[bytes]) -> bytes:
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(b"\n".join([*lines, b""]))


def close_index(folder: Folder, files: Sequence[CorpusFile]) -> None:
    """Put what is told of each file into one, so that a restart reads one object and not one a file."""
    if folder.exists(SUMMARY):
        return
    told = [json.loads(folder.read(f"{ROWS}/{row_name(file.path)}.json")) for file in files]
    frames = {
        one["path"]: [f"{BLOCKS}/{row_name(one['path'])}.jsonl.zst", one["frames"]] for one in told if one["frames"]
    }
    folder.replace(FRAMES, json.dumps(frames).encode())
    folder.create(SUMMARY, json.dumps([one["tokens"] for one in told]).encode())
    folder.remove_many([f"{ROWS}/{row_name(file.path)}.json" for file in files])


class Indexed:
    """The finished index of a corpus.

    Attributes:
        blocks: the corpus, with shards that were rewritten in place of theirs.
        tokens: of each block, or None.
    """

    def __init__(self, folder: Folder, blocks: Blocks):
        self.folder = folder
        try:
            told = json.loads(folder.read(SUMMARY))
        except ValueError:
            raise UserError("is damaged", where=folder.url_of(SUMMARY), remedy="add --restart to start over") from None
        self.tokens = None if None in told else np.array([n for one in told for n in one], np.int64)
        self._first = np.searchsorted(blocks.table["file"], np.arange(len(blocks.files)))
        self._open: dict[int, Any] = {}
        self.blocks = with_frames(folder, blocks)

    def rows(self, block: int) -> pa.RecordBatch:
        """What is known of the documents of a block (columns: SCHEMA)."""
        number = int(self.blocks.table["file"][block])
        if number not in self._open:
            if len(self._open) >= 64:
                self._open.pop(next(iter(self._open)))
            path = f"{ROWS}/{row_name(self.blocks.files[number].path)}.arrow"
            source = pa.memory_map(self.folder.full(path)) if self.folder.is_local else self.folder.open(path)
            self._open[number] = pa.ipc.open_file(source)
        return self._open[number].get_batch(int(block - self._first[number]))
