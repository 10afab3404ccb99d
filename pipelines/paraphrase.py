"""Rewrite every document of a corpus in one or more styles: `derivedata paraphrase CORPUS -o OUT`.

`ParaphraseStage` is the Datatrove step; `derivedata.pipelines.run` starts the server and drives it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from derivedata.corpus.files import CorpusFile
from derivedata.errors import UserError
from derivedata.generation.client import Completion, Failure, Sampling
from derivedata.generation.filters import judge
from derivedata.generation.prompt import Piece, PromptBuilder
from derivedata.generation.request import PromptForm
from derivedata.generation.seeds import request_seed, unit_interval
from derivedata.generation.style import Style, resolve_fallbacks
from derivedata.generation.tokenizer import Tokenizer, load_tokenizer
from derivedata.pipelines.budgeted import BudgetedStage
from derivedata.pipelines.derivation import Planned
from derivedata.pipelines.derived import DerivedPart
from derivedata.pipelines.plugin import load_function
from derivedata.pipelines.source import Chunk, Source, open_source
from derivedata.store.ledger import Ledger
from derivedata.store.tables import Part
from derivedata.store.units import Unit, missing

if TYPE_CHECKING:
    from derivedata.corpus.document import Document

FIRST_JUDGED = 200  # generations after which a run that is nearly all rejects is ended
HOPELESS = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class ParaphraseConfig:
    """What determines the texts of a paraphrased corpus, and how much of it is wanted."""

    styles: tuple[Style, ...]
    mix: Mapping[str, float] | None = None  # style -> weight; one style a document and rewrite, drawn from the seed
    rewrites: int = 1  # samples of every document and style
    tokens: int | None = None  # accepted derived tokens wanted, of `tokenizer`
    documents: int | None = None  # source documents wanted
    model: str = ""  # folder of the model
    model_name: str = ""  # what people call it
    model_revision: str | None = ""  # None: a server that doesn't say
    form: PromptForm = "tokens"  # how prompts are sent
    not_sent: tuple[str, ...] = ()  # fields of a request that the server refuses
    tokenizer: str = ""  # folder or name of the tokenizer that counts
    tokenizer_name: str = ""
    context: int = 4096  # tokens of prompt and answer
    temperature: float | None = None  # None: each style's own
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int = 0
    filter: str | None = None  # module:function, asked before a generation is accepted
    format: str = "jsonl.zst"
    added: str = ""  # time stamp of the first run, in every derived document

    def sampling(self, style: Style) -> Sampling:
        """The style's own sampling with what the run overrides."""
        own = style.sampling
        return Sampling(
            temperature=own.temperature if self.temperature is None else self.temperature,
            top_p=own.top_p if self.top_p is None else self.top_p,
            top_k=own.top_k,
            frequency_penalty=own.frequency_penalty,
            max_tokens=own.max_tokens if self.max_tokens is None else self.max_tokens,
        )


def used_styles(config: ParaphraseConfig) -> dict[str, Style]:
    """All styles that may be used, by name; with a mix, the fallbacks they name too."""
    styles = {style.name: style for style in config.styles}
    if config.mix is not None:
        for style in config.styles:
            styles.update({fallback.name: fallback for fallback in resolve_fallbacks(style, styles)})
    return styles


