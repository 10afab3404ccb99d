"""Small units of made-up work for the tests of the store: each document has a text in every style and rewrite."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import zstandard

from derivedata.store.adopt import decompressed_frames
from derivedata.store.books import Books
from derivedata.store.decision import Decision
from derivedata.store.ledger import AlreadyCommitted, Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.tables import DOCUMENTS, REJECTED, Part, ShardEntry, rows_to_table
from derivedata.store.units import Unit, missing

STYLES = ("faq", "table")


def keys(unit: Unit) -> list[str]:
    """All keys of a unit: chunk/document/rewrite/style."""
    return [
        f"{unit.chunk}/{document}/{rewrite}/{kind}"
        for document in range(unit.first, unit.stop)
        for rewrite in range(unit.low, unit.high)
        for kind in unit.kinds
    ]


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def shard(
    scratch: Path, unit: Unit, style: str, texts: dict[str, str], *, level: int = 3
) -> tuple[ShardEntry, list[dict]]:
    """(entry, rows of the documents index) of a file of `texts` by key."""
    path = f"documents/style={style}/{unit.name}.jsonl.zst"
    lines = b"".join(json.dumps({"id": key, "text": text}).encode() + b"\n" for key, text in texts.items())
    data = zstandard.ZstdCompressor(level=level).compress(lines)
    local = scratch / f"{style}.jsonl.zst"
    local.write_bytes(data)
    entry = ShardEntry(
        path=path,
        local=local,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        documents=len(texts),
        tokens=sum(len(text.split()) for text in texts.values()),
        tokenizer="words",
        strategy="paraphrase",
        style=style,
        format="jsonl.zst",
        frames=[(0, len(data), 0, len(texts))],
    )
    rows = [
        {
            "uid": sha(key)[:32],
            "id": key,
            "style": style,
            "shard": path,
            "row": row,
            "text_sha256": sha(text),
            "tokens": 1,
        }
        for row, (key, text) in enumerate(texts.items())
    ]
    return entry, rows


def part(scratch: Path, unit: Unit, texts: dict[str, str], *, level: int = 3) -> Part:
    """A part with one shard a style; texts that begin with "bad" are rejected."""
    bad = {key: text for key, text in texts.items() if text.startswith("bad")}
    entries, rows = [], []
    for style in unit.kinds:
        good = {k: t for k, t in sorted(texts.items()) if k.endswith("/" + style) and k not in bad}
        if good:
            entry, its_rows = shard(scratch, unit, style, good, level=level)
            entries.append(entry)
            rows += its_rows
    rejected = [{"stage": "generation", "reason": "bad", "style": key.rpartition("/")[2]} for key in sorted(bad)]
    return Part(
        shards=entries,
        books=Books(planned=len(texts), accepted=len(texts) - len(bad), rejected={"bad": len(bad)}),
        tables={"documents": rows_to_table(rows, DOCUMENTS), "rejected": rows_to_table(rejected, REJECTED)},
    )


def materialise(ledger: Ledger, decision: Decision, unit: Unit | None = None, *, level: int = 3) -> bool:
    """Commit what was decided; whether this call did it."""
    unit = unit or decision.unit
    try:
        texts = {record["key"]: record["text"] for record in ledger.records(decision)}
    except AlreadyCommitted:
        return False
    wanted = set(keys(unit))
    with ledger.folder.scratch() as scratch:
        return ledger.commit(
            unit, part(scratch, unit, {k: t for k, t in texts.items() if k in wanted}, level=level), decision
        )


def derive(ledger: Ledger, unit: Unit, text: Callable[[str], str] = str) -> bool:
    """Journal, decide and commit a unit as a stage does, going on from what is journalled."""
    with ledger.journal(unit, seconds=3600) as journal:
        done = {record["key"] for record in journal.records()}
        for key in keys(unit):
            if key not in done:
                journal.append({"key": key, "text": text(key)})
    decision = ledger.decide(unit, {}, keys=len(keys(unit)))
    return decision is not None and materialise(ledger, decision)


def work(ledger: Ledger, chunks: Iterable[int], *, documents: int = 2, rewrites: int = 1, text: Callable = str) -> None:
    """Do all that is missing, as a command does: first what is decided, then the rest."""
    ledger.sweep()
    for decision in ledger.decisions().values():
        materialise(ledger, decision)
    for chunk in chunks:
        for unit in missing(
            ledger.committed(),
            chunk=chunk,
            documents=documents,
            kinds=STYLES,
            rewrites=rewrites,
            started=ledger.started(),
        ):
            derive(ledger, unit, text)


def read_back(folder: Folder) -> dict[str, str]:
    """Text by key of everything the manifest says is there, having checked each file against it."""
    manifest = Manifest(folder)
    texts: dict[str, str] = {}
    located = Counter()
    for row in manifest.table("shards").to_pylist():
        data = folder.read(row["path"])
        assert hashlib.sha256(data).hexdigest() == row["sha256"], row["path"]
        assert len(data) == row["bytes"]
        lines = b"".join(content for *_, content in decompressed_frames(data, row["format"])).splitlines()
        assert len(lines) == row["documents"]
        for number, line in enumerate(lines):
            document = json.loads(line)
            assert document["id"] not in texts, f"{document['id']} is there twice"
            texts[document["id"]] = document["text"]
            located[(document["id"], row["path"], number, sha(document["text"]))] += 1
    index = manifest.table("documents").to_pylist()
    assert located == Counter((r["id"], r["shard"], r["row"], r["text_sha256"]) for r in index)
    for books in manifest.books().values():
        books.balance()
        assert books.accepted == len(texts)
    return texts
