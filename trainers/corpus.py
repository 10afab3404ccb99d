"""From an ordered corpus to token stores: what is trained on, and what is held out of it.

Held out are whole documents, drawn by a hash of their uid, and with them everything derived from them: a rewrite of a
held-out document says what the document says.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from derivedata.errors import UserError
from derivedata.generation.seeds import unit_interval
from derivedata.trainers.tokens import FRESH, REPEAT, Entry, Label, TokenStore, build_store
from derivedata.trainers.vocabulary import BYTES, TextTokenizer, open_tokenizer

if TYPE_CHECKING:
    from derivedata.corpus.document import Document
    from derivedata.corpus.stream import DocumentStream, Origin
    from derivedata.trainers.shards import Shards

    Corpus = DocumentStream | Shards


# Where a mix or repeat that was written out keeps the derivation that its copy of a derived document had.
BEFORE = "source_derivation"


def open_corpus(place: str | Sequence[str], seed: int | None = None, style: str | None = None) -> Corpus:
    """The documents of a corpus, an output, a subset, a repeat, a mix or token shards, in order.

    Args:
        seed: shuffles what has no order of its own; a repeat, a mix or token shards keep theirs.
        style: of an output, these documents alone.
    """
    from derivedata.corpus.stream import open_stream
    from derivedata.trainers.shards import open_shards

    shards = open_shards(place)
    if shards is not None:
        return shards
    if seed is not None:
        # What has an order of its own refuses another; whatever else is wrong comes up again without the seed.
        with contextlib.suppress(UserError):
            return open_stream(place, seed=seed, style=style)
    return open_stream(place, style=style)


def tokenizer_for(name: str | None, corpus: Corpus) -> TextTokenizer:
    """The tokenizer asked for; by default that of token shards, else bytes.

    Raises:
        UserError: token shards were made with another one.
    """
    if not hasattr(corpus, "reader"):
        return open_tokenizer(name or BYTES)
    tokenizer = open_tokenizer(name or corpus.folder)
    _check_tokenizer(corpus, tokenizer)
    tokenizer.end_of_text = corpus.end_of_text
    return tokenizer


def _check_tokenizer(corpus: Corpus, tokenizer: TextTokenizer) -> None:
    if hasattr(corpus, "reader") and tokenizer.sha256 != corpus.sha256:
        raise UserError(
            f"the tokens were made with {corpus.tokenizer}",
            where=corpus.reader.folder.url,
            value=tokenizer.name,
            remedy="leave --tokenizer out, or tokenize again",
        )


def entries(corpus: Corpus, tokenizer: TextTokenizer) -> Iterator[Entry]:
    """The documents of a corpus with what a trainer keeps of them; one window is in memory at a time.

    Raises:
        UserError: token shards that were made with another tokenizer than the one that is used.
    """
    _check_tokenizer(corpus, tokenizer)
    stream = getattr(corpus, "stream", corpus)
    ids = itertools.repeat(None) if stream is corpus else corpus.ids()
    for window in range(stream.windows):
        for document, origin in stream.read_with_origin(window):
            yield _entry(document, origin, next(ids))


def _entry(document: Document, origin: Origin, ids: np.ndarray | None) -> Entry:
    nearest, before = (_derivation(document, name) for name in ("derivedata", BEFORE))
    # A repeat is a fresh document in a later epoch, whether the copy was written out or not.
    strategy = FRESH if origin.strategy == REPEAT else origin.strategy
    parent = before.get("source_uid") or nearest.get("source_uid")
    rewrite = before.get("rewrite", nearest.get("rewrite"))
    return Entry(
        uid=document.uid,
        text=document.text,
        label=Label(strategy, origin.style, origin.source or nearest.get("mix_source") or document.source),
        epoch=origin.epoch,
        parent=parent if isinstance(parent, str) else document.uid,
        rewrite=rewrite if isinstance(rewrite, int) else 0,
        ids=ids,
    )


def _derivation(document: Document, name: str) -> dict:
    found = (document.metadata or {}).get(name)
    return found if isinstance(found, dict) else {}


def is_held_out(entry: Entry, share: float, seed: int) -> bool:
    """Whether a document belongs to the held-out ones, or was derived from one."""
    return share > 0 and unit_interval(seed, "held-out", entry.parent) < share


def training_store(
    folder: Path,
    corpus: Corpus,
    tokenizer: TextTokenizer,
    *,
    share: float,
    seed: int,
    need: int | None,
) -> TokenStore:
    """The documents that are not held out, in order, up to `need` tokens."""
    kept = (entry for entry in entries(corpus, tokenizer) if not is_held_out(entry, share, seed))
    return build_store(folder, kept, tokenizer, origin=_origin(corpus, "train", share, seed), need=need)


def held_out_store(
    folder: Path, corpus: Corpus, tokenizer: TextTokenizer, *, share: float, seed: int, tokens: int
) -> TokenStore:
    """The fresh documents that are held out of a stream, up to `tokens` tokens.

    Raises:
        UserError: there are none.
    """
    kept = (
        entry
        for entry in entries(corpus, tokenizer)
        if entry.epoch == 1 and entry.label.strategy == FRESH and is_held_out(entry, share, seed)
    )
    store = build_store(folder, kept, tokenizer, origin=_origin(corpus, "held-out", share, seed), need=tokens)
    if len(store.order) == 0:
        raise UserError(
            "no held-out split: no fresh document falls into it",
            where="--holdout",
            value=share,
            remedy="hold out a larger share, or name held-out text with --eval",
        )
    return store


def separate_store(folder: Path, corpus: Corpus, tokenizer: TextTokenizer, *, tokens: int) -> TokenStore:
    """Held-out documents that are a corpus of their own, up to `tokens` tokens."""
    return build_store(folder, entries(corpus, tokenizer), tokenizer, origin=_origin(corpus, "separate"), need=tokens)


def scored_store(
    folder: Path, corpus: Corpus, tokenizer: TextTokenizer, *, share: float, seed: int, tokens: int
) -> TokenStore:
    """Other text to score on, up to `tokens` tokens; of what was derived from a corpus, that of held-out documents.

    Raises:
        UserError: there is none.
    """
    kept = (e for e in entries(corpus, tokenizer) if e.label.strategy == FRESH or is_held_out(e, share, seed))
    store = build_store(folder, kept, tokenizer, origin=_origin(corpus, "scored", share, seed), need=tokens)
    if len(store.order) == 0:
        raise UserError(
            "no text to score on: all of it was derived from documents that are trained on",
            where="--score",
            remedy="hold documents out with --holdout, or name text of its own",
        )
    return store


def shared_documents(held_out: TokenStore, trained: TokenStore) -> int:
    """How many held-out documents have the tokens of one that is trained on."""
    wanted = {_digest(held_out, d) for d in range(len(held_out.label))}
    # Only documents of the same length can be the same.
    candidates = np.flatnonzero(np.isin(trained.lengths, held_out.lengths))
    return len(wanted & {_digest(trained, d) for d in candidates})


def _digest(store: TokenStore, d: int) -> bytes:
    ids = store.tokens[store.starts[d] : store.starts[d + 1]]
    return hashlib.blake2b(ids.astype("<u4").tobytes(), digest_size=16).digest()


def _origin(corpus: Corpus, *parts: object) -> str:
    fingerprint = getattr(corpus, "stream", corpus).fingerprint
    return "\n".join(map(str, (fingerprint, *parts)))
