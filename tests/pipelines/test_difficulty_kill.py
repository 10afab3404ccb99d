"""SIGKILL while problems are measured: rollouts that are done are kept, none is counted twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import pytest

from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from tests.fake_answers import answer, write_problems
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL
from tests.pipelines.measuring import measure, measurement

pytestmark = pytest.mark.faults

PROBLEMS, WINDOW, TOKENS_PER_SECOND, SEGMENT_SECONDS = 60, 32, 40, 5


def start(options, url: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.pipelines.measuring", json.dumps(asdict(options)), url]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def rollouts(output):
    rows = Manifest(output).table("rollouts").to_pylist()
    return sorted((row["uid"], row["sample"], row["verdict"], row["text_sha256"]) for row in rows)


@pytest.mark.parametrize(
    ("early_stop", "kills_wanted"), [pytest.param("none", 8, marks=pytest.mark.slow), ("exact", 2)]
)
def test_kills_lose_nothing_and_double_nothing(tiny_model, tmp_path, early_stop, kills_wanted):
    problems = write_problems(tmp_path / "p.jsonl", [number / PROBLEMS for number in range(PROBLEMS)])
    draw = random.Random(6)
    with FakeServer(tokenizer=tiny_model, model=MODEL, reply=answer, tokens_per_second=TOKENS_PER_SECOND) as server:
        options = measurement(problems, tmp_path / "out", tiny_model, early_stop=early_stop)
        kills = 0
        while kills < kills_wanted:
            process = start(options, server.endpoint.url)
            wanted = sum(server.answered.values()) + draw.randrange(10, 120)
            while sum(server.answered.values()) < wanted and process.poll() is None:
                time.sleep(0.01)
            if process.poll() is not None:
                break
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
        process = start(options, server.endpoint.url)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        asked = sum(server.received.values())
    assert kills == kills_wanted
    assert verify_corpus(str(tmp_path / "out")).problems == []
    with FakeServer(tokenizer=tiny_model, model=MODEL, reply=answer) as server:
        measure(server, problems, tmp_path / "quiet", tiny_model, early_stop=early_stop)
    kept = rollouts(tmp_path / "out")
    assert kept == rollouts(tmp_path / "quiet")
    assert Manifest(tmp_path / "out").books()["rollouts"].planned == 16 * PROBLEMS
    # A kill costs what was in flight, and what finished since the last segment.
    assert asked - len(kept) <= kills * (WINDOW + SEGMENT_SECONDS * WINDOW * TOKENS_PER_SECOND / 8)


def test_sigterm_keeps_what_is_finished(tiny_model, tmp_path):
    problems = write_problems(tmp_path / "p.jsonl", [0.5] * 24)
    with FakeServer(tokenizer=tiny_model, model=MODEL, reply=answer, tokens_per_second=TOKENS_PER_SECOND) as server:
        options = measurement(problems, tmp_path / "out", tiny_model)
        process = start(options, server.endpoint.url)
        while sum(server.answered.values()) < 100 and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130 and "Traceback" not in errors
        process = start(options, server.endpoint.url)
        process.communicate(timeout=300)
        assert process.returncode == 0
        assert sum(server.received.values()) - 16 * 24 <= 2 * WINDOW
    assert verify_corpus(str(tmp_path / "out")).problems == []
