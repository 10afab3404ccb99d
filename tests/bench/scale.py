"""Unit costs of an output by its number of chunks: resume, commit, compaction, summary, query, and requests to storage.

    python -m tests.bench.scale [--chunks 1000 10000]

pipelines/scale.md projects from these. Parts are written without fsync; everything else is what the commands run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.bench.manifest_scale import part_of, timed, write_parts

COUNTED = ("create", "create_from", "replace", "read", "open", "exists", "names", "remove", "remove_tree")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, nargs="+", default=[1_000, 10_000])
    told = parser.parse_args()
    print("  chunks  resume s  commit ms  compaction ms/chunk  summary s  query s  manifest bytes/chunk")
    for chunks in told.chunks:
        print(measure(chunks), flush=True)
    for what, counts in requests().items():
        print(f"requests to storage, {what}: {', '.join(f'{name} {n}' for name, n in sorted(counts.items()))}")


def measure(chunks: int) -> str:
    """A line of the table; a chunk is four shards of a document."""
    from derivedata.store.ledger import Ledger
    from derivedata.store.manifest import Manifest
    from derivedata.store.paths import Folder
    from derivedata.store.query import run_query

    with tempfile.TemporaryDirectory(prefix="scale-") as place:
        folder = Folder(place)
        write_parts(folder, chunks)
        compaction = timed(lambda: Manifest(folder).compact())
        Manifest(folder).compact(grace=0)
        resume = timed(lambda: Ledger(folder).committed())
        summary = timed(lambda: Manifest(folder).summary())
        sql = "SELECT style, count(*), sum(tokens) FROM documents GROUP BY style"
        query = timed(lambda: run_query({"c": folder}, sql))
        size = sum(entry.bytes for entry in folder.list("manifest/snapshots/"))
        commit = commits(folder, chunks)
    return (
        f"{chunks:>8,}  {resume:>8.2f}  {1e3 * commit:>9.1f}  {1e3 * compaction / chunks:>19.2f}  "
        f"{summary:>9.2f}  {query:>7.2f}  {size / chunks:>20.0f}"
    )


def commits(folder, first: int, *, count: int = 20) -> float:
    """Seconds a commit with journal, decision, files and fsync: all but the engine."""
    from derivedata.store.ledger import Ledger

    ledger = Ledger(folder)
    with tempfile.TemporaryDirectory() as place:
        local = Path(place) / "shard"
        local.write_bytes(b"x" * 4096)
        began = time.perf_counter()
        for number in range(first, first + count):
            unit, part = part_of(number, local)
            with ledger.journal(unit) as journal:
                for key in range(4):
                    journal.append({"key": str(key), "text": "text " * 50})
            assert ledger.commit(unit, part, ledger.decide(unit, {}, keys=4))
        return (time.perf_counter() - began) / count


def requests() -> dict[str, Counter[str]]:
    """What one commit and one resume ask of the storage, by operation of `Folder`."""
    from derivedata.store.ledger import Ledger
    from derivedata.store.paths import Folder

    counts: Counter[str] = Counter()

    def counting(name: str):
        inner = getattr(Folder, name)

        def call(self, *args, **kwargs):
            counts[name] += 1
            return inner(self, *args, **kwargs)

        return call

    counted = type("CountingFolder", (Folder,), {name: counting(name) for name in COUNTED})
    found = {}
    with tempfile.TemporaryDirectory(prefix="scale-") as place:
        folder = counted(place)
        commits(folder, 0, count=1)
        counts.clear()
        commits(folder, 1, count=1)
        found["a commit of four shards"] = Counter(counts)
        counts.clear()
        Ledger(folder).committed()
        found["a resume"] = Counter(counts)
    return found


if __name__ == "__main__":
    main()
