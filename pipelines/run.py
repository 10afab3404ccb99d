"""Drives a paraphrase from its options to a finished output: inventory, server, passes of the stage, closing.

From Python:

    import derivedata
    outcome = derivedata.paraphrase("corpus", "derived", styles=("faq",), model="smollm2-135m")
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from derivedata.corpus.card import dataset_card
from derivedata.corpus.files import corpus_files
from derivedata.errors import UserError
from derivedata.generation.model import load_tokenizer
from derivedata.generation.prompt import PromptBuilder
from derivedata.pipelines.job import Job, check_context, rate_name
from derivedata.pipelines.pace import in_words
from derivedata.pipelines.paraphrase import ParaphraseConfig, ParaphraseStage, used_styles
from derivedata.pipelines.paraphrase_options import ParaphraseOptions, resolve_config
from derivedata.pipelines.plugin import load_function
from derivedata.pipelines.progress import RANKS, read_progress
from derivedata.pipelines.rates import remember_rate
from derivedata.pipelines.serving import Listener, Serve, Silence, check_output
from derivedata.pipelines.source import (
    INVENTORY,
    Source,
    TakeInventory,
    close_inventory,
    counted_files,
    open_source,
)
from derivedata.store.fingerprint import RunConfig
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.runs import current_run, utc_now
from derivedata.store.summary import Summary
from derivedata.store.units import Unit

JOB = "paraphrase"
ROOMS = ("documents", "rejected", "manifest", "plan", "ledger", "journal", "logs", RANKS)
LEAST_ROOM = 32  # tokens of a document: fewer hold no sentence
COMPACT_AT = 64  # parts that make a compaction worth its while


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run left in its output."""

    output: str
    run_id: str
    summary: Summary  # of the whole output
    generated: int  # new tokens of this run, rejected ones included
    prompt_tokens: int  # of this run, as the server counted them
    cached_tokens: int  # of those, found in the prefix cache; 0 too where it doesn't say
    seconds: float  # spent generating, the server's start excluded


def paraphrase_corpus(
    options: ParaphraseOptions, listener: Listener | None = None, *, serve: Serve | None = None
) -> Outcome:
    """Paraphrase a corpus into `options.output`, going on from whatever is there.

    Args:
        options: what to do.
        listener: hears about progress.
        serve: gives the endpoint to use; by default those of the options, or a vLLM server that is started here and
            ended afterwards.

    Raises:
        UserError: in one line, whatever can be expected to go wrong; what is finished is kept.
    """
    return ParaphraseJob(options, listener or Silence(), serve).run()


def paraphrase(
    corpus: str | Sequence[str], output: str, *, listener: Listener | None = None, **options: Any
) -> Outcome:
    """Paraphrase a corpus: what `derivedata paraphrase` does, from Python (`derivedata.paraphrase`).

    Args:
        corpus: Dolma folders, files or patterns.
        output: folder or URL that receives the derived corpus; what is there already is gone on from.
        listener: hears about progress; silent by default.
        options: fields of `ParaphraseOptions`: styles, rewrites, tokens, model and the others.

    Raises:
        UserError: in one line, whatever can be expected to go wrong; what is finished is kept.
    """
    places = (corpus,) if isinstance(corpus, str) else tuple(corpus)
    return paraphrase_corpus(ParaphraseOptions(corpus=places, output=output, **options), listener)


