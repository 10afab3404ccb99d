"""`derivedata rl`: what is printed, written and refused, from toy runs and other people's logs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from derivedata.cli.rl import rl
from derivedata.errors import UserError


def ask(*arguments: object) -> str:
    result = CliRunner().invoke(rl, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def write_table(path: Path, rows: list[dict]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def evaluations(run: str, *, A: float = 0.6, C_mid: float = 3000, to: float = 30_000, **more) -> list[dict]:
    """Thirty evaluations of a known curve, and the one before training."""
    C = np.append(0, np.linspace(0.6 * C_mid, to, 30))
    with np.errstate(divide="ignore"):
        reward = 0.2 + (A - 0.2) / (1 + (C_mid / C) ** 1.8)
    noise = np.random.default_rng(len(run)).normal(0, 0.004, 31) * (C > 0)
    return [{"run": run, "C": c, "reward": r} | more for c, r in zip(C, reward + noise, strict=True)]


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    """A small study: n of 4, 8, 16, 32 at B_p 16, 20k rollouts each."""
    place = tmp_path_factory.mktemp("toy") / "runs"
    said = ask("simulate", "-o", place, "--budget", "20k", "--rollouts", "4,8,16,32", "--repeats", 3)
    assert "4 runs" in said and "best" in said
    return place


def test_a_fit_is_printed_and_written_with_its_points_and_draws(tmp_path):
    table = write_table(tmp_path / "curves.csv", evaluations("a", n=8, B_p=32) + evaluations("bb", C_mid=6000))
    said = ask("fit", table, "-o", tmp_path / "fit.json", "--bootstrap", 20)
    assert "at a common asymptote A = 0." in said
    data = json.loads((tmp_path / "fit.json").read_text())
    first, second = data["fits"]
    assert (first["run"], first["n"], first["B_p"]) == ("a", 8, 32)
    assert first["A"]["low"] < 0.6 < first["A"]["high"]
    assert first["A"]["high"] - first["A"]["low"] < 0.02
    assert len(first["draws"]) == 20 and len(first["points"]["C"]) == 31
    assert second["C_mid"]["value"] == pytest.approx(6000, rel=0.05)
    assert data["common"]["relative"]["bb"] == pytest.approx(2, rel=0.05)


def test_what_is_held_out_is_forecast(tmp_path):
    table = write_table(tmp_path / "curves.csv", evaluations("a"))
    said = ask("fit", table, "--hold-out-after", "12k")
    row = next(line for line in said.split("held out")[1].splitlines() if line.startswith("a "))
    assert float(row.split()[3]) < 0.02  # rmse of the forecast
    assert json.loads(ask("fit", table, "--hold-out-after", "12k", "--json"))["fits"][0]["held_out"]["count"] > 10


def test_flags_are_said_and_an_asymptote_that_nobody_saw_is_not(tmp_path):
    table = write_table(tmp_path / "curves.csv", evaluations("short", C_mid=30_000, to=25_000))
    said = ask("fit", table)
    assert "flag: short: largest C not surely above C_mid: no asymptote" in said
    row = next(line for line in said.splitlines() if line.startswith("short"))
    assert " none " in row


def test_the_papers_grid_is_a_method(tmp_path):
    table = write_table(tmp_path / "curves.csv", evaluations("a"))
    found = json.loads(ask("fit", table, "--method", "grid", "--json"))["fits"][0]
    assert found["A"]["value"] * 200 == pytest.approx(round(found["A"]["value"] * 200))  # a multiple of .005


def test_a_plan_says_n_problems_iterations_and_why(toy):
    said = ask("plan", toy, "--budget", "20k")
    assert said.startswith("for 20k rollouts: n = ")
    assert "B_p = 16 problems a batch" in said
    assert "of the draws" in said
    data = json.loads(ask("plan", toy, "--budget", "20k", "--json"))
    assert data["n"]["value"] in (4, 8, 16)
    assert data["iterations"] == pytest.approx(20_000 / 16 / data["n"]["value"])
    assert sum(data["chance"].values()) == pytest.approx(1)
    worst = json.loads(ask("plan", toy, "--budget", "20k", "--metric", "worst", "--json"))
    assert worst["metric"] == "worst"


def test_a_plan_past_the_runs_is_flagged_and_stays_within_the_n_tried(toy):
    data = json.loads(ask("plan", toy, "--budget", "1e9", "--json"))
    assert data["n"]["value"] <= 32
    assert any("budget beyond the runs" in flag for flag in data["flags"])


def test_the_papers_figures_are_an_example_only():
    said = ask("plan", "--budget", "1e6")
    assert "not transferable" in said
    assert "118" in said and "31" in said


def test_an_unhealthy_run_is_left_out_by_name(toy, tmp_path):
    import shutil

    copied = tmp_path / "runs"
    shutil.copytree(toy, copied)
    log = copied / "bp16-n8" / "steps.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    for i, row in enumerate(rows):
        row["entropy"] *= 0.95**i
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "bp16-n8: unhealthy: entropy" in ask("check", copied)
    said = ask("plan", copied, "--budget", "20k")
    assert "left out: bp16-n8: unhealthy: entropy, collapse" in said
    assert "left out" not in ask("plan", copied, "--budget", "20k", "--unhealthy")


def test_a_check_shows_interference_and_what_training_does(toy):
    said = ask("check", toy / "bp16-n4")
    assert "bp16-n4: healthy" in said
    assert "fell to 0" in said and "by chance alone" in said
    assert "best@k" in said and "coverage" in said
    assert "?    length: length not logged" in said
    (found,) = json.loads(ask("check", toy / "bp16-n4", "--json"))
    assert found["interference"]["compared"] > 0


def test_a_report_is_one_page_with_figures(toy, tmp_path):
    page = tmp_path / "report.html"
    runs = (toy / "bp16-n8", toy / "bp16-n16")
    said = ask("report", *runs, "--budget", "20k", "-o", page, "--plots", tmp_path / "figures")
    text = page.read_text()
    assert "A plan for 20k rollouts" in text and "Health and interference" in text
    assert text.count("<svg") == int(said.split(": ")[1].split()[0])
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"frontier.png", "best-n.svg", "curve-bp16-n8.png", "pass-rates-bp16-n8.png"} <= names


def test_a_map_is_drawn_where_several_batches_were_tried(tmp_path):
    rows = []
    for n in (8, 16, 32):
        for b in (16, 32):
            rows += evaluations(f"{b}-{n}", A=0.5 + 0.02 * np.log2(n), C_mid=100 * n, n=n, B_p=b)
    table = write_table(tmp_path / "curves.csv", rows)
    ask("plan", table, "--budget", "30k", "--plots", tmp_path / "figures")
    assert (tmp_path / "figures" / "map.png").exists()


def test_a_design_is_a_table_for_the_trainer(tmp_path):
    said = ask("design", "--budget", "1e6", "--problems", 2000, "-o", tmp_path / "grid.csv")
    assert "n at B_p = 32" in said
    with (tmp_path / "grid.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len({row["run"] for row in rows}) == len(rows)
    for row in rows:
        b, n, m = (int(row[c]) for c in ("problems_per_batch", "rollouts_per_problem", "iterations"))
        assert int(row["rollouts"]) == b * n * m


VERL_CONSOLE = """
(TaskRunner pid=11) step:0 - val-core/math/acc/mean@4:np.float64(0.21) - val-aux/math/acc/best@4/mean:np.float64(0.41)
(TaskRunner pid=11) step:1 - actor/entropy:0.52 - critic/score/mean:0.25 - response_length/mean:310.5 - response_length/clip_ratio:0.03
(TaskRunner pid=11) step:2 - actor/entropy:0.50 - critic/score/mean:0.27 - actor/kl_loss:1e-03 - val-core/math/acc/mean@4:np.float64(0.24)
(TaskRunner pid=11) step:2 - actor/entropy:0.49 - critic/score/mean:0.28 - val-core/math/acc/mean@4:np.float64(0.25)
"""  # noqa: E501


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_verls_console_output_becomes_a_run(tmp_path):
    log = tmp_path / "verl.log"
    log.write_text(VERL_CONSOLE)
    ask("import", log, "--problems-per-batch", 64, "--rollouts", 8, "--recipe", "mine", "-o", tmp_path / "runs")
    run = tmp_path / "runs" / "verl"
    evaluated = read_rows(run / "evaluations.jsonl")
    # A step that a resumed run logged twice counts once.
    assert [(e["rollouts"], e["avg"]) for e in evaluated] == [(0, 0.21), (1024, 0.25)]
    assert evaluated[0]["best"] == 0.41
    steps = read_rows(run / "steps.jsonl")
    assert [s["rollouts"] for s in steps] == [512, 1024]
    assert steps[0]["length"] == 310.5 and steps[0]["truncated"] == 0.03
    assert steps[1]["entropy"] == 0.49 and steps[1]["kl"] is None
    assert json.loads((run / "run.json").read_text())["config"]["rollouts_per_problem"] == 8


def test_verls_file_log_with_several_validation_sets_needs_a_choice(tmp_path):
    log = tmp_path / "verl.jsonl"
    data = {"val-aux/math/reward/mean@4": 0.7, "val-core/math/acc/mean@4": 0.3, "val-core/math/acc/mean@1": 0.9}
    data |= {"val-core/aime/acc/mean@32": 0.1}
    log.write_text(json.dumps({"step": 0, "data": data}) + "\n")
    options = ("--problems-per-batch", 64, "--rollouts", 8, "-o", tmp_path / "runs")
    with pytest.raises(UserError, match="several validation sets in one log"):
        ask("import", log, *options)
    ask("import", log, *options, "--source", "math")
    assert read_rows(tmp_path / "runs" / "verl" / "evaluations.jsonl")[0]["avg"] == 0.3


def test_trls_trainer_state_becomes_a_run(tmp_path):
    history = [
        {"step": 1, "reward": 0.2, "entropy": 1.1, "completions/clipped_ratio": 0.2, "frac_reward_zero_std": 0.5},
        {"step": 2, "reward": 0.3, "kl": 0.01, "num_tokens": 900.0},
        {"step": 2, "eval_reward": 0.35},
        {"step": 2, "train_runtime": 5.0},
    ]
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"global_step": 2, "log_history": history}))
    ask("import", state, "--problems-per-batch", 4, "--rollouts", 8, "-o", tmp_path / "runs")
    run = tmp_path / "runs" / "trainer_state"
    assert read_rows(run / "evaluations.jsonl")[0] | {"step": 2} == {
        "step": 2, "rollouts": 64, "avg": 0.35, "best": None, "worst": None, "k": None, "problems": None,
    }  # fmt: skip
    assert [s["zero_variance"] for s in read_rows(run / "steps.jsonl")] == [0.5, None]


def test_a_log_without_evaluations_needs_to_be_told_what_to_take(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"step": i, "reward": 0.2 + 0.01 * i}) + "\n" for i in range(1, 9)))
    options = ("--problems-per-batch", 4, "--rollouts", 8, "-o", tmp_path / "runs")
    with pytest.raises(UserError, match="no evaluation in this log"):
        ask("import", log, *options)
    assert "not held out" in ask("import", log, *options, "--training-reward")
    assert "R_0 fitted" in ask("fit", tmp_path / "runs")


def test_a_plain_table_becomes_runs_with_the_same_plan(tmp_path):
    rows = [row for n in (4, 8, 16) for row in evaluations(f"n{n}", A=0.4 + 0.03 * n / 4, C_mid=400 * n, n=n, B_p=16)]
    table = write_table(tmp_path / "curves.csv", rows)
    ask("import", table, "-o", tmp_path / "runs")
    from_table, from_runs = (
        json.loads(ask("plan", p, "--budget", "30k", "--json")) for p in (table, tmp_path / "runs")
    )
    assert from_table["n"] == from_runs["n"]
    assert from_table["by_cell"] == from_runs["by_cell"]


def test_a_run_is_imported_whole_and_only_once(tmp_path):
    table = write_table(tmp_path / "curves.csv", evaluations("a"))
    ask("import", table, "-o", tmp_path / "runs")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]
    # What a kill left of an import is no run, and does not stand in the way of the next.
    (tmp_path / "runs" / ".b.part").mkdir()
    (tmp_path / "runs" / ".b.part" / "evaluations.jsonl").write_text("{}\n")
    assert "b.part" not in ask("fit", tmp_path / "runs")
    with pytest.raises(UserError, match="two runs under one name"):
        ask("import", table, "-o", tmp_path / "runs")


def test_other_names_of_columns_and_other_formats_are_read(tmp_path):
    import polars as pl

    rows = [
        {"Run": r["run"], "GPU Hours": r["C"], "mean@16": r["reward"], "num_generations": 8} for r in evaluations("a")
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "curves.parquet")
    pl.DataFrame(rows).write_ndjson(tmp_path / "curves.jsonl")
    for name in ("curves.parquet", "curves.jsonl"):
        assert json.loads(ask("fit", tmp_path / name, "--json"))["fits"][0]["n"] == 8


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (evaluations("a") + evaluations("a"), "run a: two evaluations at one C.*two runs under one name"),
        ([*evaluations("a", n=8), {"run": "a", "C": 5, "reward": 0.2, "n": 16}], "run a: n changes within a run"),
        ([{"run": "a", "C": 5, "reward": 61.0}], "run a, C = 5: reward out of range.*percent divide by 100"),
        ([{"run": "a", "C": 5, "reward": "high"}], "row 1: avg is not a number"),
        ([{"run": "", "C": 5, "reward": 0.5}], "row 1: a row names no run"),
        ([{"run": "a", "C": "nan", "reward": 0.5}], "row 1: a reward without its C"),
        ([{"run": "a", "C": 5, "loss": 0.5}], "no column reward"),
        ([{"run": "a", "C": 5, "reward": 0.5, "n": 2.5}], "n is a whole number"),
    ],
)
def test_bad_tables_are_refused_in_one_line(tmp_path, rows, message):
    with pytest.raises(UserError, match=message):
        ask("fit", write_table(tmp_path / "curves.csv", rows))


def test_best_at_different_k_is_not_compared(tmp_path):
    rows = [row | {"best": 0.5, "k": k} for k in (4, 16) for row in evaluations(f"k{k}", n=k, B_p=8)]
    table = write_table(tmp_path / "curves.csv", rows)
    with pytest.raises(UserError, match=r"best@k of different k cannot be compared \(got k of 4, 16\)"):
        ask("plan", table, "--budget", "30k", "--metric", "best")


def test_runs_without_the_metric_are_named(tmp_path):
    rows = [
        row | {"best": "" if n == 32 else row["reward"]}
        for n in (8, 16, 32)
        for row in evaluations(f"n{n}", n=n, B_p=8, C_mid=100 * n)
    ]
    table = write_table(tmp_path / "curves.csv", rows)
    assert "left out: n32: no values of best" in ask("plan", table, "--budget", "30k", "--metric", "best")
    assert "note: n32: no values of best" in ask("fit", table, "--metric", "best")


def test_two_runs_under_one_name_in_two_places_are_refused(tmp_path):
    one, two = (write_table(tmp_path / f"{i}.csv", evaluations("a")) for i in range(2))
    with pytest.raises(UserError, match="two runs under one name"):
        ask("fit", one, two)


def test_a_log_that_counts_compute_twice_is_refused(toy, tmp_path):
    import shutil

    copied = tmp_path / "run"
    shutil.copytree(toy / "bp16-n8", copied)
    log = copied / "steps.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([*lines[:50], *lines[40:]]))
    with pytest.raises(UserError, match=r"steps.jsonl, line 51: C does not rise"):
        ask("check", copied)
    # A half line is what a kill leaves: none.
    log.write_text("".join(lines[:50]) + lines[50][:10])
    assert "healthy" in ask("check", copied)


def test_what_is_no_run_or_log_is_said_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no RL run here"):
        ask("check", tmp_path / "empty")
    (tmp_path / "notes.txt").write_text("hello\n")
    with pytest.raises(UserError, match="not a log of verl or TRL"):
        ask("import", tmp_path / "notes.txt", "--problems-per-batch", 4, "--rollouts", 4, "-o", tmp_path / "runs")
    with pytest.raises(UserError, match="do not say B_p and n"):
        ask("import", tmp_path / "notes.txt", "-o", tmp_path / "runs")
    with pytest.raises(UserError, match="this folder is not empty"):
        ask("simulate", "-o", tmp_path)
    with pytest.raises(UserError, match="two or more values of n"):
        ask("plan", write_table(tmp_path / "c.csv", evaluations("a", n=8, B_p=4)), "--budget", "1e4")


def test_an_evaluation_that_is_no_number_is_told(tmp_path):
    table = tmp_path / "curve.csv"
    rows = [f"a,{C},{'nan' if C == 700 else 0.1 + C / 2000}" for C in range(100, 1700, 100)]
    table.write_text("\n".join(["run,C,reward", *rows]))
    told = CliRunner().invoke(rl, ["fit", str(table)]).output
    assert "1 values that are no number (NaN) take no part" in told
