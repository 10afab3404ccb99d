"""`derivedata eta report`: one self-contained page of the law, its fit and its advice."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from derivedata.cli.eta import eta
from derivedata.errors import UserError


def ask(*arguments: object) -> str:
    result = CliRunner().invoke(eta, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_report_of_a_published_law_has_the_plan_the_fields_and_the_frontier(tmp_path):
    page, figures = tmp_path / "report.html", tmp_path / "figures"
    said = ask("report", "-o", page, "--plots", figures, "--params", "190M", "--fresh-tokens", "3.8B")
    text = page.read_text()
    assert "5 figures" in said
    for title in ("A plan for 190M parameters", "How far derived tokens go", "Compute against data", "The law behind"):
        assert title in text
    assert text.count("<svg") == 5
    assert "N: all parameters but the input embedding" in text
    names = {path.name for path in figures.iterdir()}
    assert {"regimes.png", "r-star-repeat.svg", "epochs.png", "frontier.png"} <= names


def test_a_report_of_a_fit_has_hold_outs_and_what_was_left_out(tmp_path, reference_data):
    runs = reference_data / "scaling" / "cd_qin2026_370runs.csv"
    small, fit, page = tmp_path / "small.csv", tmp_path / "fit.json", tmp_path / "report.html"
    lines = runs.read_text().splitlines()
    # Four sizes are enough for one hold-out by size.
    small.write_text("\n".join([lines[0], *(line for line in lines[1:] if line.split(",")[1] in SIZES)]) + "\n")
    ask("fit", small, "-o", fit, "--drop", 5, "--bootstrap", 50)
    ask("report", small, "--law", fit, "-o", page)
    text = page.read_text()
    assert "Eta of repeat against x at N = " in text
    assert "Predicted and measured loss" in text
    assert "of small.csv" in text
    assert "Rolling hold-out" in text
    assert "5 of " in text
    assert "Sensitivity" in text


SIZES = ("14m", "30m", "60m", "190m")


def test_what_is_wrong_is_said_in_one_line(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        ask("report", "-o", tmp_path / "nowhere" / "report.html")
    with pytest.raises(UserError, match="without derived tokens"):
        ask("report", "--law", "epoch2024", "-o", tmp_path / "report.html")
