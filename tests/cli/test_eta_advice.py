"""`derivedata eta plan`, `frontier`, `design`, `calibrate`: what is printed, written and refused."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from derivedata.cli.eta import eta
from derivedata.cli.quantity import shorten
from derivedata.errors import UserError
from derivedata.quantity import parse_quantity
from derivedata.scaling.presets import load_preset

N370 = load_preset("qin2026-n370")


def ask(*arguments: object) -> str:
    result = CliRunner().invoke(eta, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def write_runs(path: Path, strategy: str = "mine") -> Path:
    """Seven runs of the published law under another strategy's name."""
    rows = ["n_params,fresh_tokens,derived_tokens,strategy,loss"]
    for N, tpp, x in ((60e6, 20, 0), (60e6, 5, 0), (60e6, 20, 3.1), (60e6, 20, 15.3), (60e6, 5, 31.7), (60e6, 5, 7.9),
                      (60e6, 40, 15.1)):  # fmt: skip
        D = N * tpp
        loss = float(N370.loss(N, D, x * D, "repeat"))
        rows.append(f"{N:.0f},{D:.0f},{x * D:.0f},{strategy if x else '1epoch'},{loss:.5f}")
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_budget_within_one_epoch_is_told_as_that():
    told = ask("plan", "--params", "30M", "--fresh-tokens", "600M", "--flops", "1e16")
    assert "in FLOPs, generation free (--generator-params counts it): paraphrase whatever the budget" in told
    assert "both: this budget does not pass one epoch, so nothing is derived" in told


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.2B", 1.2e9), ("30M", 3e7), ("1e22", 1e22), ("512k", 512e3), ("2T", 2e12), ("1_000", 1000), ("7g", 7e9)],
)
def test_numbers_are_written_as_people_write_them(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "B", "1.2X", "-3M", "0", "nan", "inf", "1 2", "1.2.3B", "1e400"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match="number"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("value", "text"), [(1.2e9, "1.2B"), (999.6e6, "1B"), (30e6, "30M"), (0, "0"), (float("inf"), "unbounded")]
)
def test_counts_are_short(value, text):
    assert shorten(value) == text


def test_a_plan_gives_regime_epochs_rewrites_choice_and_what_n_means():
    text = ask("plan", "--params", "1.2B", "--fresh-tokens", "30B", "--flops", "1e22", "--generator-params", "1.7B")
    assert "1.2B parameters, 30B fresh tokens (25 tokens per parameter)" in text
    assert "N: all parameters but the input embedding, LM head included" in text
    assert "recommended: 7.05 [" in text
    assert "data-bound" in text
    assert "generation FLOPs" in text
    assert "equal" not in text
    assert "both are worth the same at N = 52.7M" in text
    assert "untested" in text
    assert "* extrapolated: the runs behind the law have N 14M to 600M" in text


def test_a_law_without_a_covariance_says_that_no_interval_is_published():
    text = ask("plan", "--params", "190M", "--fresh-tokens", "3.8B", "--law", "qin2026-n356")
    assert "intervals: no interval published" in text
    assert "[" not in text.split("repeat: R*")[1].split("\n")[0]


def test_a_plan_in_json_has_the_figures_of_the_text():
    found = json.loads(ask("plan", "--params", "190M", "--fresh-tokens", "3.8B", "--json"))
    recommended = found["plan"]["strategies"]["repeat"]["recommended"]["count"]
    assert recommended["value"] == pytest.approx(14.96, abs=0.01)
    assert recommended["low"] < recommended["value"] < recommended["high"]


def test_epochs_for_a_loss_and_losses_out_of_reach():
    solve = ("plan", "--params", "190M", "--fresh-tokens", "3.8B", "--solve-for", "epochs", "--target-loss")
    assert ask(*solve, 3.0).startswith("epochs for a loss of 3: 3.53 [")
    assert "no number of epochs of repeat reaches a loss of 2.5: the limit is 2.788" in ask(*solve, 2.5)


def test_the_best_size_of_a_budget():
    text = ask("plan", "--flops", "1e20", "--fresh-tokens", "3.8B", "--solve-for", "params")
    assert text.startswith("best N for 1.00e20 FLOPs and 3.8B fresh tokens: 828M [")


