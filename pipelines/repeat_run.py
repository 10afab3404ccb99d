"""Drives a repeat from its options to a finished output: counting, the order, and the writing.

From Python:

    from derivedata.pipelines.repeat_run import RepeatOptions, repeat_corpus
    repeat_corpus(RepeatOptions(corpus=("corpus",), output="repeated", epochs=4))
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from derivedata.corpus.blocks import BLOCK_BYTES, Blocks
from derivedata.corpus.blocks_lines import MOST_SKIPPED, can_give_lines
from derivedata.corpus.inventory import ShardInventory
from derivedata.corpus.stream import BlockStream, is_output
from derivedata.corpus.stream_virtual import with_frames, write_virtual
from derivedata.corpus.windows import WINDOW_BYTES, Mixing, measure_mixing
from derivedata.errors import UserError, refuse_below_one
from derivedata.pipelines.repeat import DONE, FIRST, RepeatConfig, RepeatStage, documents_done
from derivedata.pipelines.repeat_rows import BLOCKS, ROWS, SUMMARY, Indexed, IndexRows, close_index
from derivedata.pipelines.repeat_source import OrderingJob
from derivedata.pipelines.repeat_tokens import Counted, Listed, TokenCounts, tokenizer_folder
from derivedata.pipelines.serving import Listener, Silence
from derivedata.pipelines.source import INVENTORY
from derivedata.store.fingerprint import RunConfig
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import current_run

JOB = "repeat"
COMPACT_AT = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatOptions:
    """What `derivedata repeat` takes; see its --help."""

    corpus: Sequence[str]
    output: str
    epochs: float | None = None
    tokens: int | None = None
    virtual: bool = False
    seed: int = 0
    tokenizer: str | None = None
    count_tokens: bool = True
    format: str = "jsonl.zst"
    windows_per_shard: int = 8
    window_bytes: int = WINDOW_BYTES  # of text that is held and shuffled at once
    block_bytes: int = BLOCK_BYTES  # of text that is read at once, where no manifest has frames
    tasks: int = 1
    workers: int | None = None
    max_bad_input: float = 0.05
    restart: bool = False

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.tokens is None):
            raise UserError("say how much: give --epochs or --tokens, one of the two")
        if self.epochs is not None and not 0 < self.epochs <= 1e6:
            raise UserError("must be above 0 and at most a million", where="--epochs", value=self.epochs)
        refuse_below_one(self, "tokens", "windows_per_shard", "window_bytes", "block_bytes", "tasks", "workers")
        if self.tokens is not None and not self.count_tokens:
            raise UserError("--tokens needs tokens to be counted", remedy="leave --no-count out, or give --epochs")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a repeat came to.

    Attributes:
        documents: of the corpus.
        epochs, extra: whole epochs, and documents of one more.
        tokens: of the corpus, or None.
        derived_documents, derived_tokens: what lies beyond the first epoch (D').
        written: documents that this run wrote.
        copied: shards that were rewritten to be read from the middle.
        first: strategy of the first epoch, which is the corpus itself: fresh, unless an order is of derived documents.
    """

    output: str
    virtual: bool
    documents: int
    epochs: int
    extra: int
    tokens: int | None
    total_tokens: int | None
    tokenizer: str | None
    mixing: Mixing
    written: int
    copied: int
    first: str

    @property
    def total_documents(self) -> int:
        return self.epochs * self.documents + self.extra


def repeat_corpus(options: RepeatOptions, listener: Listener | None = None) -> Outcome:
    """Repeat a corpus into `options.output`, going on from whatever is there.

    Raises:
        UserError: in one line, whatever can be expected to go wrong; what is finished is kept.
    """
    return _Run(options, listener or Silence()).run()


