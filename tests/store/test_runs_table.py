"""Tables of runs: formats, other ways of giving D', and errors that name the cell or the nearest column."""

import gzip

import numpy as np
import polars as pl
import pytest

from derivedata.errors import UserError
from derivedata.store.runs_table import read_runs_table

GOOD = """n_params,fresh_tokens,derived_tokens,strategy,loss
14000000,28000000,0,1epoch,5.1
14000000,28000000,56e6,repeat,4.6
"""


def table(tmp_path, text, name="runs.csv"):
    path = tmp_path / name
    path.write_text(text)
    return read_runs_table(path)


def test_csv_jsonl_and_parquet_hold_the_same(tmp_path):
    expected = table(tmp_path, GOOD).columns
    frame = pl.read_csv(tmp_path / "runs.csv")
    frame.write_ndjson(tmp_path / "runs.jsonl")
    frame.write_parquet(tmp_path / "runs.parquet")
    (tmp_path / "runs.csv.gz").write_bytes(gzip.compress(GOOD.encode()))
    for name in ("runs.jsonl", "runs.parquet", "runs.csv.gz"):
        columns = read_runs_table(tmp_path / name).columns
        assert columns.keys() == expected.keys()
        for column in ("n_params", "fresh_tokens", "derived_tokens", "loss"):
            assert columns[column] == pytest.approx(expected[column])
        assert list(columns["strategy"]) == ["1epoch", "repeat"]


@pytest.mark.parametrize(
    ("header", "row", "derived", "note"),
    [
        ("params,unique_tokens,epochs,loss", "1e8,1e9,4,3.2", 3e9, "derived_tokens = (epochs - 1) x fresh_tokens"),
        ("N,D,total_tokens,loss", "1e8,1e9,4e9,3.2", 3e9, "derived_tokens = total_tokens - fresh_tokens"),
        ("n_params,fresh_tokens,loss", "1e8,1e9,3.2", 0.0, "every run taken as one epoch"),
    ],
)
def test_derived_tokens_may_be_given_in_other_ways(tmp_path, header, row, derived, note):
    found = table(tmp_path, f"{header}\n{row}\n")
    assert found.columns["derived_tokens"] == pytest.approx([derived])
    assert list(found.columns["strategy"]) == (["repeat"] if derived else [""])
    assert note in found.notes[0]


def test_tokens_of_a_one_epoch_table_may_come_from_flops(tmp_path):
    found = table(tmp_path, "Model Size,Training FLOP,loss\n1e8,6e17,3.2\n")
    assert found.columns["fresh_tokens"] == pytest.approx([1e9])


def test_measured_tokens_win_over_epochs(tmp_path):
    text = "n_params,fresh_tokens,epochs,derived_tokens,strategy,loss\n1e8,1e9,1,3.1e8,paraphrase,3\n"
    assert table(tmp_path, text).columns["derived_tokens"] == pytest.approx([3.1e8])


def test_optional_columns_and_others_are_kept(tmp_path):
    text = "n_params,fresh_tokens,loss,seed,weight,cluster,note\n1e8,1e9,3,1,0.5,a,x\n1e8,2e9,2.9,,1,b,y\n"
    found = table(tmp_path, text)
    assert list(found.columns["seed"]) == ["1", None]
    assert found.columns["weight"] == pytest.approx([0.5, 1.0])
    assert list(found.columns["cluster"]) == ["a", "b"]
    assert list(found.others["note"]) == ["x", "y"]


def test_an_empty_loss_is_no_number_but_no_error_either(tmp_path):
    assert np.isnan(table(tmp_path, GOOD.replace("4.6", "")).columns["loss"][1])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("loss", "lss"), "no column loss. The nearest is 'lss'; rename it"),
        (GOOD.replace("n_params", "n_parms"), "no column n_params. The nearest is 'n_parms'"),
        (
            GOOD.replace("fresh_tokens", "fresh_tokns"),
            "no column fresh_tokens (or unique_tokens). The nearest is 'fresh_tokns'",
        ),
        (GOOD.replace("derived_tokens", "deriv_tokens"), "no column derived_tokens (or epochs, or total_tokens)"),
        (GOOD.replace("strategy", "kind"), "no column strategy (which says what made the derived tokens)"),
        (GOOD.replace("14000000,28000000,56e6", "14M,28000000,56e6"), "row 2: n_params is not a number (got 14M)"),
        (GOOD.replace("repeat", ""), "row 2: a run with derived tokens names no strategy"),
        ("n_params,fresh_tokens,epochs,loss\n1e8,1e9,0.5,3\n", "row 1: epochs must be 1 or more (got 0.5)"),
        (
            "n_params,fresh_tokens,total_tokens,loss\n1e8,1e9,5e8,3\n",
            "row 1: total_tokens is less than the fresh tokens",
        ),
        ("n_params,fresh_tokens,loss,weight\n1e8,1e9,3,-1\n", "row 1: weight must be zero or more"),
        (GOOD.splitlines()[0] + "\n", "the table holds no runs"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(tmp_path, text, words):
    with pytest.raises(UserError) as error:
        table(tmp_path, text)
    assert words in error.value.line


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such table"):
        read_runs_table(tmp_path / "absent.csv")
    with pytest.raises(UserError, match="not a table of runs"):
        table(tmp_path, "x", "runs.xlsx")
    with pytest.raises(UserError, match="cannot be read as a table"):
        table(tmp_path, "not json\n", "runs.jsonl")


def test_another_column_can_hold_n(tmp_path):
    (tmp_path / "runs.csv").write_text("n_params,n_nominal,fresh_tokens,loss\n1e8,9e7,1e9,3\n")
    assert read_runs_table(tmp_path / "runs.csv", n_column="n_nominal").columns["n_params"] == pytest.approx([9e7])
    with pytest.raises(UserError, match=r"no column n_nominl.*nearest is 'n_nominal'"):
        read_runs_table(tmp_path / "runs.csv", n_column="n_nominl")
