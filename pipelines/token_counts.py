"""The step that counts tokens, and what the manifest holds of the counts; `derivedata tokens` drives it.

A part a shard and tokenizer, under a name that both give: whoever counts a shard, and however often, it is there once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from datatrove.pipeline.base import PipelineStep

from derivedata.corpus.document import Document, RejectedRow
from derivedata.corpus.files import CorpusFile
from derivedata.corpus.reader import RowReader
from derivedata.corpus.stream import DocumentStream
from derivedata.errors import UserError
from derivedata.generation.tokenizer import Tokenizer, load_tokenizer
from derivedata.store.books import Books
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.tables import Part, declare, rows_to_table

STAGE = "tokens"
BATCH_CHARS = 1 << 20  # characters of text tokenised at once

_text, _whole = pa.string(), pa.int64()
# One row a shard, tokenizer, source, strategy and style. strategy and style are null for documents that are not
# derived; shard_version says when a file outside any manifest changed.
TOKEN_COUNTS = declare(
    "token_counts",
    pa.schema(
        [
            ("tokenizer", _text),
            ("tokenizer_sha256", _text),
            ("shard", _text),
            ("shard_sha256", _text),
            ("shard_version", _text),
            ("source", _text),
            ("strategy", _text),
            ("style", _text),
            ("documents", _whole),
            ("tokens", _whole),
        ]
    ),
)
Key = tuple[str | None, str | None, str | None]  # source, strategy, style
WINDOWS = 8  # of an order, counted at once: about 128 MB of text


@dataclass(frozen=True, kw_only=True, slots=True)
class Countable:
    """What is counted at once: a file, with what a manifest says of it (None where there is none); or, of a corpus that
    has only an order, windows [first, stop) of it, and sha256 the fingerprint of the order."""

    path: str
    file: CorpusFile | None = None
    windows: tuple[int, int] = (0, 0)
    sha256: str | None = None
    strategy: str | None = None
    style: str | None = None


class CountTokens(PipelineStep):
    """Count shards [rank::world]; one that is counted already is passed over."""

    name = "Tokens"
    type = "🔢 - COUNT"

    def __init__(
        self,
        shards: Sequence[Countable],
        output: str,
        *,
        tokenizer: str,
        name: str,
        stream: DocumentStream | None = None,
    ):
        super().__init__()
        self.shards, self.output, self.stream = list(shards), output, stream
        self.tokenizer, self.tokenizer_name = tokenizer, name

    @cached_property
    def counter(self) -> Tokenizer:
        return load_tokenizer(self.tokenizer, self.tokenizer_name)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        ledger = Ledger(Folder(self.output))
        for shard in self.shards[rank::world_size]:
            with self.track_time("shard"):
                part = self._count(shard)
            ledger.publish(part_name(self.counter.sha256, shard.path), part)
            self.stat_update("documents", value=part.books.accepted)

    def _count(self, shard: Countable) -> Part:
        digest = hashlib.sha256()
        documents: Counter[Key] = Counter()
        tokens: Counter[Key] = Counter()
        skipped: Counter[str] = Counter()
        batch: list[tuple[Document, Key]] = []
        chars = 0

        def count_batch() -> None:
            for (_, key), count in zip(batch, self.counter.count([one.text for one, _ in batch]), strict=True):
                documents[key] += 1
                tokens[key] += count
            batch.clear()

        for row, key in self._rows(shard, digest):
            if isinstance(row, RejectedRow):
                skipped[row.reason] += 1
                continue
            batch.append((row, key))
            chars += len(row.text)
            if chars >= BATCH_CHARS:
                count_batch()
                chars = 0
        count_batch()
        sha256 = digest.hexdigest() if shard.file else shard.sha256
        if shard.sha256 not in (None, sha256):
            raise UserError(
                "the shard is not what the manifest says",
                where=shard.file.url,
                remedy="derivedata verify tells more; put it back as it was, or make the output again",
            )
        rows = [
            {
                "tokenizer": self.tokenizer_name,
                "tokenizer_sha256": self.counter.sha256,
                "shard": shard.path,
                "shard_sha256": sha256,
                "shard_version": shard.file.version if shard.file and shard.sha256 is None else None,
                "source": source,
                "strategy": strategy,
                "style": style,
                "documents": documents[source, strategy, style],
                "tokens": tokens[source, strategy, style],
            }
            for source, strategy, style in sorted(documents, key=lambda key: tuple(part or "" for part in key))
        ]
        accepted = documents.total()
        books = Books(planned=accepted + skipped.total(), accepted=accepted, skipped=skipped)
        return Part(books=books, stage=STAGE, tables={"token_counts": rows_to_table(rows, TOKEN_COUNTS)})

    def _rows(self, shard: Countable, digest: Any) -> Iterator[tuple[Document | RejectedRow, Key]]:
        """The rows of a shard, documents with their source, strategy and style; a file's bytes go to `digest`."""
        if shard.file is not None:
            for row in RowReader(shard.file, digest=digest):
                if isinstance(row, RejectedRow):
                    yield row, (None, None, None)
                else:
                    yield row, (row.source, *origin_of(row, shard))
            return
        for window in range(*shard.windows):
            for document, origin in self.stream.read_with_origin(window):
                strategy = None if origin.strategy == "fresh" else origin.strategy
                yield document, (document.source, strategy, origin.style)


def origin_of(document: Document, shard: Countable | None = None) -> tuple[str | None, str | None]:
    """Strategy and style of a document, as it says itself, else as its shard does; None, None: it is not derived."""
    told = (document.metadata or {}).get("derivedata")
    if isinstance(told, Mapping):
        strategy, style = told.get("strategy"), told.get("style")
        return (strategy if isinstance(strategy, str) else None), (style if isinstance(style, str) else None)
    return (shard.strategy, shard.style) if shard else (None, None)


def part_name(tokenizer_sha256: str, path: str) -> str:
    """The name of the part that holds the counts of a shard with a tokenizer."""
    place = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{STAGE}-{tokenizer_sha256[:12]}-{place[:32]}"


def manifest_shards(folder: Folder) -> list[Countable]:
    """The shards of an output of ours, as its manifest lists them."""
    columns = ["path", "sha256", "bytes", "strategy", "style", "format"]
    return [
        Countable(
            file=CorpusFile(
                url=folder.url_of(row["path"]),
                path=row["path"].removeprefix("documents/"),
                bytes=row["bytes"],
                version=row["sha256"],
                format="parquet" if row["format"] == "parquet" else "jsonl",
            ),
            **{name: row[name] for name in ("path", "sha256", "strategy", "style")},
        )
        for row in Manifest(folder).table("shards", columns).sort_by("path").to_pylist()
    ]


def order_shards(stream: DocumentStream) -> list[Countable]:
    """Runs of windows of a corpus that has only an order (a virtual repeat, subset or mix)."""
    runs = ((first, min(first + WINDOWS, stream.windows)) for first in range(0, stream.windows, WINDOWS))
    # The order's name is in the path, so that counts of another order are never taken for these.
    return [
        Countable(
            path=f"windows {first}-{stop} of {stream.fingerprint[:16]}",
            windows=(first, stop),
            sha256=stream.fingerprint,
        )
        for first, stop in runs
    ]
