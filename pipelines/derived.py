"""What a unit of derived documents puts into the output: a shard a style, the rejects, the index tables, the books.

The same records in the same order give the same bytes, so whoever commits a unit, and however often, writes the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from derivedata.corpus.card import DERIVATION_FIELDS
from derivedata.corpus.document import document_uid
from derivedata.corpus.writer import ShardWriter
from derivedata.generation.style import Style
from derivedata.store.books import Books
from derivedata.store.tables import DOCUMENTS, REJECTED, Part, declare, rows_to_table
from derivedata.store.units import Unit

if TYPE_CHECKING:
    from derivedata.corpus.document import Document
    from derivedata.pipelines.paraphrase import ParaphraseConfig

STRATEGY = "paraphrase"
GENERATION = "generation"


# One row a source document that a unit used, whatever became of it: D beside D'. Units that fill in styles or rewrites
# name their documents again, so count distinct uids.
SOURCES = declare(
    "sources",
    pa.schema(
        [
            ("uid", pa.string()),
            ("id", pa.string()),
            ("source", pa.string()),
            ("path", pa.string()),
            ("row", pa.int64()),
            ("tokens", pa.int64()),
            ("tokenizer", pa.string()),
        ]
    ),
)


class DerivedPart:
    """Collects the outcomes of a unit, in their final order, into a `Part`."""

    def __init__(
        self,
        config: ParaphraseConfig,
        styles: Mapping[str, Style],
        unit: Unit,
        items: Sequence[Document],
        scratch: Path,
    ):
        self.config, self.styles, self.unit, self.items, self.scratch = config, styles, unit, items, scratch
        self.shards: dict[str, ShardWriter] = {}
        self.tokens: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self.documents: list[dict[str, Any]] = []
        self.rejected: list[dict[str, Any]] = []
        self.sources: dict[str, dict[str, Any]] = {}
        self.reasons: dict[str, Counter[str]] = {"rejected": Counter(), "skipped": Counter()}
        self._rejects: ShardWriter | None = None
        self._run_id = ""

    def add(self, record: dict[str, Any]) -> None:
        """Take one outcome."""
        self._run_id = record["run_id"]
        source = self.items[record["position"] - self.unit.first]
        self.sources.setdefault(source.uid, self._source_row(record, source))
        if record["outcome"] == "accepted":
            self._accept(record, source)
            return
        self.reasons[record["outcome"]][record["reason"]] += 1
        if record["outcome"] == "rejected":
            self._reject(record, source)

    def close(self, outside: int = 0) -> Part:
        """The finished part; `outside` are the outcomes beyond the budget, which are counted and not kept."""
        shards, files = [], {}
        for style, writer in self.shards.items():
            made = writer.close()
            shards.append(
                made.entry(
                    self._path(style),
                    tokens=self.tokens[style],
                    tokenizer=self.config.tokenizer_name,
                    strategy=STRATEGY,
                    style=style,
                    source_shard=self.items[0].path,
                    run_id=self._run_id,
                    format=self.config.format,
                )
            )
        if self._rejects:
            files[f"rejected/{self.unit.name}.jsonl.zst"] = self._rejects.close().path
        counted = len(self.documents) + sum(sum(counts.values()) for counts in self.reasons.values())
        books = Books(
            planned=counted + outside,
            accepted=len(self.documents),
            rejected=self.reasons["rejected"],
            skipped=self.reasons["skipped"],
            outside={"budget": outside},
        )
        tables = {
            "documents": rows_to_table(self.documents, DOCUMENTS),
            "rejected": rows_to_table(self.rejected, REJECTED),
            "sources": rows_to_table(list(self.sources.values()), SOURCES),
        }
        return Part(books=books, stage=GENERATION, shards=shards, files=files, tables=tables)

    def _source_row(self, record: Mapping[str, Any], source: Document) -> dict[str, Any]:
        return {
            "uid": source.uid,
            "id": _as_string(source.id),
            "source": _as_string(source.source),
            "path": source.path,
            "row": source.row,
            "tokens": record["source_tokens"],
            "tokenizer": self.config.tokenizer_name,
        }

    def _path(self, style: str) -> str:
        return f"documents/style={style}/{self.unit.name}.{self.config.format}"

    def _accept(self, record: dict[str, Any], source: Document) -> None:
        style = self.styles[record["style"]]
        document = derived_document(record, source, style, self.config)
        if style.name not in self.shards:
            path = self.scratch / f"{style.name}.{self.config.format}"
            self.shards[style.name] = ShardWriter(path, format=self.config.format)
        writer, row = self.shards[style.name], self._rows[style.name]
        self._rows[style.name] += 1
        writer.write(document)
        self.tokens[style.name] += record["tokens"]
        self.documents.append(
            index_row(record, source, document, path=self._path(style.name), row=row, config=self.config)
        )

    def _reject(self, record: dict[str, Any], source: Document) -> None:
        if self._rejects is None:
            self._rejects = ShardWriter(self.scratch / "rejected.jsonl.zst")
        kept = {name: record.get(name) for name in REJECTED_FIELDS}
        self._rejects.write({**kept, "source_id": _as_string(source.id), "text": record["text"]})
        self.rejected.append(
            {
                "stage": GENERATION,
                "reason": record["reason"],
                "detail": record["detail"],
                "path": source.path,
                "line": source.row + 1,
                "source_uid": source.uid,
                "style": record["style"],
                "rewrite": record["rewrite"],
                "piece": record["piece"],
                "completion_tokens": record.get("completion_tokens"),
                "run_id": record["run_id"],
            }
        )


REJECTED_FIELDS = (
    "reason",
    "detail",
    "uid",
    "style",
    "rewrite",
    "piece",
    "seed",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "run_id",
)


def derived_document(
    record: Mapping[str, Any], source: Document, style: Style, config: ParaphraseConfig
) -> dict[str, Any]:
    """A derived document in Dolma's layout; `text` is the generation, the source is named in `metadata.derivedata`."""
    sampling = config.sampling(style)
    return {
        "id": f"{source.uid}-{record['kind']}-{record['rewrite']}-{record['piece']}",
        "text": record["text"],
        "source": f"{_as_string(source.source) or 'unknown'}/derived/{style.name}",
        "added": config.added,
        "created": _as_string(source.created),
        "metadata": {
            "derivedata": {
                "source_id": _as_string(source.id),
                "source_uid": source.uid,
                "strategy": STRATEGY,
                "style": style.name,
                "style_sha256": style.sha256,
                "rewrite": record["rewrite"],
                "piece": record["piece"],
                "epoch": None,
                "model": config.model_name,
                "model_revision": config.model_revision,
                "prompt_sha256": record["prompt_sha256"],
                # What the server was not told had no effect: unknown, so null.
                "params": {
                    name: None if name in config.not_sent else getattr(sampling, name)
                    for name in DERIVATION_FIELDS["params"]
                },
                "seed": record["seed"],
                "finish_reason": record["finish_reason"],
                "prompt_tokens": record["prompt_tokens"],
                "completion_tokens": record["completion_tokens"],
                "run_id": record["run_id"],
            },
            # As text, since sources disagree on the types of their fields and a column can have only one.
            "source_metadata": json.dumps(source.metadata, ensure_ascii=True, sort_keys=True),
        },
    }


