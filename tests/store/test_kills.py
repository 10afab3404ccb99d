"""SIGKILL at random moments, and two processes at the same work: nothing is lost, nothing is there twice."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time

import pytest

from derivedata.store.compaction import compact
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.units import Unit
from tests.store import samples, worker

pytestmark = pytest.mark.faults

CHUNKS = 12


@pytest.fixture(scope="module")
def processes():
    """A clean process to fork children from, so that a child starts in milliseconds and shares no thread with us."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.store.worker"])
    return context


def wanted() -> set[str]:
    return {key for chunk in range(CHUNKS) for key in samples.keys(Unit(chunk, 0, 2, 0, 1, samples.STYLES))}


@pytest.mark.parametrize("grace", [None, 0.0], ids=["committing", "committing and compacting"])
def test_killed_at_random_moments_and_started_again(tmp_path, processes, grace):
    chance = random.Random(2026)
    folder = Folder(tmp_path)
    kills = 0
    for _ in range(60):
        ready = processes.Event()
        child = processes.Process(
            target=worker.make_everything, args=(str(tmp_path), CHUNKS), kwargs={"grace": grace, "ready": ready}
        )
        child.start()
        assert ready.wait(60)
        # The later rounds get longer, or a slow machine would never finish.
        child.join(chance.uniform(0, 0.1 + max(0, kills - 3) / 10))
        if child.is_alive():
            child.kill()
            kills += 1
        child.join()
        committed = Ledger(folder).committed()
        assert len(set(committed)) == len(committed)
        if child.exitcode == 0:
            break
    assert child.exitcode == 0 and kills >= 2
    assert set(samples.read_back(folder)) == wanted()
    assert folder.names("journal/") == folder.names("ledger/") == []


def test_two_processes_with_different_texts_come_to_one_outcome(tmp_path, processes):
    for attempt in range(2):
        place = tmp_path / str(attempt)
        both = [
            processes.Process(
                target=worker.make_everything, args=(str(place), CHUNKS), kwargs={"grace": 1.0, "seed": seed}
            )
            for seed in (attempt, attempt + 1)
        ]
        for child in both:
            child.start()
        for child in both:
            child.join()
        assert [child.exitcode for child in both] == [0, 0]
        texts = samples.read_back(Folder(place))
        assert set(texts) == wanted()
        for chunk in range(CHUNKS):
            writers = {text.rpartition(" ")[2] for key, text in texts.items() if key.startswith(f"{chunk}/")}
            assert len(writers) == 1, "a unit's texts come from one writer"


def test_a_reader_beside_commits_and_compactions_sees_each_row_once(tmp_path):
    """Counts only grow, and documents, shards and books always belong together."""
    folder = Folder(tmp_path)
    samples.work(Ledger(folder), [0])
    stop = threading.Event()
    faults: list[BaseException] = []

    def write() -> None:
        try:
            ledger = Ledger(folder)
            for chunk in range(1, 17):
                samples.work(ledger, [chunk])
                compact(folder, at_least=1 + chunk % 3, grace=0)
        except BaseException as error:
            faults.append(error)
        finally:
            stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = looks = 0
    while not stop.is_set():
        summary = Manifest(folder).summary()
        documents = Manifest(folder).table("documents", ["id"])["id"].to_pylist()
        assert len(set(documents)) == len(documents) >= summary.documents >= seen
        assert summary.documents == 2 * summary.shards == 4 * summary.units == summary.books["generation"].accepted
        seen, looks = summary.documents, looks + 1
    writer.join()
    assert not faults, faults
    assert looks > 3 and set(samples.read_back(folder)) == {
        key for chunk in range(17) for key in samples.keys(Unit(chunk, 0, 2, 0, 1, samples.STYLES))
    }


def test_compaction_killed_at_random_moments(tmp_path, processes):
    folder = Folder(tmp_path)
    samples.work(Ledger(folder), range(6))
    before = samples.read_back(folder)
    chance = random.Random(7)
    for _ in range(8):
        ready = processes.Event()
        child = processes.Process(target=worker.compact_for_ever, args=(str(tmp_path),), kwargs={"ready": ready})
        child.start()
        assert ready.wait(60)
        time.sleep(chance.uniform(0.02, 0.3))
        child.kill()
        child.join()
        samples.work(Ledger(folder), ())  # finishes what is decided
        after = samples.read_back(folder)
        assert before.items() <= after.items()
        before = after
    compact(folder, grace=0)
    assert samples.read_back(folder) == before
    left = [name for name in folder.names("manifest/") if name.split("/")[1] not in ("snapshots", "kinds")]
    assert left == []
