"""SQL over manifests: a DuckDB connection that sees the tables of the named corpora and nothing else.

    from derivedata.store.query import connect, run_query
    run_query({"faq": "out"}, "SELECT style, sum(tokens) FROM documents GROUP BY style")     # an Arrow table

DuckDB itself opens no file: the tables reach it as lazy Arrow datasets, local or remote alike, so all its file access,
extensions and settings are locked. `run_query` lets SELECT and EXPLAIN pass and refuses every other statement.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from derivedata.errors import UserError
from derivedata.store.manifest import Manifest, View
from derivedata.store.paths import Folder
from derivedata.store.runs import RunRecord, all_runs

RUNS = pa.schema(
    [
        ("run_id", pa.string()),
        ("command", pa.string()),
        ("status", pa.string()),
        ("started", pa.timestamp("s")),
        ("ended", pa.timestamp("s")),
        ("fingerprint", pa.string()),
        ("config", pa.string()),
        ("versions", pa.string()),
        ("books", pa.string()),
    ]
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}")
_TAKEN = {"main", "temp", "system", "memory", "information_schema", "pg_catalog", *("shards", "documents", "rejected")}
_SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",  # or SQL could read the variables of this program
}
# In this order: after the last one nothing can be set any more.
_LOCKS = ("SET enable_external_access = false", "SET lock_configuration = true")


def connect(corpora: Mapping[str, str | os.PathLike | Folder]) -> duckdb.DuckDBPyConnection:
    """A locked in-memory DuckDB connection with views `shards`, `documents`, `rejected`, `runs`, `books` and whatever
    other tables the stages keep. Several corpora: a schema each under its name, the first one also without.

    What is committed afterwards is not seen. Raises UserError for a folder without a manifest, or a bad name.
    """
    if not corpora:
        raise ValueError("no corpus")
    views = {}
    for name, where in corpora.items():
        if not _NAME.fullmatch(name) or name.lower() in _TAKEN:
            raise UserError("not a name for a corpus", value=name, remedy="use letters, digits and underscores")
        folder = where if isinstance(where, Folder) else Folder(where)
        views[name] = (Manifest(folder).view(), all_runs(folder))
    # DuckDB makes the folder when a query outgrows the memory, and removes it when the connection closes.
    spill = os.path.join(tempfile.gettempdir(), f"derivedata-query-{uuid.uuid4().hex}")
    connection = duckdb.connect(":memory:", config=_SETTINGS | {"temp_directory": spill})
    for name, (view, runs) in views.items():
        if len(views) > 1:
            connection.execute(f'CREATE SCHEMA "{name}"')
            connection.execute(f'USE "{name}"')
        for table, dataset in _tables(view, runs).items():
            connection.from_arrow(dataset).create_view(table)
    if len(views) > 1:
        connection.execute("USE main")
        first = next(iter(views))
        for table in _tables(*views[first]):
            connection.execute(f'CREATE VIEW "{table}" AS SELECT * FROM "{first}"."{table}"')
    for lock in _LOCKS:
        connection.execute(lock)
    return connection


def run_query(
    corpora: Mapping[str, str | os.PathLike | Folder], sql: str, parameters: Mapping | list | None = None
) -> pa.Table:
    """The result of one SELECT (or EXPLAIN) as Arrow. Raises UserError, one line, for anything DuckDB refuses."""
    with open_query(corpora, sql, parameters) as reader:
        return reader.read_all()


@contextmanager
def open_query(
    corpora: Mapping[str, str | os.PathLike | Folder], sql: str, parameters: Mapping | list | None = None
) -> Iterator[pa.RecordBatchReader]:
    """`run_query` for results larger than memory: a reader of record batches, valid inside the `with` block."""
    for attempt in range(4):
        connection = connect(corpora)
        try:
            check_statement(connection, sql)
            with _said(connection, sql):
                reader = connection.sql(sql, params=parameters).to_arrow_reader(1 << 16)
                # The first batch is fetched here: a file that compaction has just removed shows now, or never.
                first = next(reader, None)
        except _Vanished:
            connection.close()
            if attempt == 3:
                raise
            continue
        except BaseException:
            connection.close()
            raise
        break
    try:
        with _said(connection, sql):
            yield pa.RecordBatchReader.from_batches(reader.schema, _joined(first, reader))
    finally:
        connection.close()


class _Vanished(UserError):
    """A file of the view is gone: compaction has replaced it."""


def _joined(first: pa.RecordBatch | None, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if first is not None:
        yield first
        yield from rest


def check_statement(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raise UserError unless `sql` is exactly one statement that only reads."""
    with _said(connection, sql):
        statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise UserError("one SELECT statement is wanted", value=sql.strip() or "nothing")
    kind, text = _kind(statements[0]), statements[0].query
    if kind == "EXPLAIN":
        # EXPLAIN ANALYZE runs what follows, whatever it is.
        text = re.sub(r"(?is)^\s*EXPLAIN\s+(ANALYZE\s+|\([^)]*\)\s*)?", "", text)
        with _said(connection, sql):
            inner = connection.extract_statements(text)
        kind = _kind(inner[0]) if len(inner) == 1 else "EXPLAIN"
    if kind != "SELECT":
        # A PIVOT that finds its columns by itself is several statements, and creates a type.
        remedy = "a PIVOT must list its columns: ON column IN (...)" if kind == "MULTI" else None
        said = f"manifests are read-only: SELECT and EXPLAIN are allowed, {kind.replace('_', ' ')} is not"
        raise UserError(said, remedy=remedy)


