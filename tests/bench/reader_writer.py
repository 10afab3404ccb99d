"""How close the reader and the writer come to the machine's limit, and what memory they need.

    python -m tests.bench.reader_writer

The limit is the same work with nothing around it: decompress, orjson.loads, orjson.dumps, compress, with the same codec
and level, in the same pieces. Ours and the limit take turns in one process, both bring their file to the disk, and the
ratios are medians of paired runs, by the clock and by processor time (which other work on the machine disturbs less).
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import re
import statistics
import tempfile
import time
from pathlib import Path

import orjson
import zstandard
from isal import isal_zlib

from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import read_rows
from derivedata.corpus.writer import DEFAULT_LEVELS, FRAME_BYTES, ShardWriter

FORMATS = ("jsonl.zst", "jsonl.gz")


def make_corpus(folder: Path, documents: int, format: str, seed: int = 0) -> Path:
    """A shard of made-up web documents as other tools write it: one gzip member or zstd frame; about 2 kB a text."""
    import numpy as np

    rng = np.random.default_rng(seed)
    letters = np.array(list("eeeeettaaooiinnsshhrrddlluucmfwypvbgk"))
    words = np.array(["".join(rng.choice(letters, size)) for size in rng.integers(2, 11, 30_000)], dtype=object)
    often = np.cumsum(1.0 / np.arange(3, len(words) + 3))
    often /= often[-1]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-00000.{format}"
    if format == "jsonl.gz":
        out = gzip.GzipFile(path, "wb", compresslevel=6)
    else:
        out = zstandard.ZstdCompressor(level=3).stream_writer(path.open("wb"))
    with out:
        for number in range(documents):
            count = int(np.clip(rng.lognormal(5.35, 0.8), 20, 8_000))
            picked = words[np.searchsorted(often, rng.random(count))]
            text = "\n".join(" ".join(picked[at : at + 60]).capitalize() + "." for at in range(0, count, 60))
            row = {
                "id": f"urn:uuid:{rng.integers(1 << 62):032x}",
                "text": text,
                "source": "made-up-web",
                "added": "2026-01-01T00:00:00.000Z",
                "created": "2025-06-01T12:00:00.000Z",
                "metadata": {
                    "url": f"https://example.org/{number}/{picked[0]}-{picked[1]}",
                    "language": "en",
                    "language_score": round(float(rng.random()), 4),
                    "length": len(text),
                    "warc": {"record": int(rng.integers(1 << 40)), "type": "response", "digest": None},
                },
            }
            out.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return path


def ours(source: Path, target: Path, format: str) -> None:
    """What a stage does to documents, without the stage."""
    [file] = corpus_files([str(source)])
    with ShardWriter(target, format=format) as writer:
        for row in read_rows(file):
            writer.write(row.to_dolma())


def limit(source: Path, target: Path, format: str) -> None:
    """The four steps that cannot be left out, in the pieces that suit them."""
    loads, dumps, level = orjson.loads, orjson.dumps, DEFAULT_LEVELS[format]
    if format == "jsonl.gz":
        decompress = isal_zlib.decompressobj(31).decompress
        compress = lambda data: isal_zlib.compress(data, level, 31)  # noqa: E731
    else:
        decompress = zstandard.ZstdDecompressor().decompressobj().decompress
        compress = zstandard.ZstdCompressor(level=level, write_checksum=True).compress
    carried, out, size = b"", [], 0
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while data := reader.read(1 << 18):
            lines = (carried + decompress(data)).split(b"\n")
            carried = lines.pop()
            encoded = [dumps(loads(line)) for line in lines]
            out += encoded
            size += sum(map(len, encoded))
            if size >= FRAME_BYTES:
                out.append(b"")
                writer.write(compress(b"\n".join(out)))
                out, size = [], 0
        out.append(b"")
        writer.write(compress(b"\n".join(out)))
        os.fsync(writer.fileno())


def datatrove(source: Path, target: Path, format: str) -> None:
    """Datatrove's JsonlReader into its JsonlWriter, at the level both sides take for this codec."""
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    codec = {"jsonl.gz": "gzip", "jsonl.zst": "zstd"}[format]
    reader = JsonlReader(str(source.parent), compression=codec, doc_progress=False)
    with JsonlWriter(str(target.parent / "datatrove"), compression=codec) as writer:
        for document in reader.run():
            writer.write(document)


def timed(function, *arguments) -> tuple[float, float]:
    """Seconds on the clock, and of processor."""
    began, began_cpu = time.perf_counter(), time.process_time()
    function(*arguments)
    return time.perf_counter() - began, time.process_time() - began_cpu


def peak_memory(source: Path, target: Path, format: str) -> float:
    """Peak resident MB of a fresh process that reads and writes the shard."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_peak, (source, target, format))


def _peak(source: Path, target: Path, format: str) -> float:
    ours(source, target, format)
    # Not getrusage: its peak counts from before exec, so it would hold the parent's memory.
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) / 1024


def measure(folder: Path, format: str, documents: int, rounds: int, against_datatrove: bool) -> dict:
    """Seconds, ratios and memory for one codec."""
    source = make_corpus(folder / format / "many", documents, format)
    few = make_corpus(folder / format / "few", max(documents // 100, 1), format)
    target = folder / f"out.{format}"
    times: dict[str, list[tuple[float, float]]] = {"ours": [], "limit": []}
    for number in range(rounds):
        for name in ("ours", "limit") if number % 2 else ("limit", "ours"):
            times[name].append(timed({"ours": ours, "limit": limit}[name], source, target, format))
    pairs = list(zip(times["limit"], times["ours"], strict=True))
    ratios = [least[0] / spent[0] for least, spent in pairs]
    result = {
        "format": format,
        "documents": documents,
        "seconds": statistics.median(wall for wall, _ in times["ours"]),
        "of_limit": statistics.median(ratios),
        "of_limit_low": min(ratios),
        "of_limit_high": max(ratios),
        "of_limit_cpu": statistics.median(least[1] / spent[1] for least, spent in pairs),
        "peak_mb_few": peak_memory(few, target, format),
        "peak_mb_many": peak_memory(source, target, format),
    }
    if against_datatrove:
        theirs = timed(datatrove, source, target, format)[0]
        result["times_datatrove"] = theirs / timed(ours, source, target, format)[0]
    return result


def main(argv: list[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-datatrove", action="store_true", help="leave out the comparison with datatrove")
    options = parser.parse_args(argv)
    results = []
    print("codec      documents  seconds  of the limit (range)   by CPU  x datatrove  peak MB at 1/100 and all")
    for format in FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            result = measure(Path(folder), format, options.documents, options.rounds, not options.no_datatrove)
        results.append(result)
        versus = f"{result['times_datatrove']:11.2f}" if "times_datatrove" in result else " " * 11
        spread = f"({result['of_limit_low']:.3f}-{result['of_limit_high']:.3f})"
        growth = result["peak_mb_many"] / result["peak_mb_few"] - 1
        print(
            f"{format:<10} {result['documents']:9,d} {result['seconds']:8.2f}  {result['of_limit']:.3f} {spread}"
            f"  {result['of_limit_cpu']:.3f} {versus}"
            f"  {result['peak_mb_few']:.0f}, {result['peak_mb_many']:.0f} ({growth:+.1%})",
            flush=True,
        )
    return results


if __name__ == "__main__":
    main()
