"""Who is writing an output now."""

from __future__ import annotations

import json
import multiprocessing
import os
import time

import pytest

from derivedata.errors import UserError
from derivedata.store.lease import ROOM, Lease, is_live
from derivedata.store.paths import Folder

pytestmark = pytest.mark.faults


def heartbeat(folder: Folder, run_id: str, **changes) -> None:
    """What another process left, as this one would have written it but for `changes`."""
    lease = Lease(folder, run_id)
    lease._write()
    content = json.loads(folder.read(lease.path)) | changes
    folder.replace(lease.path, json.dumps(content).encode())


def test_a_second_command_is_refused_in_one_line(tmp_path):
    folder = Folder(tmp_path)
    with Lease(folder, "one"):
        with pytest.raises(
            UserError, match=rf"writing this output \(process {os.getpid()} on .*run one\). Wait for it"
        ):
            Lease(folder, "two").__enter__()
        assert len(folder.names(f"{ROOM}/")) == 1
    with Lease(folder, "two"):
        pass
    assert folder.names(f"{ROOM}/") == []


@pytest.mark.parametrize("hours", [-30, 30])
def test_a_clock_that_jumps_lets_no_second_command_in(tmp_path, monkeypatch, hours):
    folder, real = Folder(tmp_path), time.time
    with Lease(folder, "one"):
        monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
        if hours > 0:
            with pytest.raises(UserError, match="writing this output"):
                Lease(folder, "two").__enter__()
        else:  # the newcomer takes itself for the earlier one, and is let in by nobody but itself
            assert [other["run_id"] for other in Lease(folder, "two")._others()] == ["one"]


def test_ranks_of_one_run_share_it(tmp_path):
    folder = Folder(tmp_path)
    with Lease(folder, "run"):
        with Lease(folder, "run"):
            pass
        with pytest.raises(UserError):
            Lease(folder, "other").__enter__()


def test_a_dead_process_does_not_count(tmp_path):
    folder = Folder(tmp_path)
    child = multiprocessing.get_context("spawn").Process(target=int)
    child.start()
    child.join()
    heartbeat(folder, "dead", pid=child.pid)
    with Lease(folder, "mine"):
        assert len(folder.names(f"{ROOM}/")) == 1


def test_a_process_id_that_came_again_does_not_count(tmp_path):
    folder = Folder(tmp_path)
    heartbeat(folder, "old", process_started=1)
    with Lease(folder, "mine"):
        pass


def test_another_host_lives_while_its_heart_beats(tmp_path):
    folder = Folder(tmp_path)
    heartbeat(folder, "there", machine="elsewhere", host="node7", pid=1, since=0.0)
    with pytest.raises(UserError, match="process 1 on node7"):
        Lease(folder, "mine").__enter__()
    heartbeat(folder, "there", machine="elsewhere", beat=time.time() - 61, since=0.0)
    assert not is_live({"machine": "elsewhere", "beat": time.time() - 61})
    for name in folder.names(f"{ROOM}/"):
        content = json.loads(folder.read(name)) | {"beat": time.time() - 61}
        folder.replace(name, json.dumps(content).encode())
    with Lease(folder, "mine"):
        pass


def test_the_heart_beats(tmp_path):
    folder = Folder(tmp_path)
    with Lease(folder, "run", beat=0.02) as lease:
        first = json.loads(folder.read(lease.path))["beat"]
        for _ in range(200):
            time.sleep(0.02)
            if json.loads(folder.read(lease.path))["beat"] > first:
                break
        assert json.loads(folder.read(lease.path))["beat"] > first


def test_a_torn_heartbeat_counts_for_nothing(tmp_path):
    folder = Folder(tmp_path)
    folder.create(f"{ROOM}/x.json", b"{")
    with Lease(folder, "run"):
        pass
