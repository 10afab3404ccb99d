"""`derivedata status` tells how far a job is from its files: running, killed, finished, failed."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from click.testing import CliRunner

from derivedata.cli.status import status
from derivedata.errors import UserError
from derivedata.pipelines.run import paraphrase_corpus
from derivedata.pipelines.status import _ranks, read_status
from tests.fake_answers import answer, write_problems
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL, job, serve_at
from tests.pipelines.measuring import measure
from tests.pipelines.test_kill import start
from tests.pipelines.test_source import write_corpus


def test_a_running_job_and_what_is_left_of_it_when_it_is_killed(tiny_model, tmp_path):
    corpus, out = write_corpus(tmp_path / "in", shards=2, documents=40), tmp_path / "out"
    with FakeServer(tokenizer=tiny_model, model=MODEL, tokens_per_second=300) as server:
        process = start(job(corpus, out, tiny_model, styles=("faq", "table")), server.endpoint.url)
        try:
            while sum(server.answered.values()) < 50:
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
            time.sleep(1.5)  # a rank writes once a second
            seen = read_status(str(out))
            assert seen.state == "running" and len(seen.writers) == 1 and str(process.pid) in seen.writers[0]
            assert seen.chunks > 4 and seen.chunks_done < seen.chunks and seen.wanted == 80 * 2
            assert seen.rate > 0 and seen.left > 0 and seen.ranks[0].done > 0 and not seen.ranks[0].ended
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
    seen = read_status(str(out))
    assert seen.state == "killed" and seen.writers == [] and seen.left is None
    assert 0 < seen.planned + seen.waiting < seen.wanted
    told = CliRunner().invoke(status, [str(out)])
    assert told.exit_code == 1 and "killed" in told.output and "go on" in told.output


def test_a_finished_job_has_everything(server, corpus, tiny_model, tmp_path):
    paraphrase_corpus(job(corpus, tmp_path / "out", tiny_model), serve=serve_at(server.endpoint.url))
    seen = read_status(str(tmp_path / "out"))
    assert seen.state == "done" and seen.failures == [] and seen.waiting == seen.chunks_begun == 0
    assert seen.chunks_done == seen.chunks and seen.planned == seen.wanted == 24 * 4
    told = CliRunner().invoke(status, [str(tmp_path / "out"), "--json"])
    assert told.exit_code == 0 and json.loads(told.output)["documents"] == seen.documents > 0


def test_a_failed_task_is_named_with_its_last_error(server, corpus, tiny_model, tmp_path, monkeypatch):
    (tmp_path / "failing.py").write_text("def f(document):\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    options = job(corpus, tmp_path / "out", tiny_model, filter="failing:f")
    with pytest.raises(UserError, match="ZeroDivisionError"):
        paraphrase_corpus(options, serve=serve_at(server.endpoint.url))
    seen = read_status(str(tmp_path / "out"))
    assert seen.state == "failed"
    (failure,) = seen.failures
    assert failure["step"] == "paraphrase" and failure["rank"] == 0 and "ZeroDivisionError" in failure["error"]
    assert "failed     task 0 of paraphrase: " in CliRunner().invoke(status, [str(tmp_path / "out")]).output


def test_a_measurement_has_a_status_too(tiny_model, tmp_path):
    problems = write_problems(tmp_path / "problems.jsonl", [0.5] * 20)
    with FakeServer(tokenizer=tiny_model, model=MODEL, reply=answer) as server:
        measure(server, problems, tmp_path / "out", tiny_model, samples=4)
    seen = read_status(str(tmp_path / "out"))
    assert (seen.job, seen.state, seen.chunks, seen.chunks_done) == ("difficulty", "done", 3, 3)
    assert seen.planned == seen.wanted == 80


def test_a_rank_that_is_silent_or_slow_is_a_straggler():
    began = time.time() - 100
    states = {
        rank: {"started": began, "written": time.time() - silent, "fresh": fresh, "ended": ended}
        for rank, (silent, fresh, ended) in enumerate([(1, 100, False), (2, 90, False), (1, 10, False), (80, 5, True)])
    }
    assert [rank.trouble for rank in _ranks(states, time.time(), running=True)] == [None, None, "slow", None]
    states[0]["written"] -= 90
    assert _ranks(states, time.time(), running=True)[0].trouble == "silent"
    assert {rank.trouble for rank in _ranks(states, time.time(), running=False)} == {None}


def test_where_no_run_began_is_one_line(tmp_path):
    with pytest.raises(UserError, match="no run has begun here"):
        read_status(str(tmp_path))