def index_row(
    record: Mapping[str, Any],
    source: Document,
    document: Mapping[str, Any],
    *,
    path: str,
    row: int,
    config: ParaphraseConfig,
) -> dict[str, Any]:
    """The document's row of the manifest: all but its text."""
    text = record["text"]
    return {
        "uid": document_uid(path.removeprefix("documents/"), row, text),  # as a reader of the output will see it
        "id": document["id"],
        "source": document["source"],
        "strategy": STRATEGY,
        "style": record["style"],
        "shard": path,
        "row": row,
        "tokens": record["tokens"],
        "chars": len(text),
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "source_uid": source.uid,
        "source_id": _as_string(source.id),
        "source_path": source.path,
        "source_row": source.row,
        "rewrite": record["rewrite"],
        "piece": record["piece"],
        "epoch": None,
        "model": config.model_name,
        "finish_reason": record["finish_reason"],
        "prompt_tokens": record["prompt_tokens"],
        "completion_tokens": record["completion_tokens"],
        "run_id": record["run_id"],
    }


def _as_string(value: Any) -> str | None:
    """Ids and dates of every type as text: a string as it is, anything else (a lone surrogate too) as JSON."""
    if value is None or (isinstance(value, str) and value.isascii()):
        return value
    if isinstance(value, str):
        with contextlib.suppress(UnicodeEncodeError):
            value.encode()
            return value
    return json.dumps(value, ensure_ascii=True)
