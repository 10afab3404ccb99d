"""The command line as a whole: light to start, one line for what can be expected to go wrong, exit codes."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from derivedata.cli import COMMANDS, SECTIONS, main

HEAVY = {
    "torch",
    "transformers",
    "datatrove",
    "datasets",
    "polars",
    "duckdb",
    "pyarrow",
    "scipy",
    "numpy",
    "matplotlib",
    "aiohttp",
}


def call(capsys, *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(args))
        raise SystemExit(0)
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, captured.err


def test_help_lists_every_command_and_imports_nothing_heavy():
    show = "try: main(['--help'])\nexcept SystemExit: pass\n"
    code = f"import sys\nfrom derivedata.cli import main\n{show}print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *help_text, modules = done.stdout.splitlines()
    assert not HEAVY & {name.partition(".")[0] for name in modules.split()}
    listed = {line.split()[0] for line in help_text if line.startswith("  ")}
    assert set(COMMANDS) <= listed


def test_every_command_stands_under_one_heading():
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(capsys, command):
    code, out, _ = call(capsys, command, "--help")
    assert code == 0 and "Usage:" in out and len(out.splitlines()) > 5


@pytest.mark.parametrize(
    ("args", "meant"),
    [(["paraphrse"], "paraphrase"), (["eta", "fitt"], "fit"), (["rl", "plna"], "plan"), (["train", "lmm"], "lm")],
)
def test_a_mistyped_command_is_told_what_was_meant(capsys, args, meant):
    code, _, err = call(capsys, *args)
    assert code == 2
    assert f"Did you mean {meant}?" in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["in", "-o", "out", "--style", "fqa"], "Did you mean faq"),
        (["in", "-o", "out", "--style", "faq", "--style", "faq"], "two styles are named faq"),
        (["in", "-o", "out", "--style-mix", "faq"], "must be key=value"),
        (["in", "-o", "out", "--style-mix", "faq=0"], "a weight must be a number above 0"),
        (["in", "-o", "out", "--style-mix", "faq=1,faq=2"], "names a style twice"),
        (["in", "-o", "out", "--style-mix", "faq=1", "--every-style"], "exclude each other"),
        (["in", "-o", "out", "--style", "faq", "--style-mix", "faq=1,table=1"], "name different styles"),
        (["in", "-o", "out", "--max-bad-input", "120%"], "must be a share"),
        (["in", "-o", "out", "--tokens", "many"], "no number such as"),
        (["in", "-o", "out", "--vllm-arg", "swap"], "must be key=value"),
        (["in", "-o", "out", "--rate", "300"], "need --dry-run"),
        (["in", "-o", "out", "--filter", "nowhere:f", "--style", "faq"], "can't be imported"),
        (["missing", "-o", "out"], "no such file or folder"),
    ],
)
def test_what_can_be_expected_to_go_wrong_is_one_line_and_exit_1(capsys, tmp_path, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "A short text."}\n')
    code, out, err = call(capsys, "paraphrase", *args)
    assert code == 1
    assert out == ""
    assert len(err.splitlines()) == 1 and words in err and err.startswith("derivedata: ")
    assert not (tmp_path / "out").exists()


def test_an_unknown_command_is_a_usage_error(capsys):
    code, _, err = call(capsys, "paraphrse")
    assert code == 2 and "No such command" in err


def test_a_command_may_end_with_a_code_of_its_own():
    @click.command()
    @click.pass_context
    def command(ctx):
        ctx.exit(3)

    with pytest.raises(SystemExit) as ended:
        main([], command)
    assert ended.value.code == 3
