"""Checks a measurement of difficulty against itself: each rollout is there once, and the rates are its rollouts'."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator

import zstandard

from derivedata.pipelines.scored import COUNTED, FAILED, REFINE, RESCORE, ROLLOUT_STAGE, SAMPLE, TABLES
from derivedata.store.books import Books
from derivedata.store.manifest import View
from derivedata.store.paths import Folder, Missing

COLUMNS = ["uid", "sample", "purpose", "verdict", "text_sha256", "file", "row"]


def check_rollouts(folder: Folder, view: View) -> Iterator[tuple[str, str]]:
    """What is wrong, as (where, what)."""
    rollouts = view.table("rollouts", COLUMNS).to_pylist()
    keys = Counter((row["purpose"], row["uid"], row["sample"]) for row in rollouts)
    for (purpose, uid, sample), count in keys.items():
        if count > 1:
            yield folder.url, f"sample {sample} ({purpose}) of problem {uid} is there {count} times"
    by_file: dict[str, list[dict]] = {}
    for row in rollouts:
        by_file.setdefault(row["file"], []).append(row)
    for file, rows in sorted(by_file.items()):
        for what in _file(folder, file, rows):
            yield folder.url_of(file), what
    for entry in folder.list("rollouts"):
        if entry.path not in by_file:
            yield folder.url_of(entry.path), "is not in the manifest"
    for purpose in (SAMPLE, REFINE, RESCORE):
        if TABLES[purpose] in view.tables:
            yield from ((folder.url, what) for what in _rates(view, purpose, rollouts))
    verdicts = Counter(row["verdict"] for row in rollouts)
    books = view.books().get(ROLLOUT_STAGE, Books())
    said = (books.accepted, sum(books.rejected.values()))
    found = (sum(verdicts[name] for name in COUNTED), sum(verdicts[name] for name in FAILED))
    if said != found:
        yield folder.url, f"the books have {said} rollouts that count and that failed, the index {found}"


def _file(folder: Folder, file: str, rows: list[dict]) -> Iterator[str]:
    try:
        data = folder.read(file)
        lines = (
            zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read().split(b"\n")
        )
    except Missing:
        yield "is missing"
        return
    except zstandard.ZstdError as error:
        yield f"is damaged: {error}"
        return
    if len(lines) - 1 != len(rows):
        yield f"holds {len(lines) - 1} rollouts, the index {len(rows)}"
        return
    for row in rows:
        try:
            kept = json.loads(lines[row["row"]])
            sha256 = hashlib.sha256(kept["text"].encode("utf-8", "surrogatepass")).hexdigest()
            found = (kept["uid"], kept["sample"], kept["verdict"], sha256)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            found = None
        if found != (row["uid"], row["sample"], row["verdict"], row["text_sha256"]):
            yield f"row {row['row']} is not what the index says"
            return


def _rates(view: View, purpose: str, rollouts: list[dict]) -> Iterator[str]:
    """Counts of each problem against its rollouts; a problem has one row, or one for each time more were asked for."""
    counts: dict[str, Counter[str]] = {}
    for row in rollouts:
        if row["purpose"] == purpose:
            counts.setdefault(row["uid"], Counter())[row["verdict"]] += 1
    said: dict[str, Counter[str]] = {}
    names = [*COUNTED[1:], *FAILED]
    for row in view.table(TABLES[purpose], ["uid", "correct", *names]).to_pylist():
        if purpose != REFINE and row["uid"] in said:
            yield f"problem {row['uid']} is there twice"
        tally = {"correct": row["correct"]} | {name: row[name] for name in names}
        said.setdefault(row["uid"], Counter()).update({name: count for name, count in tally.items() if count})
    for uid in said.keys() | counts.keys():
        told, found = said.get(uid, Counter()), counts.get(uid, Counter())
        if told != found:
            yield f"problem {uid} is said to have {dict(told)}, its rollouts are {dict(found)}"
