"""How long a paraphrase with all chunks but one committed needs to its first request, on disk and on object storage.

    python -m tests.bench.resume [--chunks 100000] [--s3] [--profile]

Chunks of one document each; the manifest as compaction leaves it. The job is the real one, the model server the fake
one over HTTP, and on object storage each request takes 50 ms. Figures to reach at 100,000: 5 s on disk, 20 s there.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench.manifest_scale import STYLES, write_some
from tests.bench.object_store import BUCKET, slow_server
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL, serve_at
from tests.tiny_model import write_tiny_model

A_FILE = 1000  # documents


class Arrivals(list):
    """Requests in the order of their arrival, with the time of the first."""

    first: float | None = None

    def append(self, item) -> None:
        self.first = self.first or time.perf_counter()
        super().append(item)


def write_source(folder: Path, documents: int) -> None:
    (folder / "documents").mkdir(parents=True)
    for first in range(0, documents, A_FILE):
        rows = (
            {"id": f"d{n}", "text": f"Document {n} tells of {n + 3} ships and {n + 5} captains.\n" * 8}
            for n in range(first, min(first + A_FILE, documents))
        )
        path = folder / "documents" / f"part-{first // A_FILE:05d}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def first_request(corpus: str, output: str, model: Path, *, documents: int | None = None) -> float:
    """Seconds from the job's start to its first request; the server is warm and imports are done."""
    from derivedata.pipelines.run import ParaphraseOptions, paraphrase_corpus

    options = ParaphraseOptions(
        corpus=(corpus,), output=output, model=str(model), styles=STYLES, chunk_bytes=1, documents=documents
    )
    with FakeServer(tokenizer=model, model=MODEL) as server:
        server.order = Arrivals()
        began = time.perf_counter()
        paraphrase_corpus(options, serve=serve_at(server.endpoint.url))
        return server.order.first - began


def upload(local: Path, url: str) -> None:
    """Copy a folder into the bucket."""
    from derivedata.store.paths import Folder

    here, there = Folder(str(local)), Folder(url)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: there.create(path, here.read(path)), here.names()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--s3", action="store_true", help="on object storage too")
    parser.add_argument("--profile", action="store_true")
    told = parser.parse_args()
    from derivedata.store.manifest import Manifest
    from derivedata.store.paths import Folder

    with tempfile.TemporaryDirectory(prefix="resume-") as name:
        place = Path(name)
        os.environ["DERIVEDATA_CACHE"] = str(place / "cache")
        model = write_tiny_model(place / "model")
        write_source(place / "in", told.chunks)
        output = place / "out"
        # A run of one document counts the input and writes what a run writes.
        fresh = first_request(str(place / "in"), str(output), model, documents=1)
        print(f"{told.chunks:,} chunks: first request of a new run {fresh:.2f} s (counts the input)", flush=True)
        write_some(Folder(str(output)), range(1, told.chunks - 1))
        Manifest(Folder(str(output))).compact(grace=0)
        if told.s3:
            with slow_server() as (latency, excess, requests):
                upload(place / "in", f"s3://{BUCKET}/in")
                upload(output, f"s3://{BUCKET}/out")
                latency.value, excess.value, requests.value = 0.05, 0.0, 0
                seconds = first_request(f"s3://{BUCKET}/in", f"s3://{BUCKET}/out", model)
                print(
                    f"object storage at 50 ms: {seconds:.2f} s to the first request (limit 20 s); the whole job made "
                    f"{requests.value} requests, the server's own time beyond the latency {excess.value:.2f} s",
                    flush=True,
                )
        profile = cProfile.Profile()
        if told.profile:
            profile.enable()
        seconds = first_request(str(place / "in"), str(output), model)
        profile.disable()
        print(f"disk: {seconds:.2f} s to the first request (limit 5 s)")
        if told.profile:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