class ParaphraseJob(Job):
    """One run of `paraphrase_corpus`."""

    name, rooms = JOB, ROOMS
    options: ParaphraseOptions

    def __init__(self, options: ParaphraseOptions, listener: Listener, serve: Serve | None):
        super().__init__(options, options.output, listener, serve)
        self.generated, self.seconds = 0, 0.0
        self.prompt_tokens = self.cached_tokens = 0

    def run(self) -> Outcome:
        """The whole job."""
        files = corpus_files(self.options.corpus)
        inside = check_output(self.folder, JOB, [file.url for file in files])
        self.files = [file for file in files if file.url not in inside]
        self.styles = self.options.chosen_styles()
        if self.options.filter:
            load_function(self.options.filter, "--filter")
        self.find_model(self.options.samplings())
        with self.opened():
            source = self._take_inventory()
            self._refuse_bad_input(source)
            self._generate(source)
        return self._close()

    # The configuration.

    @cached_property
    def config(self) -> ParaphraseConfig:
        previous = current_run(self.folder)
        # The first run's, so that every run writes the same bytes for the same outcomes.
        added = previous.identity.get("added", "") if previous else utc_now()
        return resolve_config(self.options, self.model, self.styles, added=added, connection=self.connection)

    def _check_room(self) -> None:
        """Refuse what can't work before it is written down as the configuration of the output."""
        check_context(self.config.context, self.connection)
        tokenizer = load_tokenizer(self.config.model, self.config.model_name)
        for style in used_styles(self.config).values():
            sampling = self.config.sampling(style)
            builder = PromptBuilder(tokenizer, system=style.system, form=self.config.form)
            room = builder.budget(
                style.instruction, style.opening, context=self.config.context, max_tokens=sampling.max_tokens
            )
            if room < LEAST_ROOM:
                raise UserError(
                    f"style {style.name} leaves {max(0, room)} of {self.config.context} tokens for a document",
                    remedy=f"raise --context (the model has {self.model.context or 'more'}) or lower --max-tokens",
                )

    def run_config(self) -> RunConfig:
        self._check_room()
        config, options = self.config, self.options
        return RunConfig(
            identity={
                "job": JOB,
                "added": config.added,
                "styles": {style.name: style.sha256 for style in used_styles(config).values()},
                "style_mix": dict(config.mix) if config.mix else None,
                "model": config.model_name,
                "model_revision": config.model_revision,
                "counted_with": config.tokenizer_name,
                "context": config.context,
                "temperature": config.temperature,
                "top_p": config.top_p,
                "max_new": config.max_tokens,
                "seed": config.seed,
                "filter": config.filter,
                "format": config.format,
                "chunk_bytes": options.chunk_bytes,
                **self.connection_identity,
            },
            extent={
                # As absolute paths: a later command, from another folder, looks for the source there.
                "corpus": [place if "://" in place else os.path.abspath(place) for place in options.corpus],
                "styles": [style.name for style in config.styles],
                "rewrites": config.rewrites,
                "tokens": config.tokens,
                "documents": config.documents,
            },
            execution=self.execution(tokenizer_folder=config.tokenizer),
        )

    # Before the model.

    def _take_inventory(self) -> Source:
        if not self.folder.exists(INVENTORY) or "input" not in Manifest(self.folder).books():
            self.folder.remove(INVENTORY)
            step = TakeInventory(
                self.files, self.options.output, chunk_bytes=self.options.chunk_bytes, run_id=self.run_id
            )
            look = lambda: (counted_files(self.folder), len(self.files), "files")  # noqa: E731
            with self.listener.track("counting the input", look):
                self.execute([step], "inventory")
            close_inventory(self.folder, self.files)
        return open_source(self.folder, self.files, seed=self.config.seed)

    def _refuse_bad_input(self, source: Source) -> None:
        bad = sum(source.rejected.values())
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(source.rejected.items()))
        told = f"; {bad:,} of {source.rows:,} rows rejected ({reasons})" if bad else ""
        chunks = f"{len(source.chunks):,} chunk" + ("s" if len(source.chunks) != 1 else "")
        self.listener.say(f"input: {source.documents:,} documents in {chunks}{told}")
        if bad > self.options.max_bad_input * source.rows:
            raise UserError(
                f"{bad:,} of {source.rows:,} input rows are no documents ({reasons})",
                where=", ".join(self.options.corpus),
                remedy=f"see {self.folder.url_of('rejected')}; raise --max-bad-input, or mend them and add --restart",
            )
        if not source.documents:
            raise UserError("holds no document", where=", ".join(self.options.corpus))

    # With the model.

    def _generate(self, source: Source) -> None:
        ledger = Ledger(self.folder)
        ledger.sweep()
        with self.working():
            driver = self._stage(window=1)
            driver.source = source
            driver.finish_decided(ledger)
            if not (wanted := driver.missing(ledger)):
                self.listener.say("nothing is missing: the output holds all that is asked for")
                return
            self._tell_resume(ledger, source)
            share = self.share(self.config.context)
            while wanted:
                self._pass(driver, wanted, self._stage(window=share))
                driver.finish_decided(ledger)
                wanted = driver.missing(ledger)

    def _pass(self, driver: ParaphraseStage, wanted: Sequence[Unit], stage: ParaphraseStage) -> None:
        """Run all tasks once; with a budget and several tasks it can take a second pass to find where it is met."""
        self.folder.remove_tree(RANKS)
        began = time.monotonic()
        try:
            with self.listener.track("paraphrasing", self._look(driver, wanted)):
                self.execute([stage], "paraphrase")
        finally:
            self.seconds += time.monotonic() - began
            seen = read_progress(self.folder)
            self.generated += seen.get("generated", 0)
            self.prompt_tokens += seen.get("prompt_tokens", 0)
            self.cached_tokens += seen.get("cached_tokens", 0)
            counts = seen.get("styles", {})
            lengths = {name: one["generated"] / one["answered"] for name, one in counts.items() if one["answered"]}
            name = rate_name(self.model, self.connection)
            remember_rate(name, tokens=self.generated, seconds=self.seconds, lengths=lengths)

    def _stage(self, *, window: int) -> ParaphraseStage:
        return ParaphraseStage(
            config=self.config,
            files=self.files,
            output=self.options.output,
            endpoint_file=self.endpoint_file,
            window=window,
            run_id=self.run_id,
        )

    def _tell_resume(self, ledger: Ledger, source: Source) -> None:
        begun = {unit.chunk for unit in ledger.committed()}
        waiting = len(ledger.started())
        if begun or waiting:
            journals = f" and the journals of {waiting:,} unfinished units" if waiting else ""
            self.listener.say(f"going on from {len(begun):,} of {len(source.chunks):,} chunks{journals}")

    def _look(self, driver: ParaphraseStage, wanted: Sequence[Unit]) -> Callable[[], tuple]:
        """How far a pass is, and how fast: by tokens where those are the budget, by requests otherwise."""
        config = self.config
        requests = sum(unit.documents * unit.rewrites * (1 if config.mix else len(unit.kinds)) for unit in wanted)
        missing = (config.tokens or 0) - sum(chunk.tokens for chunk in driver.budget.chunks)
        by_tokens = config.tokens is not None and missing > 0

        def look() -> tuple:
            seen = read_progress(self.folder)
            if not seen:
                return 0, max(1, requests), "waiting for the first answer"
            rate = self.pace.tokens_per_second(seen)
            words = (
                f"{seen.get('accepted', 0):,} documents, {seen.get('rejected', 0):,} rejected, "
                f"{seen.get('tokens', 0):,} tokens{in_words(rate)}"
            )
            fresh = seen.get("fresh_tokens" if by_tokens else "fresh", 0)
            speed = rate * fresh / seen["generated"] if rate and seen.get("generated") else None
            if by_tokens:
                return seen.get("tokens", 0), missing, words, speed
            return seen.get("done", 0), max(1, requests), words, speed

        return look

    # After the model.

    def _close(self) -> Outcome:
        manifest = Manifest(self.folder)
        manifest.compact(at_least=COMPACT_AT)
        summary = manifest.summary()
        card = dataset_card(
            name=Path(self.options.output.rstrip("/")).name,
            styles=summary.styles.to_dicts(),
            format=self.options.format,
            model=self.config.model_name,
            tokenizer=self.config.tokenizer_name,
        )
        self.folder.replace("README.md", card.encode())
        return Outcome(
            output=self.options.output,
            run_id=self.run_id,
            summary=summary,
            generated=self.generated,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            seconds=self.seconds,
        )
