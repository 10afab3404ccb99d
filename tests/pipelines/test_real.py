"""The main job with the real model in a real vLLM server: demo, kills, queries. Slow; what CI is for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from derivedata.corpus.sample import write_sample_corpus
from derivedata.pipelines.progress import read_progress
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.query import run_query

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_cache(monkeypatch) -> None:
    """The user's own cache: the embedded model is prepared once for all tests."""
    monkeypatch.delenv("DERIVEDATA_CACHE", raising=False)


def derivedata(*args: str, **settings) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "derivedata", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


def processes_of(parent: int) -> set[int]:
    """All processes that descend from one, by /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    found, at = set(), [parent]
    while at:
        here = children.get(at.pop(), [])
        found.update(here)
        at += here
    return found


def alive(pids: set[int]) -> set[int]:
    found = set()
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.add(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_the_demo_runs_and_answers_in_sql(tmp_path):
    process = derivedata("demo", str(tmp_path / "demo"), "--documents", "8")
    out, errors = process.communicate(timeout=1500)
    assert process.returncode == 0, errors
    output = tmp_path / "demo" / "derived"
    books = Manifest(output).books()["generation"]
    # So small a model gets few generations accepted; the books say what became of the others.
    assert books.planned == books.settled >= 8 * 4 and books.accepted >= 1
    rows = run_query({"demo": str(output)}, "SELECT style, count(*) AS n FROM documents GROUP BY style").to_pylist()
    assert sum(row["n"] for row in rows) == books.accepted
    assert "new tokens/s" in out and "What to try next" in out
    assert verify_corpus(str(output)).problems == []


def answering(output: Path, *, since: float) -> bool:
    """Whether a run that started after `since` has answers."""
    seen = read_progress(Folder(output))
    return seen.get("started", 0) > since and seen.get("fresh", 0) >= 3


def test_a_killed_command_leaves_no_server_and_loses_nothing(tmp_path):
    write_sample_corpus(str(tmp_path / "in"))
    out = tmp_path / "out"
    job = ("paraphrase", str(tmp_path / "in"), "-o", str(out), "--documents", "12", "--max-tokens", "160")
    for _ in range(2):
        begun = time.time()
        process = derivedata(*job)
        deadline = time.monotonic() + 900
        # What the run before this one left says nothing about this one.
        while not answering(out, since=begun) and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.5)
        family = processes_of(process.pid)
        assert len(family) >= 2, "a server runs under the command"
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        waited = time.monotonic() + 60
        while alive(family) and time.monotonic() < waited:
            time.sleep(0.5)
        assert alive(family) == set()
    process = derivedata(*job)
    _, errors = process.communicate(timeout=1500)
    assert process.returncode == 0, errors
    assert "going on from" in errors
    books = Manifest(out).books()["generation"]
    assert books.planned == books.settled >= 12 * 4
    verified = verify_corpus(str(out))
    assert verified.problems == [] and verified.documents == books.accepted
    assert json.loads((out / "run.json").read_text())["status"] == "done"
