"""`derivedata query` and `derivedata manifest` as people type them."""

from __future__ import annotations

import csv
import io
import json

import pyarrow.parquet as pq
import pytest

from derivedata.cli import main
from derivedata.store.ledger import Ledger
from derivedata.store.paths import Folder
from tests.store import samples


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> str:
    folder = Folder(tmp_path_factory.mktemp("out"))
    samples.work(Ledger(folder), range(3), text=lambda key: "bad" if key == "0/0/0/faq" else key)
    return folder.url


@pytest.fixture
def run(capsys):
    """Runs a command line; gives (exit code, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = 0
        try:
            main(list(arguments))
        except SystemExit as exit:
            code = exit.code
        return code, *capsys.readouterr()

    return call


COUNTS = "SELECT style, count(*) AS n FROM documents GROUP BY style ORDER BY style"


def test_a_table(run, out):
    assert run("query", out, COUNTS) == (0, "style  n\n-----  -\nfaq    5\ntable  6\n(2 rows)\n", "")


def test_csv_and_json(run, out):
    assert run("query", out, COUNTS, "--format", "csv")[1] == "style,n\nfaq,5\ntable,6\n"
    assert json.loads(run("query", out, COUNTS, "--format", "json")[1]) == [
        {"style": "faq", "n": 5},
        {"style": "table", "n": 6},
    ]
    assert run("query", out, COUNTS + " LIMIT 0", "--format", "json")[1] == "[]\n"


def test_parquet_and_files(run, out, tmp_path):
    target = tmp_path / "x.parquet"
    assert run("query", out, COUNTS, "--format", "parquet", "-o", str(target)) == (0, "", f"2 rows in {target}\n")
    assert pq.read_table(target)["n"].to_pylist() == [5, 6]
    run("query", out, COUNTS, "--format", "csv", "-o", str(tmp_path / "x.csv"))
    assert (tmp_path / "x.csv").read_text() == "style,n\nfaq,5\ntable,6\n"
    assert run("query", out, COUNTS, "--format", "parquet")[0::2] == (1, "derivedata: --format parquet needs -o FILE\n")
    code, _, error = run("query", out, COUNTS, "-o", str(tmp_path / "no" / "x"), "--format", "csv")
    assert code == 1 and error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", "x.parquet"]


def test_several_corpora(run, out):
    sql = "SELECT count(*) AS n FROM a.documents JOIN b.documents USING (uid)"
    assert run("query", f"a={out}", f"b={out}", sql)[1].splitlines()[2] == "11"
    assert "several corpora need names" in run("query", out, out, sql)[2]
    assert "the same name" in run("query", f"a={out}", f"a={out}", sql)[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{out}",), "a corpus and an SQL statement are wanted"),
        (("{out}", "DROP VIEW documents"), "read-only"),
        (("{out}", "SELECT nope FROM shards"), "in shards"),
        (("{out}/nothing", "SELECT 1"), "no manifest"),
    ],
)
def test_failures_are_one_line(run, out, arguments, said):
    code, printed, error = run("query", *(argument.format(out=out) for argument in arguments))
    assert (code, printed, error.count("\n")) == (1, "", 1) and said in error


def test_wide_values_are_cut_and_nothing_steers_the_terminal(run, out):
    sql = r"SELECT e'\x1b[31mred\nnext' AS a, repeat('x', 500) AS b, NULL AS c, '日本' AS d, 1.5 AS e"
    lines = run("query", out, sql)[1].splitlines()
    assert "\x1b" not in lines[2] and "�[31mred next" in lines[2]
    assert "…" in lines[2] and len(lines[2]) < 120 and "null" in lines[2] and lines[2].endswith("1.5")
    assert len(lines) == 4


def test_csv_cells_are_no_formulas_and_no_commands(run, out):
    sql = r"SELECT '=1+1' AS a, '@x' AS b, '-5' AS c, -5 AS d, e'a\x1bb' AS e, '+CMD|x' AS f, e'two\nlines' AS g"
    row = list(csv.reader(io.StringIO(run("query", out, sql, "--format", "csv")[1])))[1]
    assert row == ["'=1+1", "'@x", "-5", "-5", "a\N{REPLACEMENT CHARACTER}b", "'+CMD|x", "two\nlines"]


def test_json_is_json_whatever_the_values(run, out):
    sql = "SELECT 'nan'::DOUBLE AS a, chr(155) AS b, DATE '2026-01-02' AS c, [1, NULL] AS d, 1.50::DECIMAL(9, 2) AS e"
    sql += r", '\x01'::BLOB AS f"
    text = run("query", out, sql, "--format", "json")[1]
    assert "\x9b" not in text
    assert json.loads(text) == [{"a": None, "b": "\x9b", "c": "2026-01-02", "d": [1, None], "e": 1.5, "f": "01"}]


def test_long_results_say_what_is_missing(run, out):
    printed = run("query", out, "SELECT * FROM range(2500)")[1].splitlines()
    assert len(printed) == 1003 and printed[-1] == "(1,000 of 2,500 rows; --format csv, json or parquet gives all)"


def test_explain_keeps_its_lines(run, out):
    assert len(run("query", out, "EXPLAIN SELECT * FROM documents")[1].splitlines()) > 3


def test_manifest_prints_the_summary(run, out):
    printed = run("manifest", out)[1]
    assert "11 documents, 11 tokens," in printed and "in 6 shards" in printed
    assert "books of generation: planned 12 = accepted 11 + rejected 1 (bad 1)" in printed
    assert json.loads(run("manifest", out, "--json")[1])["books"]["generation"]["rejected"] == {"bad": 1}
    code, _, error = run("manifest", f"{out}/nothing")
    assert code == 1 and "no manifest" in error
