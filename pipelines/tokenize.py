"""Turns a stream of documents into token shards for a trainer: `derivedata tokenize MIX -o TOKENS --tokenizer NAME`.

A command that is killed goes on with the shards that are missing; the step that writes them is in token_shards.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from derivedata.corpus.stream import DocumentStream, open_stream
from derivedata.corpus.stream_virtual import absolute
from derivedata.corpus.token_files import SUFFIXES
from derivedata.errors import UserError, refuse_below_one
from derivedata.generation.model import resolve_tokenizer
from derivedata.generation.tokenizer import Tokenizer, load_tokenizer
from derivedata.pipelines.executor import run_locally
from derivedata.pipelines.serving import Listener, Silence, check_output, recorded, start_over
from derivedata.pipelines.token_shards import TokenizerOf, TokenizeStage, plan_spans
from derivedata.store.fingerprint import RunConfig
from derivedata.store.lease import Lease
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.private import private_folder
from derivedata.store.runs import current_run, new_run_id

JOB = "tokenize"
ROOMS = ("tokens", "manifest", "logs")
COMPACT_AT = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeOptions:
    """What `derivedata tokenize` takes; see its --help."""

    corpus: Sequence[str]
    output: str
    tokenizer: str
    format: str = "olmo"
    style: str | None = None
    eos: str | None = None
    shard_bytes: int = 256_000_000  # of text
    tasks: int = 1
    workers: int | None = None
    restart: bool = False

    def __post_init__(self) -> None:
        if self.format not in SUFFIXES:
            raise UserError("no such format of tokens", value=self.format, remedy=f"use {' or '.join(SUFFIXES)}")
        refuse_below_one(self, "shard_bytes", "tasks", "workers")

    @property
    def place(self) -> str | Sequence[str]:
        """The corpus as `open_stream` takes it."""
        return self.corpus[0] if len(self.corpus) == 1 else list(self.corpus)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenized:
    """What a folder of token shards holds."""

    output: str
    shards: int
    documents: int
    tokens: int  # the end of each document included
    dtype: str
    eos: str
    tokenizer: str


def tokenize_corpus(options: TokenizeOptions, listener: Listener | None = None) -> Tokenized:
    """Write a corpus, repeat or mix as token shards into `options.output`, going on from what is there.

    A text is encoded as it stands: what looks like a control token in it is text. Each document is followed by the
    end-of-text token, so that token stands at the ends of documents and nowhere else.

    Raises:
        UserError: in one line, whatever can be expected to go wrong; what is finished is kept.
    """
    listener = listener or Silence()
    model = resolve_tokenizer(options.tokenizer)
    tokenizer = load_tokenizer(model.path, model.name)
    eos = eos_of(tokenizer, options.eos)
    named = TokenizerOf(folder=str(model.path), name=model.name, eos=eos, eos_id=tokenizer.control_tokens[eos])
    stream = open_stream(options.place, style=options.style)
    if not stream.documents:
        raise UserError("holds no document", where=", ".join(options.corpus))
    folder, run_id = Folder(options.output), new_run_id()
    check_output(folder, JOB, [])
    with Lease(folder, run_id):
        if options.restart:
            start_over(folder, ROOMS)
        with recorded(folder, _config(options, stream, tokenizer, named), run_id):
            _write_missing(folder, options, stream, named, listener, run_id)
            found = read_tokenized(folder)
            if found.documents != stream.documents:
                raise UserError(
                    f"the shards hold {found.documents:,} documents, the input {stream.documents:,}",
                    where=folder.url,
                    remedy="this is a defect, please report it",
                )
            folder.replace("README.md", _card(folder, found, options.format).encode())
    return found


def read_tokenized(folder: Folder) -> Tokenized:
    """What a folder of token shards holds. Raises UserError where there are none."""
    record = current_run(folder)
    if record is None or record.identity.get("job") != JOB:
        raise UserError(
            "holds no token shards", where=folder.url, remedy="make them with derivedata tokenize, or name a tokenizer"
        )
    rows = Manifest(folder).table("token_shards", ["documents", "tokens", "dtype"])
    if not rows.num_rows:
        raise UserError("the token shards are not finished", where=folder.url, remedy="run the same command again")
    return Tokenized(
        output=folder.url,
        shards=rows.num_rows,
        documents=sum(rows["documents"].to_pylist()),
        tokens=sum(rows["tokens"].to_pylist()),
        dtype=rows["dtype"][0].as_py(),
        eos=record.identity["eos"],
        tokenizer=record.identity["tokenizer"],
    )


def _write_missing(
    folder: Folder,
    options: TokenizeOptions,
    stream: DocumentStream,
    named: TokenizerOf,
    listener: Listener,
    run_id: str,
) -> None:
    ledger = Ledger(folder)
    spans, done = plan_spans(stream, options.shard_bytes), ledger.committed_names("shard-")
    missing = [span for span in spans if span.name not in done]
    if not missing:
        listener.say("nothing is missing: all shards are there")
        return
    if done:
        listener.say(f"going on from {len(done):,} of {len(spans):,} shards")
    look = lambda: (len(ledger.committed_names("shard-")), len(spans), "shards")  # noqa: E731
    with listener.track("tokenizing", look), private_folder() as private:
        logs = folder.url_of(f"logs/{run_id}/tokenize") if folder.is_local else private
        stage = TokenizeStage(options.output, stream, missing, named=named, format=options.format)
        run_locally([stage], tasks=options.tasks, workers=options.workers or options.tasks, logging_dir=logs)
    Manifest(folder).compact(at_least=COMPACT_AT)


def _config(options: TokenizeOptions, stream: DocumentStream, tokenizer: Tokenizer, named: TokenizerOf) -> RunConfig:
    return RunConfig(
        identity={
            "job": JOB,
            "content": stream.fingerprint,
            "tokenizer": named.name,
            "tokenizer_sha256": tokenizer.sha256,
            "eos": named.eos,
            "eos_id": named.eos_id,
            "format": options.format,
            "shard_bytes": options.shard_bytes,
        },
        extent={
            # Not "corpus": a mix has no files of its own in which documents could be looked up.
            "of": absolute(options.corpus),
            "style": options.style,
        },
        execution={"tokenizer_folder": named.folder, "tasks": options.tasks, "workers": options.workers},
    )


def eos_of(tokenizer: Tokenizer, asked: str | None) -> str:
    """The token that ends a document: as asked for, or what the tokenizer itself calls so."""
    eos = asked or tokenizer.special_tokens.get("eos_token")
    if eos is None:
        raise UserError("the tokenizer names no end-of-text token", where=tokenizer.name, remedy="name one with --eos")
    if eos not in tokenizer.control_tokens:
        some = ", ".join(list(tokenizer.control_tokens)[:5])
        raise UserError(
            "not a control token of the tokenizer", where="--eos", value=eos, remedy=f"it has {some or 'none'}"
        )
    return eos


def _card(folder: Folder, found: Tokenized, format: str) -> str:
    pattern = folder.url_of("tokens") + "/*" + SUFFIXES[format]
    reader = {
        "olmo": f'`NumpyFSLDatasetConfig.glob("{pattern}", ...)` with `dtype=NumpyDatasetDType.{found.dtype}`',
        "nanotron": f"`DatatroveFolderDataset` with `token_size={np.dtype(found.dtype).itemsize}`",
    }[format]
    return (
        f"# Tokens for {'OLMo-core' if format == 'olmo' else 'nanotron'}\n\n"
        f"{found.tokens:,} tokens of {found.documents:,} documents in {found.shards:,} shards, {found.dtype}, encoded "
        f"with `{found.tokenizer}`. `{found.eos}` ends each document and stands nowhere else.\n\n"
        f"Read by {reader}, and by `derivedata.load_tokens`.\n\n"
        "`manifest/token_shards` has the shards, `manifest/token_counts` what they were made from.\n"
    )
