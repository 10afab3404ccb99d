"""The engine dies in the middle of the work: it comes back, a bounded number of times, and nothing is lost."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from derivedata.errors import UserError
from derivedata.generation import supervisor
from derivedata.generation.server import VllmServer
from derivedata.pipelines.run import paraphrase_corpus
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from tests.pipelines.fakes import job, serve_at
from tests.pipelines.test_kill import recorded, texts

pytestmark = pytest.mark.faults

FAKE = (sys.executable, "-m", "tests.fake_server", "--max-num-seqs", "8", "--tokens-per-second", "4000")
A_LIFE = 12  # completions, then the process ends


@pytest.fixture
def engine(monkeypatch):
    """What is started instead of vLLM under the real supervisor: so many deaths are followed by a restart."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))

    def start(*flags: str, restarts: int) -> None:
        for name, value in {"program": (*FAKE, *flags), "restarts": restarts}.items():
            monkeypatch.setitem(VllmServer.__init__.__kwdefaults__, name, value)

    return start


def test_two_deaths_are_survived_and_the_third_ends_the_run_in_one_line(engine, server, corpus, tiny_model, tmp_path):
    options = job(corpus, tmp_path / "out", tiny_model, styles=("faq", "question"), rewrites=2)
    engine("--die-after", str(A_LIFE), restarts=2)
    with pytest.raises(UserError, match="the vLLM server has ended; its last words") as told:
        paraphrase_corpus(options)
    assert "\n" not in told.value.line
    assert not [pid for pid in supervisor.descendants(os.getpid()) if "fake_server" in command(pid)]
    # Three lives' answers are there, and only the rest is asked for again.
    kept = recorded(tmp_path / "out")
    assert 2 * A_LIFE < kept <= 3 * (A_LIFE + 16)
    engine(restarts=0)
    paraphrase_corpus(options)
    assert Manifest(tmp_path / "out").books()["generation"].planned == 2 * 12 * 2 * 2
    assert verify_corpus(str(tmp_path / "out")).problems == []
    quiet = job(corpus, tmp_path / "quiet", tiny_model, styles=("faq", "question"), rewrites=2)
    paraphrase_corpus(quiet, serve=serve_at(server.endpoint.url))
    assert sorted(texts(tmp_path / "out").values()) == sorted(texts(tmp_path / "quiet").values())


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
