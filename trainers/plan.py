"""What a training run comes to before it starts: token stores, numbers of blocks and steps, the schedule."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from derivedata.errors import UserError
from derivedata.store.paths import Folder
from derivedata.trainers.corpus import (
    held_out_store,
    open_corpus,
    separate_store,
    shared_documents,
    tokenizer_for,
    training_store,
)
from derivedata.trainers.options import TrainOptions, warmup_steps
from derivedata.trainers.packing import Packed
from derivedata.trainers.ranks import Ranks
from derivedata.trainers.schedule import Schedule
from derivedata.trainers.tokens import TokenStore
from derivedata.trainers.vocabulary import TextTokenizer, head_rows

if TYPE_CHECKING:
    from derivedata.corpus.stream import DocumentStream
    from derivedata.trainers.shards import Shards


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run comes to: the data and the numbers that follow from options and data.

    vocabulary: rows of the LM head. n_params: without the input embedding. batch: blocks of a step. blocks: of the
    whole run. identity: what the loss curve depends on.
    """

    trained: TokenStore
    held_out: TokenStore
    tokenizer: TextTokenizer
    vocabulary: int
    n_params: int
    batch: int
    blocks: int
    schedule: Schedule

    identity: Mapping[str, Any]

    @property
    def steps(self) -> int:
        return self.schedule.steps


def make_plan(options: TrainOptions, folder: Folder, ranks: Ranks, narrator: Any) -> Plan:
    """Tokenise what is needed and work out the numbers of the run. Raises UserError for data that does not do."""
    corpus = open_corpus(options.data, options.seed)
    tokenizer = tokenizer_for(options.tokenizer, corpus)
    vocabulary = options.vocabulary or head_rows(tokenizer.vocabulary_size)
    if vocabulary < tokenizer.vocabulary_size:
        raise UserError(
            "the model's vocabulary is smaller than the tokenizer's",
            where="--vocab",
            value=vocabulary,
            remedy=f"{tokenizer.name} has {tokenizer.vocabulary_size:,} ids",
        )
    place = _local(folder)
    if ranks.is_first:
        narrator.say(f"tokenising with {tokenizer.name}")
        _stores(options, place, corpus, tokenizer)
    ranks.wait()
    trained, held_out = _stores(options, place, corpus, tokenizer)
    n_params = options.size.count(vocabulary).N
    blocks = _blocks_wanted(options, trained)
    batch = min(options.batch_blocks(n_params), blocks)
    steps = -(-blocks // batch)
    schedule = Schedule(
        kind=options.schedule,
        peak=options.rate(n_params),
        steps=steps,
        warmup=warmup_steps(options.warmup, steps, batch * options.length),
        decay=options.decay,
    )
    if options.eval_data and ranks.is_first:
        shared = shared_documents(held_out, trained)
        if shared:
            narrator.say(f"warning: {shared} of {len(held_out.label)} held-out documents are also trained on")
    recipe = asdict(options.recipe)
    recipe.pop("micro_batch")
    identity = {
        "size": options.size.name,
        "vocabulary": vocabulary,
        "tokenizer": tokenizer.sha256,
        "data": trained.fingerprint,
        "held_out": held_out.fingerprint,
        "eval_tokens": options.eval_tokens,
        "sequence_length": options.length,
        "batch_blocks": batch,
        "blocks": blocks,
        "schedule": asdict(schedule),
        "recipe": recipe,
        "seed": options.seed,
    }
    return Plan(
        identity=identity,
        trained=trained,
        held_out=held_out,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        n_params=n_params,
        batch=batch,
        blocks=blocks,
        schedule=schedule,
    )


def _stores(
    options: TrainOptions, place: Path, corpus: DocumentStream | Shards, tokenizer: TextTokenizer
) -> tuple[TokenStore, TokenStore]:
    # Held out are the same documents whatever the seed, so that seeds are compared on the same text.
    share, seed = options.holdout or 0.0, 0
    # One block more than asked for: documents end where they end, and whole blocks are counted.
    need = None if options.tokens is None else options.tokens + options.length
    trained = training_store(place / "tokens", corpus, tokenizer, share=share, seed=seed, need=need)
    if options.eval_data:
        held_out = separate_store(
            place / "held-out", open_corpus(options.eval_data, 0), tokenizer, tokens=options.eval_tokens
        )
    else:
        held_out = held_out_store(
            place / "held-out",
            open_corpus(options.data, seed),
            tokenizer,
            share=share,
            seed=seed,
            tokens=options.eval_tokens,
        )
    return trained, held_out


def _blocks_wanted(options: TrainOptions, trained: TokenStore) -> int:
    held = Packed(trained, options.length)
    if held.blocks == 0:
        raise UserError(
            "the data fills no block",
            where=", ".join(options.data),
            value=f"{held.tokens:,} tokens, blocks of {options.length:,}",
            remedy="give more data or a smaller --sequence-length",
        )
    wanted = held.blocks if options.tokens is None else max(1, options.tokens // options.length)
    if wanted > held.blocks:
        epochs = options.tokens / max(1, held.tokens)
        raise UserError(
            f"the data is shorter than asked: {options.tokens:,} tokens would be {epochs:.3g} epochs of it",
            where=", ".join(options.data),
            value=f"{held.tokens:,} tokens",
            remedy=f"ask for fewer, or repeat it: `derivedata repeat --epochs {-(-options.tokens // held.tokens)}`",
        )
    return wanted


def _local(folder: Folder) -> Path:
    """Where token stores stand: in the output, or on this machine when the output is elsewhere."""
    if folder.is_local:
        return Path(folder.url)
    return Path(tempfile.gettempdir()) / f"derivedata-{hashlib.sha256(folder.url.encode()).hexdigest()[:16]}"
