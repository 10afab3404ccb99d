"""Takes documents in from what people have: `derivedata ingest SRC... -o CORPUS`.

From Python:

    from derivedata.pipelines.ingest import IngestOptions, ingest
    outcome = ingest(IngestOptions(sources=("data",), output="corpus", text_field="content"))
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from derivedata.corpus.card import corpus_card
from derivedata.corpus.inputs import Entry, Shaping
from derivedata.corpus.shape import ID, TEXT, Shape
from derivedata.errors import UserError, refuse_below_one
from derivedata.generation.model import resolve_tokenizer
from derivedata.pipelines.executor import run_locally
from derivedata.pipelines.ingest_plan import find_entries, look_first, settle_plan
from derivedata.pipelines.ingest_stage import IngestConfig, IngestStage, last_pieces
from derivedata.pipelines.progress import RANKS, read_progress
from derivedata.pipelines.serving import Listener, Silence, check_output, recorded, start_over
from derivedata.pipelines.source import INPUT
from derivedata.store.fingerprint import RunConfig
from derivedata.store.lease import Lease
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import current_run, new_run_id, utc_now
from derivedata.store.summary import Summary

JOB = "ingest"
ROOMS = ("documents", "rejected", "manifest", "plan", "logs", RANKS)
COMPACT_AT = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestOptions:
    """What `derivedata ingest` takes; see its --help."""

    sources: Sequence[str]
    output: str
    text_field: str = TEXT
    id_field: str = ID
    source: str | None = None
    text_files: bool = False
    config: str | None = None
    split: str | None = None
    attributes: Sequence[str] = ()
    tokenizer: str | None = None
    format: str = "jsonl.zst"
    chunk_bytes: int = 128_000_000
    tasks: int = 1
    workers: int | None = None
    max_bad_input: float = 0.05
    restart: bool = False

    def __post_init__(self) -> None:
        refuse_below_one(self, "chunk_bytes", "tasks", "workers")
        for name in ("text_field", "id_field"):
            if not getattr(self, name):
                raise UserError("must name a field", where=name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ingested:
    """What an ingestion left in its output.

    attributes: documents that got attributes, (document, file) pairs without a row, and attribute rows without a
    document; None where none were asked for.
    """

    output: str
    run_id: str
    summary: Summary
    attributes: tuple[int, int, int] | None


def ingest(options: IngestOptions, listener: Listener | None = None) -> Ingested:
    """Take documents in, going on from whatever is there.

    Args:
        options: what to do.
        listener: hears about progress.

    Raises:
        UserError: in one line, whatever can be expected to go wrong; what is finished is kept.
    """
    return Ingestion(options, listener or Silence()).run()


class Ingestion:
    """One run of an ingestion; base of the ones that take in what others derived."""

    job = JOB

    def __init__(self, options: Any, listener: Listener):
        self.options, self.listener = options, listener
        self.folder = Folder(options.output)
        self.run_id = new_run_id()
        self.workers = min(options.workers or options.tasks, options.tasks)

    def run(self) -> Ingested:
        self.tokenizer  # noqa: B018  an unknown one shows before anything is read
        found = self.find()
        if inside := check_output(self.folder, self.job, [file.url for entry in found for file in entry.files]):
            raise UserError("the output folder holds the input", where=self.folder.url, value=min(inside))
        with Lease(self.folder, self.run_id):
            if self.options.restart:
                start_over(self.folder, ROOMS)
            if current_run(self.folder) is None:
                look_first(found, self.shape_of)
            with recorded(self.folder, self.run_config(), self.run_id):
                read = last_pieces(self.folder)
                plan = settle_plan(self.folder, found, read)
                self._read(plan, read)
                outcome = self._close()
                self.refuse_bad_input(outcome)
            return outcome

    # What a subclass says otherwise.

    def find(self) -> list[Entry]:
        """The entries of the sources."""
        options = self.options
        return find_entries(
            options.sources,
            config=options.config,
            split=options.split,
            text_files=options.text_files,
            attributes=options.attributes,
            say=self.listener.say,
        )

    def shape_of(self, entry: Entry) -> Shaping:
        """What the first rows of an entry are looked at with."""
        return self.shape

    def identity(self) -> dict[str, Any]:
        """What the documents depend on, beside what every ingestion has."""
        options = self.options
        return {
            "text_field": options.text_field,
            "id_field": options.id_field,
            "source": options.source,
            "text_files": options.text_files,
            "config": options.config,
            "split": options.split,
            "attributes": [os.path.basename(name.rstrip("/")) for name in options.attributes],
        }

    def stage(self, plan: Sequence[Entry]) -> IngestStage:
        """The step that reads the plan."""
        return IngestStage(plan=plan, config=self.config, output=self.options.output, run_id=self.run_id)

    def card(self, summary: Summary) -> str:
        """The text of README.md."""
        return corpus_card(
            name=Path(self.options.output.rstrip("/")).name,
            documents=summary.documents,
            tokens=summary.tokens,
            tokenizer=self.config.tokenizer_name,
            format=self.options.format,
        )

    # The configuration.

    @cached_property
    def added(self) -> str:
        previous = current_run(self.folder)
        # The first run's, so that every run writes the same bytes for the same rows.
        return previous.identity.get("added", "") if previous else utc_now()

    @cached_property
    def tokenizer(self) -> Any:
        return resolve_tokenizer(self.options.tokenizer) if self.options.tokenizer else None

    @property
    def shape(self) -> Shape:
        options = self.options
        return Shape(text_field=options.text_field, id_field=options.id_field, source=options.source, added=self.added)

    @cached_property
    def config(self) -> IngestConfig:
        return IngestConfig(
            shape=self.shape,
            chunk_bytes=self.options.chunk_bytes,
            format=self.options.format,
            tokenizer=str(self.tokenizer.path) if self.tokenizer else None,
            tokenizer_name=self.tokenizer.name if self.tokenizer else None,
        )

    def run_config(self) -> RunConfig:
        """The configuration of this run, for its record."""
        options, config = self.options, self.config
        return RunConfig(
            identity={
                "job": self.job,
                "added": self.added,
                **self.identity(),
                "counted_with": config.tokenizer_name,
                "format": config.format,
                "chunk_bytes": config.chunk_bytes,
            },
            extent={"sources": [absolute(place) for place in options.sources]},
            execution={
                "tokenizer_folder": config.tokenizer,
                "tasks": options.tasks,
                "workers": self.workers,
            },
        )

    # The work.

    def _read(self, plan: Sequence[Entry], read: dict[int, dict[str, Any]]) -> None:
        wanted = [entry for entry in plan if not (entry.number in read and read[entry.number]["last"])]
        self._tell_input(plan, wanted)
        if not wanted:
            return
        ledger = Ledger(self.folder)
        ledger.sweep()
        self.folder.remove_tree(RANKS)
        logging_dir = self.folder.url_of(f"logs/{self.run_id}/ingest")
        with self.listener.track("ingesting", self._look(wanted)):
            run_locally([self.stage(plan)], tasks=self.options.tasks, workers=self.workers, logging_dir=logging_dir)

    def _tell_input(self, plan: Sequence[Entry], wanted: Sequence[Entry]) -> None:
        kinds = {
            "rows": ("file", "files"),
            "arrow": ("Arrow file", "Arrow files"),
            "text": ("bundle of text files", "bundles of text files"),
            "stream": ("stream", "streams"),
        }
        counts = {kind: sum(entry.kind == kind for entry in plan) for kind in kinds}
        told = ", ".join(f"{count:,} {kinds[kind][count != 1]}" for kind, count in counts.items() if count)
        done = len(plan) - len(wanted)
        self.listener.say(f"input: {told}" + (f"; going on after {done:,} of them" if done and wanted else ""))

    def _look(self, wanted: Sequence[Entry]):
        total = sum(entry.bytes for entry in wanted)

        def look() -> tuple[float, float, str]:
            seen = read_progress(self.folder)
            seconds = max(1e-3, seen["written"] - seen["started"]) if seen else 1.0
            words = f"{seen.get('rows', 0):,} rows, {seen.get('text_bytes', 0) / seconds / 1e6:,.1f} MB of text/s"
            if total:
                return seen.get("bytes", 0), total, words
            return seen.get("entries", 0), len(wanted), words

        return look

    def _close(self) -> Ingested:
        manifest = Manifest(self.folder)
        manifest.compact(at_least=COMPACT_AT)
        summary = manifest.summary()
        self.folder.replace("README.md", self.card(summary).encode())
        pieces = manifest.table("ingested", ["attributes_joined", "attributes_missing", "attributes_left"])
        counts = None
        if getattr(self.options, "attributes", ()):
            counts = tuple(sum(value or 0 for value in column.to_pylist()) for column in pieces.columns)
        return Ingested(output=self.options.output, run_id=self.run_id, summary=summary, attributes=counts)

    def refuse_bad_input(self, outcome: Ingested) -> None:
        """Raise UserError when too much was turned down."""
        books = outcome.summary.books[INPUT]
        bad = sum(books.rejected.values())
        where = ", ".join(self.options.sources)
        if not books.planned:
            raise UserError("holds no rows", where=where)
        if bad > self.options.max_bad_input * books.planned:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in books.rejected.items())
            raise UserError(
                f"{bad:,} of {books.planned:,} rows are no documents ({reasons})",
                where=where,
                remedy=f"they are kept in {self.folder.url_of('rejected')}: raise --max-bad-input to accept that, "
                "or mend them and add --restart",
            )


def absolute(place: str) -> str:
    """A place as a later command finds it from another folder; hub names and URLs as they are."""
    return os.path.abspath(place) if os.path.exists(place) else place
