"""--endpoint on the command line: what is found is told on stderr, what is wrong is one line, and no key is shown."""

from __future__ import annotations

import pytest

from derivedata.cli import main
from tests.fake_answers import write_problems
from tests.fake_endpoints import Hosted, LlamaCpp
from tests.pipelines.test_source import write_corpus
from tests.tiny_model import write_tiny_model

KEY = "sk-0123456789abcdef0123456789"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("DERIVEDATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("DERIVEDATA_API_KEY", raising=False)
    write_tiny_model(tmp_path / "tiny")
    write_corpus(tmp_path / "in", shards=1, documents=3)
    return tmp_path


def run(capsys, *arguments) -> tuple[int, str, str]:
    try:
        main([str(argument) for argument in arguments])
        code = 0
    except SystemExit as end:
        code = end.code or 0
    told = capsys.readouterr()
    return code, told.out, told.err


def test_paraphrase_at_a_hosted_server(place, capsys):
    with Hosted(tokenizer=place / "tiny", api_key=KEY) as server:
        code, out, err = run(
            capsys,
            *("paraphrase", place / "in", "-o", place / "out", "--style", "faq", "--model", "fake"),
            *("--endpoint", server.endpoint.url, "--tokenizer", place / "tiny"),
        )
    assert code == 0, err
    assert "asked with chat messages" in err and "takes no min_p" in err
    assert "requests planned 3 = accepted 3" in out
    assert "prompt tokens" in out
    assert KEY not in out + err


def test_what_is_wrong_with_a_server_is_one_line(place, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "the-wrong-one")
    with Hosted(tokenizer=place / "tiny", api_key=KEY) as server:
        code, out, err = run(
            capsys,
            "paraphrase",
            place / "in",
            "-o",
            place / "out",
            "--model",
            "fake",
            "--endpoint",
            server.endpoint.url,
        )
    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith("derivedata: ") and "refused the API key" in line and "the-wrong-one" not in line
    assert not (place / "out").exists()


def test_a_dry_run_of_difficulty_shows_the_first_prompt(place, capsys):
    problems = write_problems(place / "p.jsonl", [0.5, 1.0])
    with LlamaCpp(tokenizer=place / "tiny") as server:
        code, out, err = run(
            capsys,
            *("difficulty", problems, "-o", place / "out", "--dry-run", "--max-tokens", "64", "--model", "fake"),
            *("--endpoint", server.endpoint.url, "--tokenizer", place / "tiny"),
        )
    assert code == 0, err
    assert "rollouts       at most 32" in out and "[user] What is" in out
    assert not (place / "out").exists()