class ParaphraseStage(BudgetedStage):
    """Send each document in each style to the server; judge, journal and commit what comes back."""

    name = "✍ Paraphrase"

    def __init__(self, *, config: ParaphraseConfig, files: Sequence[CorpusFile], **kwargs: Any):
        super().__init__(**kwargs)
        self.config, self.files = config, list(files)
        self.judged: list[bool] = []
        self._prompts: dict[str | None, PromptBuilder] = {}

    @cached_property
    def source(self) -> Source:
        return open_source(self.folder, self.files, seed=self.config.seed)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.config.model, self.config.model_name)

    @cached_property
    def counter(self) -> Tokenizer:
        """The tokenizer that counts derived tokens."""
        if self.config.tokenizer == self.config.model:
            return self.tokenizer
        return load_tokenizer(self.config.tokenizer, self.config.tokenizer_name)

    def prompts(self, style: Style) -> PromptBuilder:
        """The prompt builder for the style's system text."""
        if style.system not in self._prompts:
            self._prompts[style.system] = PromptBuilder(self.tokenizer, system=style.system, form=self.config.form)
        return self._prompts[style.system]

    @cached_property
    def styles(self) -> dict[str, Style]:
        return used_styles(self.config)

    @cached_property
    def user_filter(self) -> Callable[[Any], Any] | None:
        return load_function(self.config.filter, "--filter") if self.config.filter else None

    def count_tokens(self, text: str) -> int:
        return self.tokenizer.count([text])[0]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(style.name for style in self.config.styles)

    # Which units.

    @property
    def tokens_wanted(self) -> int | None:
        return self.config.tokens

    def usable(self, chunk: Chunk) -> int:
        if self.config.documents is None:
            return chunk.documents
        return max(0, min(chunk.documents, self.config.documents - chunk.before))

    def expected_tokens(self) -> float:
        styles = self.config.styles
        mean = sum(self.config.sampling(style).max_tokens for style in styles) / len(styles)
        return 0.5 * mean * self.config.rewrites * (1 if self.config.mix else len(styles))

    def missing(self, ledger: Ledger) -> list[Unit]:
        self.budget = self.open_budget(ledger)
        if self.tokens_wanted is not None and self.budget.reached():
            usable = [chunk.frontier for chunk in self.budget.chunks]
        else:
            usable = [chunk.documents for chunk in self.budget.chunks]
        committed: dict[int, list[Unit]] = {}
        for unit in ledger.committed():
            committed.setdefault(unit.chunk, []).append(unit)
        started: dict[int, list[Unit]] = {}
        for unit in ledger.started():
            started.setdefault(unit.chunk, []).append(unit)
        found = []
        for chunk, documents in enumerate(usable):
            units = missing(
                committed.get(chunk, []),
                chunk=chunk,
                documents=documents,
                kinds=self.kinds,
                rewrites=self.config.rewrites,
                started=started.get(chunk, []),
            )
            decided = self.budget.chunks[chunk].decided is not None
            found += [unit for unit in units if not (decided and self.grows(unit))]
        # What fills in styles and rewrites of committed documents comes first, alone: only then is it known how many
        # tokens those documents have, and so where the budget is met.
        return [unit for unit in found if not self.grows(unit)] or found

    def load(self, unit: Unit) -> Sequence[Document]:
        return self.source.read(self.source.chunks[unit.chunk])[unit.first : unit.stop]

    # What is asked.

    def size(self, item: Document) -> int:
        return len(item.text)

    def plan(self, unit: Unit, items: Sequence[Document], first: int) -> list[Planned]:
        texts = [document.text for document in items]
        counts = self.tokenizer.count(texts)
        # D is counted with the tokenizer that counts D'.
        fresh = counts if self.counter is self.tokenizer else self.counter.count(texts)
        planned: list[Planned] = []
        for offset, document in enumerate(items):
            for one in self._plan_document(unit, document, counts[offset], first + offset):
                one.info["source_tokens"] = fresh[offset]
                planned.append(one)
        return planned

    def _plan_document(self, unit: Unit, document: Document, length: int, position: int) -> list[Planned]:
        planned = []
        cuts: dict[tuple, list[Piece]] = {}  # styles and rewrites mostly cut a document alike: once is enough
        for rewrite in range(unit.low, unit.high):
            for kind in self._kinds_for(unit, document, rewrite):
                style, reason = self._suitable(self.styles[kind], document, length)
                info = {"uid": document.uid, "kind": kind, "style": style.name, "rewrite": rewrite}
                if reason:
                    key = _key(document.uid, kind, rewrite, 0)
                    outcome = {"outcome": "skipped", "reason": reason}
                    planned.append(Planned(key=key, position=position, outcome=outcome, info={**info, "piece": 0}))
                    continue
                sampling = self.config.sampling(style)
                builder = self.prompts(style)
                for piece in self._pieces(cuts, builder, style, document, rewrite):
                    prompt, tokens = builder.prompt(piece, style.instruction, style.opening)
                    planned.append(
                        Planned(
                            key=_key(document.uid, kind, rewrite, piece.index),
                            position=position,
                            prompt=prompt,
                            prompt_tokens=tokens,
                            group=f"{document.uid}/{piece.index}",
                            sampling=sampling,
                            seed=request_seed(self.config.seed, document.uid, kind, rewrite, piece.index),
                            info={**info, "piece": piece.index},
                            source_text=piece.text,
                        )
                    )
        # Pieces outermost and styles innermost: what shares a prefix is sent together and finds it cached.
        planned.sort(key=lambda one: (one.info["piece"], one.info["rewrite"]))
        return planned

    def _pieces(
        self, cuts: dict[tuple, list[Piece]], builder: PromptBuilder, style: Style, document: Document, rewrite: int
    ) -> list[Piece]:
        sampling = self.config.sampling(style)
        room = builder.budget(
            style.instruction, style.opening, context=self.config.context, max_tokens=sampling.max_tokens
        )
        limit, draw = min(room, style.source.max_tokens or room), 0.0
        if style.on_long == "window":
            draw = unit_interval(self.config.seed, "window", document.uid, style.name, rewrite)
        how = (limit, style.on_long, draw)
        if how not in cuts:
            cuts[how] = builder.split_document(document.text, limit, style.on_long, draw=draw)
        return cuts[how]

    def _kinds_for(self, unit: Unit, document: Document, rewrite: int) -> Sequence[str]:
        if self.config.mix is None:
            return unit.kinds
        draw = unit_interval(self.config.seed, "style", document.uid, rewrite) * sum(self.config.mix.values())
        for name, weight in self.config.mix.items():
            draw -= weight
            if draw < 0:
                return (name,)
        return (name,)

    def _suitable(self, style: Style, document: Document, tokens: int) -> tuple[Style, str | None]:
        reason = style.unsuitable(document.text, tokens)
        # With a mix the fallback takes the style's place; with every style it takes part already.
        if reason and self.config.mix is not None and reason.startswith("too_few"):
            for fallback in resolve_fallbacks(style, self.styles):
                if fallback.unsuitable(document.text, tokens) is None:
                    return fallback, None
        return style, reason

    # What comes back.

    def judge(self, planned: Planned, completion: Completion) -> dict[str, Any]:
        style, source_text = self.styles[planned.info["style"]], planned.source_text
        # Where the server writes the answer's beginning itself there is nothing to put before it.
        text = completion.text if self.config.form == "chat" else style.with_opening(completion.text)
        verdict = judge(text, source_text, style, completion.finish_reason)
        accepted, reason, detail = verdict.accepted, verdict.reason, verdict.detail
        record = {
            "seed": planned.seed,
            "prompt_sha256": hashlib.sha256(orjson.dumps(planned.prompt)).hexdigest(),
            "finish_reason": completion.finish_reason,
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": completion.completion_tokens,
            "changes": list(verdict.changes),
        }
        if accepted and self.user_filter is not None:
            accepted, reason, detail = self._ask_user(planned, verdict.text, source_text)
        self._give_up_when_hopeless(accepted)
        if not accepted:
            return {**record, "outcome": "rejected", "reason": reason, "detail": detail, "text": text, "tokens": 0}
        return {**record, "outcome": "accepted", "text": verdict.text, "tokens": self.counter.count([verdict.text])[0]}

    def _ask_user(self, planned: Planned, text: str, source_text: str) -> tuple[bool, str | None, str | None]:
        from datatrove.data import Document as DatatroveDocument

        metadata = {**planned.info, "source_text": source_text}
        try:
            answer = self.user_filter(DatatroveDocument(text=text, id=planned.key, metadata=metadata))
            kept, detail = answer if isinstance(answer, tuple) else (answer, None)
        except Exception as error:  # the user's code: whatever it raises is told, and ends the run
            told = f"{type(error).__name__}: {error}"
            raise UserError(f"the filter failed on {planned.key}: {told}", where=self.config.filter) from error
        return (True, None, None) if kept else (False, "filter", str(detail or self.config.filter))

    def failed(self, planned: Planned, failure: Failure) -> None:
        self._give_up_when_hopeless(False)

    def _give_up_when_hopeless(self, accepted: bool) -> None:
        if len(self.judged) >= FIRST_JUDGED:
            return
        self.judged.append(accepted)
        rejected = self.judged.count(False)
        if len(self.judged) == FIRST_JUDGED and rejected > HOPELESS * FIRST_JUDGED:
            reasons = ", ".join(f"{name} {count}" for name, count in self.progress.reasons.most_common(3))
            raise UserError(
                f"{rejected} of the first {FIRST_JUDGED} generations were rejected (mostly {reasons})",
                where=self.output,
                remedy="look at them in journal/, then change the style, the model or the sampling",
            )

    # What is committed.

    def part(
        self, unit: Unit, items: Sequence[Document], records: list[dict[str, Any]], outside: int, scratch: Path
    ) -> Part:
        built = DerivedPart(self.config, self.styles, unit, items, scratch)
        for record in sorted(records, key=_order):
            built.add(record)
        return built.close(outside)


def _key(uid: str, kind: str, rewrite: int, piece: int) -> str:
    return f"{uid}/{kind}/{rewrite}/{piece}"


def _order(record: Mapping[str, Any]) -> tuple:
    return record["position"], record["kind"], record["rewrite"], record["piece"]