class _Run(OrderingJob):
    def __init__(self, options: RepeatOptions, listener: Listener):
        super().__init__(JOB, options.corpus, options.output, listener, tasks=options.tasks, workers=options.workers)
        self.options = options

    def run(self) -> Outcome:
        options = self.options
        self.find(refused=("repeat", "mix"))
        self._refuse_derived()
        self.tokens = self._token_counts()
        with self.writing(restart=options.restart):
            config = self._run_config()
            with self.recorded(config):
                blocks = self.count(block_bytes=options.block_bytes, max_bad_input=options.max_bad_input)
                tokens = self._index(blocks)
                blocks = with_frames(self.folder, blocks)
                self.epochs, self.extra = self._extent(blocks, tokens)
                told = self._repeat_config(config)
                written = self._write_order(blocks) if options.virtual else self._write(blocks, told)
            return self._close(blocks, tokens, written)

    def _refuse_derived(self) -> None:
        """What is written says of a first epoch that it is fresh, so derived documents would be taken for fresh ones;
        an order leaves to each document what it says of itself, but repeats are no corpus to repeat."""
        for place in self.places:
            kinds = set(Manifest(Folder(place)).shards()["strategy"]) if is_output(place) else set()
            kinds &= {"repeat", "mix"} if self.options.virtual else kinds - {FIRST, None}
            if kinds:
                remedy = "name the fresh corpus; a mix repeats derived documents (max_repetition_ratio)"
                raise UserError("holds derived documents", where=place, value=", ".join(sorted(kinds)), remedy=remedy)

    # The configuration.

    def _token_counts(self) -> TokenCounts | None:
        options = self.options
        if not options.count_tokens:
            return None
        if options.virtual and options.tokens is None and options.tokenizer is None:
            return self.listed_counts(None)  # an order needs no tokens, and counting them reads everything
        return self.token_counts(options.tokenizer)

    def _run_config(self) -> RunConfig:
        options = self.options
        previous = current_run(self.folder)
        return RunConfig(
            identity={
                "job": JOB,
                "virtual": options.virtual,
                "seed": options.seed,
                "counted_with": self.tokens.name if self.tokens else None,
                "format": options.format,
                "windows_per_shard": options.windows_per_shard,
                "window_bytes": options.window_bytes,
                "block_bytes": options.block_bytes,
                # The first run's, so that every run writes the same bytes.
                "run": previous.identity.get("run", self.run_id) if previous else self.run_id,
            },
            extent={"corpus": self.places, "epochs": options.epochs, "tokens": options.tokens},
            execution={
                "tasks": options.tasks,
                "workers": self.workers,
                "tokenizer_folder": tokenizer_folder(self.tokens),
            },
        )

    def _repeat_config(self, config: RunConfig) -> RepeatConfig:
        return RepeatConfig(
            seed=self.options.seed,
            epochs=self.epochs,
            extra=self.extra,
            tokenizer_name=config.identity["counted_with"],
            format=self.options.format,
            windows_per_shard=self.options.windows_per_shard,
            window_bytes=self.options.window_bytes,
            run_id=config.identity["run"],
        )

    # The corpus.

    def _index(self, blocks: Blocks) -> np.ndarray | None:
        """Index the rows for copies, rewrite what can't be read from the middle; tokens of each block, or None."""
        virtual, tokens = self.options.virtual, self.tokens
        copy = self._to_copy(blocks)
        if virtual and not any(copy) and not isinstance(tokens, Counted):
            return tokens.of_blocks(blocks) if isinstance(tokens, Listed) else None
        if not self.folder.exists(SUMMARY):
            step = IndexRows(blocks, copy, self.options.output, tokens=tokens, rows=not virtual)
            look = lambda: (len(self.folder.names(f"{ROWS}/")) // (1 if virtual else 2), len(copy), "files")  # noqa: E731
            with self.listener.track("indexing the corpus", look):
                self.execute([step], "rows")
            close_index(self.folder, blocks.files)
        return Indexed(self.folder, blocks).tokens

    def _to_copy(self, blocks: Blocks) -> list[bool]:
        if self.listed:
            return [file.format == "parquet" and not self.options.virtual for file in blocks.files]
        counted = [ShardInventory.from_dict(row) for row in json.loads(self.folder.read(INVENTORY))]
        pairs = list(zip(blocks.files, counted, strict=True))
        if self.options.virtual:
            return [any(span.position.skip > MOST_SKIPPED for span in one.chunks) for _, one in pairs]
        return [bool(one.chunks) and not can_give_lines(file, one) for file, one in pairs]

    # How much.

    def _extent(self, blocks: Blocks, tokens: np.ndarray | None) -> tuple[int, int]:
        """Whole epochs, and documents of one more."""
        if self.options.epochs is not None:
            whole = math.floor(self.options.epochs)
            return whole, math.ceil(round((self.options.epochs - whole) * blocks.documents, 6))
        each = int(tokens.sum())
        if not each:
            raise UserError("the corpus holds no tokens", where=", ".join(self.options.corpus))
        whole, rest = divmod(self.options.tokens, each)
        return whole, self._documents_for(blocks, tokens, whole, rest) if rest else 0

    def _documents_for(self, blocks: Blocks, tokens: np.ndarray, whole: int, wanted: int) -> int:
        """The shortest prefix of the epoch after `whole` ones that holds `wanted` tokens."""
        stream = self._stream(blocks, whole, blocks.documents)
        order = stream.order(whole + 1)
        before = 0
        for number in range(stream.epoch_windows):
            here = int(tokens[order.blocks(number)].sum())
            if before + here >= wanted:
                break
            before += here
        documents = stream.read(whole * stream.epoch_windows + number)
        by_path = {file.path: file for file in blocks.files}
        counts: dict[int, int] = {}
        for path in {document.path for document in documents}:
            own = [place for place, document in enumerate(documents) if document.path == path]
            found = self.tokens.count(by_path[path], [documents[place] for place in own])
            counts.update(zip(own, found, strict=True))
        reached = before + np.cumsum([counts[place] for place in range(len(documents))])
        return int(order.documents_before[number] + np.searchsorted(reached, wanted) + 1)

    def _stream(self, blocks: Blocks, epochs: int, extra: int) -> BlockStream:
        options = self.options
        return BlockStream(blocks, seed=options.seed, epochs=epochs, extra=extra, window_bytes=options.window_bytes)

    # The output.

    def _write_order(self, blocks: Blocks) -> int:
        write_virtual(
            self.folder,
            {
                "kind": JOB,
                "version": 1,
                "corpus": self.places,
                "blocks": blocks.fingerprint,
                "seed": self.options.seed,
                "epochs": self.epochs,
                "extra_documents": self.extra,
                "window_bytes": self.options.window_bytes,
            },
        )
        return 0

    def _write(self, blocks: Blocks, config: RepeatConfig) -> int:
        ledger = Ledger(self.folder)
        ledger.sweep()
        stage = RepeatStage(config=config, blocks=blocks, output=self.options.output)
        wanted = stage.missing(ledger)
        if not wanted:
            self.listener.say("nothing is missing: the output holds all that is asked for")
            return 0
        total = sum(unit.documents for unit in wanted)
        self.folder.remove_tree(DONE)
        with self.listener.track("repeating", lambda: (documents_done(self.folder), total, "documents")):
            self.execute([RepeatStage(config=config, blocks=blocks, output=self.options.output)], JOB)
        return total

    def _close(self, blocks: Blocks, tokens: np.ndarray | None, written: int) -> Outcome:
        each = None if tokens is None else int(tokens.sum())
        total = None if each is None or (self.extra and self.options.virtual) else self.epochs * each
        if not self.options.virtual:
            manifest = Manifest(self.folder)
            manifest.compact(at_least=COMPACT_AT)
            counts = manifest.shards()["tokens"]
            total = None if each is None else int(counts.sum())
            self.folder.replace("README.md", _card(self.options, manifest).encode())
        elif self.options.tokens is not None:
            total = self.options.tokens
        stream = self._stream(blocks, self.epochs, self.extra)
        return Outcome(
            output=self.options.output,
            virtual=self.options.virtual,
            documents=blocks.documents,
            epochs=self.epochs,
            extra=self.extra,
            tokens=each,
            total_tokens=total,
            tokenizer=self.tokens.name if self.tokens else None,
            mixing=measure_mixing(blocks.table["documents"], stream.order(1), stream.order(2)),
            written=written,
            first=", ".join(sorted({one or FIRST for one in blocks.strategies})) if self.options.virtual else FIRST,
            copied=len({file.url for file in blocks.files if f"/{BLOCKS}/" in file.url}),
        )


def _card(options: RepeatOptions, manifest: Manifest) -> str:
    rows = manifest.summary().styles.to_dicts()
    for row in rows:
        row["tokens"] = "unknown" if row["tokens"] is None else f"{row['tokens']:,}"
    table = "\n".join(f"| {row['strategy']} | {row['documents']:,} | {row['tokens']} |" for row in rows)
    name = Path(options.output.rstrip("/")).name
    return f"""---
pretty_name: {json.dumps(name)}
tags: [derivedata]
configs:
- config_name: default
  data_files:
  - split: train
    path: documents/*/*.{options.format}
---

# {name}

A corpus repeated with [derivedata](https://pypi.org/project/derivedata/), each epoch in another order
(seed {options.seed}). The first epoch is the corpus itself (`fresh`); what follows is `repeat`.

| strategy | documents | tokens |
| --- | --- | --- |
{table}

Files in path order are the order. `metadata.derivedata` names the source document and the epoch.
"""
