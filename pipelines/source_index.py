"""Finds the documents of a corpus by id or by text, in a file on this machine, so that memory stays flat.

A corpus with a manifest that was counted with the same tokenizer is indexed from there; any other is read once.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import RejectedRow, read_rows
from derivedata.corpus.shape import as_id
from derivedata.errors import UserError
from derivedata.generation.tokenizer import Tokenizer
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder

AT_ONCE = 256
NO_SOURCE, AMBIGUOUS = "no-source", "ambiguous-source"
COLUMNS = "uid, id, source, path, row, tokens"
Row = tuple[str, str | None, str | None, str, int, int, bytes]  # COLUMNS and the SHA-256 of the text


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceDocument:
    """A document that others were derived from, without its text."""

    uid: str
    id: str | None
    source: str | None
    path: str
    row: int
    tokens: int


def build_index(corpus: str, file: Path, counter: Tokenizer, tokenizer_name: str) -> int:
    """Write the index of a corpus to a new file; how many documents it has.

    Args:
        corpus: a folder, with a manifest or without.
        file: where the index goes.
        counter: counts tokens where the manifest doesn't say them.
        tokenizer_name: what the manifest calls that tokenizer.

    Raises:
        UserError: no such corpus, or it holds no document.
    """
    rows = _from_manifest(corpus, tokenizer_name) or _from_files(corpus, counter)
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(
            "CREATE TABLE docs (uid TEXT, id TEXT, source TEXT, path TEXT, row INTEGER, tokens INTEGER, sha BLOB)"
        )
        connection.executemany("INSERT INTO docs VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        connection.execute("CREATE INDEX by_id ON docs (id)")
        connection.execute("CREATE INDEX by_sha ON docs (sha)")
        [count] = connection.execute("SELECT count(*) FROM docs").fetchone()
    connection.close()
    if not count:
        raise UserError("holds no document", where=corpus)
    return count


def corpus_fingerprint(corpus: str) -> str:
    """What a corpus is, from its listing: SHA-256 over the paths and sizes of its files."""
    listed = "\n".join(f"{file.path} {file.bytes}" for file in corpus_files([corpus]))
    return hashlib.sha256(listed.encode("utf-8", "surrogatepass")).hexdigest()


def _from_manifest(corpus: str, tokenizer_name: str) -> Iterator[Row] | None:
    """The index's rows from a manifest; None where it lacks something."""
    folder = Folder(corpus)
    if not folder.names("manifest/units/") and not folder.names("manifest/snapshots/"):
        return None
    view = Manifest(folder).view()
    tokenizers = set(view.table("shards", ["tokenizer"])["tokenizer"].to_pylist())
    if tokenizers != {tokenizer_name}:
        return None
    columns = ["uid", "id", "source", "shard", "row", "tokens", "text_sha256"]

    def rows() -> Iterator[Row]:
        for batch in view.dataset("documents").to_batches(columns=columns):
            for uid, name, source, shard, row, tokens, sha256 in zip(
                *(column.to_pylist() for column in batch.columns), strict=True
            ):
                yield uid, name, source, shard.removeprefix("documents/"), row, tokens, bytes.fromhex(sha256)

    return rows()


def _from_files(corpus: str, counter: Tokenizer) -> Iterator[Row]:
    waiting: list[tuple] = []

    def counted() -> Iterator[Row]:
        counts = counter.count([text for *_, text in waiting])
        for (*row, text), tokens in zip(waiting, counts, strict=True):
            yield (*row, tokens, hashlib.sha256(text.encode()).digest())
        waiting.clear()

    for file in corpus_files([corpus]):
        for document in read_rows(file):
            if isinstance(document, RejectedRow):
                continue
            identity = document.id if isinstance(document.id, str) else as_id(document.id)
            waiting.append((document.uid, identity, document.source, document.path, document.row, document.text))
            if len(waiting) == AT_ONCE:
                yield from counted()
    yield from counted()


class SourceIndex:
    """The index as a reader sees it. One a process."""

    def __init__(self, file: Path | str):
        self._connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)

    def find(self, identity: str | None, text: str | None) -> SourceDocument | str:
        """The document with this text, else the one with this id; or the reason why there is none.

        Of several with the same text the one with the id is taken, else the first.
        """
        if text is not None:
            sha256 = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
            found = self._select("sha", sha256)
            if found:
                return next((one for one in found if one.id == identity), found[0])
        if identity is None:
            return NO_SOURCE
        found = self._select("id", identity)
        if len(found) > 1:
            return AMBIGUOUS
        return found[0] if found else NO_SOURCE

    def close(self) -> None:
        self._connection.close()

    def _select(self, column: str, value: object) -> Sequence[SourceDocument]:
        sql = f"SELECT {COLUMNS} FROM docs WHERE {column} = ? ORDER BY rowid LIMIT 1000"
        names = COLUMNS.split(", ")
        return [SourceDocument(**dict(zip(names, row, strict=True))) for row in self._connection.execute(sql, (value,))]
