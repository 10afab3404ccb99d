"""The command of ingest: what it prints, which options go together, and one line for what goes wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from derivedata.cli.ingest import ingest
from derivedata.errors import UserError
from tests.pipelines.test_ingest import write_lines


def invoke(*arguments):
    return CliRunner().invoke(ingest, [str(argument) for argument in arguments])


def test_it_prints_documents_and_books(tmp_path):
    write_lines(tmp_path / "x.jsonl", [{"text": "One."}, {"text": "Two."}, {"text": None}])
    told = invoke(tmp_path / "x.jsonl", "-o", tmp_path / "out", "--max-bad-input", "50%")
    assert told.exit_code == 0, told.output
    assert "fresh             2    null" in told.output
    assert "rows 3 = documents 2 + rejected 1 (null-text 1)" in told.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--style", "faq"], "--style: needs --strategy"),
        (["--derived-from", "corpus"], "--derived-from: needs --strategy"),
        (["--strategy", "x", "--id-field", "key"], "--id-field: does not go with --strategy"),
        (["--config", "en"], "--config and --split are for Hugging Face data sets"),
    ],
)
def test_options_that_do_not_go_together(tmp_path, arguments, told):
    place = write_lines(tmp_path / "x.jsonl", [{"text": "One."}])
    failed = invoke(place, "-o", tmp_path / "out", *arguments)
    assert isinstance(failed.exception, UserError) and told in failed.exception.line


def test_a_failure_is_one_line_and_exit_1(tmp_path):
    place = write_lines(tmp_path / "x.jsonl", [{"body": "One."}])
    command = [sys.executable, "-m", "derivedata", "ingest", str(place), "-o", str(tmp_path / "out")]
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    [line] = failed.stderr.strip().splitlines()
    assert line.endswith("no field `text`; the row has `body`. Name the field that holds the text: --text-field")
    assert not (tmp_path / "out" / "documents").exists()
