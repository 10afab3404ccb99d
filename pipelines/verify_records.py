"""Checks what an output says of its making: run.json against its history and the books, plan/, the card."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from derivedata.corpus.inventory import ShardInventory
from derivedata.pipelines.source import INPUT, INVENTORY
from derivedata.pipelines.verify_manifest import Found, Sound
from derivedata.store.books import Books
from derivedata.store.fingerprint import compare
from derivedata.store.masking import MASK
from derivedata.store.paths import Folder, Missing
from derivedata.store.runs import CURRENT, HISTORY, RunRecord

CARD = "README.md"
COUNTED = "tokens"  # stage of `derivedata tokens`


@dataclass(frozen=True, kw_only=True)
class Records:
    """current: the record to believe, None when there is none; history: the readable ones by run id; ids: of all."""

    current: RunRecord | None
    history: Mapping[str, RunRecord]
    ids: frozenset[str]


def read_records(folder: Folder) -> tuple[Records, list[Found]]:
    """The run records that can be believed, and what is wrong with the others."""
    found: list[Found] = []
    history: dict[str, RunRecord] = {}
    paths = [path for path in folder.names(f"{HISTORY}/") if path.endswith(".json")]
    for path in paths:
        record, wrong = _read(folder, path)
        found += ((folder.url_of(path), what) for what in wrong)
        if record is None:
            continue
        if path != f"{HISTORY}/{record.run_id}.json":
            found.append((folder.url_of(path), f"is the record of another run, {record.run_id}"))
        elif not wrong:
            history[record.run_id] = record
    current, wrong = _read(folder, CURRENT)
    newest = history[max(history)] if history else None
    ids = frozenset(path.removeprefix(f"{HISTORY}/").removesuffix(".json") for path in paths)
    if current is not None:
        if current.run_id not in ids:
            found.append((folder.url_of(f"{HISTORY}/{current.run_id}.json"), "is missing"))
        wrong += _unlike(current, history)
    found += ((folder.url_of(CURRENT), what) for what in wrong)
    return Records(current=newest if wrong or current is None else current, history=history, ids=ids), found


def _read(folder: Folder, path: str) -> tuple[RunRecord | None, list[str]]:
    try:
        fields = json.loads(folder.read(path))
        record = RunRecord.from_dict(fields)
        # The identity is stored masked, its fingerprint was taken before.
        if MASK not in json.dumps(record.config.identity) and fields["fingerprint"] != record.config.fingerprint:
            return record, ["its identity is not the one it has the fingerprint of"]
        return record, []
    except Missing:
        return None, ["is missing"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return None, [f"is not a run record: {type(error).__name__} {error}"]


def _unlike(current: RunRecord, history: Mapping[str, RunRecord]) -> list[str]:
    """Where run.json differs from its copy in the history, and from the identity of all runs."""
    wrong = []
    copy = history.get(current.run_id)
    if copy is not None:
        one, other = current.to_dict(), copy.to_dict()
        # The history is written first: killed in between, only the copy says how the run ended.
        skipped = {"ended", "status", "books"} if current.ended is None else set()
        wrong += [
            f"its {name} is not what {HISTORY}/{current.run_id}.json says"
            for name in one
            if name not in skipped and one[name] != other[name]
        ]
    for run_id, record in sorted(history.items()):
        wrong += [f"by run {run_id}, {change}" for change in compare(record.config, current.config)]
    return wrong


def check_records(folder: Folder, records: Records, sound: Sound) -> Iterator[Found]:
    """What the records say that the output does not hold."""
    books, record = sound.view.books(), records.current
    if not sound.lost:
        # What a repair made again may have come out otherwise: the books count from there.
        repairs = (run.run_id for run in records.history.values() if "repaired" in run.config.execution)
        repaired = max(repairs, default="")
        for run in records.history.values():
            if run.run_id < repaired:
                continue
            yield from ((folder.url_of(f"{HISTORY}/{run.run_id}.json"), what) for what in _books(run, record, books))
    done = record is not None and record.status == "done"
    if done and not folder.exists(CARD) and _has_card(record):
        yield folder.url_of(CARD), "is missing"
    for path in folder.names("plan/"):
        if path != INVENTORY and path.endswith(".json"):
            try:
                json.loads(folder.read(path))
            except ValueError as error:
                yield folder.url_of(path), f"is damaged: {error}"
    if record is not None and record.identity.get("job") == "paraphrase" and (done or "generation" in books):
        yield from ((folder.url_of(INVENTORY), what) for what in _inventory(folder, sound, books.get(INPUT, Books())))


def _has_card(record: RunRecord) -> bool:
    """Whether the job writes a card: not where it trains a model, nor for an order of others."""
    said = record.identity
    is_order = said.get("virtual") or said.get("job") == "subset" or said.get("materialize") is False
    return "job" in said and not is_order


def _books(run: RunRecord, current: RunRecord | None, books: Mapping[str, Books]) -> Iterator[str]:
    """The books that a run left, against those of the output now: later runs only add."""
    for stage, told in run.books.items():
        left, now = Books.from_dict(told), books.get(stage, Books())
        final = current is not None and run.run_id == current.run_id and run.status == "done"
        final &= stage != COUNTED  # counting again, with another tokenizer, is no run of the output
        if left.planned > now.planned or left.accepted > now.accepted or (final and left != now):
            yield (
                f"the run left {stage} with {left.planned} planned and {left.accepted} accepted, "
                f"the manifest has {now.planned} and {now.accepted}"
            )


def _inventory(folder: Folder, sound: Sound, books: Books) -> Iterator[str]:
    try:
        files = [ShardInventory.from_dict(row) for row in json.loads(folder.read(INVENTORY))]
    except Missing:
        yield "is missing"
        return
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        yield f"is damaged: {error}"
        return
    counted = Books()
    for file in files:
        counted += Books(planned=file.rows, accepted=file.documents, rejected=file.rejected)
        documents = sum(chunk.documents for chunk in file.chunks)
        if documents != file.documents:
            yield f"the chunks of {file.path} hold {documents} documents, the file {file.documents}"
    if counted != books and not sound.lost:
        yield f"has {_counts(counted)}, the books of the input {_counts(books)}"
    if sound.all_of("units"):
        stages = sound.view.table("units", ["stage"])["stage"].to_pylist()
        if stages.count(INPUT) != len(files):
            yield f"names {len(files)} files, the manifest has {stages.count(INPUT)} parts of the input"


def _counts(books: Books) -> str:
    rejected: dict[str, Any] = dict(books.rejected)
    return f"{books.planned} rows, {books.accepted} documents, rejected {rejected}"
