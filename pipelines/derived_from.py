"""Takes in what others derived: `derivedata ingest SRC... -o OUT --derived-from CORPUS --strategy S`.

Each generation becomes a derived document as `derivedata paraphrase` writes it, with the same tables, so that counting,
mixing and eta work on it. Its source is looked up in CORPUS, by text where the row has the source's text, else by id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from derivedata.corpus.card import dataset_card
from derivedata.corpus.foreign import ForeignShape
from derivedata.corpus.inputs import Entry, Shaping
from derivedata.corpus.shape import TEXT, Shape
from derivedata.errors import UserError, refuse_below_one
from derivedata.generation.tokenizer import load_tokenizer
from derivedata.pipelines.derived import GENERATION
from derivedata.pipelines.derived_piece import KEEP, REJECT, DerivedStage
from derivedata.pipelines.ingest import Ingested, Ingestion, absolute
from derivedata.pipelines.ingest_plan import find_entries
from derivedata.pipelines.ingest_stage import IngestStage
from derivedata.pipelines.serving import Listener, Silence
from derivedata.pipelines.source_index import NO_SOURCE, build_index, corpus_fingerprint
from derivedata.store.fingerprint import RunConfig
from derivedata.store.private import private_folder
from derivedata.store.summary import Summary

JOB = "ingest-derived"
ACTUAL = "kind=actual"  # of Nemotron-CC: documents as they were found
NOT_DERIVED = ("fresh", "source", "original", "mix")  # what manifests call other things so
_STRATEGY = re.compile(r"[a-z][a-z0-9_-]{0,40}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DerivedOptions:
    """What `derivedata ingest --strategy` takes; see its --help."""

    sources: Sequence[str]
    output: str
    strategy: str
    derived_from: str | None = None
    style: str | None = None
    model: str | None = None
    text_field: str = TEXT
    source_id_field: str | None = None
    unmatched: str = REJECT
    config: str | None = None
    split: str | None = None
    tokenizer: str | None = None
    format: str = "jsonl.zst"
    chunk_bytes: int = 128_000_000
    tasks: int = 1
    workers: int | None = None
    max_bad_input: float = 0.05
    restart: bool = False

    def __post_init__(self) -> None:
        refuse_below_one(self, "chunk_bytes", "tasks", "workers")
        if not _STRATEGY.fullmatch(self.strategy):
            remedy = "use small letters, digits, - and _: paraphrase, distill, ..."
            raise UserError("not a name for a strategy", where="--strategy", value=self.strategy, remedy=remedy)
        if self.strategy in NOT_DERIVED:
            remedy = "name what was done to the sources: paraphrase, distill, ..."
            raise UserError("is no way to derive documents", where="--strategy", value=self.strategy, remedy=remedy)
        if self.unmatched not in (KEEP, REJECT):
            raise UserError("must be keep or reject", where="--unmatched", value=self.unmatched)
        if self.tokenizer is None:
            remedy = "name the tokenizer of the model that will be trained"
            raise UserError("derived tokens are counted: a tokenizer is wanted", where="--tokenizer", remedy=remedy)
        if self.derived_from is None and self.unmatched != KEEP:
            remedy = "name CORPUS, or take them without a source: --unmatched keep"
            raise UserError("what were they derived from?", where="--derived-from", remedy=remedy)

    def shape(self, entry: Entry) -> ForeignShape:
        """What makes generations of the rows of an entry."""
        return ForeignShape(
            address=entry.files[0].url if entry.files else entry.path,
            strategy=self.strategy,
            style=self.style,
            text_field=self.text_field,
            source_id_field=self.source_id_field,
        )


def ingest_derived(options: DerivedOptions, listener: Listener | None = None) -> Ingested:
    """Take derived documents in, going on from whatever is there.

    Raises:
        UserError: in one line, whatever can be expected to go wrong; what is finished is kept.
    """
    with private_folder() as private:
        return DerivedIngestion(options, listener or Silence(), Path(private) / "sources.sqlite").run()


class DerivedIngestion(Ingestion):
    """One run."""

    job = JOB

    def __init__(self, options: DerivedOptions, listener: Listener, index: Path):
        super().__init__(options, listener)
        self.index = index

    def find(self) -> list[Entry]:
        # A configuration is a style there: all of them are meant, unless one is named.
        options, say = self.options, self.listener.say
        found = find_entries(options.sources, config=options.config, split=options.split, every_config=True, say=say)
        actual = [entry for entry in found if any(f"/{ACTUAL}/" in file.url for file in entry.files)]
        if actual:
            self.listener.say(f"left out: {len(actual):,} files of {ACTUAL}, which are not derived")
        return [entry for entry in found if entry not in actual]

    @property
    def shape(self) -> Shape:
        return Shape(added=self.added)  # the rows are shaped by their layout

    def shape_of(self, entry: Entry) -> Shaping:
        return self.options.shape(entry)

    def identity(self) -> dict[str, Any]:
        options = self.options
        return {
            "strategy": options.strategy,
            "style": options.style,
            "model": options.model,
            "text_field": options.text_field,
            "source_id_field": options.source_id_field,
            "unmatched": options.unmatched,
            "config": options.config,
            "split": options.split,
            "corpus_files": corpus_fingerprint(options.derived_from) if options.derived_from else None,
        }

    def run_config(self) -> RunConfig:
        config = super().run_config()
        if self.options.derived_from:
            config.extent["corpus"] = [absolute(self.options.derived_from)]
        return config

    def stage(self, plan: Sequence[Entry]) -> IngestStage:
        if self.options.derived_from and not self.index.exists():
            counter = load_tokenizer(self.config.tokenizer, self.config.tokenizer_name)
            with self.listener.track("indexing the source", lambda: None):
                count = build_index(self.options.derived_from, self.index, counter, self.config.tokenizer_name)
            self.listener.say(f"source: {count:,} documents")
        return DerivedStage(
            options=self.options,
            index=str(self.index) if self.options.derived_from else None,
            plan=plan,
            config=self.config,
            output=self.options.output,
            run_id=self.run_id,
        )

    def card(self, summary: Summary) -> str:
        return dataset_card(
            name=Path(self.options.output.rstrip("/")).name,
            styles=summary.styles.to_dicts(),
            format=self.options.format,
            model=self.options.model or "a model that is not named",
            tokenizer=self.config.tokenizer_name,
        )

    def refuse_bad_input(self, outcome: Ingested) -> None:
        super().refuse_bad_input(outcome)
        books = outcome.summary.books[GENERATION]
        bad = sum(books.rejected.values())
        if bad > self.options.max_bad_input * books.planned:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in books.rejected.items())
            remedy = f"they are kept in {self.folder.url_of('rejected')}: raise --max-bad-input to accept that"
            if NO_SOURCE in books.rejected:
                remedy += ", or take them without a source with --unmatched keep --restart"
            raise UserError(
                f"{bad:,} of {books.planned:,} generations are turned down ({reasons})",
                where=", ".join(self.options.sources),
                remedy=remedy,
            )
