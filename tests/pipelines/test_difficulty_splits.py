"""The sets that come out: splits in verl's schema, held-out problems, mixtures, TRL's form, card and report."""

from __future__ import annotations

import json
import re

import datasets
import duckdb
import polars as pl
import pytest
from click.testing import CliRunner

from derivedata.cli import cli
from derivedata.errors import UserError
from derivedata.pipelines.difficulty_page import write_page
from derivedata.pipelines.splits import assign, whole_shares
from derivedata.problems.problem import Problem
from derivedata.problems.read import read_all
from tests.fake_answers import answer, problem, write_problems
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL
from tests.pipelines.measuring import measure

RATES = [0.0] * 12 + [0.01] * 4 + [0.45] * 20 + [0.15] * 6 + [0.95] * 6


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """An output with three validation problems of each band; read only."""
    from tests.tiny_model import write_tiny_model

    folder = tmp_path_factory.mktemp("measured")
    problems = write_problems(folder / "problems.jsonl", RATES)
    with problems.open("a") as file:
        file.write(json.dumps(problem(99, 1.0) | {"reward_model": {"style": "rule", "ground_truth": ""}}) + "\n")
    with FakeServer(tokenizer=write_tiny_model(folder / "tiny"), model=MODEL, reply=answer) as server:
        measure(server, problems, folder / "out", folder / "tiny", validation=3, prompt_suffix="Use \\boxed{}.")
    return folder / "out"


def read(output, name):
    return pl.read_parquet(output / "splits" / f"{name}.parquet")


def uids(frame):
    return set(frame["extra_info"].struct.field("uid"))


def run(*arguments):
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_every_problem_is_in_exactly_one_split(measured):
    whole = pl.read_parquet(measured / "problems" / "problems.parquet")
    parts = {path.stem: pl.read_parquet(path) for path in (measured / "splits").iterdir()}
    assert set(parts) == {
        *("hard", "gap", "easy", "above", "unscored", "held-back", "hard-validation", "easy-validation"),
    }
    assert sum(part.height for part in parts.values()) == whole.height == len(RATES) + 1
    assert set().union(*map(uids, parts.values())) == uids(whole)
    assert parts["easy-validation"].height == parts["hard-validation"].height == 3
    assert parts["unscored"].height == 1
    assert parts["unscored"]["unscored"].to_list() == ["no_answer"]


def test_a_split_holds_what_its_band_says(measured):
    assert read(measured, "easy")["avg_at_k"].is_between(0.3, 0.6).all()
    assert read(measured, "hard")["avg_at_k"].is_between(0, 0.0625).all()
    assert read(measured, "above")["avg_at_k"].min() > 0.6


def test_the_prompt_is_the_one_that_was_asked(measured):
    contents = read(measured, "easy")["prompt"].list.last().struct.field("content")
    assert contents.str.ends_with("Use \\boxed{}.").all()


def test_datasets_polars_and_duckdb_read_the_same(measured):
    path = str(measured / "splits" / "easy.parquet")
    by_polars = pl.read_parquet(path)
    by_datasets = datasets.load_dataset("parquet", data_files=path, split="train", cache_dir=str(measured.parent / "c"))
    by_duckdb = duckdb.connect().execute(f"SELECT reward_model.ground_truth, avg_at_k FROM '{path}'").fetchall()
    truths = by_polars["reward_model"].struct.field("ground_truth").to_list()
    assert truths == [row["ground_truth"] for row in by_datasets["reward_model"]] == [row[0] for row in by_duckdb]
    assert by_polars["avg_at_k"].to_list() == by_datasets["avg_at_k"] == [row[1] for row in by_duckdb]


def test_the_card_names_each_split_for_datasets(measured):
    splits = datasets.get_dataset_config_names(str(measured))
    assert {"problems", "easy", "hard", "easy-validation"} <= set(splits)
    assert datasets.load_dataset(str(measured), "hard", split="train", streaming=True).take(1)


def test_our_own_splits_are_problems_again(measured):
    again = read_all([str(measured / "splits" / "easy.parquet")])
    assert {problem.layout for problem in again} == {"verl"}
    assert len(again) == read(measured, "easy").height


def test_validation_texts_are_nowhere_else():
    labels = ["easy"] * 6 + ["hard", "gap"]
    texts = ["a", "a", "b", "c", "d", "e", "a", "b"]
    for seed in range(20):
        split = assign(labels, texts, named=["hard", "easy"], validation=2, seed=seed)
        held_out = {text for text, name in zip(texts, split, strict=True) if name.endswith("-validation")}
        others = {text for text, name in zip(texts, split, strict=True) if name in ("easy", "hard", "gap")}
        assert len(held_out) == 2 and held_out.isdisjoint(others)
        assert len(split) == len(labels)


