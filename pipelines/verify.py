"""Checks an output against its manifest, its source and its own books: `derivedata verify OUT`.

`VerifyShards` is the Datatrove step: each task takes a share of the shards and source files and writes what it finds
wrong, one JSON line a problem, to a folder on this machine. Nothing in the output is changed.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from derivedata.corpus.files import CorpusFile, corpus_files
from derivedata.corpus.reader import RejectedRow, read_rows
from derivedata.errors import UserError
from derivedata.generation.model import resolve_tokenizer
from derivedata.generation.tokenizer import Tokenizer, load_tokenizer
from derivedata.pipelines.executor import run_locally
from derivedata.pipelines.verify_rollouts import check_rollouts
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import current_run

MOST_PER_FILE = 5  # problems told of one file


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Something that is not as it should be: where, and what."""

    where: str
    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """What was looked at and what was wrong with it."""

    problems: list[Problem]
    shards: int
    documents: int
    tokens_counted: bool
    sources: int  # source files whose documents were found again
    notes: list[str]


class VerifyShards(PipelineStep):
    """Check shards [rank::world] of an output, and the source files [rank::world] they name."""

    name = "Verify"
    type = "🔍 - VERIFY"

    def __init__(self, *, output: str, findings: str, sources: Sequence[CorpusFile], tokenizer: str | None):
        super().__init__()
        self.output, self.findings = output, findings
        self.sources, self.tokenizer = list(sources), tokenizer

    @cached_property
    def counter(self) -> Tokenizer | None:
        return load_tokenizer(self.tokenizer) if self.tokenizer else None

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        import pyarrow.compute as pc

        folder, view = Folder(self.output), Manifest(self.output).view()
        shards = view.table("shards").sort_by("path").to_pylist()
        index = view.dataset("documents")
        with open(Path(self.findings) / f"{rank:05d}.jsonl", "w") as out:

            def tell(problems: Iterator[str], where: str) -> None:
                for number, what in enumerate(problems):
                    if number >= MOST_PER_FILE:
                        break
                    out.write(json.dumps({"where": where, "what": what}) + "\n")

            for shard in shards[rank::world_size]:
                with self.track_time("shard"):
                    rows = index.to_table(filter=pc.field("shard") == shard["path"]).to_pylist()
                    tell(self._shard(folder, shard, rows), folder.url_of(shard["path"]))
                self.stat_update("documents", value=shard["documents"])
            for file in self.sources[rank::world_size]:
                columns = ["source_row", "source_uid"]
                wanted = index.to_table(columns=columns, filter=pc.field("source_path") == file.path).to_pylist()
                tell(_lineage(file, wanted), file.url)

    def _shard(self, folder: Folder, shard: Mapping[str, Any], rows: list[dict[str, Any]]) -> Iterator[str]:
        path = shard["path"]
        if not folder.exists(path):
            yield "is missing"
            return
        size, sha256 = _content(folder, path)
        if size != shard["bytes"] or sha256 != shard["sha256"]:
            yield f"has other content than the manifest says ({size} bytes instead of {shard['bytes']})"
        relative = path.removeprefix("documents/")
        file = CorpusFile(folder.url_of(path), relative, size, "", "parquet" if path.endswith("parquet") else "jsonl")
        by_row = {row["row"]: row for row in rows}
        if len(by_row) != len(rows) or len(rows) != shard["documents"]:
            yield f"the index has {len(rows)} rows for {shard['documents']} documents"
        found = tokens = 0
        for document in read_rows(file):
            if isinstance(document, RejectedRow):
                yield f"row {document.row} is unreadable: {document.detail}"
                continue
            found += 1
            row = by_row.get(document.row)
            if row is None:
                yield f"row {document.row} is not in the index"
                continue
            yield from _document(document, row)
            if self.counter is not None:
                tokens += self.counter.count([document.text])[0]
        if found != shard["documents"]:
            yield f"holds {found} documents, the manifest says {shard['documents']}"
        counted = sum(row["tokens"] for row in rows)
        if counted != shard["tokens"]:
            yield f"its documents' tokens add up to {counted}, the manifest says {shard['tokens']}"
        if self.counter is not None and tokens != shard["tokens"]:
            yield f"has {tokens} tokens, the manifest says {shard['tokens']}"