def _kind(statement: duckdb.Statement) -> str:
    try:
        return statement.type.name
    except ValueError:  # kinds that DuckDB's Python module has no name for
        return "THIS STATEMENT"


def _tables(view: View, runs: list[RunRecord]) -> dict[str, ds.Dataset | pa.Table]:
    found: dict[str, ds.Dataset | pa.Table] = {table: view.dataset(table) for table in sorted(view.tables)}
    return found | {"runs": runs_table(runs)}


def runs_table(runs: list[RunRecord]) -> pa.Table:
    """The view `runs`; times are UTC; config, versions and books are JSON texts."""
    rows = []
    for run in runs:
        told = run.to_dict()
        rows.append(
            {name: told[name] for name in ("run_id", "status", "fingerprint")}
            | {name: _utc(told[name]) for name in ("started", "ended")}
            | {name: json.dumps(told[name], ensure_ascii=False) for name in ("config", "versions", "books")}
            | {"command": shlex.join(told["command"])}
        )
    return pa.Table.from_pylist(rows, schema=RUNS)


def _utc(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=None)


@contextmanager
def _said(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[None]:
    """DuckDB's errors as one line, with what there is instead."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        if isinstance(error, UserError):
            raise
        text = str(error)
        if "No such file" in text or isinstance(error, FileNotFoundError):
            raise _Vanished("a file of the manifest is missing", where="query", value=text.splitlines()[0]) from error
        first, _, rest = text.partition("\n")
        what = re.sub(r"^[A-Z][A-Za-z ]* Error: ", "", first).rstrip("!.")
        remedy = None
        if "does not exist" in first and isinstance(error, duckdb.CatalogException):
            remedy = f"there are {', '.join(_there_is(connection))}"
        elif isinstance(error, duckdb.BinderException):
            named = [name for name in _there_is(connection) if re.search(rf"\b{re.escape(name)}\b", sql)]
            candidates = re.search(r"Candidate bindings: ([^\n]*)", rest)
            if named:
                remedy = "there are " + "; ".join(f"{', '.join(_columns(connection, n))} in {n}" for n in named[:2])
            elif candidates:
                remedy = f"there are {candidates[1]}"
        raise UserError(what, where="query", remedy=remedy) from error


def _there_is(connection: duckdb.DuckDBPyConnection) -> list[str]:
    rows = connection.execute(
        "SELECT CASE schema_name WHEN 'main' THEN view_name ELSE schema_name || '.' || view_name END "
        "FROM duckdb_views() WHERE NOT internal ORDER BY schema_name <> 'main', 1"
    ).fetchall()
    return [name for (name,) in rows]


def _columns(connection: duckdb.DuckDBPyConnection, name: str) -> list[str]:
    return [row[0] for row in connection.execute(f"DESCRIBE {name}").fetchall()]
