"""Kills over all stages: SIGKILL, SIGTERM and SIGINT of command, worker and server at seeded random moments.

After each the same command is run again to its end: it must make what a run without a kill makes, to the byte, and
leave no process and no temporary file. KILLS=50 takes fifty of them (`just faults`), otherwise it is one a stage.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import read_rows
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from tests.fake_answers import write_problems
from tests.pipelines.stages import MODEL_STAGES, STAGES, prepare
from tests.pipelines.test_source import write_corpus
from tests.tiny_model import write_tiny_model

pytestmark = [pytest.mark.faults, pytest.mark.slow]

KILLS = int(os.environ.get("KILLS", len(STAGES)))
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MARK = "DERIVEDATA_KILLED_BY"  # in the environment of all processes of a run
WORKER, SERVER = "spawn_main", "tests.pipelines.stages serve"
# Kept for people, or named after a run; all other files of an output must be the same.
OF_A_RUN = ("logs/", "progress/", "manifest/runs/", "run.json", "quarantine/", ".writers/")


@dataclass(frozen=True)
class Kill:
    stage: str
    target: str
    signal: signal.Signals
    moment: float  # of the time that the work takes when nobody kills it

    @property
    def tasks(self) -> int:
        return 2 if self.target == "worker" else 1


def kills() -> Iterator[Kill]:
    draw = random.Random(10)
    for number in range(KILLS):
        stage = list(STAGES)[number % len(STAGES)]
        targets = ["command", "command", "worker"] + ["server", "server"] * (stage in MODEL_STAGES)
        target = draw.choice(targets)
        # Ctrl-C is the command's to hear: workers ignore it.
        yield Kill(stage, target, draw.choice(SIGNALS[:2] if target == "worker" else SIGNALS), draw.uniform(0, 0.9))


class World:
    """A folder with the inputs, and of every stage an output that nobody killed, with the time its work took."""

    def __init__(self, place: Path):
        self.place, self.temporary, self.took = place, place / "tmp", {}
        self.temporary.mkdir()
        write_corpus(place / "raw", shards=2, documents=9)
        write_tiny_model(place / "model")
        write_problems(place / "problems.jsonl", [number / 12 for number in range(12)])
        derived = {"source_name": "faq", "target_ratio": 0.5, "paths": [str(place / "paraphrase")], "style": "faq"}
        fresh = {"source_name": "web", "target_ratio": 0.5, "paths": [str(place / "raw")]}
        spec = {"requested_tokens": 3_000, "tokenizer": str(place / "model"), "sources": [fresh, derived]}
        (place / "mix.yaml").write_text(yaml.safe_dump(spec))

    def start(self, stage: str, out: Path, tasks: int = 1) -> subprocess.Popen:
        command = [sys.executable, "-m", "tests.pipelines.stages", stage, str(self.place), str(out), str(tasks)]
        environment = {"TMPDIR": str(self.temporary), "DERIVEDATA_CACHE": str(self.place / "cache")}
        environment |= os.environ | environment | {MARK: str(self.place)}
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def finish(self, stage: str, out: Path, tasks: int = 1) -> None:
        process = self.start(stage, out, tasks)
        errors = process.communicate(timeout=200)[1]
        assert process.returncode == 0, (stage, errors)

    def whole(self, stage: str, tasks: int) -> Path:
        """The output of a stage without a kill."""
        for needed in {"repeat": ["ingest"], "tokenize": ["repeat"], "mix": ["paraphrase"]}.get(
            stage, ["paraphrase"] if stage in ("export", "repair") else []
        ):
            self.whole(needed, 1)
        out = self.place / (stage if tasks == 1 else f"{stage}-{tasks}")
        if not out.exists():
            prepare(stage, self.place, out)
            process = self.start(stage, out, tasks)
            began = self.at_work(process, stage, out)
            errors = process.communicate(timeout=200)[1]
            assert process.returncode == 0, (stage, errors)
            self.took[stage, tasks] = time.monotonic() - began
        return out

    def at_work(self, process: subprocess.Popen, stage: str, out: Path) -> float:
        """Wait until a run touches its output, which is after all imports; the time then."""
        sign = out / ".writers" if stage == "repair" else out
        wait_for(lambda: process.poll() is not None or sign.exists())
        return time.monotonic()

    def living(self, word: str = "") -> list[int]:
        """Processes of a run, with this word in their command line."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                told = f"{MARK}={self.place}\0".encode() in Path(f"/proc/{entry}/environ").read_bytes()
                if told and word in Path(f"/proc/{entry}/cmdline").read_text().replace("\0", " "):
                    found.append(int(entry))
            except OSError:
                continue
        return found

    def strike(self, kill: Kill, out: Path, moment: float) -> tuple[bool, int, str]:
        """Run a stage and kill; whether there was something to kill, the exit code, and what was said."""
        prepare(kill.stage, self.place, out)
        process = self.start(kill.stage, out, kill.tasks)
        try:
            began = self.at_work(process, kill.stage, out)
            if kill.target == "server":  # it has said that it answers
                wait_for(lambda: process.poll() is not None or any(map(size, out.glob("logs/*/vllm.log"))))
                began, moment = time.monotonic(), moment / 10  # the rest is its start
            while time.monotonic() - began < moment and process.poll() is None:
                time.sleep(0.005)
            struck: list[int] = []
            words = {"command": "", "worker": WORKER, "server": SERVER}[kill.target]
            while process.poll() is None and not struck:
                struck = [process.pid] if kill.target == "command" else self.living(words)[-1:]
                time.sleep(0.005)
            for pid in struck if process.poll() is None else []:
                os.kill(pid, kill.signal)
            errors = process.communicate(timeout=200)[1]
        finally:
            process.kill()
        return bool(struck), process.returncode, errors


