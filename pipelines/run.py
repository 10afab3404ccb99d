"""Drives a paraphrase from its options to a finished output: inventory, server, passes of the stage, closing.

From Python:

    import derivedata
    outcome = derivedata.paraphrase("corpus", "derived", styles=("faq",), model="smollm2-135m")
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from derivedata.corpus.card import dataset_card
from derivedata.corpus.files import corpus_files
from derivedata.errors import UserError
from derivedata.generation.launch import ServerSettings
from derivedata.generation.model import ModelFolder, load_tokenizer, resolve_model, resolve_tokenizer
from derivedata.generation.prompt import PromptBuilder
from derivedata.generation.style import Style, load_styles, shipped_styles
from derivedata.pipelines.executor import run_locally
from derivedata.pipelines.paraphrase import ParaphraseConfig, ParaphraseStage, used_styles
from derivedata.pipelines.plugin import load_function
from derivedata.pipelines.progress import RANKS, read_progress
from derivedata.pipelines.rates import remember_rate
from derivedata.pipelines.serving import (
    ENDPOINT,
    Listener,
    Serve,
    Serving,
    Silence,
    check_output,
    own_server,
    private_folder,
    recorded,
    start_over,
)
from derivedata.pipelines.source import (
    INVENTORY,
    Source,
    TakeInventory,
    close_inventory,
    counted_files,
    open_source,
)
from derivedata.store.fingerprint import RunConfig
from derivedata.store.lease import Lease
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import current_run, new_run_id, utc_now
from derivedata.store.summary import Summary
from derivedata.store.units import Unit

JOB = "paraphrase"
ROOMS = ("documents", "rejected", "manifest", "plan", "ledger", "journal", "logs", RANKS)
CONTEXT = 4096  # tokens of prompt and answer where the model has room for more: longer documents come in pieces
LEAST_ROOM = 32  # tokens of a document: fewer hold no sentence
COMPACT_AT = 64  # parts that make a compaction worth its while


@dataclass(frozen=True, kw_only=True, slots=True)
class ParaphraseOptions:
    """What `derivedata paraphrase` takes; see its --help."""

    corpus: Sequence[str]
    output: str
    styles: Sequence[str] = ()
    style_mix: Mapping[str, float] | None = None
    rewrites: int = 1
    tokens: int | None = None
    documents: int | None = None
    model: str | None = None
    context: int | None = None
    tensor_parallel: int = 1
    data_parallel: int | None = None
    max_num_seqs: int | None = None
    vllm_args: Sequence[tuple[str, str]] = ()
    trust_remote_code: bool = False
    tokenizer: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int = 0
    filter: str | None = None
    format: str = "jsonl.zst"
    chunk_bytes: int = 128_000_000
    tasks: int = 1
    workers: int | None = None
    max_bad_input: float = 0.05
    restart: bool = False

    def __post_init__(self) -> None:
        for name in ("rewrites", "tokens", "documents", "chunk_bytes", "tasks", "workers", "context", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError("must be 1 or more", where=name, value=value)

    def chosen_styles(self) -> tuple[Style, ...]:
        """The styles asked for, loaded and checked."""
        names = list(self.styles) or list(self.style_mix or shipped_styles())
        styles = load_styles(names)
        if self.style_mix and set(self.style_mix) != set(styles):
            odd = sorted(set(self.style_mix) ^ set(styles))
            raise UserError("--style and --style-mix name different styles", value=", ".join(odd))
        return tuple(styles.values())

    def server_settings(self) -> ServerSettings:
        """How the server is to be started."""
        return ServerSettings(
            context=self.context,
            max_num_seqs=self.max_num_seqs,
            tensor_parallel=self.tensor_parallel,
            data_parallel=self.data_parallel,
            trust_remote_code=self.trust_remote_code,
            extra=tuple(self.vllm_args),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run left in its output."""

    output: str
    run_id: str
    summary: Summary  # of the whole output
    generated: int  # new tokens of this run, rejected ones included
    seconds: float  # spent generating, the server's start excluded