def test_a_mixture_has_the_shares_asked_for_and_no_validation_problem(measured, tmp_path):
    out = tmp_path / "mix.parquet"
    told = run("problems", "mix", measured, "easy=.5", "hard=.5", "--size", 12, "-o", out)
    assert "12 problems (easy 6, hard 6)" in told
    mixture = pl.read_parquet(out)
    assert uids(mixture) <= uids(read(measured, "easy")) | uids(read(measured, "hard"))
    assert len(uids(mixture)) == 12
    # Shuffled: a trainer that reads in order meets both bands from the start.
    assert mixture["band"].to_list() not in (["easy"] * 6 + ["hard"] * 6, ["hard"] * 6 + ["easy"] * 6)
    run("problems", "mix", measured, "easy=.5", "hard=.5", "--size", 12, "-o", tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == out.read_bytes()
    run("problems", "mix", measured, "easy=.5", "hard=.5", "--size", 12, "--seed", 1, "-o", tmp_path / "other.parquet")
    assert (tmp_path / "other.parquet").read_bytes() != out.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["easy=.5", "hard=.4"], "must add up to 1"),
        (["easy"], "written band=0.5"),
        (["easy=.5", "easy=.5"], "named twice"),
        (["silly=1"], "no such split.*There are above, easy"),
        (["easy=.5", "hard=.5", "--size", "5000"], "too few problems: easy has .* is the most with these shares"),
        (["easy-validation=1"], "held-out problems"),
    ],
)
def test_a_mixture_that_cannot_be_made_says_why(measured, arguments, words):
    with pytest.raises(UserError, match=words):
        run("problems", "mix", measured, *([] if "--size" in arguments else ["--size", "4"]), *arguments)


def test_whole_shares_add_up():
    assert whole_shares({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, 10) == {"a": 4, "b": 3, "c": 3}
    assert sum(whole_shares({"a": 0.123, "b": 0.877}, 977).values()) == 977


def test_trl_gets_prompt_and_answer(measured, tmp_path):
    run("problems", "export", "trl", measured, "--split", "hard", "-o", tmp_path / "trl.parquet")
    rows = datasets.load_dataset("parquet", data_files=str(tmp_path / "trl.parquet"), split="train")
    assert rows.column_names == ["prompt", "answer", "uid", "data_source"]
    assert rows[0]["prompt"][0]["role"] == "user" and rows[0]["answer"].isdigit()
    with pytest.raises(UserError, match="without an answer"):
        run("problems", "export", "trl", measured, "--split", "unscored", "-o", tmp_path / "no.parquet")


def test_the_report_shows_the_measurement_and_loads_nothing(measured, tmp_path):
    path = tmp_path / "report.html"
    assert write_page(str(measured), str(path)) == str(path)
    page = path.read_text()
    for words in ("Difficulty of problems", "95% interval", "easy: ", "wrong, answer found", "sums0"):
        assert words in page
    assert not re.search(r"(src|href)=\"https?://", page)
    assert "<script" not in page


def test_a_text_cannot_break_the_report(tiny_model, tmp_path):
    def hostile(prompt: str, draw: int) -> str:
        return answer(prompt, draw) + "<script>alert(1)</script>"

    problems = write_problems(tmp_path / "p.jsonl", [0.4] * 4)
    with FakeServer(tokenizer=tiny_model, model=MODEL, reply=hostile) as server:
        measure(server, problems, tmp_path / "out", tiny_model)
    write_page(str(tmp_path / "out"), str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()
    assert "alert(1)" in page and "<script>" not in page


def test_guru_rows_come_back_as_they_went_in(tiny_model, tmp_path, reference_data):
    guru = reference_data / "problems" / "guru-math-512.parquet"

    def guess(prompt: str, draw: int) -> str:
        return f"I say \\boxed{{{draw % 3}}}."

    with FakeServer(tokenizer=tiny_model, model=MODEL, reply=guess) as server:
        measured = measure(server, guru, tmp_path / "out", tiny_model, samples=4, chunk_problems=200)
    before, after = read_all([str(guru)]), pl.read_parquet(tmp_path / "out" / "problems" / "problems.parquet")
    assert after.height == 512 and measured.unscored == {}
    by_uid = {row["extra_info"]["uid"]: row for row in after.to_dicts()}
    assert len(by_uid) == 512

    def told(problem: Problem) -> tuple:
        row = by_uid[problem.uid]
        rates = {one["name"]: one["rate"] for one in row["carried_pass_rates"]}
        return row["data_source"], tuple(row["prompt"]), row["reward_model"]["ground_truth"], rates

    assert [told(p) for p in before] == [(p.data_source, p.prompt, p.ground_truth, p.carried) for p in before]
    assert not any("\\\\frac" in row["reward_model"]["ground_truth"] for row in by_uid.values())
    # Other people's rates are compared with ours, and never taken for ours.
    assert {row["name"] for row in measured.carried_agreement()} == {"qwen2.5_7b_pass_rate", "qwen3_30b_pass_rate"}
    assert "qwen2.5_7b_pass_rate" not in measured.problems.columns
    write_page(str(tmp_path / "out"), str(tmp_path / "report.html"))
    assert "qwen3_30b_pass_rate" in (tmp_path / "report.html").read_text()
