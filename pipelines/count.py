"""Counts the tokens of a corpus exactly, with a named tokenizer: `derivedata tokens CORPUS --tokenizer NAME`.

The counts are a table of the manifest, `token_counts`, one part a shard and tokenizer, so that several tokenizers stand
side by side and a shard is counted once however often the command is killed, run again, or run twice at a time. A
corpus without a manifest gets one of its own for its counts, in another folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from derivedata.corpus.files import corpus_files
from derivedata.corpus.stream import open_stream
from derivedata.corpus.stream_virtual import VIRTUAL, absolute
from derivedata.errors import UserError
from derivedata.generation.model import resolve_tokenizer
from derivedata.generation.tokenizer import Tokenizer, load_tokenizer
from derivedata.pipelines.executor import run_locally
from derivedata.pipelines.serving import Listener, Silence, check_output, recorded, start_over
from derivedata.pipelines.source import content_sha256
from derivedata.pipelines.token_counts import STAGE, Countable, CountTokens, manifest_shards, order_shards, part_name
from derivedata.store.fingerprint import RunConfig
from derivedata.store.lease import Lease
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.private import private_folder
from derivedata.store.runs import new_run_id

if TYPE_CHECKING:
    import polars as pl

JOB = "tokens"
ROOMS = ("manifest", "logs")
COMPACT_AT = 64

BY = ("tokenizer", "strategy", "style", "source")


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
        own, stream = None if output else _with_manifest(corpus), None
        if own is not None:
            stream = open_stream(corpus[0]) if own.exists(VIRTUAL) else None
            folder, shards = own, manifest_shards(own) if stream is None else order_shards(stream)
            stack.enter_context(Lease(folder, run_id))
        else:
            _refuse_second_home(corpus, output)
            place = output or stack.enter_context(private_folder())
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
        step = partial(CountTokens, output=folder.url, tokenizer=str(model.path), name=counter.name, stream=stream)
        counted = _count_missing(folder, shards, step, counter, tasks, workers, listener, run_id)
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


def _count_missing(
    folder: Folder,
    shards: Sequence[Countable],
    make_step: Callable[[Sequence[Countable]], CountTokens],
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
    with listener.track(f"counting with {counter.name}", look), private_folder() as private:
        logs = folder.url_of(f"logs/{run_id}/tokens") if folder.is_local else private
        run_locally([make_step(missing)], tasks=tasks, workers=workers or tasks, logging_dir=logs)
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
    return RunConfig(identity={"job": JOB}, extent={"corpus": absolute(corpus)})


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
        if file is None or content_sha256(file) != row["shard_sha256"]:
            raise UserError(
                f"{row['shard']} {'is gone' if file is None else 'has other content'} since it was counted",
                where=folder.url,
                remedy="put it back, name another folder (-o), or start over with --restart",
            )
        now[row["shard"]] = replace(file, version=row["shard_version"])  # hashed once is enough


def _card(tokenizer: str, corpus: Sequence[str]) -> str:
    places = ", ".join(f"`{place}`" for place in corpus)
    return (
        f"# Tokens of a corpus\n\nCounted in {places} with derivedata, at last with `{tokenizer}`. No text is here:"
        " `manifest/token_counts` holds tokens and documents by shard, source, strategy and style.\n\n"
        '```bash\nderivedata query HERE "SELECT tokenizer, source, sum(tokens) FROM token_counts GROUP BY ALL"\n```\n'
    )
