"""Checks an output against its manifest, its source and its own books: `derivedata verify OUT`.

First the manifest is read file by file and the run records against each other, so that what is damaged there is named
and the rest can be checked. Then `VerifyFiles`, the Datatrove step, takes in each task a share of the shards, of the
other files that were committed and of the source files, and writes what it finds, one JSON line each, to a folder on
this machine. Last comes what only shows over the whole output. Nothing in the output is changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import zstandard
from datatrove.pipeline.base import PipelineStep

from derivedata.corpus.files import CorpusFile, corpus_files, is_virtual
from derivedata.corpus.stream import open_stream
from derivedata.errors import UserError
from derivedata.generation.model import resolve_tokenizer
from derivedata.generation.tokenizer import Tokenizer, load_tokenizer
from derivedata.pipelines.executor import run_locally
from derivedata.pipelines.verify_manifest import OTHER_CONTENT, Sound, read_manifest
from derivedata.pipelines.verify_records import check_records, read_records
from derivedata.pipelines.verify_rejects import ROOM, RowsDigest, compare_digests, digest_file, stage_of
from derivedata.pipelines.verify_rollouts import check_rollouts
from derivedata.pipelines.verify_shard import Made, check_shard
from derivedata.pipelines.verify_source import Wanted, check_source, wanted_sources
from derivedata.pipelines.verify_whole import check_whole, further_files
from derivedata.store.content import size_and_sha256
from derivedata.store.parts import read_table_part
from derivedata.store.paths import Folder, Missing
from derivedata.store.private import private_folder
from derivedata.store.runs import RunRecord
from derivedata.store.snapshots import SNAPSHOTS
from derivedata.store.tables import MANIFEST, part_path

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
    files: int  # further files: rejected rows, rollouts, token shards
    sources: int  # source files whose documents were found again
    notes: list[str]


class VerifyFiles(PipelineStep):
    """Check shards, further files and source files [rank::world] of each."""

    name = "Verify"
    type = "🔍 - VERIFY"

    def __init__(
        self, *, sound: Sound, findings: str, sources: Sequence[Wanted], made: Made, tokenizer: str | None = None
    ):
        super().__init__()
        self.sound, self.findings, self.sources = sound, findings, list(sources)
        self.made, self.tokenizer = made, tokenizer

    @cached_property
    def counter(self) -> Tokenizer | None:
        return load_tokenizer(self.tokenizer) if self.tokenizer else None

    @cached_property
    def compacted(self) -> Any:
        """The index of the documents whose parts are compacted, as a dataset; None when it can't be read as a whole."""
        view = self.sound.view
        covered = {file.path for file in view.snapshot.of("documents")} if view.snapshot else set()
        readable = tuple(path for path in view.files.get("documents", ()) if path.startswith(SNAPSHOTS))
        if len(readable) != len(covered):
            return None
        return replace(view, fresh=(), files={"documents": readable} if readable else {}).dataset("documents")

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        folder = self.sound.view.folder
        shards = self.sound.view.table("shards").sort_by("path").to_pylist()
        with open(Path(self.findings) / f"{rank:05d}.jsonl", "w") as out:

            def tell(problems: Iterator[str], where: str) -> None:
                for what in islice(problems, MOST_PER_FILE):
                    out.write(json.dumps({"where": where, "what": what}) + "\n")

            for shard in shards[rank::world_size]:
                with self.track_time("shard"):
                    rows = self._rows(folder, shard)
                    problems = check_shard(folder, shard, rows, made=self.made, counter=self.counter)
                    tell(problems, folder.url_of(shard["path"]))
                self.stat_update("documents", value=shard["documents"])
            kept: dict[str, RowsDigest] = {}
            for path, sha256 in further_files(self.sound)[rank::world_size]:
                tell(_further(folder, path, sha256, kept), folder.url_of(path))
            out.write(json.dumps({"kept": {stage: [one.rows, one.total] for stage, one in kept.items()}}) + "\n")
            for wanted in self.sources[rank::world_size]:
                tell(check_source(self.sound.view, wanted), wanted.file.url)

    def _rows(self, folder: Folder, shard: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The shard's rows of the index; None when they can't be read."""
        import pyarrow.compute as pc

        view, unit = self.sound.view, shard["unit"]
        if unit in view.fresh:
            if part_path("documents", unit) not in view.files.get("documents", ()):
                return None
            table = read_table_part(folder, "documents", unit)
            return table.filter(pc.field("shard") == shard["path"]).to_pylist()
        if self.compacted is None:
            return None
        return self.compacted.to_table(filter=pc.field("shard") == shard["path"]).to_pylist()


def _further(folder: Folder, path: str, sha256: str, kept: dict[str, RowsDigest]) -> Iterator[str]:
    """What is wrong with a file that is no shard; the rows of a file of rejects are added to the digests `kept`."""
    try:
        with folder.open(path) as stream:
            if size_and_sha256(stream)[1] != sha256:
                yield OTHER_CONTENT
                return
        if path.startswith(ROOM):
            digest = digest_file(folder, path)
            kept.setdefault(stage_of(path), RowsDigest()).merge(digest.rows, digest.total)
    except Missing:
        yield "is missing"
    except (ValueError, AttributeError, zstandard.ZstdError) as error:
        yield f"is damaged: {error}"


def verify_corpus(
    output: str, *, source: Sequence[str] = (), count_tokens: bool = True, tasks: int = 1, workers: int = 1
) -> Verified:
    """Check everything an output says about itself.

    Args:
        output: the output folder or URL.
        source: where the source corpus is now; by default where the run record says.
        count_tokens: count the tokens of every document again.
        tasks, workers: Datatrove tasks, and how many at a time.

    Raises:
        UserError: there is no manifest.
    """
    folder, notes = Folder(output), []
    try:
        sound, found = read_manifest(folder)
    except UserError as error:
        if not folder.names(f"{MANIFEST}/"):
            raise
        what = "is missing" if isinstance(error, Missing) else error.what
        return Verified(
            problems=[Problem(where=str(error.where), what=f"{what}: nothing else can be checked")],
            shards=0,
            documents=0,
            tokens_counted=False,
            files=0,
            sources=0,
            notes=notes,
        )
    records, wrong = read_records(folder)
    found += wrong
    record = records.current
    tokenizer = _find_tokenizer(record, sound, notes) if count_tokens else None
    files = _find_source(record, source, notes)
    sources, missing = wanted_sources(sound, files) if files is not None else ([], [])
    found += missing
    made = Made(identity=record.identity if record else {}, runs=records.ids or None)
    with private_folder() as findings:
        step = VerifyFiles(sound=sound, findings=findings, sources=sources, made=made, tokenizer=tokenizer)
        run_locally([step], tasks=tasks, workers=workers, logging_dir=f"{findings}/logs")
        in_files, kept = _gather(findings)
        found += in_files
        room = folder.url_of(ROOM.rstrip("/"))
        if sound.all_of("rejected", "units") and not any(where.startswith(room) for where, _ in in_files):
            found += ((room, what) for what in compare_digests(sound.view, kept))
        found += check_whole(folder, sound, records, findings)
    found += check_records(folder, records, sound)
    if "rollouts" in sound.view.tables:
        found += check_rollouts(folder, sound.view)
    found += _order(output)
    shards = sound.view.table("shards", ["documents"])
    return Verified(
        problems=[Problem(where=where, what=what) for where, what in found],
        shards=shards.num_rows,
        documents=sum(shards["documents"].to_pylist()),
        tokens_counted=tokenizer is not None,
        files=len(further_files(sound)),
        sources=len(sources),
        notes=notes,
    )


def _gather(findings: str) -> tuple[list[tuple[str, str]], dict[str, RowsDigest]]:
    """What all tasks found, and the sum of their digests of rejected rows."""
    found, kept = [], {}
    for path in sorted(Path(findings).glob("*.jsonl")):
        for line in path.read_text().splitlines():
            fields = json.loads(line)
            if "where" in fields:
                found.append((fields["where"], fields["what"]))
            for stage, (rows, total) in fields.get("kept", {}).items():
                kept.setdefault(stage, RowsDigest()).merge(rows, total)
    return found, kept


def _order(output: str) -> Iterator[tuple[str, str]]:
    """What keeps a virtual corpus from being read: its corpus is gone or has changed, or it is damaged."""
    try:
        if is_virtual(output):
            open_stream(output)
    except UserError as error:
        yield str(error.where or output), error.what


def _find_source(record: RunRecord | None, given: Sequence[str], notes: list[str]) -> list[CorpusFile] | None:
    """The source files; None when there are none to look at, with a note where there should be."""
    places = list(given) or list(record.config.extent.get("corpus", ()) if record else ())
    if not places:
        if record is None:
            notes.append("lineage not checked: run.json is missing, which says where the source is; name it (--source)")
        return None  # a job without a source corpus
    try:
        return corpus_files(places)
    except UserError as error:
        notes.append(f"lineage not checked: {error.line}")
        return None


def _find_tokenizer(record: RunRecord | None, sound: Sound, notes: list[str]) -> str | None:
    tokenizers = sound.view.table("shards", ["tokenizer"])["tokenizer"]
    if tokenizers.null_count == len(tokenizers):
        return None  # nothing was counted, or there are no shards
    name = record.identity.get("counted_with") if record else None
    if not name:
        which = "run.json is missing" if record is None else "the run record does not say"
        notes.append(f"tokens not counted again: {which} with which tokenizer they were")
        return None
    try:
        return str(resolve_tokenizer(record.config.execution.get("tokenizer_folder") or name).path)
    except UserError as error:
        notes.append(f"tokens not counted again: {error.line}")
        return None
