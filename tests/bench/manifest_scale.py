"""The manifest at scale: resume listing, compaction, summary and SQL over the parts that many commits leave.

    python -m tests.bench.manifest_scale [--shards 100000]

Figures to reach: resume listing over 100,000 parts < 5 s; summary over 100,000 shard rows after compaction < 0.5 s.
Imports are excluded. The parts are written without fsync; everything else measured is what the commands run.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

STYLES = ("faq", "math", "question", "table")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=100_000, help="shard rows, four a commit; parts to list")
    shards = parser.parse_args().shards
    commits = shards // 4
    for module in ("polars", "pyarrow.dataset", "pyarrow.parquet", "duckdb"):
        importlib.import_module(module)

    from derivedata.store.ledger import Ledger
    from derivedata.store.manifest import Manifest
    from derivedata.store.paths import Folder
    from derivedata.store.query import run_query

    with tempfile.TemporaryDirectory(prefix="manifest-scale-") as place:
        folder = Folder(place)
        write_names(folder, shards)
        report(f"resume listing over {shards:,} parts", lambda: Ledger(folder).committed(), 5.0)
    with tempfile.TemporaryDirectory(prefix="manifest-scale-") as place:
        folder = Folder(place)
        seconds = timed(lambda: write_parts(folder, commits))
        print(f"{commits:,} commits of 4 shards written in {seconds:.1f} s ({1e3 * seconds / commits:.2f} ms each)")
        seconds = timed(lambda: Manifest(folder).compact())
        print(f"compaction: {seconds:.1f} s ({1e3 * seconds / commits:.2f} ms a commit)")
        report("summary, superseded parts still there", lambda: Manifest(folder).summary(), 0.5)
        seconds = timed(lambda: Manifest(folder).compact(grace=0))
        print(f"removing the superseded parts: {seconds:.1f} s")
        summary = Manifest(folder).summary()
        assert (summary.shards, summary.documents) == (4 * commits, 4 * commits), summary
        assert sum(summary.books["generation"].rejected.values()) == summary.rejected["rows"].sum()
        report(f"summary over {summary.shards:,} shard rows", lambda: Manifest(folder).summary(), 0.5)
        sql = "SELECT style, count(*), sum(tokens) FROM documents GROUP BY style"
        report("SQL over documents", lambda: run_query({"c": folder}, sql), None)
        one = commit_some(folder, commits)
        print(f"a commit beside {commits:,} others (journal, decision, fsync, all but the engine): {1e3 * one:.1f} ms")
        report("summary with 20 fresh parts", lambda: Manifest(folder).summary(), 0.5)


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def report(what: str, action: Callable[[], object], limit: float | None, *, times: int = 7) -> None:
    """Wall time against the limit; beside it CPU time, which says what a busy machine added."""
    seconds, cpu = [], []
    for _ in range(times):
        start = time.process_time()
        seconds.append(timed(action))
        cpu.append(time.process_time() - start)
    middle = statistics.median(seconds)
    told = "" if limit is None else f"   (limit {limit} s: {'reached' if middle < limit else 'MISSED'})"
    spread = f"{min(seconds):.3f} to {max(seconds):.3f}; CPU {statistics.median(cpu):.3f} s"
    print(f"{what}: median {middle:.3f} s of {times}, {spread}{told}", flush=True)


def part_of(number: int, local: Path):
    """(unit, part): a shard of one document in each of four styles, and a reject in every fifth unit."""
    from derivedata.store.books import Books
    from derivedata.store.tables import DOCUMENTS, REJECTED, Part, ShardEntry, rows_to_table
    from derivedata.store.units import Unit

    unit = Unit(number, 0, 1, 0, 1, STYLES)
    shards = [
        ShardEntry(
            path=f"documents/style={style}/{unit.name}.jsonl.zst",
            local=local,
            sha256=f"{number:063x}{STYLES.index(style)}",
            bytes=4_000_000 + number,
            documents=1,
            tokens=1000 + number % 7,
            tokenizer="smollm2-135m",
            strategy="paraphrase",
            style=style,
            source_shard=f"documents/{number // 400:05d}.jsonl.gz",
            run_id="20261130T000000-000000",
            format="jsonl.zst",
            frames=[(0, 2_000_000, 0, 1), (2_000_000, 2_000_000 + number, 1, 1)],
        )
        for style in STYLES
    ]
    documents = [
        {"uid": f"{number:030x}{row:02x}", "id": f"d{number}-{shard.style}", "style": shard.style, "shard": shard.path}
        | {"row": 0, "strategy": "paraphrase", "tokens": 250, "chars": 1000, "model": "SmolLM2-135M", "rewrite": 0}
        for row, shard in enumerate(shards)
    ]
    rejects = 1 if number % 5 == 0 else 0
    rejected = [{"stage": "generation", "reason": "too_short", "style": "faq"}] * rejects
    books = Books(planned=4 + rejects, accepted=4, rejected={"too_short": rejects})
    tables = {"documents": rows_to_table(documents, DOCUMENTS), "rejected": rows_to_table(rejected, REJECTED)}
    return unit, Part(books=books, shards=shards, tables=tables)


def write_parts(folder, commits: int) -> None:
    """The manifest parts of `commits` commits, as `Ledger.publish` writes them; on all cores, to save your time."""
    from derivedata.store.kinds import Kinds

    Kinds(folder).publish(part_of(0, Path(os.devnull))[0])
    for table in ("units", "documents", "rejected"):
        os.makedirs(folder.full(f"manifest/{table}"), exist_ok=True)
    starts = range(0, commits, 500)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(write_some, [folder] * len(starts), [range(n, min(n + 500, commits)) for n in starts]))


def write_some(folder, numbers: range) -> None:
    from derivedata.store.tables import BOOKS_KEY, SHARDS, part_path, rows_to_table, write_parquet

    for number in numbers:
        unit, part = part_of(number, Path(os.devnull))
        shards = rows_to_table([entry.row(unit.name) for entry in part.shards], SHARDS)
        files = {"units": write_parquet(shards, metadata={BOOKS_KEY: part.account()})}
        files |= {name: write_parquet(rows) for name, rows in part.tables.items() if rows.num_rows}
        for table, data in files.items():
            Path(folder.full(part_path(table, unit.name))).write_bytes(data)


def write_names(folder, parts: int) -> None:
    """Units parts that differ in their names alone, which is all that a resume reads of them."""
    from derivedata.store.kinds import Kinds
    from derivedata.store.tables import BOOKS_KEY, SHARDS, part_path, rows_to_table, write_parquet
    from derivedata.store.units import Unit

    os.makedirs(folder.full("manifest/units"))
    for number in range(parts):
        unit = Unit(number, 0, 1, 0, 1, STYLES)
        if number == 0:
            _, part = part_of(number, Path(os.devnull))
            Kinds(folder).publish(unit)
            shards = rows_to_table([entry.row(unit.name) for entry in part.shards], SHARDS)
            data = write_parquet(shards, metadata={BOOKS_KEY: part.account()})
        Path(folder.full(part_path("units", unit.name))).write_bytes(data)


def commit_some(folder, first: int, *, commits: int = 20) -> float:
    """Seconds a commit, with everything a real one does but the engine."""
    from derivedata.store.ledger import Ledger

    ledger = Ledger(folder)
    with tempfile.TemporaryDirectory() as place:
        local = Path(place) / "shard"
        local.write_bytes(b"x" * 4096)
        start = time.perf_counter()
        for number in range(first, first + commits):
            unit, part = part_of(number, local)
            with ledger.journal(unit) as journal:
                for key in range(4):
                    journal.append({"key": str(key), "text": "text " * 50})
            decision = ledger.decide(unit, {}, keys=4)
            assert ledger.commit(unit, part, decision)
        return (time.perf_counter() - start) / commits


if __name__ == "__main__":
    main()
