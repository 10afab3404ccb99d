"""Counts the tokens of a corpus exactly, with a named tokenizer: `derivedata tokens CORPUS --tokenizer NAME`.

The counts are a table of the manifest, `token_counts`, one part a shard and tokenizer, so that several tokenizers stand
side by side and a shard is counted once however often the command is killed, run again, or run twice at a time. A
corpus without a manifest gets one of its own for its counts, in another folder.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from datatrove.pipeline.base import PipelineStep

from derivedata.corpus.document import Document, RejectedRow
from derivedata.corpus.files import CorpusFile, corpus_files
from derivedata.corpus.reader import RowReader
from derivedata.corpus.source import Source as ByteSource
from derivedata.errors import UserError
from derivedata.generation.model import resolve_tokenizer
from derivedata.generation.tokenizer import Tokenizer, load_tokenizer
from derivedata.pipelines.executor import run_locally
from derivedata.pipelines.serving import Listener, Silence, check_output, recorded, start_over
from derivedata.store.books import Books
from derivedata.store.fingerprint import RunConfig
from derivedata.store.lease import Lease
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import new_run_id
from derivedata.store.tables import Part, declare, rows_to_table

if TYPE_CHECKING:
    import polars as pl

JOB = "tokens"
STAGE = "tokens"
ROOMS = ("manifest", "logs")
BATCH_CHARS = 1 << 20  # characters of text tokenised at once
COMPACT_AT = 64

_text, _whole = pa.string(), pa.int64()
# One row a shard, tokenizer, source, strategy and style. strategy and style are null for documents that are not
# derived; shard_version says when a file outside any manifest changed.
TOKEN_COUNTS = declare(
    "token_counts",
    pa.schema(
        [
            ("tokenizer", _text),
            ("tokenizer_sha256", _text),
            ("shard", _text),
            ("shard_sha256", _text),
            ("shard_version", _text),
            ("source", _text),
            ("strategy", _text),
            ("style", _text),
            ("documents", _whole),
            ("tokens", _whole),
        ]
    ),
)
BY = ("tokenizer", "strategy", "style", "source")


@dataclass(frozen=True, kw_only=True, slots=True)
class Countable:
    """A shard to count: its file, and what a manifest says of it (None where there is none)."""

    file: CorpusFile
    path: str
    sha256: str | None = None
    strategy: str | None = None
    style: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What a corpus holds in tokens.

    frame: tokenizer, strategy, style, source, documents, tokens, of all tokenizers it was counted with.
    tokenizer: the name of the one just used. counted: shards counted now. kept_in: the output whose manifest has them;
    None: nowhere. skipped: rows that are no documents.
    """

    frame: pl.DataFrame
    tokenizer: str
    counted: int
    kept_in: str | None
    skipped: int

    def totals(self) -> list[tuple[str, int, int]]:
        """(tokenizer, documents, tokens) of each tokenizer."""
        import polars as pl

        sums = self.frame.group_by("tokenizer", maintain_order=True).agg(
            pl.col("documents").sum(), pl.col("tokens").sum()
        )
        return list(sums.iter_rows())


class CountTokens(PipelineStep):
    """Count shards [rank::world]; one that is counted already is passed over."""

    name = "Tokens"
    type = "🔢 - COUNT"

    def __init__(self, shards: Sequence[Countable], output: str, *, tokenizer: str, name: str):
        super().__init__()
        self.shards, self.output = list(shards), output
        self.tokenizer, self.tokenizer_name = tokenizer, name

    @cached_property
    def counter(self) -> Tokenizer:
        return load_tokenizer(self.tokenizer, self.tokenizer_name)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        ledger = Ledger(Folder(self.output))
        for shard in self.shards[rank::world_size]:
            with self.track_time("shard"):
                part = self._count(shard)
            ledger.publish(part_name(self.counter.sha256, shard.path), part)
            self.stat_update("documents", value=part.books.accepted)

    def _count(self, shard: Countable) -> Part:
        digest = hashlib.sha256()
        documents: Counter[tuple] = Counter()
        tokens: Counter[tuple] = Counter()
        skipped: Counter[str] = Counter()
        batch: list[Document] = []
        chars = 0

        def count_batch() -> None:
            for document, count in zip(batch, self.counter.count([one.text for one in batch]), strict=True):
                key = (document.source, *origin_of(document, shard))
                documents[key] += 1
                tokens[key] += count
            batch.clear()

        for row in RowReader(shard.file, digest=digest):
            if isinstance(row, RejectedRow):
                skipped[row.reason] += 1
                continue
            batch.append(row)
            chars += len(row.text)
            if chars >= BATCH_CHARS:
                count_batch()
                chars = 0
        count_batch()
        sha256 = digest.hexdigest()
        if shard.sha256 not in (None, sha256):
            raise UserError(
                "the shard is not what the manifest says",
                where=shard.file.url,
                remedy="derivedata verify tells more; put it back as it was, or make the output again",
            )
        rows = [
            {
                "tokenizer": self.tokenizer_name,
                "tokenizer_sha256": self.counter.sha256,
                "shard": shard.path,
                "shard_sha256": sha256,
                "shard_version": shard.file.version if shard.sha256 is None else None,
                "source": source,
                "strategy": strategy,
                "style": style,
                "documents": documents[source, strategy, style],
                "tokens": tokens[source, strategy, style],
            }
            for source, strategy, style in sorted(documents, key=lambda key: tuple(part or "" for part in key))
        ]
        accepted = documents.total()
        books = Books(planned=accepted + skipped.total(), accepted=accepted, skipped=skipped)
        return Part(books=books, stage=STAGE, tables={"token_counts": rows_to_table(rows, TOKEN_COUNTS)})


