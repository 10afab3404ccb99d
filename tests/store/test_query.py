"""SQL over manifests, and that it can do nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest

from derivedata.errors import UserError
from derivedata.store.compaction import compact
from derivedata.store.fingerprint import RunConfig
from derivedata.store.ledger import Ledger
from derivedata.store.paths import Folder
from derivedata.store.query import check_statement, connect, open_query, run_query
from derivedata.store.runs import new_run, open_run
from tests.store import samples


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> Folder:
    folder = Folder(tmp_path_factory.mktemp("out"))
    record = new_run(RunConfig(identity={"seed": 7}), run_id="r1", command=["derivedata", "x y", "--api-key", "abc"])
    open_run(folder, record)
    ledger = Ledger(folder)
    samples.work(ledger, range(2))
    compact(folder)
    samples.work(ledger, [2], text=lambda key: "bad" if key.endswith("faq") else key)
    return folder


def rows(output: Folder, sql: str, *parameters) -> list[tuple]:
    table = run_query({"corpus": output}, sql, list(parameters) or None)
    return [tuple(row.values()) for row in table.to_pylist()]


def test_views(output):
    assert rows(output, "SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY 1") == [
        ("books",),
        ("documents",),
        ("rejected",),
        ("runs",),
        ("shards",),
    ]
    assert rows(output, "SELECT style, count(*), sum(tokens) FROM documents GROUP BY style ORDER BY ALL") == [
        ("faq", 4, 4),
        ("table", 6, 6),
    ]
    assert rows(output, "SELECT reason, count(*) FROM rejected GROUP BY reason") == [("bad", 2)]
    assert rows(output, "SELECT sum(count) FROM books WHERE account = 'planned'") == [(12,)]


def test_documents_join_shards_by_path(output):
    sql = "SELECT count(*), count(DISTINCT s.path), sum(s.documents) FROM documents d JOIN shards s ON d.shard = s.path"
    assert rows(output, sql) == [(10, 5, 20)]


def test_runs_without_secrets(output):
    ((run_id, command, seed),) = rows(output, "SELECT run_id, command, config->>'$.identity.seed' FROM runs")
    assert (run_id, command, seed) == ("r1", "derivedata 'x y' --api-key '***'", "7")


def test_parameters(output):
    assert rows(output, "SELECT count(*) FROM documents WHERE style = ?", "faq") == [(4,)]


def test_several_corpora_under_their_names(output, tmp_path):
    other = Folder(tmp_path)
    samples.work(Ledger(other), [0])
    corpora = {"here": output, "there": other.url}
    for sql, count in (("documents", 10), ("here.documents", 10), ("there.documents", 4)):
        assert run_query(corpora, f"SELECT count(*) AS n FROM {sql}")["n"].to_pylist() == [count]
    shared = "SELECT count(*) AS n FROM here.documents JOIN there.documents USING (uid)"
    assert run_query(corpora, shared)["n"].to_pylist() == [4]


def test_remote_manifests_are_read_through_fsspec(output):
    remote = Folder("memory://query-test")
    with pytest.warns(UserWarning, match="no conditional put"):
        samples.work(Ledger(remote), range(2))
    compact(remote, grace=0)
    assert rows(remote, "SELECT count(*) FROM documents WHERE style = 'faq'") == [(4,)]


def test_results_come_in_batches(output):
    with open_query({"c": output}, "SELECT * FROM range(200000)") as reader:
        assert sum(batch.num_rows for batch in reader) == 200_000


def test_explain_and_describe_pass(output):
    assert rows(output, "EXPLAIN SELECT * FROM documents")
    assert rows(output, "EXPLAIN ANALYZE SELECT count(*) FROM documents")
    assert ("uid", "VARCHAR") in [row[:2] for row in rows(output, "DESCRIBE documents")]
    assert rows(output, "SELECT * FROM (PIVOT documents ON style IN ('faq', 'table') USING count(*))")


def test_a_view_whose_files_compaction_removes_is_looked_up_again(tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    samples.work(Ledger(folder), range(3))
    real = connect

    def compacted_meanwhile(corpora):
        monkeypatch.setattr("derivedata.store.query.connect", real)
        connection = real(corpora)
        compact(folder, grace=0)
        return connection

    monkeypatch.setattr("derivedata.store.query.connect", compacted_meanwhile)
    assert rows(folder, "SELECT count(text_sha256) FROM documents") == [(12,)]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t (a INT)",
        "CREATE VIEW v AS SELECT 1",
        "CREATE MACRO f(a) AS a",
        "INSERT INTO documents SELECT * FROM documents",
        "UPDATE documents SET style = 'x'",
        "DELETE FROM documents",
        "DROP VIEW documents",
        "ALTER VIEW documents RENAME TO d",
        "COPY (SELECT 1) TO '{away}/x.csv'",
        "COPY documents FROM '{away}/secret.csv'",
        "EXPLAIN COPY (SELECT 1) TO '{away}/x.csv'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{away}/x.csv'",
        "EXPLAIN (FORMAT json) COPY (SELECT 1) TO '{away}/x.csv'",
        "EXPORT DATABASE '{away}/d'",
        "IMPORT DATABASE '{away}/d'",
        "ATTACH '{away}/x.db' AS x",
        "ATTACH ':memory:' AS x",
        "DETACH memory",
        "INSTALL httpfs",
        "LOAD httpfs",
        "UPDATE EXTENSIONS",
        "SET threads = 1",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "PRAGMA database_list",
        "PRAGMA enable_profiling",
        "CALL pragma_version()",
        "CHECKPOINT",
        "VACUUM",
        "USE memory",
        "BEGIN",
        "PREPARE p AS SELECT 1",
        "CREATE SECRET s (TYPE s3)",
        "MERGE INTO documents USING shards ON (true) WHEN MATCHED THEN DELETE",
        "SELECT 1; DROP VIEW documents",
        "SELECT 1; SELECT 2",
        "",
        "-- nothing",
    ],
)
def test_everything_but_reading_is_refused_in_one_line(output, tmp_path, sql):
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with pytest.raises(UserError) as caught:
        run_query({"c": output}, sql.format(away=tmp_path))
    assert "\n" not in caught.value.line
    assert os.listdir(tmp_path) == ["secret.csv"]


READS = [
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM '{file}'",
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_blob('{file}')",
    "SELECT * FROM read_json('{file}')",
    "SELECT * FROM read_parquet('{shard}')",
    "SELECT * FROM parquet_metadata('{shard}')",
    "SELECT * FROM sniff_csv('{file}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM read_csv('file://{file}')",
    "SELECT * FROM read_csv('/dev/stdin')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_csv('https://localhost:1/x.csv')",
    "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
    "SELECT getenv('HOME')",
    "SELECT * FROM query('COPY (SELECT 1) TO ''{file}.out''')",
    "SELECT * FROM sqlite_scan('{file}', 'x')",
    "SELECT * FROM (SELECT unnest([1])) , read_text('{file}')",
    "WITH x AS (SELECT * FROM read_text('{file}')) SELECT * FROM x",
    "SELECT (SELECT content FROM read_text('{file}'))",
]


@pytest.mark.parametrize("sql", READS)
def test_select_reaches_no_file_no_network_and_no_program(output, tmp_path, sql):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\nhunter2\n")
    shard = output.full(next(name for name in output.names("manifest/") if name.endswith(".parquet")))
    with pytest.raises(UserError) as caught:
        run_query({"c": output}, sql.format(file=secret, folder=tmp_path, shard=shard))
    assert "hunter2" not in caught.value.line
    assert os.listdir(tmp_path) == ["secret.csv"]


def test_no_secret_is_known(output):
    assert rows(output, "SELECT * FROM duckdb_secrets()") == []
    assert rows(output, "SELECT * FROM which_secret('s3://x', 's3')") == []


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{away}/x.csv'",
        "COPY (SELECT 1) TO '{manifest}' (FORMAT parquet, USE_TMP_FILE false)",
        "COPY (SELECT 1) TO '{manifest}' (FORMAT parquet)",
        "ATTACH '{away}/x.db'",
        "EXPORT DATABASE '{away}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SET allowed_directories = ['/']",
        "RESET enable_external_access",
        "INSERT INTO documents SELECT * FROM documents",
    ],
)
def test_the_bare_connection_is_locked_too(output, tmp_path, sql):
    manifest = output.full(next(name for name in output.names("manifest/units/")))
    before = Path(manifest).read_bytes()
    connection = connect({"c": output})
    with pytest.raises(duckdb.Error):
        connection.execute(sql.format(away=tmp_path, manifest=manifest))
    assert Path(manifest).read_bytes() == before and os.listdir(tmp_path) == []
    assert connection.execute("SELECT count(*) FROM documents").fetchone() == (10,)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT nope FROM documents", r'column "nope" not found.*There are uid, id, source.* in documents'),
        ("SELECT * FROM nope", "nope does not exist. There are books, documents, rejected, runs, shards"),
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("SELECT 1 +", "syntax error"),
        ("SELECT CAST(style AS INT) FROM documents", "Could not convert string"),
        ("PIVOT documents ON style", r"A PIVOT must list its columns: ON column IN"),
        ("DROP VIEW documents", "read-only: SELECT and EXPLAIN are allowed, DROP is not"),
    ],
)
def test_errors_are_one_line_with_what_there_is(output, sql, said):
    with pytest.raises(UserError, match=said) as caught:
        run_query({"c": output}, sql)
    assert "\n" not in caught.value.line


def test_names_of_corpora_are_names(output):
    for name in ("a b", "main", 'x"; DROP', "temp", "", "1"):
        with pytest.raises(UserError, match="not a name for a corpus"):
            connect({name: output})


def test_a_folder_without_a_manifest_is_said(tmp_path):
    with pytest.raises(UserError, match="no manifest"):
        run_query({"c": tmp_path}, "SELECT 1")


def test_columns_of_an_empty_output_are_there(tmp_path):
    folder = Folder(tmp_path)
    open_run(folder, new_run(RunConfig()))
    assert rows(folder, "SELECT count(uid), (SELECT count(*) FROM rejected) FROM documents") == [(0, 0)]


def test_nothing_is_left_in_the_temporary_folder(output, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows(output, "SELECT count(*) FROM documents")
    assert os.listdir(tmp_path) == []


def test_the_guard_reads_statements_not_words(output):
    connection = connect({"c": output})
    check_statement(connection, "SELECT 'DROP TABLE x; INSERT' AS a -- COPY")
    for sql in (
        "/* SELECT */ DROP VIEW documents",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO 'x'",
        "EXPLAIN (ANALYZE) SET a = 1",
    ):
        with pytest.raises(UserError, match="read-only"):
            check_statement(connection, sql)


def test_sql_cannot_read_the_variables_of_the_program(output):
    import pyarrow as pa

    a_table = pa.table({"secret": ["hunter2"]})
    with pytest.raises(duckdb.CatalogException, match="a_table"):
        connect({"c": output}).execute("SELECT * FROM a_table")
    assert a_table.num_rows == 1
