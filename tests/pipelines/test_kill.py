"""SIGKILL at random moments: nothing lost, nothing twice, and only what was in flight or unjournalled asked again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import read_rows
from derivedata.pipelines.run import paraphrase_corpus
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL, job, serve_at
from tests.pipelines.test_source import write_corpus

pytestmark = pytest.mark.faults

WINDOW = 32
SEGMENT_SECONDS = 5.0


def start(options, url: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.pipelines.fakes", json.dumps(asdict(options)), url]
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)


def texts(output):
    return {row.id: row.text for file in corpus_files([str(output)]) for row in read_rows(file)}


def children(session: int) -> list[int]:
    """Processes that are left in a session."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.getsid(int(entry)) == session:
                state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found.append(int(entry))
        except (ProcessLookupError, FileNotFoundError):
            continue
    return found


def recorded(output: Path) -> int:
    """Answers that are safe: committed, or in a journal."""
    folder = Folder(output)
    ledger = Ledger(folder)
    committed = Manifest(folder).books().get("generation")
    return (committed.planned if committed else 0) + sum(
        sum(1 for _ in ledger.journal(unit).records()) for unit in ledger.started()
    )


@pytest.mark.slow
def test_twenty_random_kills_lose_nothing_and_double_nothing(tiny_model, tmp_path):
    corpus, out = write_corpus(tmp_path / "in", shards=4, documents=60), tmp_path / "out"
    draw = random.Random(20)
    with FakeServer(tokenizer=tiny_model, model=MODEL, tokens_per_second=900) as server:
        options = job(corpus, out, tiny_model, rewrites=2)
        lost = 0
        for _ in range(20):
            begun = sum(server.answered.values())
            process = start(options, server.endpoint.url)
            wanted = begun + draw.randrange(1, 80)
            answers: list[tuple[float, int]] = []
            while (count := sum(server.answered.values())) < wanted:
                assert process.poll() is None, process.communicate()
                answers.append((time.monotonic(), count))
                time.sleep(0.01)
            time.sleep(draw.random() * 0.5)
            os.kill(process.pid, signal.SIGKILL)
            killed = time.monotonic()
            process.communicate()
            assert children(process.pid) == []
            # A kill costs what was in flight, and what finished since the last segment.
            answered = sum(server.answered.values())
            old = max((n for t, n in answers if t < killed - SEGMENT_SECONDS - 1), default=begun)
            costs = answered - recorded(out) - lost
            assert costs <= answered - old + WINDOW
            lost += costs
        process = start(options, server.endpoint.url)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        # And only that was asked again.
        assert sum(server.answered.values()) - 4 * 60 * 4 * 2 <= lost + WINDOW
    assert Manifest(out).books()["generation"].planned == 4 * 60 * 4 * 2
    assert verify_corpus(str(out)).problems == []
    with FakeServer(tokenizer=tiny_model, model=MODEL) as server:
        quiet = job(corpus, tmp_path / "quiet", tiny_model, rewrites=2)
        paraphrase_corpus(quiet, serve=serve_at(server.endpoint.url))
    assert texts(out) == texts(tmp_path / "quiet")


def test_an_interrupted_run_keeps_what_is_finished_and_says_how_to_go_on(tiny_model, tmp_path):
    corpus = write_corpus(tmp_path / "in", shards=2, documents=40)
    with FakeServer(tokenizer=tiny_model, model=MODEL, tokens_per_second=400) as server:
        options = job(corpus, tmp_path / "out", tiny_model)
        for stop in (signal.SIGTERM, signal.SIGINT):
            process = start(options, server.endpoint.url)
            wanted = sum(server.answered.values()) + 40
            while sum(server.answered.values()) < wanted and process.poll() is None:
                time.sleep(0.05)
            process.send_signal(stop)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 130
            assert errors.strip().endswith("derivedata: stopped") and "Traceback" not in errors
            answered = dict(server.answered)
        process = start(options, server.endpoint.url)
        process.communicate(timeout=300)
        assert process.returncode == 0
        # Whatever was answered before the signals was not asked for again, but for what was on its way just then.
        again = sum(server.received[key] > 1 for key in answered)
        assert again <= 2 * WINDOW
    assert Manifest(tmp_path / "out").books()["generation"].planned == 2 * 40 * 4
    assert verify_corpus(str(tmp_path / "out")).problems == []
