"""Reader and writer on object storage against the local disk, with a latency put into every request.

    python -m tests.bench.object_store [--latency 0.05] [--shard-mb 32] [--shards 8]

The stage of `derivedata ingest` reads compressed shards and commits its own, from disk to disk and bucket to bucket
in turn. The server (moto, real HTTP) runs in a process of its own; a request takes the latency, or what the server
itself needs for it where that is longer: that excess is told apart, since a real store does not have it.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from tests.bench.reader_writer import make_corpus
from tests.cluster.s3 import settings

BUCKET = "bench"
BYTES_A_DOCUMENT = 2_450  # of JSON, as `make_corpus` writes it


def serve(port, latency, excess, requests) -> None:
    """Run the server until the process is ended: `latency` seconds a request, kept in shared memory."""
    from moto.moto_server.werkzeug_app import MotoRequestHandler
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    inner = DomainDispatcherApplication(create_backend_app)

    def delayed(environ, start_response):
        began = time.perf_counter()
        answer = inner(environ, start_response)
        spent = time.perf_counter() - began
        with requests.get_lock(), excess.get_lock():
            requests.value += 1
            excess.value += max(0.0, spent - latency.value)
        time.sleep(max(0.0, latency.value - spent))
        return answer

    server = make_server("127.0.0.1", 0, delayed, threaded=True, request_handler=MotoRequestHandler)
    port.value = server.server_address[1]
    server.serve_forever()


@contextmanager
def slow_server() -> Iterator[tuple]:
    """(latency, excess, requests): what can be set, and what has been counted; its address is in the environment."""
    import boto3

    context = multiprocessing.get_context("spawn")
    port, latency = context.Value("i", 0), context.Value("d", 0.0)
    excess, requests = context.Value("d", 0.0), context.Value("i", 0)
    process = context.Process(target=serve, args=(port, latency, excess, requests), daemon=True)
    process.start()
    while not port.value:
        time.sleep(0.05)
    with mock.patch.dict(os.environ, settings(f"http://127.0.0.1:{port.value}")):
        try:
            boto3.client("s3").create_bucket(Bucket=BUCKET)
            yield latency, excess, requests
        finally:
            process.terminate()
            process.join()


def run_stage(source: str, output: str) -> float:
    """Seconds the stage needs for all of a corpus, from its first read to its last commit."""
    from derivedata.corpus.shape import Shape
    from derivedata.pipelines.ingest_plan import find_entries
    from derivedata.pipelines.ingest_stage import IngestConfig, IngestStage

    entries = find_entries([source], config=None, split=None, text_files=False, attributes=(), say=print)
    config = IngestConfig(shape=Shape(added="2026-01-01T00:00:00Z"), chunk_bytes=128_000_000, format="jsonl.zst")
    stage = IngestStage(plan=entries, config=config, output=output, run_id="bench")
    began = time.perf_counter()
    for _ in stage.run():
        pass
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latency", type=float, default=0.05, help="seconds a request")
    parser.add_argument("--shard-mb", type=int, default=32, help="of JSON in a shard, uncompressed")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="object-store-") as place, slow_server() as (latency, excess, requests):
        from derivedata.store.paths import Folder

        made = make_corpus(Path(place) / "made", told.shard_mb * 1_000_000 // BYTES_A_DOCUMENT, "jsonl.zst")
        here, there = Path(place) / "in", Folder(f"s3://{BUCKET}/in")
        here.mkdir()
        for number in range(told.shards):
            shutil.copy(made, here / f"part-{number:05d}.jsonl.zst")
            there.create_from(f"part-{number:05d}.jsonl.zst", made)
        latency.value = told.latency
        ratios, lower = [], []
        for number in range(told.rounds):
            local = run_stage(str(here), f"{place}/out{number}")
            excess.value, requests.value = 0.0, 0
            remote = run_stage(f"s3://{BUCKET}/in", f"s3://{BUCKET}/out{number}")
            ratios.append(local / remote)
            lower.append(local / (remote - min(excess.value, remote - local)) if remote > local else local / remote)
            print(
                f"disk {local:.2f} s, bucket {remote:.2f} s with {requests.value} requests "
                f"(the server's own time beyond the latency: {excess.value:.2f} s): {ratios[-1]:.3f}",
                flush=True,
            )
        print(
            f"bucket at {1e3 * told.latency:.0f} ms against disk, {told.shards} shards of {told.shard_mb} MB: "
            f"{statistics.median(ratios):.3f} of the throughput ({min(ratios):.3f} to {max(ratios):.3f}), "
            f"{statistics.median(lower):.3f} without the server's own time (limit 0.8)"
        )


if __name__ == "__main__":
    main()
