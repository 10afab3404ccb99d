"""How close ingest comes to reading and writing alone, and what memory it needs.

    python -m tests.bench.ingest

The limit is our own reader and writer with nothing between them; datatrove's JsonlReader into its JsonlWriter does the
same job without manifest, hashes and books. All take turns in one process; ratios are medians of paired runs. Memory is
the peak of a fresh process that ingests a corpus, and one twenty times as large.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import shutil
import statistics
import tempfile
from pathlib import Path

from derivedata.pipelines.ingest import IngestOptions, ingest
from tests.bench.reader_writer import datatrove, make_corpus, ours, timed

FORM = "jsonl.zst"


def take(source: Path, output: Path, chunk_bytes: int) -> None:
    """The whole command, from the listing to the card."""
    shutil.rmtree(output, ignore_errors=True)
    ingest(IngestOptions(sources=(str(source),), output=str(output), format=FORM, chunk_bytes=chunk_bytes))


def peak_memory(source: Path, output: Path, chunk_bytes: int) -> float:
    """Peak resident MB of a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak, (source, output, chunk_bytes))


def _peak(source: Path, output: Path, chunk_bytes: int) -> float:
    take(source, output, chunk_bytes)
    # Not getrusage: its peak counts from before exec, so it would hold the parent's memory.
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) / 1024


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunk-bytes", type=int, default=8_000_000)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        many = make_corpus(folder / "many", options.documents, FORM)
        few = make_corpus(folder / "few", options.documents // 20, FORM)
        jobs = {
            "ingest": lambda: take(many, folder / "corpus", options.chunk_bytes),
            "limit": lambda: ours(many, folder / f"out.{FORM}", FORM),
            "datatrove": lambda: datatrove(many, folder / f"out.{FORM}", FORM),
        }
        take(few, folder / "corpus", options.chunk_bytes)  # what is imported once is not measured
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
        for number in range(options.rounds):
            for job in jobs if number % 2 else reversed(jobs):
                times[job].append(timed(jobs[job]))
        peaks = [peak_memory(path, folder / "corpus", options.chunk_bytes) for path in (few, many)]
    cpu = {job: [spent[1] for spent in its] for job, its in times.items()}
    result = {
        "seconds": statistics.median(spent[0] for spent in times["ingest"]),
        "of_limit_cpu": statistics.median(a / b for a, b in zip(cpu["limit"], cpu["ingest"], strict=True)),
        "x_datatrove_cpu": statistics.median(a / b for a, b in zip(cpu["datatrove"], cpu["ingest"], strict=True)),
        "peak_mb_few": peaks[0],
        "peak_mb_many": peaks[1],
    }
    growth = peaks[1] / peaks[0] - 1
    print(f"{options.documents:,} documents in {result['seconds']:.2f} s")
    print(f"of reading and writing alone (by CPU): {result['of_limit_cpu']:.3f}")
    print(f"x datatrove's reader and writer (by CPU): {result['x_datatrove_cpu']:.2f}")
    print(f"peak MB at 1x and 20x: {peaks[0]:.0f}, {peaks[1]:.0f} ({growth:+.1%})")
    return result


if __name__ == "__main__":
    main()
