"""`derivedata styles`: list, show, new, check."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from derivedata.cli.styles import styles
from derivedata.errors import UserError


def run(*args: str):
    return CliRunner().invoke(styles, args, catch_exceptions=False)


def test_list_names_the_shipped_styles_with_version_and_description():
    lines = run("list").output.splitlines()
    assert [line.split()[0] for line in lines] == ["name", "faq", "math", "question", "table"]
    assert "1" in lines[1].split()
    assert lines[4].endswith(".")


def test_show_prints_the_file_and_its_rules_in_words():
    output = run("show", "math").output
    assert "instruction: |" in output
    assert "documents with fewer than 2 numbers go to the style question" in output


def test_new_writes_a_file_that_check_finds_good(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "wrote dialogue.yaml" in run("new", "dialogue").output
    checked = run("check", "dialogue.yaml")
    assert checked.exit_code == 0
    assert "dialogue.yaml: dialogue version 1 is good" in checked.output


def test_new_never_writes_over_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("mine")
    with pytest.raises(UserError, match="is there already"):
        run("new", "mine", "-o", str(path))
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["Bad", "a: !!x", "../up"])
def test_new_refuses_what_is_no_name(tmp_path, name):
    with pytest.raises(UserError, match="is not a name for a style"):
        run("new", name, "-o", str(tmp_path / "x.yaml"))
    assert not (tmp_path / "x.yaml").exists()


def test_check_prints_each_problem_as_one_line_and_exits_with_1(tmp_path):
    good, bad, circle = tmp_path / "good.yaml", tmp_path / "bad.yaml", tmp_path / "circle.yaml"
    run("new", "good", "-o", str(good))
    bad.write_text("name: bad\ndescription: d\ninstruction: i\nsampling: {temperature: hot}\n")
    circle.write_text("name: circle\ndescription: d\ninstruction: i\napplies_when: {otherwise: nothing}\n")
    checked = run("check", str(good), str(bad), str(circle), str(tmp_path / "gone.yaml"))
    assert checked.exit_code == 1
    lines = checked.output.splitlines()
    assert len(lines) == 4
    assert any(line == f"{bad}:4: sampling.temperature: must be a number from 0 to 2 (got hot)" for line in lines)
    assert any("gone.yaml" in line for line in lines)
    assert any("names a style that isn't there (got nothing)" in line for line in lines)
    assert f"{good}: good version 1 is good" in lines


def test_check_refuses_two_files_of_one_name(tmp_path):
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    for path in (one, two):
        run("new", "tale", "-o", str(path))
    checked = run("check", str(one), str(two))
    assert checked.exit_code == 1
    assert f"{two}: has the name of {one} (got tale)" in checked.output
