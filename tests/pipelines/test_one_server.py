"""One server for several jobs: started when the first needs it, kept for the next, ended once."""

from __future__ import annotations

import contextlib

import pytest

from derivedata.pipelines import one_server
from derivedata.pipelines.difficulty_run import measure_difficulty
from derivedata.pipelines.run import paraphrase_corpus
from tests.fake_answers import answer, write_problems
from tests.fake_server import FakeServer
from tests.fake_text import reply
from tests.pipelines.fakes import MODEL, job, serve_at
from tests.pipelines.measuring import measurement

pytestmark = pytest.mark.faults


def test_two_jobs_share_a_server_that_starts_with_the_first(corpus, tiny_model, tmp_path, monkeypatch):
    def either(prompt: str, draw: int) -> str:
        return answer(prompt, draw) if "(rate" in prompt else reply(prompt, draw)

    problems = write_problems(tmp_path / "p.jsonl", [0.5] * 3)
    lives = []

    @contextlib.contextmanager
    def starting(serving):
        lives.append("start")
        with serve_at(server.endpoint.url)(serving) as window:
            yield window
        lives.append("end")

    monkeypatch.setattr(one_server, "own_server", starting)
    with FakeServer(tokenizer=tiny_model, model=MODEL, reply=either) as server:
        with one_server.one_server() as serve:
            assert lives == []
            options = job(corpus, tmp_path / "out", tiny_model, styles=("faq",), documents=4)
            assert paraphrase_corpus(options, serve=serve).summary.documents == 4
            measured = measure_difficulty(measurement(problems, tmp_path / "measured", tiny_model), serve=serve)
            assert measured.scored.height == 3
            assert lives == ["start"]
        assert lives == ["start", "end"]
        with one_server.one_server() as serve:
            measure_difficulty(measurement(problems, tmp_path / "measured", tiny_model), serve=serve)
    # What is finished needs no server at all.
    assert lives == ["start", "end"]