def origin_of(document: Document, shard: Countable | None = None) -> tuple[str | None, str | None]:
    """Strategy and style of a document, as it says itself, else as its shard does; None, None: it is not derived."""
    told = (document.metadata or {}).get("derivedata")
    if isinstance(told, Mapping):
        strategy, style = told.get("strategy"), told.get("style")
        return (strategy if isinstance(strategy, str) else None), (style if isinstance(style, str) else None)
    return (shard.strategy, shard.style) if shard else (None, None)


def part_name(tokenizer_sha256: str, path: str) -> str:
    """The name of the part that holds the counts of a shard with a tokenizer."""
    place = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{STAGE}-{tokenizer_sha256[:12]}-{place[:32]}"


def count_tokens(
    corpus: Sequence[str],
    tokenizer: str,
    *,
    output: str | None = None,
    tasks: int = 1,
    workers: int | None = None,
    restart: bool = False,
    listener: Listener | None = None,
) -> Counts:
    """Count every document of a corpus with a tokenizer, going on from what is counted.

    Args:
        corpus: an output of ours, whose manifest keeps the counts; or Dolma folders, files or patterns.
        tokenizer: folder or hub id. A text is counted as it stands, without tokens that the tokenizer would add, and
            what looks like a control token in it is text.
        output: the folder that keeps the counts of a corpus without a manifest; None: they are only returned.
        tasks, workers: Datatrove tasks, and how many at a time.
        restart: throw away what `output` holds.
        listener: hears about progress.

    Raises:
        UserError: in one line, whatever can be expected to go wrong; what is counted is kept.
    """
    listener = listener or Silence()
    model = resolve_tokenizer(tokenizer)
    run_id = new_run_id()
    with ExitStack() as stack:
        own = None if output else _with_manifest(corpus)
        if own is not None:
            folder, shards = own, manifest_shards(own)
            stack.enter_context(Lease(folder, run_id))
        else:
            _refuse_second_home(corpus, output)
            place = output or stack.enter_context(tempfile.TemporaryDirectory(prefix="derivedata-tokens-"))
            folder, files = Folder(place), corpus_files(corpus)
            check_output(folder, JOB, [file.url for file in files])
            stack.enter_context(Lease(folder, run_id))
            if restart:
                start_over(folder, ROOMS)
            stack.enter_context(recorded(folder, _config(corpus), run_id))
            shards = [Countable(file=file, path=file.path) for file in files]
            _refuse_changed(folder, shards)
        counter = load_tokenizer(model.path, model.name)
        _refuse_other_tokenizer(folder, model.name, counter.sha256)
        counted = _count_missing(folder, shards, str(model.path), counter, tasks, workers, listener, run_id)
        if output:
            folder.replace("README.md", _card(model.name, corpus).encode())
        frame = read_counts(folder)
        kept = None if own is None and not output else folder.url
        skipped = _skipped(folder, counter.sha256)
        return Counts(frame=frame, tokenizer=model.name, counted=counted, kept_in=kept, skipped=skipped)


def read_counts(folder: Folder) -> pl.DataFrame:
    """The counts a manifest holds: tokenizer, strategy, style, source, documents, tokens."""
    import polars as pl

    manifest = Manifest(folder)
    if "token_counts" not in manifest.view().tables:
        return pl.DataFrame(schema=dict.fromkeys(BY, pl.String) | {"documents": pl.Int64, "tokens": pl.Int64})
    columns = pl.col("documents").sum(), pl.col("tokens").sum()
    return manifest.scan("token_counts").group_by(BY).agg(columns).sort(BY, nulls_last=False).collect()


def manifest_shards(folder: Folder) -> list[Countable]:
    """The shards of an output of ours, as its manifest lists them."""
    columns = ["path", "sha256", "bytes", "strategy", "style", "format"]
    return [
        Countable(
            file=CorpusFile(
                url=folder.url_of(row["path"]),
                path=row["path"].removeprefix("documents/"),
                bytes=row["bytes"],
                version=row["sha256"],
                format="parquet" if row["format"] == "parquet" else "jsonl",
            ),
            **{name: row[name] for name in ("path", "sha256", "strategy", "style")},
        )
        for row in Manifest(folder).table("shards", columns).sort_by("path").to_pylist()
    ]


