"""`derivedata eta fit`, `runs` and `check`, and conditions on runs."""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from derivedata.cli import cli
from derivedata.cli.eta.selection import select
from derivedata.errors import UserError
from derivedata.scaling.presets import load_preset
from derivedata.scaling.runs import Runs
from tests.scaling.data import synthetic

LAW = load_preset("qin2026-n370")


def run(*arguments):
    return CliRunner().invoke(cli, ["eta", *map(str, arguments)], catch_exceptions=True)


def write(folder, runs):
    """A table of runs of one strategy."""
    columns = zip(*(getattr(runs, f).tolist() for f in ("N", "D", "Dp", "loss")), strict=True)
    rows = [f"{N!r},{D!r},{Dp!r},repeat,{L!r}" for N, D, Dp, L in columns]
    path = folder / "table.csv"
    path.write_text("\n".join(["n_params,fresh_tokens,derived_tokens,strategy,loss", *rows]))
    return path


@pytest.fixture
def csv(tmp_path):
    runs = synthetic(LAW, seed=1)
    lines = ["n_params,fresh_tokens,derived_tokens,strategy,loss,batch"]
    lines += [
        f"{N!r},{D!r},{Dp!r},{s},{L!r},{'a' if i % 2 else 'b'}"
        for i, (N, D, Dp, s, L) in enumerate(
            zip(*(getattr(runs, f).tolist() for f in ("N", "D", "Dp", "strategy", "loss")), strict=True)
        )
    ]
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_fit_prints_what_a_reader_needs_and_writes_the_fit(csv, tmp_path):
    out = tmp_path / "fit.json"
    result = run("fit", csv, "-o", out, "--drop", 2, "--bootstrap", 20, "--n-definition", "all but embeddings")
    assert result.exit_code == 0, result.output
    for words in (
        "82 of 84 runs, form published, joint fit",
        "N: all but embeddings",
        "at Hoffmann et al. 2022, one epoch",
        "at Qin et al. 2026, joint",
        "R*[repeat]",
        "R* at the centre",
        "E_eff(N) = E + A/N^alpha",
        "sensitivity to what is dropped",
        "left out",
        "the greatest residual left",
    ):
        assert words in result.output
    data = json.loads(out.read_text())
    for key in ("objective", "constants", "settings", "centre", "covariance", "draws", "left_out"):
        assert data[key]
    assert data["runs"]["sha256"]
    assert np.shape(data["draws"]) == (20, 8)
    assert np.shape(data["covariance"]) == (8, 8)
    assert data["name"] == "sweep"
    assert list(tmp_path.glob("*.part")) == []


def test_forms_are_listed():
    result = run("fit", "unused", "--form", "list")
    assert "offset" in result.output
    assert "published" in result.output


def test_where_selects_by_any_column(csv):
    result = run("fit", csv, "--where", "batch==a and n_params<200M", "--bootstrap", 0)
    assert result.output.startswith("sweep: 31 of 31 runs, form published")
    nothing = run("fit", csv, "--where", "batch==c")
    assert isinstance(nothing.exception, UserError)
    assert "no run meets the condition" in nothing.exception.line


def test_staged_and_backbone_fits_say_so(csv):
    staged = run("fit", csv, "--staged", "--bootstrap", 0)
    assert "staged fit" in staged.output
    frozen = run("fit", csv, "--backbone", "qin2026-n370", "--bootstrap", 0)
    assert "backbone of qin2026-n370 frozen" in frozen.output
    both = run("fit", csv, "--staged", "--backbone", "qin2026-n370")
    assert "no first stage" in both.exception.line


def test_runs_shows_eta_with_error_and_flag(csv):
    result = run("runs", csv, "--law", "qin2026-n370", "--where", "x<=3")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0].split() == [
        "row",
        "strategy",
        "N",
        "TPP",
        "x",
        "loss",
        "eta",
        "+-",
        "law",
        "measured",
        "flag",
    ]
    assert "12 runs without derived tokens say nothing of eta" in result.output
    assert "N: all parameters but the input embedding" in result.output
    rows = json.loads(run("runs", csv, "--json").output)["runs"]
    assert len(rows) == 72
    assert {"eta", "error", "flag", "law_eta"} <= rows[0].keys()


def test_check_holds_out_and_rolls(csv, tmp_path):
    out = tmp_path / "fit.json"
    run("fit", csv, "-o", out, "--bootstrap", 0)
    result = run("check", out, csv, "--hold-out", "n_params>100M and x>10", "--bootstrap", 20)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].split() == ["held", "out", "fitted", "tested", "RMSE", "bias", "coverage"]
    assert lines[1].startswith("n_params>100M and x>10")
    assert lines[1].split()[-5:-3] == ["66", "18"]
    assert any(line.startswith("N = 3.8e+08 from smaller") for line in lines)
    assert any(line.startswith("x in (8, 16] from smaller") for line in lines)


def test_check_notices_other_runs(csv, tmp_path):
    out = tmp_path / "fit.json"
    run("fit", csv, "-o", out, "--bootstrap", 0)
    csv.write_text("\n".join(csv.read_text().splitlines()[:-1]) + "\n")
    assert "these are not the runs" in run("check", out, csv, "--bootstrap", 10).output


