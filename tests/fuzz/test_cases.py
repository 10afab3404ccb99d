"""Every input that fuzzing has found, and those it starts from, pass their target; SQL stays within the manifest."""

from __future__ import annotations

import os

import pytest

from derivedata.errors import UserError
from derivedata.store.query import run_query
from tests.fuzz import targets
from tests.fuzz.inputs import inputs


@pytest.mark.parametrize("target", targets.TARGETS)
def test_known_inputs_pass(target):
    for data in inputs(target):
        targets.TARGETS[target](data)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM '{secret}'",
        "SELECT * FROM read_csv('{secret}')",
        "SELECT content FROM read_text('{secret}')",
        "SELECT * FROM glob('{folder}/*')",
        "COPY books TO '{folder}/written'",
        "EXPLAIN ANALYZE COPY books TO '{folder}/written'",
        "ATTACH '{folder}/written' AS a",
        "EXPORT DATABASE '{folder}/written'",
        "SELECT 1; COPY books TO '{folder}/written'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "LOAD json",
        "SELECT getenv('HOME')",
        "CREATE TABLE a AS SELECT 1",
        "DROP VIEW books",
    ],
)
def test_sql_reads_the_manifest_and_nothing_else(sql, tmp_path):
    place, _ = targets.manifest()
    secret = tmp_path / "secret.csv"
    secret.write_text("secret\n42\n")
    with pytest.raises(UserError) as refused:
        run_query({"corpus": place}, sql.format(secret=secret, folder=tmp_path))
    assert "\n" not in refused.value.line
    assert os.listdir(tmp_path) == ["secret.csv"]
