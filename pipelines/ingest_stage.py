"""A Datatrove step that reads the entries of a plan and commits them piece by piece, exactly once.

A piece is a run of rows of one entry, as many as bring its text to `chunk_bytes`. It becomes one shard, and what it
commits says where the next piece begins. A piece is committed while the next one is made: a kill costs these two.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
from datatrove.pipeline.base import PipelineStep

from derivedata.corpus.attributes import AttributeJoin
from derivedata.corpus.document import Document, RejectedRow, uid_of_digest
from derivedata.corpus.frames import Position
from derivedata.corpus.inputs import Entry, open_rows
from derivedata.corpus.shape import Shape
from derivedata.corpus.source import forget_soon, open_soon
from derivedata.corpus.writer import ShardWriter
from derivedata.generation.tokenizer import Tokenizer, load_tokenizer
from derivedata.pipelines.progress import RankProgress
from derivedata.pipelines.source import INPUT
from derivedata.store.books import Books
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.tables import DOCUMENTS, FRESH, REJECTED, Part, declare, rows_to_table

MOST_ROWS = 200_000  # of a piece: its rows of the index are held until it is committed
BATCH_ROWS, BATCH_CHARS = 4096, 1 << 22  # after which index rows become Arrow, and tokens are counted

_text, _whole = pa.string(), pa.int64()
# One row a piece: which rows of which entry it is, and where the next one begins.
INGESTED = declare(
    "ingested",
    pa.schema(
        [
            ("entry", _whole),
            ("piece", _whole),
            ("path", _text),
            ("first_row", _whole),
            ("stop_row", _whole),
            ("position", _text),
            ("last", pa.bool_()),
            ("sha256", _text),
            ("attributes_joined", _whole),
            ("attributes_missing", _whole),
            ("attributes_left", _whole),
        ]
    ),
)


def last_pieces(folder: Folder) -> dict[int, dict[str, Any]]:
    """The last committed piece of each entry (a row of INGESTED); none in a new output."""
    if not folder.names("manifest/"):
        return {}
    manifest = Manifest(folder)
    if "ingested" not in manifest.view().tables:
        return {}
    found: dict[int, dict[str, Any]] = {}
    for row in manifest.table("ingested").to_pylist():
        if row["piece"] >= found.get(row["entry"], row)["piece"]:
            found[row["entry"]] = row
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestConfig:
    """What determines the documents of an ingested corpus."""

    shape: Shape
    chunk_bytes: int
    format: str
    tokenizer: str | None = None  # folder or name of the tokenizer that counts
    tokenizer_name: str | None = None


class Piece:
    """Rows on their way into a commit. Base of what a kind of ingestion makes of them."""

    def __init__(self, entry: Entry, name: str, scratch: Path):
        self.entry, self.name, self.scratch = entry, name, scratch
        self.rows = self.text_bytes = 0
        self.rejected: list[dict[str, Any]] = []
        self.reasons: Counter[str] = Counter()
        self._rejects: ShardWriter | None = None

    @abstractmethod
    def add(self, document: Document) -> None:
        """Take a row that has what is wanted."""

    @abstractmethod
    def close(self, ingested: Mapping[str, Any]) -> list[tuple[str, Part]]:
        """(name, part) of what is to be committed, in this order; the last one makes it count."""

    def reject(self, row: RejectedRow, run_id: str) -> None:
        """Take a row that is not."""
        if self._rejects is None:
            self._rejects = ShardWriter(self.scratch / "rejected-rows.jsonl.zst")
        self._rejects.write(row.to_dict())
        self.reasons[row.reason] += 1
        kept = {"reason": row.reason, "detail": row.detail, "path": row.path, "line": row.line}
        self.rejected.append({"stage": INPUT, "run_id": run_id, **kept})

    def rejected_files(self) -> dict[str, Path]:
        """The file of rejected rows under the name that verify knows it by, if there is one."""
        return {f"rejected/{INPUT}-{self.name}.jsonl.zst": self._rejects.close().path} if self._rejects else {}


class FreshPiece(Piece):
    """Rows that become documents as they are: one shard, its index, its rejects."""

    def __init__(
        self, entry: Entry, name: str, scratch: Path, *, config: IngestConfig, run_id: str, counter: Tokenizer | None
    ):
        super().__init__(entry, name, scratch)
        self.config, self.run_id, self.counter = config, run_id, counter
        self.path = f"documents/{name}.{config.format}"
        self.documents = 0
        self.tokens = 0
        self._place = self.path.removeprefix("documents/")
        self._writer: ShardWriter | None = None
        self._columns: dict[str, list[Any]] = {column: [] for column in OWN_COLUMNS}
        self._texts: list[str] = []
        self._chars = 0
        self._batches: list[pa.RecordBatch] = []

    def add(self, document: Document) -> None:
        fields = document.fields
        if fields["id"] is None:
            fields["id"] = f"{document.path}/{document.row}"
        text = fields["text"]
        encoded = text.encode()
        digest = hashlib.sha256(encoded)
        if self._writer is None:
            self._writer = ShardWriter(self.scratch / f"documents.{self.config.format}", format=self.config.format)
        self._writer.write(fields)
        columns = self._columns
        columns["uid"].append(uid_of_digest(self._place, self.documents, digest.digest()))
        columns["id"].append(fields["id"])
        columns["source"].append(fields["source"])
        columns["row"].append(self.documents)
        columns["chars"].append(len(text))
        columns["text_sha256"].append(digest.hexdigest())
        columns["source_path"].append(document.path)
        columns["source_row"].append(document.row)
        self.documents += 1
        self.text_bytes += len(encoded)
        self._chars += len(text)
        if self.counter is not None:
            self._texts.append(text)
        if len(columns["uid"]) == BATCH_ROWS or (self._chars >= BATCH_CHARS and self._texts):
            self._flush()

    def _flush(self) -> None:
        columns, self._columns = self._columns, {column: [] for column in OWN_COLUMNS}
        rows = len(columns["uid"])
        same = {"strategy": FRESH, "shard": self.path, "run_id": self.run_id}
        if self.counter is not None:
            columns["tokens"] = self.counter.count(self._texts)
            self.tokens += sum(columns["tokens"])
        self._texts, self._chars = [], 0
        arrays = []
        for field in DOCUMENTS:
            if field.name in columns:
                arrays.append(pa.array(columns[field.name], type=field.type))
            elif field.name in same:
                arrays.append(pa.repeat(pa.scalar(same[field.name], type=field.type), rows))
            else:
                arrays.append(pa.nulls(rows, type=field.type))
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=DOCUMENTS))

    def close(self, ingested: Mapping[str, Any]) -> list[tuple[str, Part]]:
        if self._columns["uid"]:
            self._flush()
        shards = []
        if self._writer is not None:
            made = self._writer.close()
            paths = {file.path for file in self.entry.files}
            shards.append(
                made.entry(
                    self.path,
                    tokens=None if self.counter is None else self.tokens,
                    tokenizer=self.config.tokenizer_name,
                    strategy=FRESH,
                    source_shard=None if len(paths) > 1 else self.entry.path,
                    run_id=self.run_id,
                    format=self.config.format,
                )
            )
        rejected = sum(self.reasons.values())
        books = Books(planned=self.documents + rejected, accepted=self.documents, rejected=self.reasons)
        tables = {
            "documents": pa.Table.from_batches(self._batches, schema=DOCUMENTS),
            "rejected": rows_to_table(self.rejected, REJECTED),
            "ingested": rows_to_table([ingested], INGESTED),
        }
        part = Part(books=books, stage=INPUT, shards=shards, files=self.rejected_files(), tables=tables)
        return [(self.name, part)]


OWN_COLUMNS = ("uid", "id", "source", "row", "chars", "text_sha256", "source_path", "source_row")


class IngestStage(PipelineStep):
    """Read entries [rank::world] of the plan and commit their pieces; base of every ingestion."""

    name = "📥 Ingest"
    type = "📥 - INGEST"

    def __init__(self, *, plan: Sequence[Entry], config: IngestConfig, output: str, run_id: str):
        super().__init__()
        self.plan, self.config, self.output, self.run_id = list(plan), config, output, run_id

    @cached_property
    def folder(self) -> Folder:
        return Folder(self.output)

    @cached_property
    def counter(self) -> Tokenizer | None:
        """The tokenizer that counts; None: nothing is counted."""
        if self.config.tokenizer is None:
            return None
        return load_tokenizer(self.config.tokenizer, self.config.tokenizer_name)

    def shape(self, entry: Entry) -> Any:
        """What makes a document's fields of a row's."""
        return replace(self.config.shape, default_source=entry.origin)

    def piece(self, entry: Entry, name: str, scratch: Path) -> Piece:
        """An empty piece."""
        return FreshPiece(entry, name, scratch, config=self.config, run_id=self.run_id, counter=self.counter)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        self.progress = RankProgress(self.folder, rank)
        self.ledger = Ledger(self.folder)
        done = last_pieces(self.folder)
        wanted = [entry for entry in self.plan[rank::world_size] if not done.get(entry.number, {}).get("last")]
        self._commit: Future | None = None
        try:
            with ThreadPoolExecutor(1, "commit") as self._committer:
                for entry, following in zip_longest(wanted, wanted[1:]):
                    with self.track_time("entry"):
                        self._ingest(entry, done.get(entry.number), following)
                self._committed()
        finally:
            forget_soon()
            self.progress.close()

    def _committed(self) -> None:
        """Wait for the commit under way; raises what went wrong with it, before anything after it is committed."""
        if self._commit is not None:
            self._commit.result()

    def _finish(self, scratch: ExitStack, parts: Sequence[tuple[str, Part]], counts: Mapping[str, int]) -> None:
        """Commit a piece and count it."""
        with scratch:
            for name, part in parts:
                self.ledger.publish(name, part)
        for name, count in counts.items():
            self.progress.add(name, count)
        self.progress.committed()

    def _ingest(self, entry: Entry, last: Mapping[str, Any] | None, following: Entry | None) -> None:
        number = 0 if last is None else last["piece"] + 1
        first = 0 if last is None else last["stop_row"]
        join = AttributeJoin(entry.attributes) if entry.attributes else None
        # Attributes are found side by side with their documents, so both are read from the start.
        again = last is not None and join is None
        at = Position.from_dict(json.loads(last["position"])) if again else None
        digest = hashlib.sha256() if len(entry.files) == 1 and not again and entry.kind == "rows" else None
        rows = open_rows(entry, self.shape(entry), first_row=first if again else 0, at=at, digest=digest)
        source = iter(rows)
        read = first if again else 0
        held = next(source, None)
        if following is not None and following.kind == "rows":
            open_soon(following.files[0].url)
        while read < first and held is not None:
            if not isinstance(held, RejectedRow):
                join.add_to(held)
            held, read = next(source, None), read + 1
        while True:
            name = f"{entry.number:06d}.{number:05d}"
            with ExitStack() as stack:
                scratch = stack.enter_context(self.folder.scratch())
                piece = self.piece(entry, name, scratch)
                while held is not None and piece.text_bytes < self.config.chunk_bytes and piece.rows < MOST_ROWS:
                    if held.__class__ is RejectedRow:
                        piece.reject(held, self.run_id)
                    else:
                        if join is not None:
                            join.add_to(held)
                        piece.add(held)
                    piece.rows += 1
                    held = next(source, None)
                if held is None and join is not None:
                    join.close()
                ingested = {
                    "entry": entry.number,
                    "piece": number,
                    "path": entry.path,
                    "first_row": read,
                    "stop_row": read + piece.rows,
                    "position": json.dumps(rows.position(read + piece.rows).to_dict()) if held is not None else None,
                    "last": held is None,
                    "sha256": digest.hexdigest() if digest is not None and held is None else None,
                }
                if join is not None and held is None:
                    told = {"joined": join.joined, "missing": join.missing, "left": join.left}
                    ingested |= {f"attributes_{name}": count for name, count in told.items()}
                parts = piece.close(ingested)
                counts = {"rows": piece.rows, "text_bytes": piece.text_bytes}
                counts |= {"entries": 1, "bytes": entry.bytes} if held is None else {}
                # One at a time and in order: what is committed says where the next piece begins.
                self._committed()
                self._commit = self._committer.submit(self._finish, stack.pop_all(), parts, counts)
            read += piece.rows
            number += 1
            self.stat_update("rows", value=piece.rows)
            self.stat_update("rejected", value=sum(piece.reasons.values()))
            if held is None:
                return
