"""What is fuzzed: each target takes any bytes and must neither raise, nor lose count, nor let anything through.

`tests/fuzz/test_cases.py` runs every known input through its target, without the fuzzer.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from derivedata.corpus.document import Document
from derivedata.corpus.files import CorpusFile
from derivedata.corpus.inventory import take_inventory
from derivedata.corpus.reader import read_rows
from derivedata.corpus.strict import REASONS
from derivedata.errors import UserError
from derivedata.generation.style import style_from
from derivedata.generation.yamlfile import parse_yaml
from derivedata.problems.compare import compare
from derivedata.problems.extract import extract

LINE_BYTES = 4096  # so that the fuzzer meets the limit on lines too


@cache
def _scratch() -> Path:
    # In memory where there is such a place: a million files a run.
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="derivedata-fuzz-", dir=place))


def reader(data: bytes) -> None:
    """Any bytes give rows in order, each a document or a reject with a known reason, and the inventory agrees."""
    path = _scratch() / "x.jsonl"
    path.write_bytes(data)
    file = CorpusFile(str(path), "x.jsonl", len(data), "1", "jsonl")
    rows = list(read_rows(file, max_line_bytes=LINE_BYTES))
    assert [row.row for row in rows] == list(range(len(rows)))
    for row in rows:
        if isinstance(row, Document):
            json.dumps(row.to_dolma(), ensure_ascii=False).encode()
        else:
            assert row.reason in REASONS
            json.dumps(row.to_dict(), ensure_ascii=False).encode()
    rejected: list[object] = []
    inventory = take_inventory(file, chunk_bytes=64, on_rejected=rejected.append)
    assert inventory.rows == inventory.documents + len(rejected)
    assert sum(inventory.rejected.values()) == len(rejected)


def style(data: bytes) -> None:
    """Any text is a style or is refused in one line; nothing in it is run or fetched."""
    with contextlib.suppress(UserError):
        loaded = style_from(parse_yaml(data.decode("utf-8", "replace"), "x.yaml"))
        assert loaded.name
        assert loaded.instruction


def answer(data: bytes) -> None:
    """Any response gives an answer or none, and any two answers can be compared."""
    response, _, gold = data.decode("utf-8", "replace").partition("\x00")
    for mode in ("strict", "lenient", "last-number"):
        found = extract(response, mode)
        if found.answer is not None:
            compare(gold, found.answer)
            compare(found.answer, gold)


@cache
def manifest() -> tuple[str, Path]:
    """A small output, and a path beside it where nothing may be written."""
    from derivedata.store.books import Books
    from derivedata.store.ledger import Ledger
    from derivedata.store.paths import Folder
    from derivedata.store.tables import Part

    place = _scratch() / "out"
    Ledger(Folder(str(place))).publish("input-1", Part(books=Books(planned=1, accepted=1), stage="input"))
    (_scratch() / "secret.csv").write_text("secret\n42\n")
    return str(place), _scratch() / "written"


def query(data: bytes) -> None:
    """Any SQL is refused in one line, or reads the manifest; it opens and writes nothing else."""
    from derivedata.store.query import run_query

    place, written = manifest()
    sql = data.decode("utf-8", "replace").replace("SECRET", str(_scratch() / "secret.csv"))
    before = sorted(os.listdir(_scratch()))
    try:
        answer = run_query({"main_corpus": place}, sql.replace("WRITTEN", str(written)))
    except UserError as error:
        assert "\n" not in error.line
    else:
        assert "secret" not in answer.column_names
    assert sorted(os.listdir(_scratch())) == before


TARGETS: dict[str, Callable[[bytes], None]] = {"reader": reader, "style": style, "answer": answer, "query": query}