def paraphrase_corpus(
    options: ParaphraseOptions, listener: Listener | None = None, *, serve: Serve = own_server
) -> Outcome:
    """Paraphrase a corpus into `options.output`, going on from whatever is there.

    Args:
        options: what to do.
        listener: hears about progress.
        serve: gives the endpoint to use; by default a vLLM server is started here and ended afterwards.

    Raises:
        UserError: in one line, whatever can be expected to go wrong; what is finished is kept.
    """
    return _Run(options, listener or Silence(), serve).run()


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


def shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights as shares of 1 in the order of the names, so that 1:1 and 2:2, in either order, are the same mix."""
    total = sum(weights.values())
    return {name: weights[name] / total for name in sorted(weights)}


def resolve_config(
    options: ParaphraseOptions, model: ModelFolder, styles: tuple[Style, ...], *, added: str = ""
) -> ParaphraseConfig:
    """The configuration that options come to with a model."""
    counter = resolve_tokenizer(options.tokenizer) if options.tokenizer else model
    return ParaphraseConfig(
        styles=styles,
        mix=shares(options.style_mix) if options.style_mix else None,
        rewrites=options.rewrites,
        tokens=options.tokens,
        documents=options.documents,
        model=str(model.path),
        model_name=model.name,
        model_revision=model.revision,
        tokenizer=str(counter.path),
        tokenizer_name=counter.name,
        context=options.context or min(model.context, CONTEXT),
        temperature=options.temperature,
        top_p=options.top_p,
        max_tokens=options.max_tokens,
        seed=options.seed,
        filter=options.filter,
        format=options.format,
        added=added,
    )


class _Run:
    def __init__(self, options: ParaphraseOptions, listener: Listener, serve: Serve):
        self.options, self.listener, self.serve = options, listener, serve
        self.folder = Folder(options.output)
        self.run_id = new_run_id()
        self.workers = min(options.workers or options.tasks, options.tasks)
        self.generated, self.seconds = 0, 0.0

    def run(self) -> Outcome:
        files = corpus_files(self.options.corpus)
        inside = check_output(self.folder, JOB, [file.url for file in files])
        self.files = [file for file in files if file.url not in inside]
        self.styles = self.options.chosen_styles()
        if self.options.filter:
            load_function(self.options.filter, "--filter")
        self.model = resolve_model(self.options.model, progress=self.listener.say)
        with Lease(self.folder, self.run_id):
            if self.options.restart:
                start_over(self.folder, ROOMS)
            self._check_room()
            with recorded(self.folder, self._run_config(), self.run_id):
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
        return resolve_config(self.options, self.model, self.styles, added=added)

    def _check_room(self) -> None:
        """Refuse what can't work before it is written down as the configuration of the output."""
        tokenizer = load_tokenizer(self.config.model, self.config.model_name)
        for style in used_styles(self.config).values():
            sampling = self.config.sampling(style)
            builder = PromptBuilder(tokenizer, system=style.system)
            room = builder.budget(
                style.instruction, style.opening, context=self.config.context, max_tokens=sampling.max_tokens
            )
            if room < LEAST_ROOM:
                raise UserError(
                    f"style {style.name} leaves {max(0, room)} of {self.config.context} tokens for a document",
                    remedy=f"raise --context (the model has {self.model.context}) or lower --max-tokens",
                )

    def _run_config(self) -> RunConfig:
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
            },
            extent={
                # As absolute paths: a later command, from another folder, looks for the source there.
                "corpus": [place if "://" in place else os.path.abspath(place) for place in options.corpus],
                "styles": [style.name for style in config.styles],
                "rewrites": config.rewrites,
                "tokens": config.tokens,
                "documents": config.documents,
            },
            execution={
                "model_folder": config.model,
                "tokenizer_folder": config.tokenizer,
                "tasks": options.tasks,
                "workers": self.workers,
                "tensor_parallel": options.tensor_parallel,
                "data_parallel": options.data_parallel,
                "max_num_seqs": options.max_num_seqs,
                "vllm_args": [list(pair) for pair in options.vllm_args],
            },
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
                self._execute([step], "inventory")
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
        with private_folder() as private:
            endpoint_file = Path(private) / ENDPOINT
            driver = self._stage(endpoint_file, window=1)
            driver.finish_decided(ledger)
            if not (wanted := driver.missing(ledger)):
                self.listener.say("nothing is missing: the output holds all that is asked for")
                return
            self._tell_resume(ledger, source)
            serving = Serving(
                model=self.model,
                settings=replace(self.options.server_settings(), context=self.config.context),
                private=Path(private),
                log=Path(self.folder.url_of(f"logs/{self.run_id}") if self.folder.is_local else private) / "vllm.log",
                listener=self.listener,
            )
            with self.serve(serving) as window:
                share = max(2, window // self.workers)
                while wanted:
                    self._pass(driver, wanted, self._stage(endpoint_file, window=share))
                    driver.finish_decided(ledger)
                    wanted = driver.missing(ledger)

    def _pass(self, driver: ParaphraseStage, wanted: Sequence[Unit], stage: ParaphraseStage) -> None:
        """Run all tasks once; with a budget and several tasks it can take a second pass to find where it is met."""
        self.folder.remove_tree(RANKS)
        began = time.monotonic()
        try:
            with self.listener.track("paraphrasing", self._look(driver, wanted)):
                self._execute([stage], "paraphrase")
        finally:
            self.seconds += time.monotonic() - began
            seen = read_progress(self.folder)
            self.generated += seen.get("generated", 0)
            counts = seen.get("styles", {})
            lengths = {name: one["generated"] / one["answered"] for name, one in counts.items() if one["answered"]}
            remember_rate(self.model.name, tokens=self.generated, seconds=self.seconds, lengths=lengths)

    def _stage(self, endpoint_file: Path, *, window: int) -> ParaphraseStage:
        return ParaphraseStage(
            config=self.config,
            files=self.files,
            output=self.options.output,
            endpoint_file=str(endpoint_file),
            window=window,
            run_id=self.run_id,
        )

    def _execute(self, steps: Sequence[Any], name: str) -> None:
        logging_dir = self.folder.url_of(f"logs/{self.run_id}/{name}")
        run_locally(steps, tasks=self.options.tasks, workers=self.workers, logging_dir=logging_dir)

    def _tell_resume(self, ledger: Ledger, source: Source) -> None:
        begun = {unit.chunk for unit in ledger.committed()}
        waiting = len(ledger.started())
        if begun or waiting:
            journals = f" and the journals of {waiting:,} unfinished units" if waiting else ""
            self.listener.say(f"going on from {len(begun):,} of {len(source.chunks):,} chunks{journals}")

    def _look(self, driver: ParaphraseStage, wanted: Sequence[Unit]) -> Callable[[], tuple[float, float, str]]:
        """How far a pass is: by tokens where those are the budget, by requests otherwise."""
        config = self.config
        requests = sum(unit.documents * unit.rewrites * (1 if config.mix else len(unit.kinds)) for unit in wanted)
        missing = (config.tokens or 0) - sum(chunk.tokens for chunk in driver.budget.chunks)

        def look() -> tuple[float, float, str]:
            seen = read_progress(self.folder)
            if not seen:
                return 0, max(1, requests), "waiting for the first answer"
            seconds = max(1e-3, seen["written"] - seen["started"])
            words = (
                f"{seen.get('accepted', 0):,} documents, {seen.get('rejected', 0):,} rejected, "
                f"{seen.get('tokens', 0):,} tokens, {seen.get('generated', 0) / seconds:,.0f} new tokens/s"
            )
            if config.tokens is not None and missing > 0:
                return seen.get("tokens", 0), missing, words
            return seen.get("done", 0), max(1, requests), words

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
            seconds=self.seconds,
        )