def _count_missing(
    folder: Folder,
    shards: Sequence[Countable],
    tokenizer: str,
    counter: Tokenizer,
    tasks: int,
    workers: int | None,
    listener: Listener,
    run_id: str,
) -> int:
    """Count the shards that lack counts with this tokenizer; how many they were."""
    ledger, prefix = Ledger(folder), f"{STAGE}-{counter.sha256[:12]}-"
    done = ledger.committed_names(prefix)
    missing = [shard for shard in shards if part_name(counter.sha256, shard.path) not in done]
    if not missing:
        return 0
    before = len(done)
    look = lambda: (len(ledger.committed_names(prefix)) - before, len(missing), "shards")  # noqa: E731
    with listener.track(f"counting with {counter.name}", look), tempfile.TemporaryDirectory() as private:
        logs = folder.url_of(f"logs/{run_id}/tokens") if folder.is_local else private
        step = CountTokens(missing, folder.url, tokenizer=tokenizer, name=counter.name)
        run_locally([step], tasks=tasks, workers=workers or tasks, logging_dir=logs)
    Manifest(folder).compact(at_least=COMPACT_AT)
    return len(missing)


def _skipped(folder: Folder, tokenizer_sha256: str) -> int:
    """Rows that were no documents when this tokenizer counted."""
    import polars as pl

    prefix = f"{STAGE}-{tokenizer_sha256[:12]}-"
    rows = (
        Manifest(folder)
        .frame("books")
        .filter(pl.col("unit").str.starts_with(prefix) & (pl.col("account") == "skipped"))
    )
    return int(rows["count"].sum())


def _with_manifest(corpus: Sequence[str]) -> Folder | None:
    """The output of ours that a corpus is, where its manifest lists shards."""
    if len(corpus) != 1 or any(character in corpus[0] for character in "*?["):
        return None
    folder = Folder(corpus[0])
    return folder if folder.exists("run.json") and folder.names("manifest/") else None


def _refuse_second_home(corpus: Sequence[str], output: str | None) -> None:
    if output and (own := _with_manifest(corpus)) is not None:
        raise UserError("its own manifest keeps its counts", where=own.url, remedy="leave out -o")


def _config(corpus: Sequence[str]) -> RunConfig:
    return RunConfig(identity={"job": JOB}, extent={"corpus": list(corpus)})


def _refuse_other_tokenizer(folder: Folder, name: str, sha256: str) -> None:
    """Two definitions under one name would be added up as one."""
    manifest = Manifest(folder)
    if not folder.names("manifest/") or "token_counts" not in manifest.view().tables:
        return
    rows = manifest.table("token_counts", ["tokenizer", "tokenizer_sha256"]).group_by(["tokenizer", "tokenizer_sha256"])
    for row in rows.aggregate([]).to_pylist():
        if row["tokenizer"] == name and row["tokenizer_sha256"] != sha256:
            raise UserError(
                f"counts under the name {name} were made with another tokenizer",
                where=folder.url,
                remedy="give the folder of this one another name",
            )


def _refuse_changed(folder: Folder, shards: Sequence[Countable]) -> None:
    """Files that were counted and are gone or hold something else now: their counts would stand beside the new ones."""
    if not folder.names("manifest/"):
        return
    manifest = Manifest(folder)
    if "token_counts" not in manifest.view().tables:
        return
    now = {shard.path: shard.file for shard in shards}
    for row in manifest.table("token_counts", ["shard", "shard_sha256", "shard_version"]).to_pylist():
        file = now.get(row["shard"])
        if file is not None and row["shard_version"] == file.version:
            continue
        if file is None or _content_sha256(file) != row["shard_sha256"]:
            raise UserError(
                f"{row['shard']} {'is gone' if file is None else 'has other content'} since it was counted",
                where=folder.url,
                remedy="put it back, name another folder (-o), or start over with --restart",
            )
        now[row["shard"]] = replace(file, version=row["shard_version"])  # hashed once is enough


def _content_sha256(file: CorpusFile) -> str:
    digest = hashlib.sha256()
    with ByteSource(file.url, digest=digest) as stream:
        stream.drain()
    return digest.hexdigest()


def _card(tokenizer: str, corpus: Sequence[str]) -> str:
    places = ", ".join(f"`{place}`" for place in corpus)
    return (
        f"# Tokens of a corpus\n\nCounted in {places} with derivedata, at last with `{tokenizer}`. No text is here:"
        " `manifest/token_counts` holds tokens and documents by shard, source, strategy and style.\n\n"
        '```bash\nderivedata query HERE "SELECT tokenizer, source, sum(tokens) FROM token_counts GROUP BY ALL"\n```\n'
    )


__all__ = ["CountTokens", "Counts", "count_tokens", "read_counts"]
