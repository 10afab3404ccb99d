"""How close a written repeat comes to the machine's limit, what the index before it costs, what a virtual one takes.

    python -m tests.bench.repeat

The limit is to decompress the corpus and to compress the very bytes that come out, an epoch at a time, with the same
codec and level in the same frames, and nothing else: no order, no derivation, no hashes, no index. Ours and the limit
take turns. Datatrove's reader and writer, which keep the order and derive nothing, are timed on the same corpus; so is
dolma's mixer where it is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import zstandard

from derivedata.corpus.stream_virtual import planned_blocks
from derivedata.corpus.writer import DEFAULT_LEVELS
from derivedata.pipelines.repeat import RepeatStage
from derivedata.pipelines.repeat_run import RepeatOptions, _Run, repeat_corpus
from derivedata.store.adopt import decompressed_frames
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from tests.bench.reader_writer import datatrove, make_corpus, timed

EPOCHS = 3


def write_epochs(stage: RepeatStage) -> None:
    """What is written after the index is there: all epochs, committed."""
    with contextlib.redirect_stderr(io.StringIO()):
        for _ in stage.run():
            pass


def limit(corpus: Path, frames: list[tuple[int, int]], written: list[bytes], target: Path) -> None:
    """Decompress the corpus once an epoch, and compress what came out of it."""
    compress = zstandard.ZstdCompressor(level=DEFAULT_LEVELS["jsonl.zst"], write_checksum=True).compress
    decompress = zstandard.ZstdDecompressor().decompress
    with corpus.open("rb") as source, target.open("wb", buffering=0) as out:
        for number in range(EPOCHS):
            for offset, length in frames:
                source.seek(offset)
                decompress(source.read(length))
            for data in written[number::EPOCHS]:
                out.write(compress(data))
        os.fsync(out.fileno())


def pieces(output: Path) -> list[bytes]:
    """What the shards of an output hold, frame by frame."""
    return [
        content
        for path in sorted(output.glob("documents/*/*.zst"))
        for _, _, content in decompressed_frames(path.read_bytes(), "jsonl.zst")
    ]


def dolma_mixer(corpus: Path, folder: Path) -> float | None:
    """Seconds of dolma's mixer on the corpus; None where it is not installed."""
    if shutil.which("dolma") is None:
        return None
    path = folder / "documents" / corpus.name
    path.parent.mkdir(parents=True)
    shutil.copy(corpus, path)
    config = folder / "mix.yaml"
    config.write_text(
        f"streams:\n- name: mixed\n  documents: ['{path}']\n  attributes: []\n"
        "  filter: {include: [$.text]}\n"  # it wants one; this drops nothing
        f"  output: {{path: '{folder}/mixed', max_size_in_bytes: 1000000000}}\nprocesses: 1\n"
    )
    began = time.perf_counter()
    subprocess.run(["dolma", "-c", str(config), "mix"], check=True, capture_output=True)
    return time.perf_counter() - began


def measure(folder: Path, documents: int, rounds: int) -> dict:
    """Seconds and ratios."""
    made = make_corpus(folder / "made", documents, "jsonl.zst")
    # One epoch makes an output of ours, whose manifest has frames: that is repeated.
    plain = RepeatOptions(corpus=[str(made.parent)], output=str(folder / "corpus"), epochs=1, count_tokens=False)
    repeat_corpus(plain)
    [corpus] = (folder / "corpus").glob("documents/*/*.zst")
    options = RepeatOptions(
        corpus=[str(folder / "corpus")], output=str(folder / "out"), epochs=EPOCHS, count_tokens=False
    )
    whole = timed(repeat_corpus, options)
    written = pieces(folder / "out")
    frames = [(offset, length) for offset, length, _ in decompressed_frames(corpus.read_bytes(), "jsonl.zst")]
    times: dict[str, list[tuple[float, float]]] = {"ours": [], "limit": []}
    run = _Run(options, None)
    run.files, run.listed, run.tokens, run.epochs, run.extra = [], None, None, EPOCHS, 0
    config = run._repeat_config(run._run_config())
    blocks = planned_blocks(Folder(folder / "out"), run.places)
    for number in range(rounds):
        for name in ("ours", "limit") if number % 2 else ("limit", "ours"):
            if name == "limit":
                times[name].append(timed(limit, corpus, frames, written, folder / "limit.zst"))
                continue
            for room in ("documents", "manifest/units", "manifest/documents"):
                shutil.rmtree(folder / "out" / room)
            stage = RepeatStage(config=config, blocks=blocks, output=str(folder / "out"))
            times[name].append(timed(write_epochs, stage))
    pairs = list(zip(times["limit"], times["ours"], strict=True))
    theirs = timed(datatrove, corpus, folder / "x.zst", "jsonl.zst")[0]
    virtual = {
        epochs: timed(
            repeat_corpus,
            RepeatOptions(
                corpus=[str(folder / "corpus")], output=str(folder / f"virtual-{epochs}"), epochs=epochs, virtual=True
            ),
        )[0]
        for epochs in (2, 1000)
    }
    return {
        "megabytes": sum(map(len, written)) / 1e6,
        "index": whole[0] - statistics.median(wall for wall, _ in times["ours"]),
        "seconds": statistics.median(wall for wall, _ in times["ours"]),
        "of_limit": statistics.median(least[0] / spent[0] for least, spent in pairs),
        "of_limit_cpu": statistics.median(least[1] / spent[1] for least, spent in pairs),
        "times_datatrove": theirs * EPOCHS / statistics.median(wall for wall, _ in times["ours"]),
        "dolma": dolma_mixer(corpus, folder / "dolma"),
        "virtual": virtual,
        "documents": Manifest(folder / "out").books()["repeat"].accepted,
    }


def main(argv: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), options.documents, options.rounds)
    print(
        f"{EPOCHS} epochs, {result['documents']:,} documents, {result['megabytes']:.0f} MB written in "
        f"{result['seconds']:.2f} s: {result['of_limit']:.3f} of the limit, {result['of_limit_cpu']:.3f} by CPU; "
        f"{result['times_datatrove']:.1f} x datatrove's reader and writer; index, once: {result['index']:.2f} s"
    )
    print("virtual: " + ", ".join(f"{epochs} epochs {seconds:.2f} s" for epochs, seconds in result["virtual"].items()))
    if result["dolma"] is None:
        print("dolma's mixer is not installed (pip install dolma)")
    else:
        times = result["dolma"] * EPOCHS / result["seconds"]
        print(f"dolma's mixer, which writes gzip and keeps the order: {times:.1f} x our time")
    return result


if __name__ == "__main__":
    main()
