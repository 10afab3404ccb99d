"""Generations that others made, on their way into a commit: sources looked up, tokens counted, a shard a style."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from derivedata.corpus.card import DERIVATION_FIELDS
from derivedata.corpus.document import Document, document_uid
from derivedata.corpus.inputs import Entry
from derivedata.corpus.strict import BadRow, check_text
from derivedata.corpus.writer import ShardWriter
from derivedata.generation.tokenizer import Tokenizer
from derivedata.pipelines.derived import GENERATION, SOURCES
from derivedata.pipelines.ingest_stage import INGESTED, IngestStage, Piece
from derivedata.pipelines.source import INPUT
from derivedata.pipelines.source_index import NO_SOURCE, SourceDocument, SourceIndex
from derivedata.store.books import Books
from derivedata.store.tables import DOCUMENTS, REJECTED, Part, rows_to_table

if TYPE_CHECKING:
    from derivedata.pipelines.derived_from import DerivedOptions

KEEP, REJECT = "keep", "reject"  # what becomes of a generation whose source is not found
WAITING, WAITING_CHARS = 256, 1 << 20  # derived documents whose tokens are counted in one go
TABLE_ROWS = 4096  # index rows that are held as Python objects
SOURCE_COLUMNS = ("uid", "id", "source", "path", "row", "tokens")


class DerivedStage(IngestStage):
    """Reads derived rows, finds their sources, commits them."""

    name = "📥 Ingest derived"

    def __init__(self, *, options: DerivedOptions, index: str | None, **kwargs: Any):
        super().__init__(**kwargs)
        self.options, self.index = options, index

    @cached_property
    def sources(self) -> SourceIndex | None:
        return SourceIndex(self.index) if self.index else None

    def shape(self, entry: Entry) -> Any:
        return self.options.shape(entry)

    def piece(self, entry: Entry, name: str, scratch: Path) -> Piece:
        return DerivedPiece(entry, name, scratch, stage=self)


class Rows:
    """Rows of a table on their way: a few as Python objects, the others as Arrow."""

    def __init__(self, schema: pa.Schema):
        self.schema, self.count = schema, 0
        self._held: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []

    def add(self, row: dict[str, Any]) -> None:
        self.count += 1
        self._held.append(row)
        if len(self._held) == TABLE_ROWS:
            self._flush()

    def table(self) -> pa.Table:
        self._flush()
        return pa.concat_tables(self._tables).combine_chunks()

    def _flush(self) -> None:
        self._tables.append(rows_to_table(self._held, self.schema))
        self._held = []


class DerivedPiece(Piece):
    """Generations on their way: a shard a style, the rows of their sources, the ones that are turned down."""

    def __init__(self, entry: Entry, name: str, scratch: Path, *, stage: DerivedStage):
        super().__init__(entry, name, scratch)
        self.options, self.config, self.run_id = stage.options, stage.config, stage.run_id
        self.counter: Tokenizer = stage.counter
        self.index = stage.sources
        self.shards: dict[str, ShardWriter] = {}
        self.tokens: Counter[str] = Counter()
        self.read = 0
        self.planned = 0
        self.turned_down: Counter[str] = Counter()
        self.documents, self.refused, self.sources = Rows(DOCUMENTS), Rows(REJECTED), Rows(SOURCES)
        self._counted = {"tokenizer": self.config.tokenizer_name}
        self._named: set[str] = set()
        self._numbers: Counter[str] = Counter()
        self._waiting: list[dict[str, Any]] = []
        self._chars = 0
        self._refusals: ShardWriter | None = None

    def add(self, document: Document) -> None:
        self.read += 1
        row = document.fields
        found = self.index.find(row["source_id"], row["source_text"]) if self.index else NO_SOURCE
        if isinstance(found, SourceDocument) and found.uid not in self._named:
            self._named.add(found.uid)
            self.sources.add({name: getattr(found, name) for name in SOURCE_COLUMNS} | self._counted)
        key = document_uid(document.path, document.row, "")
        for rewrite, generation in enumerate(row["generations"]):
            self.planned += 1
            reason, detail = None, None
            try:
                check_text({} if generation["text"] is None else generation)
            except BadRow as bad:
                reason, detail = bad.reason, bad.detail
            if reason is None and isinstance(found, str) and self.options.unmatched == REJECT:
                reason, detail = found, f"source id {row['source_id']!r}"
            if reason is not None:
                self._refuse(document, rewrite, generation, found, reason, detail)
                continue
            size = len(generation["text"].encode())
            self.text_bytes += size
            self._chars += size
            source = found if isinstance(found, SourceDocument) else None
            self._waiting.append({"key": key, "row": row, "rewrite": rewrite, "made": generation, "source": source})
        if len(self._waiting) >= WAITING or self._chars >= WAITING_CHARS:
            self._flush()

    def close(self, ingested: Mapping[str, Any]) -> list[tuple[str, Part]]:
        self._flush()
        shards = []
        for style, writer in self.shards.items():
            made = writer.close()
            shards.append(
                made.entry(
                    self._path(style),
                    tokens=self.tokens[style],
                    tokenizer=self.config.tokenizer_name,
                    strategy=self.options.strategy,
                    style=style,
                    run_id=self.run_id,
                    format=self.config.format,
                )
            )
        rejected = sum(self.reasons.values())
        read = Part(
            books=Books(planned=self.read + rejected, accepted=self.read, rejected=self.reasons),
            stage=INPUT,
            files=self.rejected_files(),
            tables={"rejected": rows_to_table(self.rejected, REJECTED)},
        )
        files = {f"rejected/{self.name}.jsonl.zst": self._refusals.close().path} if self._refusals else {}
        tables = {
            "documents": self.documents.table(),
            "rejected": self.refused.table(),
            "sources": self.sources.table(),
            "ingested": rows_to_table([ingested], INGESTED),
        }
        books = Books(planned=self.planned, accepted=self.documents.count, rejected=self.turned_down)
        made = Part(books=books, stage=GENERATION, shards=shards, files=files, tables=tables)
        return [(f"{INPUT}-{self.name}", read), (self.name, made)]

    def _path(self, style: str) -> str:
        return f"documents/style={style}/{self.name}.{self.config.format}"

    def _flush(self) -> None:
        waiting, self._waiting, self._chars = self._waiting, [], 0
        for one, tokens in zip(waiting, self.counter.count([one["made"]["text"] for one in waiting]), strict=True):
            self._write(tokens=tokens, **one)

    def _write(
        self,
        *,
        key: str,
        row: Mapping[str, Any],
        rewrite: int,
        made: Mapping[str, Any],
        source: SourceDocument | None,
        tokens: int,
    ) -> None:
        style, text = row["style"], made["text"]
        if style not in self.shards:
            path = self.scratch / f"style-{style}.{self.config.format}"
            self.shards[style] = ShardWriter(path, format=self.config.format)
        number = self._numbers[style]
        self._numbers[style] += 1
        self.tokens[style] += tokens
        known = {
            "source_id": source.id if source else row["source_id"],
            "source_uid": source.uid if source else None,
            "strategy": self.options.strategy,
            "style": style,
            "rewrite": rewrite,
            "piece": 0,
            "model": self.options.model,
            "finish_reason": made["finish_reason"],
            "prompt_tokens": made["prompt_tokens"],
            "completion_tokens": made["completion_tokens"],
            "run_id": self.run_id,
        }
        unknown = dict.fromkeys(DERIVATION_FIELDS) | {"params": dict.fromkeys(DERIVATION_FIELDS["params"])}
        origin = (source.source if source else row["source"]) or "unknown"
        document = {
            "id": f"{key}-{style}-{rewrite}",
            "text": text,
            "source": f"{origin}/derived/{style}",
            "added": self.config.shape.added,
            "created": row["created"],
            "metadata": {
                "derivedata": unknown | known,
                # As text, since rows disagree on the types of their fields and a column can have only one.
                "source_metadata": json.dumps(row["rest"], ensure_ascii=True, sort_keys=True),
            },
        }
        self.shards[style].write(document)
        path = self._path(style)
        self.documents.add(
            known
            | {
                "uid": document_uid(path.removeprefix("documents/"), number, text),
                "id": document["id"],
                "source": document["source"],
                "shard": path,
                "row": number,
                "tokens": tokens,
                "chars": len(text),
                "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
                "source_path": source.path if source else None,
                "source_row": source.row if source else None,
            }
        )

    def _refuse(
        self,
        document: Document,
        rewrite: int,
        generation: Mapping[str, Any],
        found: SourceDocument | str,
        reason: str,
        detail: str | None,
    ) -> None:
        if self._refusals is None:
            self._refusals = ShardWriter(self.scratch / "rejected-generations.jsonl.zst")
        uid = found.uid if isinstance(found, SourceDocument) else None
        row = {
            "reason": reason,
            "detail": detail,
            "style": document.fields["style"],
            "rewrite": rewrite,
            "piece": 0,
            "completion_tokens": generation["completion_tokens"],
            "run_id": self.run_id,
        }
        text = generation["text"] if isinstance(generation["text"], str) else json.dumps(generation["text"])
        place = {"path": document.path, "line": document.row + 1}
        self._refusals.write({**row, "uid": uid, **place, "source_id": document.fields["source_id"], "text": text})
        self.turned_down[reason] += 1
        self.refused.add({"stage": GENERATION, **row, **place, "source_uid": uid})
