"""Small shards for the tests of the corpus room."""

from __future__ import annotations

import json
from pathlib import Path

from derivedata.corpus.document import Document, RejectedRow
from derivedata.corpus.files import CorpusFile, corpus_files
from derivedata.corpus.reader import read_rows


def line(number: int, **fields: object) -> bytes:
    """One row as a line of JSON."""
    return json.dumps({"id": f"d{number}", "text": f"Text number {number}."} | fields).encode() + b"\n"


def lines(*numbers: int) -> bytes:
    return b"".join(line(number) for number in numbers)


def shard(folder: Path, data: bytes, name: str = "x.jsonl") -> CorpusFile:
    """A file of these bytes, as the corpus listing gives it."""
    (folder / name).write_bytes(data)
    [file] = corpus_files([str(folder / name)])
    return file


def read(file: CorpusFile, **options: object) -> tuple[list[Document], list[RejectedRow]]:
    """The documents and the rejects of a shard; every row has its number, in order."""
    rows = list(read_rows(file, **options))
    first = rows[0].row if rows else 0
    assert [row.row for row in rows] == list(range(first, first + len(rows)))
    return (
        [row for row in rows if isinstance(row, Document)],
        [row for row in rows if isinstance(row, RejectedRow)],
    )


def ids(documents: list[Document]) -> list[object]:
    return [document.id for document in documents]


def reasons(rejected: list[RejectedRow]) -> list[str]:
    return [row.reason for row in rejected]
