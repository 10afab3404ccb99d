"""SIGKILL while shards are written: what is finished stays, nothing is there twice, and the end is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from derivedata.pipelines.repeat_run import RepeatOptions, repeat_corpus
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from tests.pipelines.test_source import write_corpus

pytestmark = pytest.mark.faults


def start(corpus: Path, out: Path, tokenizer: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "derivedata", "tokenize", str(corpus), "-o", str(out), "--shard-size", "1"]
    command += ["--tokenizer", str(tokenizer), "--eos", "<|endoftext|>"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def committed(out: Path) -> int:
    units = out / "manifest" / "units"
    return len(list(units.glob("*.parquet"))) if units.is_dir() else 0


@pytest.mark.slow
def test_killed_again_and_again_it_ends_as_if_it_had_not_been(tmp_path, tiny_model):
    plain, order = write_corpus(tmp_path / "in", shards=4, documents=20), tmp_path / "order"
    small = {"window_bytes": 20_000, "block_bytes": 5_000, "count_tokens": False}
    repeat_corpus(RepeatOptions(corpus=(str(plain),), output=str(order), epochs=60, virtual=True, **small))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = start(order, whole, tiny_model)
    process.communicate()
    assert process.returncode == 0
    shards = len(list((whole / "tokens").glob("*.npy")))
    assert shards > 100
    for more in (1, 30):
        before = committed(killed)
        process = start(order, killed, tiny_model)
        while process.poll() is None and committed(killed) < before + more:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it was killed in the middle"
    process = start(order, killed, tiny_model)
    told = process.communicate()[1]
    assert process.returncode == 0 and "going on from" in told
    files = [{path.name: path.read_bytes() for path in (out / "tokens").iterdir()} for out in (whole, killed)]
    assert files[0] == files[1]
    assert verify_corpus(str(killed)).problems == []
    books = Manifest(killed).books()["tokenize"]
    assert books.planned == books.accepted == 60 * 80
