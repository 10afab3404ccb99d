"""Drives a paraphrase from its options to a finished output: inventory, server, passes of the stage, closing.

From Python:

    from derivedata.pipelines.run import ParaphraseOptions, paraphrase_corpus
    summary = paraphrase_corpus(ParaphraseOptions(corpus=("corpus",), output="derived"))
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from derivedata.errors import UserError
from derivedata.generation.style import Style, load_styles, shipped_styles
from derivedata.store.paths import Folder

ROOMS = ("documents", "rejected", "manifest", "plan", "ledger", "journal", "progress", "logs")


class Listener(Protocol):
    """Hears what a run does."""

    def say(self, text: str) -> None:
        """A plain line."""

    def track(self, title: str, look: Callable[[], tuple[float, float | None, str] | None]) -> AbstractContextManager:
        """A block of long work; `look` gives (done, total, words) at any moment."""


class Silence:
    """A listener that prints nothing."""

    def say(self, text: str) -> None:
        pass

    def track(self, title: str, look: Callable[[], Any]) -> AbstractContextManager:
        return contextlib.nullcontext()


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
    context: int = 4096
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

    def chosen_styles(self) -> tuple[Style, ...]:
        """The styles asked for, loaded and checked."""
        names = list(self.styles) or list(self.style_mix or shipped_styles())
        styles = load_styles(names)
        if self.style_mix and set(self.style_mix) != set(styles):
            odd = sorted(set(self.style_mix) ^ set(styles))
            raise UserError("--style and --style-mix name different styles", value=", ".join(odd))
        return tuple(styles.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run left in its output."""

    output: str
    run_id: str
    summary: Any
    seconds: float
    tokens: int  # generated in this run
    generating: float  # seconds spent generating


def paraphrase_corpus(options: ParaphraseOptions, listener: Listener | None = None) -> Outcome:
    """Paraphrase a corpus into `options.output`, going on from whatever is there.

    Raises:
        UserError: in one line, whatever can be expected to go wrong; what is finished is kept.
    """
    return _Run(options, listener or Silence()).run()


class _Run:
    def __init__(self, options: ParaphraseOptions, listener: Listener):
        self.options, self.listener = options, listener
        self.folder = Folder(options.output)
        self.started = _now()
        self.run_id = new_run_id()

    def run(self) -> Outcome:
        options = self.options
        files = corpus_files(options.corpus)
        model = resolve_model(options.model, trust_remote_code=options.trust_remote_code)
        if options.restart:
            self._start_over()
        with Lease(self.folder, self.run_id):
            config = self._config(model, options.chosen_styles())
            previous = current_run(self.folder)
            if previous is not None:
                config = replace(config, added=previous.identity["added"])
            record = self._record(config, files)
            refuse_changed(previous, record, output=options.output)
            save_run(self.folder, record)
            try:
                source = self._take_inventory(files, config.seed)
                self._refuse_bad_input(source)
                stage, generating = self._generate(config, files, source, model)
            finally:
                save_run(self.folder, record.ended(_now()))
            return self._close(config, stage, generating)

    # Before the model.

    def _start_over(self) -> None:
        with Lease(self.folder, self.run_id):
            for room in ROOMS:
                self.folder.remove_tree(room)
            for file in ("run.json", "README.md"):
                self.folder.remove(file)

    def _config(self, model: ModelFolder, styles: tuple[Style, ...]) -> ParaphraseConfig:
        options = self.options
        if options.filter:
            load_filter(options.filter)
        counter = resolve_tokenizer(options.tokenizer) if options.tokenizer else model
        return ParaphraseConfig(
            styles=styles,
            mix=dict(options.style_mix) if options.style_mix else None,
            rewrites=options.rewrites,
            tokens=options.tokens,
            documents=options.documents,
            model=str(model.path),
            model_name=model.name,
            model_revision=model.revision,
            tokenizer=str(counter.path),
            tokenizer_name=counter.name,
            context=options.context,
            temperature=options.temperature,
            top_p=options.top_p,
            max_tokens=options.max_tokens,
            seed=options.seed,
            filter=options.filter,
            format=options.format,
            added=self.started,
        )

    def _take_inventory(self, files: Sequence[CorpusFile], seed: int) -> Source:
        if not self.folder.exists(INVENTORY):
            step = TakeInventory(
                files, self.options.output, chunk_bytes=self.options.chunk_bytes, run_id=self.run_id
            )

            def look() -> tuple[float, float | None, str]:
                return len(self.folder.list("plan/files")), len(files), "files"

            with self.listener.track("counting the input", look):
                self._execute([step], "inventory")
            close_inventory(self.folder, files)
        return open_source(self.folder, files, seed=seed)

    def _refuse_bad_input(self, source: Source) -> None:
        bad = sum(source.rejected.values())
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(source.rejected.items()))
        self.listener.say(
            f"input: {source.documents:,} documents in {len(source.chunks):,} chunks"
            + (f"; {bad:,} of {source.rows:,} rows rejected ({reasons})" if bad else "")
        )
        if bad > self.options.max_bad_input * source.rows:
            raise UserError(
                f"{bad} of {source.rows} input rows are no documents ({reasons})",
                where=", ".join(self.options.corpus),
                remedy=f"see {self.folder.url_of('rejected')}, or raise --max-bad-input",
            )
        if not source.documents:
            raise UserError("holds no document", where=", ".join(self.options.corpus))

    # With the model.

    def _generate(
        self, config: ParaphraseConfig, files: Sequence[CorpusFile], source: Source, model: ModelFolder
    ) -> tuple[ParaphraseStage, float]:
        ledger = Ledger(self.folder)
        ledger.sweep()
        with tempfile.TemporaryDirectory(prefix="derivedata-") as private:
            endpoint_file = str(Path(private) / "endpoint.json")
            stage = self._stage(config, files, endpoint_file)
            if stage.finish_decided(ledger) and not stage.wanted(ledger):
                self.listener.say("nothing is missing: the output holds all that is asked for")
                return stage, 0.0
            self._tell_resume(ledger, source)
            generating = 0.0
            with self._server(model, Path(private)) as endpoint:
                write_endpoint(endpoint_file, endpoint)
                began = time.monotonic()
                while wanted := stage.wanted(ledger):
                    self.folder.remove_tree("progress")
                    with self.listener.track("paraphrasing", self._look(stage, wanted)):
                        self._execute([self._stage(config, files, endpoint_file)], "paraphrase")
                    if stage.finish_decided(ledger):
                        break
                generating = time.monotonic() - began
            return stage, generating