def test_the_frontier_is_a_table_of_budgets_and_stocks():
    text = ask("frontier", "--flops", "1e19,1e20", "--fresh-tokens", "1B,10B", "--generator-params", "1.7B")
    assert text.count("repeat") >= 4
    best = json.loads(ask("frontier", "--flops", "1e20", "--fresh-tokens", "1B", "--best", "--json"))
    assert len(best) == 1
    assert best[0]["is_best"] is True


def test_a_design_is_written_as_the_table_a_sweep_takes(tmp_path):
    path = tmp_path / "sweep.csv"
    text = ask("design", "--sizes", "14M,60M,190M", "--budget", "1e20", "-o", path)
    rows = list(csv.DictReader(path.open()))
    assert set(rows[0]) >= {"n_params", "fresh_tokens", "derived_tokens", "strategy", "x", "epochs", "seed"}
    assert f"{len(rows)} runs in {path}" in text
    assert "of ln R*" in text
    assert all(int(row["derived_tokens"]) == round(float(row["x"]) * int(row["fresh_tokens"])) for row in rows)


def test_a_calibration_says_what_is_prior_and_feeds_the_plan(tmp_path):
    runs, fit = write_runs(tmp_path / "runs.csv"), tmp_path / "fit.json"
    text = ask("calibrate", runs, "--params", "190M", "--fresh-tokens", "3.8B", "-o", fit)
    assert "mine from 5 runs and 2 without derived tokens" in text
    assert "of the answer" in text
    assert "next run that narrows most: N 60M" in text
    planned = ask("plan", "--law", fit, "--params", "190M", "--fresh-tokens", "3.8B", "--strategy", "mine")
    assert "calibrated for mine" in planned
    assert "mine: R* = " in planned


def test_figures_are_written_where_asked(tmp_path):
    ask("frontier", "--flops", "1e20", "--fresh-tokens", "1B", "--plots", tmp_path / "figures")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"frontier.png", "frontier.svg"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--params", "1.2Q", "--fresh-tokens", "30B"], "--params: '1.2Q' is no number"),
        (["plan", "--params", "1.2B"], "--fresh-tokens is needed"),
        (["plan", "--params", "1B", "--fresh-tokens", "2B", "--law", "qin"], "no such law"),
        (["plan", "--params", "1B", "--fresh-tokens", "2B", "--law", "epoch2024"], "without derived tokens"),
        (["plan", "--params", "1B", "--fresh-tokens", "2B", "--strategy", "distill"], "no such strategy"),
        (["plan", "--params", "1B", "--fresh-tokens", "2B", "--target-loss", "3"], "go with --solve-for"),
        (["plan", "--params", "1B", "--fresh-tokens", "2B", "--solve-for", "epochs"], "needs a loss"),
        (["plan", "--params", "1B", "--fresh-tokens", "2B", "--tokens-per-rewrite", "lots"], "tokens per rewrite"),
        (["frontier", "--flops", "1e20,x", "--fresh-tokens", "1B"], "--flops: 'x' is no number"),
        (["design", "--sizes", "14M", "--budget", "1e20"], "cannot identify sigma"),
        (["design", "--sizes", "14M,60M", "--budget", "1e20", "--x", "a"], "no list of numbers"),
        (["design", "--sizes", "14M,60M", "--budget", "1e20", "--x", "1,nan"], "x = D'/D is zero or more"),
        (["design", "--sizes", "14M,60M", "--budget", "1e20", "--ask", ""], "a sweep is for something"),
        (["design", "--sizes", "14M,60M", "--budget", "1e20", "--strategy", "1epoch"], "without derived tokens"),
        (["frontier", "--flops", ",", "--fresh-tokens", "1B"], "holds no number"),
        (["plan", "--fresh-tokens", "1B", "--solve-for", "params", "--target-loss", "3", "--x", "-1"], "zero or more"),
        (["design", "--sizes", "14M,60M,190M", "--budget", "1e20", "-o", "/nowhere/sweep.csv"], "cannot be written"),
        (["calibrate", "/nowhere/runs.csv"], "no such file|nowhere"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        ask(*arguments)
    assert "\n" not in caught.value.line


def test_the_command_line_prints_one_line_and_no_traceback():
    command = [sys.executable, "-m", "derivedata", "eta", "plan", "--params", "many", "--fresh-tokens", "1B"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("derivedata: --params:")
