"""The step that writes token shards, and what the manifest holds of them; `derivedata tokenize` drives it.

A shard is a run of windows of the stream, so the shards, one after the other, are the stream in its exact order however
many tasks made them. A shard is committed under its number, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datatrove.pipeline.base import PipelineStep

from derivedata.corpus.stream import DocumentStream
from derivedata.corpus.token_files import Place, open_writer, token_dtype
from derivedata.corpus.windows import WINDOW_BYTES
from derivedata.generation.tokenizer import Tokenizer, load_tokenizer
from derivedata.pipelines.token_counts import TOKEN_COUNTS
from derivedata.store.books import Books
from derivedata.store.content import file_sha256
from derivedata.store.ledger import Ledger
from derivedata.store.paths import Folder
from derivedata.store.tables import Part, declare, rows_to_table

STAGE = "tokenize"
BATCH_CHARS = 1 << 20

# One row a shard of tokens; tokens includes the end-of-text token of each document, which token_counts leaves out.
TOKEN_SHARDS = declare(
    "token_shards",
    pa.schema(
        [
            ("path", pa.string()),
            ("sha256", pa.string()),
            ("bytes", pa.int64()),
            ("format", pa.string()),
            ("dtype", pa.string()),
            ("documents", pa.int64()),
            ("tokens", pa.int64()),
            ("tokenizer", pa.string()),
            ("first_window", pa.int64()),
            ("stop_window", pa.int64()),
        ]
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerOf:
    """The tokenizer of a job: its folder on this machine, its name, and the token that ends each document."""

    folder: str
    name: str
    eos: str
    eos_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Windows [first, stop) of the stream, which make shard `number`."""

    number: int
    first: int
    stop: int
    documents: int

    @property
    def name(self) -> str:
        return f"shard-{self.number:06d}"


class TokenizeStage(PipelineStep):
    """Write shards [rank::world] of those that are missing."""

    name = "Tokenize"
    type = "🔢 - TOKENIZER"

    def __init__(self, output: str, stream: DocumentStream, spans: Sequence[Span], *, named: TokenizerOf, format: str):
        super().__init__()
        self.output, self.format, self.named = output, format, named
        self.stream, self.spans = stream, list(spans)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.named.folder, self.named.name)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        folder = Folder(self.output)
        ledger = Ledger(folder)
        for span in self.spans[rank::world_size]:
            with self.track_time("shard"), folder.scratch() as scratch:
                part = self._part(span, scratch)
                ledger.publish(span.name, part)
            self.stat_update("documents", value=span.documents)

    def _part(self, span: Span, scratch: Path) -> Part:
        dtype = token_dtype(self.tokenizer.largest_id)
        writer = open_writer(scratch, format=self.format, dtype=dtype, tokenizer=self.named.name)
        tally: dict[tuple, list[int]] = {}
        written = total = 0
        for window in range(span.first, span.stop):
            for batch in _batches(self.stream.read_with_origin(window)):
                ids, ends = self.tokenizer.encode_joined([document.text for document, _ in batch], self.named.eos_id)
                writer.write(ids, ends, self._places(batch))
                lengths = np.diff(ends, prepend=0) - 1
                for (document, origin), length in zip(batch, lengths.tolist(), strict=True):
                    strategy = None if origin.strategy == "fresh" else origin.strategy
                    counts = tally.setdefault((document.source, strategy, origin.style), [0, 0])
                    counts[0] += 1
                    counts[1] += length
                written, total = written + len(batch), total + len(ids)
        files = {f"tokens/{span.name}{suffix}": local for suffix, local in writer.close().items()}
        return Part(
            books=Books(planned=span.documents, accepted=written),
            stage=STAGE,
            files=files,
            tables=self._tables(span, files, tally, written, total, dtype),
        )

    def _places(self, batch: Sequence[tuple]) -> list[Place]:
        if self.format != "olmo":
            return []
        return [Place(uid=document.uid, path=document.path, row=document.row) for document, _ in batch]

    def _tables(
        self, span: Span, files: dict[str, Path], tally: dict, documents: int, tokens: int, dtype: np.dtype
    ) -> dict[str, pa.Table]:
        path, local = next(iter(files.items()))
        sha256 = file_sha256(local)
        shard = {
            "path": path,
            "sha256": sha256,
            "bytes": local.stat().st_size,
            "format": self.format,
            "dtype": dtype.name,
            "documents": documents,
            "tokens": tokens,
            "tokenizer": self.named.name,
            "first_window": span.first,
            "stop_window": span.stop,
        }
        counts = [
            {
                "tokenizer": self.named.name,
                "tokenizer_sha256": self.tokenizer.sha256,
                "shard": path,
                "shard_sha256": sha256,
                "source": source,
                "strategy": strategy,
                "style": style,
                "documents": tally[source, strategy, style][0],
                "tokens": tally[source, strategy, style][1],
            }
            for source, strategy, style in sorted(tally, key=lambda key: tuple(part or "" for part in key))
        ]
        return {
            "token_shards": rows_to_table([shard], TOKEN_SHARDS),
            "token_counts": rows_to_table(counts, TOKEN_COUNTS),
        }


def plan_spans(stream: DocumentStream, shard_bytes: int) -> list[Span]:
    """The runs of windows that make a shard each; none is without documents, whatever windows are empty."""
    step, spans, first, documents = max(1, round(shard_bytes / WINDOW_BYTES)), [], 0, 0
    for window in range(stream.windows):
        documents += stream.count(window)
        if window + 1 - first >= step and documents:
            spans.append(Span(number=len(spans), first=first, stop=window + 1, documents=documents))
            first, documents = window + 1, 0
    if documents:
        spans.append(Span(number=len(spans), first=first, stop=stream.windows, documents=documents))
    return spans


def _batches(documents: Sequence[tuple]) -> Iterator[Sequence[tuple]]:
    """Runs of documents with about a megabyte of text."""
    first = chars = 0
    for at, (document, _) in enumerate(documents):
        chars += len(document.text)
        if chars >= BATCH_CHARS:
            yield documents[first : at + 1]
            first, chars = at + 1, 0
    if first < len(documents):
        yield documents[first:]
