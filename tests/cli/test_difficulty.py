"""The commands `difficulty` and `problems`: what they print, and what they say of bad input."""

from __future__ import annotations

from functools import partial

import pytest
from click.testing import CliRunner

from derivedata.cli import cli
from derivedata.errors import UserError
from derivedata.pipelines import difficulty_run
from tests.fake_answers import answer, write_problems
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL, serve_at
from tests.tiny_model import write_tiny_model


@pytest.fixture
def model(tmp_path):
    return write_tiny_model(tmp_path / "tiny")


@pytest.fixture
def problems(tmp_path):
    return write_problems(tmp_path / "problems.jsonl", [0.0] * 6 + [0.45] * 6 + [1.0] * 3)


def run(*arguments):
    result = CliRunner().invoke(cli, ["difficulty", *map(str, arguments)])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_it_prints_histogram_bands_books_and_where_the_report_is(model, problems, tmp_path, monkeypatch):
    with FakeServer(tokenizer=model, model=MODEL, reply=answer) as server:
        serve = serve_at(server.endpoint.url)
        monkeypatch.setattr(
            difficulty_run, "measure_difficulty", partial(difficulty_run.measure_difficulty, serve=serve)
        )
        told = run(problems, "-o", tmp_path / "out", "--model", model, "--max-tokens", 64)
    assert "      0  hard          6 ####" in told
    assert "     16  above         3 " in told
    assert "0.3-0.6" in told
    assert "rollouts planned 240 = correct " in told
    assert "--rescore draws fresh ones" in told
    assert f"report in {tmp_path}/out/report.html" in told
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_a_dry_run_writes_nothing(model, problems, tmp_path):
    told = run(problems, "-o", tmp_path / "out", "--model", model, "--max-tokens", 64, "--dry-run")
    assert "rollouts       at most 240" in told
    assert "What is 3 + 3? (rate 0.0000)" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--early-stop", "maybe"], "--early-stop is none, exact, or a probability"),
        (["--bands", "easy=0.5:0.2"], "a band lies between 0 and 1"),
        (["--dry-run", "--report", "x.html"], "--dry-run measures nothing"),
        (["--vllm-arg", "novalue"], "must be key=value"),
        (["--answer-field", "nowhere"], "none of the rows is a problem"),
    ],
)
def test_bad_options_are_one_line(model, problems, tmp_path, arguments, words):
    with pytest.raises(UserError, match=words):
        run(problems, "-o", tmp_path / "out", "--model", model, *arguments)


def test_problems_that_are_not_there_are_named(model, tmp_path):
    with pytest.raises(UserError, match=r"nothing\.jsonl: no problems found"):
        run(tmp_path / "nothing.jsonl", "-o", tmp_path / "out", "--model", model)
