"""Ingest goes on after any kill: each row once, the same bytes as without."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from derivedata.pipelines.ingest import IngestOptions, ingest
from derivedata.pipelines.ingest_stage import IngestStage
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from tests.pipelines.test_ingest import rows, write_lines

pytestmark = pytest.mark.faults


class Killed(BaseException):
    """Not an Exception: nothing may catch it and go on."""


def texts(count: int) -> list[dict]:
    return [{"id": f"d{n}", "text": f"Document {n}. " + "Words of it. " * (n % 7)} for n in range(count)]


def make_inputs(folder: Path, count: int = 60) -> list[str]:
    """The same documents in every kind of file that is read in its own way."""
    folder.mkdir()
    write_lines(folder / "a.jsonl", texts(count))
    write_lines(folder / "b.jsonl.gz", texts(count), compressed=True)
    (folder / "c.json").write_text(json.dumps(texts(count)))
    pq.write_table(pa.Table.from_pylist(texts(count)), folder / "d.parquet", row_group_size=17)
    with pa.OSFile(str(folder / "e.arrow"), "wb") as sink:
        table = pa.Table.from_pylist(texts(count))
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=13)
    for n, row in enumerate(texts(count)):
        (folder / f"f{n:03d}.txt").write_text(row["text"])
    return [str(folder)]


def options(sources, output, **more) -> IngestOptions:
    return IngestOptions(sources=tuple(sources), output=str(output), chunk_bytes=700, **more)


@pytest.mark.parametrize("before", [True, False])
def test_stopped_at_every_commit_it_goes_on_where_it_was(tmp_path, monkeypatch, before):
    sources = make_inputs(tmp_path / "in")
    publish, sweep = Ledger.publish, [0, 0]

    def dying(self, name, part):
        sweep[0] += 1
        stop = sweep[0] > sweep[1]
        if stop and before:
            raise Killed
        created = publish(self, name, part)
        if stop:
            sweep[0] = 0
            raise Killed
        return created

    ingest(options(sources, tmp_path / "quiet"))
    pieces = Manifest(tmp_path / "quiet").units().height
    assert pieces >= 30
    monkeypatch.setattr(Ledger, "publish", dying)
    runs = 0
    while True:
        sweep[0], sweep[1] = 0, (runs % 3) + 1
        runs += 1
        try:
            ingest(options(sources, tmp_path / "out"))
            break
        except Killed:
            continue
    assert runs > 10
    assert verify_corpus(str(tmp_path / "out")).problems == []
    without_date = [{**row, "added": None} for row in rows(tmp_path / "out")]
    assert without_date == [{**row, "added": None} for row in rows(tmp_path / "quiet")]
    assert Manifest(tmp_path / "out").books() == Manifest(tmp_path / "quiet").books()


def test_the_number_of_tasks_changes_nothing(tmp_path):
    sources = make_inputs(tmp_path / "in", 20)
    ingest(options(sources, tmp_path / "one"))
    ingest(options(sources, tmp_path / "many", tasks=4, workers=1))
    hide = {"added": None}
    assert [row | hide for row in rows(tmp_path / "one")] == [row | hide for row in rows(tmp_path / "many")]


def test_attributes_are_joined_alike_after_a_stop(tmp_path, monkeypatch):
    write_lines(tmp_path / "c" / "documents" / "x.jsonl", texts(40))
    values = [{"id": f"d{n}", "attributes": {"n": n}} for n in (*range(20, 40), *range(20))]
    (tmp_path / "c" / "attributes" / "n").mkdir(parents=True)
    lines = b"".join(json.dumps(value).encode() + b"\n" for value in values)
    (tmp_path / "c" / "attributes" / "n" / "x.jsonl.gz").write_bytes(gzip.compress(lines))
    piece, made = IngestStage.piece, []

    def dying(self, *arguments):
        made.append(1)
        if len(made) == 3:
            raise Killed
        return piece(self, *arguments)

    monkeypatch.setattr(IngestStage, "piece", dying)
    wanted = options([str(tmp_path / "c")], tmp_path / "out", attributes=("n",))
    with pytest.raises(Killed):
        ingest(wanted)
    assert ingest(wanted).attributes == (40, 0, 0)
    assert [row["metadata"]["attributes"]["n"] for row in rows(tmp_path / "out")] == list(range(40))


def test_kill_dash_nine_loses_nothing_and_doubles_nothing(tmp_path):
    write_lines(tmp_path / "in" / "x.jsonl.gz", texts(6_000), compressed=True)
    write_lines(tmp_path / "in" / "y.jsonl", texts(6_000))
    wanted = IngestOptions(sources=(str(tmp_path / "in"),), output=str(tmp_path / "out"), chunk_bytes=20_000)
    code = (
        "import json, sys; from derivedata.pipelines.ingest import IngestOptions, ingest; "
        "ingest(IngestOptions(**json.loads(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, json.dumps(asdict(wanted))]
    units = tmp_path / "out" / "manifest" / "units"
    process = subprocess.Popen(command)
    while (not units.is_dir() or len(os.listdir(units)) < 3) and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out" / "README.md").exists()
    ingest(wanted)
    assert verify_corpus(str(tmp_path / "out")).problems == []
    assert [row["id"] for row in rows(tmp_path / "out")] == [f"d{n}" for n in range(6_000)] * 2