def test_a_damaged_or_absent_fit_is_one_line(csv, tmp_path):
    broken = tmp_path / "fit.json"
    broken.write_text('{"kind": "derivedata eta fit 1"}')
    assert "a damaged fit" in run("check", broken, csv).exception.line
    broken.write_text("{")
    assert "not a fit" in run("check", broken, csv).exception.line
    assert "no such fit" in run("check", tmp_path / "absent.json", csv).exception.line
    assert "no such law" in run("runs", csv, "--law", "nobody2030").exception.line
    assert "no such form" in run("fit", csv, "--form", "cubic").exception.line


RUNS = Runs(
    N=[14e6, 60e6, 190e6],
    D=[1e9, 1e9, 2e9],
    Dp=[0, 3e9, 1e9],
    loss=[4.0, 3.5, 3.0],
    strategy=["1epoch", "repeat", "faq"],
)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("n_params>60M", [0, 0, 1]),
        ("n_params>=60M and strategy==repeat", [0, 1, 0]),
        ("n_params > 60M or x == 0", [1, 0, 1]),
        ("derived_tokens!=0 and n_params<=60M", [0, 1, 0]),
        ("not (strategy == 'faq' or strategy == \"1epoch\")", [0, 1, 0]),
        ("tpp<20 and derived_tokens!=0", [0, 1, 1]),
        ("derived_tokens>1e9 or loss<3.2", [0, 1, 1]),
        ("cost>5", [0, 0, 1]),
        ("team==b", [0, 1, 0]),
    ],
)
def test_conditions_select_runs(condition, expected):
    others = {"cost": np.array(["1", "", "9"], object), "team": np.array(["a", "b", None], object)}
    assert select(RUNS, condition, others).astype(int).tolist() == expected


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("n_parms>60M", "no column 'n_parms'"),
        ("n_params>", "ends too early"),
        ("n_params>lots", "'lots' is no number"),
        ("(n_params>1", "ends too early"),
        ("n_params>1 x<2", "'x' was not expected"),
        ("strategy>repeat", "only be compared by == and !="),
        ("__import__('os').system('true')", "means nothing here|is no comparison"),
        ("n_params ~ 3", "means nothing here"),
    ],
)
def test_conditions_that_mean_nothing_are_refused(condition, words):
    with pytest.raises(UserError, match=words):
        select(RUNS, condition)


def test_what_is_held_has_no_interval(tmp_path):
    path = write(tmp_path, synthetic(LAW, sizes=(60e6,), tpps=(2, 5, 20, 80)))
    told = run("fit", path, "--bootstrap", 10).output
    assert re.search(r"sigma\[repeat\] +0 held", told)
    assert re.search(r"alpha +0.35 held", told)
    assert re.search(r"beta +0\.\d+ \[", told)


def test_runs_of_several_tokenizers_are_refused_until_one_is_chosen(tmp_path):
    path = write(tmp_path, synthetic(LAW))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([f"{lines[0]},vocabulary", *(f"{x},{257 + i % 2}" for i, x in enumerate(lines[1:]))]))
    assert "runs of several tokenizers in one table" in str(run("fit", path).exception)
    told = run("fit", path, "--where", "vocabulary==257", "--bootstrap", 10).output
    assert "42 of 42 runs" in told


def test_sufficiency_finds_a_strategy_that_differs_at_equal_loss(tmp_path):
    runs = synthetic(LAW)
    path = write(tmp_path, runs)
    lines = path.read_text().splitlines()
    bits = 0.3 + runs.loss + 0.05 * (runs.Dp > 0) + np.random.default_rng(0).normal(0, 0.01, len(runs))
    path.write_text("\n".join([f"{lines[0]},bits", *(f"{x},{b}" for x, b in zip(lines[1:], bits, strict=True))]))
    told = run("sufficiency", path, "--metric", "bits", "--plots", tmp_path / "figures").output
    assert "validation loss is not sufficient for this metric: repeat differs at equal loss" in told
    assert (tmp_path / "figures" / "sufficiency-bits.png").stat().st_size > 5_000
    found = json.loads(run("sufficiency", path, "--metric", "bits", "--json").output)["test"]["effects"][0]
    assert found["offset"]["low"] < 0.05 < found["offset"]["high"]
    assert "no such column" in str(run("sufficiency", path, "--metric", "accuracy").exception)


def test_the_noise_of_a_run_is_no_negative_number(csv):
    assert "the noise of ln loss" in str(run("runs", csv, "--noise", "-1").exception)


def test_runs_shows_eta_between_measured_losses_where_one_epoch_runs_allow_it(tmp_path):
    path = write(tmp_path, synthetic(LAW, noise=0.0, sizes=(60e6,), tpps=(5, 10, 20, 40, 80, 160), xs=(0, 3, 63)))
    told = run("runs", path).output
    assert "measured" in told.splitlines()[0]
    rows = json.loads(run("runs", path, "--json").output)["runs"]
    first = next(row for row in rows if row["tpp"] == 5 and row["x"] == 3)
    assert first["measured"] == pytest.approx(first["law_eta"], rel=0.03)
    last = next(row for row in rows if row["tpp"] == 80 and row["x"] == 63)
    assert last["measured"] is None and last["measured_at_least"] == pytest.approx(1 / 63)
    assert ">0.02" in told
    alone = run("runs", path, "--where", "x==3").output
    assert "measured" not in alone.splitlines()[0]
