"""Faults of the machine: a full disk, a read-only one, an input that vanishes or changes, a clock that jumps.

Each ends the run in one line or not at all; the same command then finishes, with what a quiet run makes.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from datatrove.pipeline.base import PipelineStep

import derivedata
from derivedata.errors import UserError
from derivedata.pipelines.executor import execute
from derivedata.pipelines.run import paraphrase_corpus
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import all_runs
from tests.fake_server import FakeServer
from tests.fake_text import reply
from tests.pipelines.fakes import MODEL, job, serve_at
from tests.pipelines.test_kill import texts

pytestmark = pytest.mark.faults

STYLES = ("question", "faq")
VERSION = derivedata.__version__


class KilledBeside(PipelineStep):
    """Of two tasks, that of the first or second process is killed from outside while the other is at work."""

    name, type = "KilledBeside", "TEST"

    def __init__(self, place: Path, victim: int):
        super().__init__()
        self.place, self.victim = place, victim

    def run(self, data=None, rank=0, world_size=1):
        (self.place / f"{os.getpid()}.pid").touch()
        while len(pids := sorted(int(path.stem) for path in self.place.glob("*.pid"))) < 2:
            time.sleep(0.01)
        if os.getpid() == pids[self.victim]:
            while not (self.place / "working").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            (self.place / "working").touch()
            time.sleep(60)
        finally:
            (self.place / "kept").touch()
        yield


class Disk:
    """A file system of its own in memory, whose size and state can change under a run."""

    def __init__(self, path: Path):
        self.path = path
        path.mkdir()
        if failure := self._mount("-t", "tmpfs", "-o", "size=24k", "tmpfs", str(path)):
            pytest.skip(f"a file system can't be mounted here: {failure}")

    def change(self, options: str) -> None:
        assert self._mount("-o", f"remount,{options}", str(self.path)) == ""

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=True)

    @staticmethod
    def _mount(*arguments: str) -> str:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
        return done.stderr.strip() if done.returncode else ""


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    mounted = Disk(tmp_path / "disk")
    yield mounted
    mounted.close()


@pytest.fixture
def quiet(server, corpus, tiny_model, tmp_path) -> dict[str, str]:
    """What a run without faults makes."""
    run(server, corpus, tmp_path / "quiet", tiny_model)
    return texts(tmp_path / "quiet")


def run(server, corpus, output, model, **options) -> None:
    paraphrase_corpus(job(corpus, output, model, styles=STYLES, **options), serve=serve_at(server.endpoint.url))


def finished(output, quiet) -> None:
    """Nothing lost, nothing twice, nothing else than in a quiet run."""
    books = Manifest(output).books()["generation"]
    assert books.planned == books.settled == 24 * len(STYLES)
    assert verify_corpus(str(output)).problems == []
    assert texts(output) == quiet


@pytest.mark.parametrize("victim", [0, 1], ids=["first", "second"])
def test_a_task_that_is_killed_ends_the_run_in_one_line_and_the_others_keep_what_they_have(tmp_path, victim):
    began = time.monotonic()
    with pytest.raises(UserError, match="a process of a task was killed"):
        execute([KilledBeside(tmp_path, victim)], tasks=2, workers=2, logging_dir=str(tmp_path / "logs"))
    assert time.monotonic() - began < 50, "the run waited for the other task to end by itself"
    deadline = time.monotonic() + 30
    while not (tmp_path / "kept").exists() or multiprocessing.active_children():
        assert time.monotonic() < deadline, "the other task did not come to its end"
        time.sleep(0.02)


def test_a_disk_that_is_full_at_any_write(disk, server, corpus, tiny_model, quiet):
    out, failures = disk.path / "out", []
    for kilobytes in range(24, 8000, 28):
        disk.change(f"size={kilobytes}k")
        try:
            run(server, corpus, out, tiny_model)
        except UserError as error:
            failures.append(error.line)
            continue
        break
    assert len(failures) > 4, "a larger disk is needed than the first few"
    assert all("no space left" in line for line in failures), failures
    finished(out, quiet)


def test_a_disk_that_becomes_read_only(disk, server, corpus, tiny_model, quiet):
    disk.change("size=8m")
    run(server, corpus, disk.path / "out", tiny_model, documents=9)
    disk.change("ro")
    for place in ("out", "other"):
        with pytest.raises(UserError, match="the file system is read-only"):
            run(server, corpus, disk.path / place, tiny_model)
    disk.change("rw")
    run(server, corpus, disk.path / "out", tiny_model)
    finished(disk.path / "out", quiet)


@pytest.mark.parametrize("fault", ["gone", "replaced", "cut"])
def test_an_input_that_changes_while_it_is_read(fault, corpus, tiny_model, server, quiet, tmp_path):
    kept, changed = tmp_path / "kept", []
    shutil.copytree(corpus, kept)
    with FakeServer(tokenizer=tiny_model, model=MODEL, max_num_seqs=1) as failing:

        def answer(prompt: str, draw: int) -> str:
            for path in () if changed else sorted(corpus.rglob("*.json*")):
                changed.append(path)
                data = path.read_bytes()
                if fault == "gone":
                    path.unlink()
                else:
                    path.write_bytes(data[: len(data) // 2] if fault == "cut" else data[::-1])
            return reply(prompt, draw)

        failing.behaviour.reply = answer
        with pytest.raises(UserError) as told:
            run(failing, corpus, tmp_path / "out", tiny_model)
    assert any(str(path) in told.value.line or path.name in told.value.line for path in changed)
    shutil.copytree(kept, corpus, dirs_exist_ok=True)
    run(server, corpus, tmp_path / "out", tiny_model)
    finished(tmp_path / "out", quiet)


@pytest.mark.parametrize("hours", [-30, 30])
def test_a_clock_that_jumps(hours, corpus, tiny_model, quiet, tmp_path, monkeypatch):
    real, jumped = time.time, []
    monkeypatch.setattr(time, "time", lambda: real() + (hours * 3600 if jumped else 0))
    with FakeServer(tokenizer=tiny_model, model=MODEL) as jumping:

        def answer(prompt: str, draw: int) -> str:
            jumped.append(prompt)
            return reply(prompt, draw)

        jumping.behaviour.reply = answer
        run(jumping, corpus, tmp_path / "out", tiny_model)
        run(jumping, corpus, tmp_path / "out", tiny_model)
    finished(tmp_path / "out", quiet)
    assert max(jumping.received.values()) == 1


def test_a_run_goes_on_with_a_newer_version_of_the_package(server, corpus, tiny_model, quiet, tmp_path, monkeypatch):
    run(server, corpus, tmp_path / "out", tiny_model, documents=9)
    monkeypatch.setattr(derivedata, "__version__", "99.1")
    run(server, corpus, tmp_path / "out", tiny_model)
    finished(tmp_path / "out", quiet)
    assert {record.versions["derivedata"] for record in all_runs(Folder(tmp_path / "out"))} == {VERSION, "99.1"}
    assert max(server.received.values()) == 2  # once here, once for the quiet run
