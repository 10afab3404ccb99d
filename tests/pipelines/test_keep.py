"""One server for several commands, found without its key; with a fake in vLLM's place."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from derivedata.errors import UserError
from derivedata.generation import supervisor
from derivedata.generation.connect import connect
from derivedata.generation.served import all_served, find_served
from derivedata.pipelines.run import ParaphraseOptions, paraphrase_corpus
from derivedata.store.paths import Folder
from derivedata.store.runs import current_run

pytestmark = pytest.mark.faults

REPOSITORY = Path(__file__).parents[2]
KEEP = """
import click, sys
from derivedata.cli import main
from derivedata.cli.show import Narrator
from derivedata.pipelines.job import ModelOptions
from derivedata.pipelines.keep import keep_serving

@click.command()
def keep():
    options = ModelOptions(model={model!r}, context=4096, max_num_seqs=8)
    with keep_serving(options, Narrator(), program=(sys.executable, "-m", "tests.fake_server")) as kept:
        print(kept.server._process.pid, flush=True)
        kept.wait()

main([], keep)
"""


@contextlib.contextmanager
def kept(model: Path):
    """A process that keeps a server, and the pids of all that belongs to it."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", KEEP.format(model=str(model))]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        try:
            guard = int(process.stdout.readline())
            yield process, [guard, *supervisor.descendants(guard)]
        finally:
            process.kill()


def gone(pids: list[int]) -> bool:
    until = time.monotonic() + 30
    while any(supervisor.started_at(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(supervisor.started_at(pid) for pid in pids)


def test_other_commands_find_a_kept_server_and_it_ends_without_a_trace(corpus, tiny_model, tmp_path):
    with pytest.raises(UserError, match=r"no server is kept here.*derivedata serve"):
        find_served("local")
    with kept(tiny_model) as (process, pids):
        (served,), _ = all_served()
        (state,) = (tmp_path / "cache/served").glob("*.json")
        assert stat.S_IMODE(state.stat().st_mode) == 0o600
        out = tmp_path / "out"
        paraphrase_corpus(
            ParaphraseOptions(
                corpus=(str(corpus),), output=str(out), endpoints=("local",), styles=("faq",), documents=3
            )
        )
        # It is as if the run had started it: the model's own revision, nothing of an endpoint.
        record = current_run(Folder(str(out)))
        assert record.identity["model_revision"] == served.model.revision
        assert "asked_as" not in record.identity
        key = served.endpoint.api_key.encode()
        assert not any(key in path.read_bytes() for path in out.rglob("*") if path.is_file())
        # By its address it is found as well, and by no other name of a model.
        assert connect([f"{served.endpoint.url}/v1"], model=None, tokenizer=None, samplings=[]).ours
        with pytest.raises(UserError, match="no model 'other', but tiny"):
            connect(["local"], model="other", tokenizer=None, samplings=[])
        process.send_signal(signal.SIGTERM)
        _, words = process.communicate(timeout=30)
        assert process.returncode == 130 and words.strip().endswith("derivedata: stopped")
        assert gone(pids)
        assert all_served() == ([], [])


def test_a_kept_server_whose_command_was_killed_is_noticed(tiny_model):
    with kept(tiny_model) as (process, pids):
        (served,), _ = all_served()
        process.kill()
        process.wait()
        assert gone(pids)
        with pytest.raises(UserError, match=r"was killed.*derivedata serve"):
            find_served(served.endpoint.url)
        assert all_served() == ([], [])