def size(path: Path) -> int:
    return path.stat().st_size


def wait_for(condition, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def files(out: Path) -> set[str]:
    """Files of an output, but for those that are named after a run."""
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    return {name for name in names if not name.startswith(OF_A_RUN)}


def content(stage: str, out: Path) -> object:
    """What an output holds, in its order."""
    if stage in ("subset", "tokenize"):
        kept = ("order/", "tokens/") if stage == "tokenize" else ("",)
        return {
            name: (out / name).read_bytes()
            for name in files(out)
            if name.startswith(kept) and name.endswith((".npy", ".bin", ".u64", ".csv.gz", ".ds"))
        }
    if stage == "difficulty":
        columns = ["uid", "sample", "purpose", "seed", "verdict", "text_sha256"]
        return Manifest(out).table("rollouts", columns).sort_by([(name, "ascending") for name in columns]).to_pylist()
    if stage == "export":
        return {name: pq.read_table(out / name).to_pylist() for name in files(out) if name.endswith(".parquet")}
    return [(row.id, row.text) for file in corpus_files([str(out)]) for row in read_rows(file)]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("number", range(KILLS))
def test_killed_and_run_again_nothing_is_lost_and_nothing_doubled(world, number):
    kill = list(kills())[number]
    whole = world.whole(kill.stage, kill.tasks)
    took = world.took[kill.stage, kill.tasks]
    for attempt in range(4):  # a run may be done before its moment comes, on a machine that got faster
        out = world.place / f"out-{number}-{attempt}"
        struck, code, told = world.strike(kill, out, took * kill.moment / 2**attempt)
        if struck and (kill.target == "server" or code != 0):
            break
    else:
        pytest.fail("it was always done before it could be killed")
    if kill.target == "command":
        # 130 is ours; a process that is ending already hears signals no more and dies of them.
        assert code in ((130, -kill.signal) if kill.signal != signal.SIGKILL else (-kill.signal,)), told
    elif kill.target == "worker":
        assert code in (1, 130), told
    else:
        # It is started again, but for one that never came up.
        assert code == 0 or "the vLLM server ended while starting" in told, told
    assert "Traceback" not in told
    wait_for(lambda: world.living() == [])
    world.finish(kill.stage, out, kill.tasks)
    assert world.living() == []
    assert content(kill.stage, out) == content(kill.stage, whole)
    assert files(out) == files(whole)
    assert list(world.temporary.iterdir()) == []
    if kill.stage not in ("subset", "export"):
        assert Manifest(out).books() == Manifest(whole).books()
        assert verify_corpus(str(out)).problems == []


def test_the_kills_are_spread_over_stages_targets_and_signals():
    drawn = list(kills())
    assert set(Counter(kill.stage for kill in drawn)) == set(STAGES)
    if KILLS >= 50:
        assert {kill.target for kill in drawn} == {"command", "worker", "server"}
        assert {kill.signal for kill in drawn} == set(SIGNALS)
