"""Blocks of tokens for a trainer, out of token shards or out of texts: `derivedata.load_tokens`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from derivedata.corpus.packing import Blocks, TextBlocks, TokenBlocks
from derivedata.corpus.stream import open_stream
from derivedata.corpus.token_files import TokenFile, TokenReader
from derivedata.errors import UserError
from derivedata.generation.model import resolve_tokenizer
from derivedata.generation.tokenizer import Tokenizer, load_tokenizer
from derivedata.pipelines.tokenize import JOB, eos_of
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import RunRecord, current_run


def load_tokens(
    path: str | os.PathLike | Sequence[str],
    *,
    sequence_length: int,
    tokenizer: str | None = None,
    eos: str | None = None,
    style: str | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> Blocks:
    """Documents packed into blocks of `sequence_length` tokens: a PyTorch IterableDataset of dicts of tensors.

    Each block has `input_ids`, `labels`, `position_ids` that begin again with each document, and `document_ids`. The
    blocks are in the order of the stream, each token is in one of them, and ranks and workers share them without
    overlap or gap. `state_dict()` and `load_state_dict()` go on at the exact token.

    Args:
        path: what `derivedata tokenize` made, or anything that `load_corpus` reads; then `tokenizer` is wanted.
        sequence_length: tokens of a block.
        tokenizer: folder or hub id; for token shards only checked against the one they were made with.
        eos: the token that ends each document, where texts are tokenised; default: what the tokenizer calls so.
        style: of an output of ours, only these documents.
        rank, world_size: this process among those that train together.

    Raises:
        UserError: nothing is there, or the shards were made with another tokenizer.
    """
    if sequence_length < 1:
        raise UserError("must be 1 or more", where="sequence_length", value=sequence_length)
    record = _record_of_tokens(path)
    if record is not None:
        return _of_shards(Folder(path), record, sequence_length, tokenizer, rank, world_size)
    if tokenizer is None:
        raise UserError(
            "holds no tokens, so a tokenizer is wanted", where=path, remedy="name one, or derivedata tokenize it first"
        )
    model = resolve_tokenizer(tokenizer)
    loaded = _loaded(str(model.path), model.name)
    end = loaded.control_tokens[eos_of(loaded, eos)]
    stream = open_stream(os.fspath(path) if isinstance(path, (str, os.PathLike)) else list(path), style=style)
    return TextBlocks(
        stream,
        Encoder(folder=str(model.path), name=model.name),
        fingerprint=_fingerprint("text", stream.fingerprint, loaded.sha256, end),
        sequence_length=sequence_length,
        eos=end,
        rank=rank,
        world=world_size,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoder:
    """Texts to ids with the tokenizer of a folder, which each process loads for itself."""

    folder: str
    name: str

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        return _loaded(self.folder, self.name).encode_batch(texts)


@lru_cache(4)
def _loaded(folder: str, name: str) -> Tokenizer:
    return load_tokenizer(folder, name)


def _record_of_tokens(path: str | os.PathLike | Sequence[str]) -> RunRecord | None:
    """The run record of a folder of token shards; None for anything else."""
    if not isinstance(path, (str, os.PathLike)) or any(character in os.fspath(path) for character in "*?["):
        return None
    record = current_run(Folder(path))
    return record if record is not None and record.identity.get("job") == JOB else None


def _of_shards(
    folder: Folder, record: RunRecord, sequence_length: int, tokenizer: str | None, rank: int, world_size: int
) -> TokenBlocks:
    told = record.identity
    if record.status != "done":
        raise UserError("the token shards are not finished", where=folder.url, remedy="run derivedata tokenize again")
    if tokenizer is not None:
        model = resolve_tokenizer(tokenizer)
        if _loaded(str(model.path), model.name).sha256 != told["tokenizer_sha256"]:
            raise UserError(
                f"the tokens were made with {told['tokenizer']}",
                where=folder.url,
                value=model.name,
                remedy="leave the tokenizer out, or tokenize again",
            )
    rows = Manifest(folder).table("token_shards", ["path", "tokens", "dtype"]).sort_by("path").to_pylist()
    files = [TokenFile(path=row["path"], tokens=row["tokens"]) for row in rows]
    reader = TokenReader(folder, files, np.dtype(rows[0]["dtype"]).newbyteorder("<"))
    return TokenBlocks(
        reader,
        fingerprint=_fingerprint("tokens", told["content"], told["tokenizer_sha256"], told["eos_id"]),
        sequence_length=sequence_length,
        eos=told["eos_id"],
        rank=rank,
        world=world_size,
    )


def _fingerprint(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