def _content(folder: Folder, path: str) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with folder.open(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _document(document: Any, row: Mapping[str, Any]) -> Iterator[str]:
    """What the index says of a document against what the document says."""
    derivation = json.loads(document.metadata) if isinstance(document.metadata, str) else document.metadata or {}
    derivation = derivation.get("derivedata") or {}
    said = {
        "uid": document.uid,
        "id": document.id,
        "source": document.source,
        "text_sha256": hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).hexdigest(),
        "style": derivation.get("style"),
        "source_uid": derivation.get("source_uid"),
        "rewrite": derivation.get("rewrite"),
        "piece": derivation.get("piece"),
    }
    for name, value in said.items():
        if value != row[name]:
            yield f"row {document.row}: {name} is {value!r}, the index says {row[name]!r}"
            return


def _lineage(file: CorpusFile, wanted: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Source documents that derived ones name and that the source file no longer holds."""
    uids = {row["source_row"]: row["source_uid"] for row in wanted}
    if not uids:
        return
    for document in read_rows(file):
        if isinstance(document, RejectedRow) or document.row not in uids:
            continue
        if uids.pop(document.row) != document.uid:
            yield f"row {document.row} is not the document that was derived from"
    if uids:
        yield f"rows {sorted(uids)[:5]} that were derived from are gone"


def verify_corpus(
    output: str, *, source: Sequence[str] = (), count_tokens: bool = True, tasks: int = 1, workers: int = 1
) -> Verified:
    """Check everything an output says about itself.

    Args:
        output: the output folder or URL.
        source: where the source corpus is now; by default where the run record says.
        count_tokens: count the tokens of every document again.
        tasks, workers: Datatrove tasks, and how many at a time.
    """
    folder, notes = Folder(output), []
    manifest = Manifest(folder)
    view = manifest.view()
    record = current_run(folder)
    sources = _find_source(record, source, notes)
    tokenizer = _find_tokenizer(record, view, notes) if count_tokens else None
    with tempfile.TemporaryDirectory(prefix="derivedata-verify-") as findings:
        step = VerifyShards(output=output, findings=findings, sources=sources, tokenizer=tokenizer)
        run_locally([step], tasks=tasks, workers=workers, logging_dir=f"{findings}/logs")
        problems = [
            Problem(**json.loads(line))
            for path in sorted(Path(findings).glob("*.jsonl"))
            for line in path.read_text().splitlines()
        ]
    problems += _whole(folder, manifest)
    if "rollouts" in view.tables:
        problems += [Problem(where=where, what=what) for where, what in check_rollouts(folder, manifest, view)]
    shards = view.table("shards", ["documents"])
    return Verified(
        problems=problems,
        shards=shards.num_rows,
        documents=sum(shards["documents"].to_pylist()),
        tokens_counted=tokenizer is not None,
        sources=len(sources),
        notes=notes,
    )


def _find_source(record: Any, given: Sequence[str], notes: list[str]) -> list[CorpusFile]:
    places = list(given) or (list(record.config.extent.get("corpus", ())) if record else [])
    if not places and record is not None:
        return []  # a job without a source corpus
    try:
        return corpus_files(places)
    except UserError as error:
        notes.append(f"lineage not checked: {error.line}")
        return []


def _find_tokenizer(record: Any, view: Any, notes: list[str]) -> str | None:
    name = record.identity.get("counted_with") if record else None
    if not name or not view.table("shards", ["path"]).num_rows:
        return None
    place = record.config.execution.get("tokenizer_folder") or name
    try:
        return str(resolve_tokenizer(place).path)
    except UserError as error:
        notes.append(f"tokens not counted again: {error.line}")
        return None


def _whole(folder: Folder, manifest: Manifest) -> Iterator[Problem]:
    """What only shows over the whole output: doubled keys, stray files, books."""
    documents = manifest.table("documents", ["id", "shard"])
    for name, count in Counter(documents["id"].to_pylist()).items():
        if count > 1:
            yield Problem(where=folder.url, what=f"document {name} is there {count} times")
    known = set(manifest.table("shards", ["path"])["path"].to_pylist())
    for entry in folder.list("documents"):
        if entry.path not in known:
            yield Problem(where=folder.url_of(entry.path), what="is not in the manifest")
    books = manifest.books()
    rejected = Counter(manifest.table("rejected", ["stage"])["stage"].to_pylist())
    for stage, account in books.items():
        try:
            account.balance(stage)
        except UserError as error:
            yield Problem(where=folder.url, what=error.line)
        said = sum(account.rejected.values())
        if said != rejected[stage]:
            yield Problem(
                where=folder.url, what=f"the books of {stage} reject {said}, the index holds {rejected[stage]}"
            )
    accepted = books["generation"].accepted if "generation" in books else 0
    if accepted != documents.num_rows:
        yield Problem(where=folder.url, what=f"the books accept {accepted}, the index holds {documents.num_rows}")
