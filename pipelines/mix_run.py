"""Drives `derivedata mix`: counts the sources, says what the mixture will give, and makes it, as an order or written.

From Python:

    from derivedata.pipelines.mix_run import make_mix
    from derivedata.pipelines.mixture import MixOptions
    make_mix(MixOptions(spec="mix.yaml", output="mixed"))
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from derivedata.corpus.blocks import Blocks, is_output, open_blocks
from derivedata.corpus.files import corpus_files, is_virtual
from derivedata.corpus.stream import BlockStream
from derivedata.corpus.stream_mix import (
    MixStream,
    keep_rows,
    source_folder,
    source_stream,
    text_bytes,
    window_of_sources,
)
from derivedata.corpus.stream_virtual import absolute, read_virtual, write_virtual
from derivedata.corpus.windows import Selection, base_key
from derivedata.errors import UserError
from derivedata.pipelines.decontaminate import Decontaminate, evaluations_sha256, leave_out, record, write_index
from derivedata.pipelines.executor import run_locally
from derivedata.pipelines.mix import DONE, MixStage, mix_card
from derivedata.pipelines.mix_documents import CountDocuments, SourceDocuments, Wanted
from derivedata.pipelines.mix_plan import Population, Share, most_tokens, share_out
from derivedata.pipelines.mix_spec import FRESH_PART, MixSource, read_spec
from derivedata.pipelines.mixture import MixOptions, Mixture, Portion
from derivedata.pipelines.repeat import documents_done
from derivedata.pipelines.repeat_source import EMBEDDED, clear, refuse_inside
from derivedata.pipelines.repeat_tokens import Counted, TokenCounts, listed_tokenizer, tokenizer_folder
from derivedata.pipelines.serving import Listener, Silence, check_output, recorded
from derivedata.store.fingerprint import RunConfig
from derivedata.store.lease import Lease
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import current_run, new_run_id

JOB = "mix"
COMPACT_AT = 64
ROUNDS = 8  # of looking for the largest mix: fewer fresh documents leave fewer that may be derived from them


def make_mix(
    options: MixOptions, listener: Listener | None = None, *, announce: Callable[[Mixture], None] | None = None
) -> Mixture:
    """Make a mixture in `options.output`.

    Args:
        announce: called with what the mixture will give before it is made.

    Raises:
        UserError: in one line, whatever can be expected to go wrong.
    """
    return _Run(options, listener or Silence(), announce or (lambda mixture: None)).run()


class _Run:
    def __init__(self, options: MixOptions, listener: Listener, announce: Callable[[Mixture], None]):
        self.options, self.listener, self.announce = options, listener, announce
        self.folder, self.run_id = Folder(options.output), new_run_id()
        self.workers = min(options.workers or options.tasks, options.tasks)

    def run(self) -> Mixture:
        spec = read_spec(self.options.spec)
        self.spec = replace(spec, requested_tokens=self.options.tokens or spec.requested_tokens)
        self.virtual = [self._virtual(source) for source in self.spec.sources]
        places = [absolute(source.paths) for source in self.spec.sources]
        inputs = []
        for source, their in zip(self.spec.sources, places, strict=True):
            refuse_inside(self.options.output, their)
            try:
                inputs += [file.url for file in corpus_files(their)]
            except UserError as error:
                raise UserError(error.what, where=f"source {source.source_name}: {error.where}", value=error.value,
                                remedy=error.remedy) from None  # fmt: skip
        check_output(self.folder, JOB, inputs)
        self.counts, self.tokenizer = self._token_counts()
        with Lease(self.folder, self.run_id):
            # A mixture that was refused left counts and nothing else: the next try is free to be another one.
            if self.options.restart or not (is_virtual(self.options.output) or Ledger(self.folder).committed_names()):
                clear(self.folder)
            config = self._config()
            with recorded(self.folder, config, self.run_id):
                self._count()
                mixture = self._plan()
                self.announce(mixture)
                if self.options.materialize:
                    self._write(config.identity["run"])
                else:
                    write_virtual(self.folder, self._told)
                if self.spec.decontaminate:
                    record(self.folder, self.sources, config.identity["run"])
            return mixture

    # What there is.

    def _virtual(self, source: MixSource) -> dict[str, Any] | None:
        """What a source that is a virtual repeat says."""
        told = read_virtual(source.paths[0]) if len(source.paths) == 1 else None
        if told is None or told["kind"] == "subset":
            return None
        if told["kind"] == "mix":
            raise UserError("is a mix itself", where=f"source {source.source_name}", remedy="name its sources")
        if source.strategy not in (None, "repeat") or source.style:
            raise UserError("a virtual repeat has one strategy, repeat", where=f"source {source.source_name}")
        return told

    def _token_counts(self) -> tuple[TokenCounts | None, str]:
        """The tokenizer of the mix: the one asked for, or the one that all outputs among its sources agree on."""
        listed = {}
        for source in self.spec.sources:
            if len(source.paths) == 1 and is_output(source.paths[0]) and self.virtual_of(source) is None:
                listed[source.source_name] = listed_tokenizer(source.paths[0])
        self.listed = listed
        names = {name for name in listed.values() if name}
        if self.spec.tokenizer is None and len(names) > 1:
            told = "; ".join(f"{source} with {name}" for source, name in listed.items() if name)
            remedy = "name one as `tokenizer:` in the file; the others are then counted again"
            raise UserError(f"the sources are counted with different tokenizers: {told}", remedy=remedy)
        if self.spec.tokenizer is None and names and all(listed.values()) and len(listed) == len(self.spec.sources):
            return None, names.pop()
        from derivedata.generation.model import resolve_tokenizer

        wanted = self.spec.tokenizer or (names.pop() if names else EMBEDDED)
        if self.spec.tokenizer is None and wanted != EMBEDDED:
            # A manifest has a name for people; only the user knows where that tokenizer is.
            wanted = self._known_tokenizer(wanted)
        model = resolve_tokenizer(wanted)
        return Counted(str(model.path), model.name), model.name

    def _known_tokenizer(self, name: str) -> str:
        for source in self.spec.sources:
            if len(source.paths) == 1 and is_output(source.paths[0]):
                record = current_run(Folder(source.paths[0]))
                place = record.config.execution.get("tokenizer_folder") if record else None
                if record and record.identity.get("counted_with") == name and place:
                    return place
        return name

    def virtual_of(self, source: MixSource) -> dict[str, Any] | None:
        """What the source says, where it is a virtual repeat."""
        return self.virtual[self.spec.sources.index(source)]

    def _corpus(self, number: int) -> tuple[str, ...]:
        told = self.virtual[number]
        return tuple(told["corpus"]) if told else tuple(absolute(self.spec.sources[number].paths))

    def _config(self) -> RunConfig:
        previous = current_run(self.folder)
        evaluations = {}
        if self.spec.decontaminate:
            evaluations = {"evaluations": evaluations_sha256(self.spec.decontaminate)}
        return RunConfig(
            identity=evaluations
            | {
                "job": JOB,
                "sources": json.loads(json.dumps([asdict(source) for source in self.spec.sources])),
                "requested_tokens": self.spec.requested_tokens,
                "seed": self.spec.seed,
                "counted_with": self.tokenizer,
                "materialize": self.options.materialize,
                "format": self.options.format,
                "window_bytes": self.options.window_bytes,
                "windows_per_shard": self.options.windows_per_shard,
                "run": previous.identity.get("run", self.run_id) if previous else self.run_id,
            },
            extent={"places": sorted({place for n in range(len(self.spec.sources)) for place in self._corpus(n)})},
            execution={
                "tasks": self.options.tasks,
                "workers": self.workers,
                "tokenizer_folder": tokenizer_folder(self.counts) or self._known_tokenizer(self.tokenizer),
            },
        )

    def _count(self) -> None:
        wanted = []
        for number, source in enumerate(self.spec.sources):
            listed = self.listed.get(source.source_name) == self.tokenizer
            wanted.append(
                Wanted(
                    place=source_folder(self.folder, number).url,
                    corpus=self._corpus(number),
                    style=source.style,
                    strategy=None if self.virtual[number] else source.strategy,
                    repeated=self.virtual[number] is not None,
                    counts=None if listed else self.counts,
                    listed=listed,
                )
            )
        with self.listener.track("counting the sources", lambda: None):
            self.execute([CountDocuments(wanted)], "documents")
        if self.spec.decontaminate:
            write_index(self.folder, self.spec.decontaminate)
            with self.listener.track("looking for evaluations", lambda: None):
                self.execute([Decontaminate(self.folder.url, wanted)], "decontaminate")
        self.sources, self.contaminated = [], Counter()
        for number, (source, one) in enumerate(zip(self.spec.sources, wanted, strict=True)):
            place = source_folder(self.folder, number)
            blocks = open_blocks(one.corpus, style=one.style, strategy=one.strategy, plan=place)
            documents = SourceDocuments(place, blocks, source.source_name)
            if one.repeated:
                documents.is_derived = True
            if source.max_source_fraction < 1:
                self._use_fraction(documents, source)
            if self.spec.decontaminate:
                self.contaminated += leave_out(documents)
            self.sources.append(documents)
        if all(one.is_derived for one in self.sources) and any(s.derived_from == FRESH_PART for s in self.spec.sources):
            raise UserError(
                "no source is fresh, so no derived document may be in the mix",
                where=self.options.spec,
                remedy="add the corpus they were derived from, or write derived_from: anything",
            )

    def _use_fraction(self, documents: SourceDocuments, source: MixSource) -> None:
        """The documents with the first places in the one order of all: another mix with this seed takes the same."""
        high = int(source.max_source_fraction * (1 << 64))
        # Another order than that of subsets, which are prefixes of theirs.
        selection = Selection(seed=base_key("fraction", self.spec.seed), low=0, high=high)
        files = documents.blocks.files
        documents.limit([selection.holds(file.path, documents.of_file(n)["row"]) for n, file in enumerate(files)])

    def _write(self, run_id: str) -> None:
        stage = MixStage(
            told=self._told,
            output=self.options.output,
            run_id=run_id,
            format=self.options.format,
            windows_per_shard=self.options.windows_per_shard,
        )
        total = sum(unit.documents for unit in stage.missing(Ledger(self.folder)))
        self.folder.remove_tree(DONE)
        with self.listener.track("mixing", lambda: (documents_done(self.folder, DONE), total, "documents")):
            self.execute([stage], JOB)
        manifest = Manifest(self.folder)
        manifest.compact(at_least=COMPACT_AT)
        self.folder.replace("README.md", mix_card(self._told, self.options.output, self.options.format).encode())

    def execute(self, steps: Sequence[Any], name: str) -> None:
        """Run Datatrove steps."""
        logging_dir = self.folder.url_of(f"logs/{self.run_id}/{name}")
        run_locally(steps, tasks=self.options.tasks, workers=self.workers, logging_dir=logging_dir)

    # What it gives.

    def _plan(self) -> Mixture:
        usable = [one.allowed for one in self.sources]
        requested, orphans = self.spec.requested_tokens, [0] * len(self.sources)
        for _ in range(ROUNDS):
            total = requested or most_tokens(self._populations())
            self._follow_lineage(total, usable, orphans)
            self._refuse_orphans(orphans)
            if requested or most_tokens(self._populations()) >= total:
                break
        else:
            remedy = "give requested_tokens, or write derived_from: anything"
            raise UserError("no mix of these ratios keeps to the lineage", where=self.options.spec, remedy=remedy)
        return self._make(share_out(self._populations(), total), orphans)

    def _refuse_orphans(self, orphans: Sequence[int]) -> None:
        for source, documents, left_out in zip(self.spec.sources, self.sources, orphans, strict=True):
            if left_out and not documents.totals()[0]:
                raise UserError(
                    f"none of its {left_out:,} documents was derived from a document of the fresh part",
                    where=f"source {source.source_name}",
                    remedy="add the corpus it was made from, named as it was then, or write derived_from: anything",
                )

    def _populations(self) -> list[Population]:
        found = []
        for number, (source, documents) in enumerate(zip(self.spec.sources, self.sources, strict=True)):
            count, tokens = documents.totals()
            most, told = source.max_repetition_ratio, self.virtual[number]
            if told is not None:
                beyond = told["epochs"] - 1 + told["extra_documents"] / max(1, documents.blocks.documents)
                most = max(0.0, beyond)
            found.append(Population(source=source, documents=count, tokens=tokens, most=most))
        return found

    def _follow_lineage(self, total: int, usable: Sequence[list], orphans: list[int]) -> None:
        """Leave out what was derived from documents outside the fresh part of a mix of `total` tokens."""
        fresh = [np.empty(0, np.uint64)]
        for number, population in enumerate(self._populations()):
            if not self.sources[number].is_derived and population.tokens:
                wanted = min(int(total * population.source.target_ratio), population.limit)
                fresh.append(
                    self.sources[number].uids(self._stream(number, Share(population=population, tokens=wanted)))
                )
        known = np.unique(np.concatenate(fresh))
        for number, (source, documents) in enumerate(zip(self.spec.sources, self.sources, strict=True)):
            if not documents.is_derived or source.derived_from != FRESH_PART:
                continue
            masks, left_out = [], 0
            for file in range(len(documents.blocks.files)):
                kept = np.isin(documents.of_file(file)["source"], known, assume_unique=False)
                before = usable[number][file]
                masks.append(kept if before is None else kept & before)
                left_out += int((~kept if before is None else before & ~kept).sum())
            documents.limit(masks)
            orphans[number] = left_out

    def _blocks(self, number: int) -> Blocks:
        """The usable blocks of a source."""
        documents = self.sources[number]
        if all(mask is None for mask in documents.allowed):
            return documents.blocks
        place = source_folder(self.folder, number)
        return keep_rows(documents.blocks, documents.by_block(documents.blocks)[0], place)

    def _stream(self, number: int, share: Share) -> BlockStream:
        blocks, documents = self._blocks(number), self.sources[number]
        told = self._source_told(number, blocks, share.epochs, 0)
        if share.rest:
            whole = source_stream(blocks, told | {"extra_documents": blocks.documents}, self.source_window)
            extra = documents.prefix(whole, told["first_epoch"] + share.epochs, share.rest)
            told["extra_documents"] = min(extra, blocks.documents)
        return source_stream(blocks, told, self.source_window)

    @property
    def source_window(self) -> int:
        """Bytes of a window of one source."""
        return window_of_sources(len(self.sources), self.options.window_bytes)

    def _source_told(self, number: int, blocks: Blocks, epochs: int, extra: int) -> dict[str, Any]:
        source, told = self.spec.sources[number], self.virtual[number]
        return {
            "source_name": source.source_name,
            "corpus": list(self._corpus(number)),
            "style": source.style,
            "strategy": None if told else source.strategy,
            "blocks": blocks.fingerprint,
            "selected": any(mask is not None for mask in self.sources[number].allowed),
            "seed": told["seed"] if told else base_key("source", self.spec.seed, source.source_name) >> 1,
            "first_epoch": 2 if told else 1,
            "epochs": epochs,
            "extra_documents": extra,
        }

    def _make(self, shares: Sequence[Share], orphans: Sequence[int]) -> Mixture:
        portions, streams, told, size = [], {}, [], 0
        for number, share in enumerate(shares):
            documents, stream = self.sources[number], self._stream(number, share)
            documents.keep()
            if stream.documents == 0:
                what = f"gets {share.tokens:,} tokens of the mix, less than a document"
                raise UserError(
                    what, where=f"source {share.population.source.source_name}", remedy="ask for more tokens"
                )
            told.append(self._source_told(number, stream.blocks, stream.epochs, stream.extra))
            streams[share.population.source.source_name] = stream
            size += text_bytes(stream)
            strategies = {strategy for strategy in documents.blocks.strategies if strategy}
            strategy = strategies.pop() if len(strategies) == 1 else "derived" if documents.is_derived else "fresh"
            portions.append(
                Portion(
                    share=share,
                    is_derived=documents.is_derived,
                    strategy="repeat" if self.virtual[number] else strategy,
                    orphans=orphans[number],
                    epochs=stream.epochs,
                    extra=stream.extra,
                )
            )
        self._told = {
            "kind": JOB,
            "version": 1,
            "seed": self.spec.seed,
            "window_bytes": self.options.window_bytes,
            "source_window_bytes": self.source_window,
            "tokenizer": self.tokenizer,
            "sources": told,
        }
        stream = MixStream(streams, seed=self.spec.seed, size=size, window_bytes=self.options.window_bytes)
        return Mixture(
            portions=portions, tokenizer=self.tokenizer, stream=stream, spec=self.spec, contaminated=self.contaminated
        )
