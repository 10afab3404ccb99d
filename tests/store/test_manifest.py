"""The manifest: tables, summary, and compaction into snapshots."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

import polars as pl
import pyarrow as pa
import pytest

from derivedata.errors import UserError
from derivedata.store import compaction, tables
from derivedata.store.books import Books
from derivedata.store.compaction import compact
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.snapshots import Snapshots
from derivedata.store.tables import DOCUMENTS, SHARDS, Part, rows_to_table, write_parquet
from derivedata.store.units import Unit
from tests.store import samples


@pytest.fixture
def folder(tmp_path) -> Folder:
    """An output of four chunks; every text of chunk 2 in style table is rejected."""
    folder = Folder(tmp_path)
    samples.work(Ledger(folder), range(4), text=lambda key: "bad" if key in ("2/0/0/table", "2/1/0/table") else key)
    return folder


def parts(folder: Folder) -> list[str]:
    return [name for name in folder.names("manifest/") if name.split("/")[1] in ("units", "documents", "rejected")]


def test_summary_by_style_with_rejects_and_books(folder):
    summary = Manifest(folder).summary()
    assert summary.styles.select("strategy", "style", "shards", "documents", "tokens").rows() == [
        ("paraphrase", "faq", 4, 8, 8),
        ("paraphrase", "table", 3, 6, 6),
    ]
    assert summary.rejected.rows() == [("generation", "table", "bad", 2)]
    assert summary.books == {"generation": Books(planned=16, accepted=14, rejected={"bad": 2})}
    assert (summary.units, summary.shards, summary.documents, summary.tokens) == (4, 7, 14, 14)
    assert summary.bytes == sum(folder.list("documents/")[i].bytes for i in range(7))
    assert json.loads(json.dumps(summary.to_dict()))["books"]["generation"]["accepted"] == 14


def test_uncounted_tokens_are_unknown_and_not_zero(folder, tmp_path):
    with folder.scratch() as scratch:
        entry, _ = samples.shard(scratch, Unit(9, 0, 1, 0, 1, ("faq",)), "faq", {"k": "two words"})
        entry = replace(entry, tokens=None, tokenizer=None, strategy="repeat", style=None)
        Ledger(folder).publish("repeat-1", Part(stage="repeat", books=Books(planned=1, accepted=1), shards=[entry]))
    summary = Manifest(folder).summary()
    assert summary.styles.filter(strategy="repeat")["tokens"].to_list() == [None]
    assert summary.tokens is None and summary.tokens_told == "tokens not all counted alike"
    alone = replace(summary, styles=summary.styles.filter(strategy="repeat"))
    assert alone.tokens_told == "tokens not counted"


def test_a_damaged_file_is_one_line_with_its_name(folder, tmp_path):
    path = next(name for name in parts(folder) if "/rejected/" in name)
    (tmp_path / path).write_bytes(b"")
    for look in (Manifest(folder).summary, lambda: Manifest(folder).table("rejected")):
        with pytest.raises(UserError, match=r"the manifest is damaged .*rejected.*derivedata verify"):
            look()


def test_frames_are_polars_frames(folder):
    manifest = Manifest(folder)
    assert isinstance(manifest.shards(), pl.DataFrame) and manifest.shards().columns == SHARDS.names
    assert manifest.documents().columns == DOCUMENTS.names
    joined = manifest.documents().join(manifest.shards(), left_on="shard", right_on="path")
    assert joined.height == 14
    assert manifest.scan("documents").filter(pl.col("style") == "faq").collect().height == 8
    assert manifest.units()["stage"].to_list() == ["generation"] * 4


def test_tokens_by_unit(folder):
    units = Manifest(folder).tokens_by_unit()
    assert units == {Unit(c, 0, 2, 0, 1, samples.STYLES): 2 if c == 2 else 4 for c in range(4)}
    Ledger(folder).publish("input-1", Part(stage="input", books=Books()))
    assert Manifest(folder).tokens_by_unit() == units


def test_a_folder_without_a_manifest_is_said(tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path}: no manifest. Name an output folder"):
        Manifest(tmp_path).summary()


def test_the_same_table_gives_the_same_bytes():
    rows = [{"uid": "a", "tokens": 1}, {"uid": "b", "shard": "ü"}]
    one, two = (write_parquet(rows_to_table(rows, DOCUMENTS), metadata={b"k": b"v"}) for _ in range(2))
    assert one == two


def everything(folder: Folder) -> dict[str, list[dict]]:
    manifest = Manifest(folder)
    found = {
        table: manifest.table(table).to_pylist() for table in ("shards", "documents", "rejected", "units", "books")
    }
    return {table: sorted(rows, key=str) for table, rows in found.items()}


def test_compaction_changes_nothing_that_is_read(folder):
    before, summary = everything(folder), Manifest(folder).summary()
    assert compact(folder) == 4
    assert everything(folder) == before
    assert Manifest(folder).summary().to_dict() == summary.to_dict()
    assert Ledger(folder).committed() == [Unit(c, 0, 2, 0, 1, samples.STYLES) for c in range(4)]
    assert samples.read_back(folder)


def test_compaction_is_idempotent(folder):
    compact(folder)
    names = folder.names("manifest/")
    assert compact(folder) == 0
    assert folder.names("manifest/") == names


def test_compaction_waits_until_it_is_worth_it(folder):
    assert compact(folder, at_least=5) == 0
    assert Snapshots(folder).newest() is None


def test_superseded_parts_go_after_a_while_and_not_before(folder):
    before = everything(folder)
    compact(folder, grace=60)
    assert len(parts(folder)) == 9
    for entry in folder.list("manifest/snapshots/"):
        os.utime(folder.full(entry.path), (time.time() - 61,) * 2)
    compact(folder, grace=60)
    assert parts(folder) == []
    assert everything(folder) == before


def test_snapshots_grow_and_small_files_are_merged(folder):
    ledger = Ledger(folder)
    for chunk in range(4, 8):
        samples.work(ledger, [chunk])
        compact(folder, grace=0)
    assert parts(folder) == []
    newest = Snapshots(folder).newest()
    assert newest.number == 4 and newest.parts == 8
    assert sorted(file.table for file in newest.files) == ["books", "documents", "rejected", "shards", "units"]
    assert {int(name.split("/")[2]) for name in folder.names("manifest/snapshots/")} == {4}
    assert len(samples.read_back(folder)) == 14 + 16


def test_large_files_are_listed_again_and_not_copied(folder, monkeypatch):
    monkeypatch.setattr(compaction, "SMALL", 1)
    compact(folder, grace=0)
    before = everything(folder)
    first = {file.path for file in Snapshots(folder).newest().files}
    samples.work(Ledger(folder), [5])
    compact(folder, grace=0)
    newest = Snapshots(folder).newest()
    assert first < {file.path for file in newest.files} and newest.number == 2
    assert all(row in everything(folder)["documents"] for row in before["documents"])


def test_many_rows_are_cut_into_files(folder, monkeypatch):
    monkeypatch.setattr(compaction, "ROW_GROUP", 3)
    monkeypatch.setattr(compaction, "LARGE", 1)
    before = everything(folder)
    compact(folder)
    assert len(Snapshots(folder).newest().of("documents")) == 3
    assert everything(folder) == before


def test_a_unit_committed_again_after_compaction_counts_once(folder):
    """A late writer finds no part, for the snapshot covers it, and creates it anew."""
    unit = Unit(0, 0, 2, 0, 1, samples.STYLES)
    part = folder.read(f"manifest/units/{unit.name}.parquet")
    index = folder.read(f"manifest/documents/{unit.name}.parquet")
    compact(folder, grace=0)
    folder.create(f"manifest/documents/{unit.name}.parquet", index)
    folder.create(f"manifest/units/{unit.name}.parquet", part)
    assert len(samples.read_back(folder)) == 14
    samples.work(Ledger(folder), [9])
    compact(folder, grace=0)
    assert len(samples.read_back(folder)) == 18 and parts(folder) == []


def test_of_two_compactions_one_wins(folder, monkeypatch):
    create = Folder.create

    def other_first(self, path, data):
        if path.endswith("snapshot.json"):
            monkeypatch.setattr(Folder, "create", create)
            assert compact(Folder(folder.url)) == 4
        return create(self, path, data)

    monkeypatch.setattr(Folder, "create", other_first)
    assert compact(folder) == 0
    newest = Snapshots(folder).newest()
    listed = {file.path for file in newest.files} | {"manifest/snapshots/00000001/snapshot.json"}
    assert set(folder.names("manifest/snapshots/")) == listed
    assert len(samples.read_back(folder)) == 14


def test_nothing_is_removed_on_the_word_of_a_damaged_snapshot(folder):
    compact(folder)
    folder.remove(Snapshots(folder).newest().of("documents")[0].path)
    with pytest.raises(UserError, match="a file of the newest snapshot is missing or has another size"):
        compact(folder, grace=0)
    assert len(parts(folder)) == 9


def test_a_lost_index_part_is_named_and_not_compacted_away(folder):
    name = Unit(1, 0, 2, 0, 1, samples.STYLES).name
    folder.remove(f"manifest/documents/{name}.parquet")
    with pytest.raises(UserError, match=rf"manifest/documents/{name}.parquet: there is no such file"):
        compact(folder)
    folder.create(f"manifest/documents/{name}.parquet", write_parquet(DOCUMENTS.empty_table()))
    with pytest.raises(UserError, match="holds 0 rows, its unit committed 4"):
        compact(folder)


def test_a_damaged_part_is_named(folder):
    name = Unit(1, 0, 2, 0, 1, samples.STYLES).name
    folder.replace(f"manifest/units/{name}.parquet", b"PAR1")
    with pytest.raises(UserError, match=rf"manifest/units/{name}.parquet: a damaged part of the manifest"):
        Manifest(folder).summary()


def test_a_damaged_snapshot_is_named(folder):
    compact(folder)
    folder.replace("manifest/snapshots/00000001/snapshot.json", b"{}")
    with pytest.raises(UserError, match=r"00000001/snapshot.json: not a snapshot"):
        Manifest(folder).summary()


def test_a_stage_brings_tables_of_its_own(folder, monkeypatch):
    schema = pa.schema([("uid", pa.string()), ("k", pa.int32())])
    monkeypatch.setattr(tables, "TABLES", dict(tables.TABLES))
    tables.declare("puzzles", schema)
    rows = rows_to_table([{"uid": "p1", "k": 3}], schema)
    part = Part(stage="rollouts", books=Books(planned=16, accepted=16), tables={"puzzles": rows})
    Ledger(folder).publish("puzzles-1", part)
    monkeypatch.undo()  # another program reads, which has never heard of puzzles
    assert Manifest(folder).table("puzzles").to_pylist() == [{"uid": "p1", "k": 3}]
    compact(folder, grace=0)
    assert Manifest(folder).table("puzzles").to_pylist() == [{"uid": "p1", "k": 3}]
    with pytest.raises(UserError, match="no such table"):
        Manifest(folder).table("nonsense")


def test_parts_of_an_older_schema_are_read_with_nulls(folder):
    name = Unit(0, 0, 2, 0, 1, samples.STYLES).name
    path = f"manifest/documents/{name}.parquet"
    import io

    import pyarrow.parquet as pq

    old = pq.read_table(io.BytesIO(folder.read(path))).drop_columns(["epoch", "model"])
    folder.replace(path, write_parquet(old))
    assert Manifest(folder).documents()["epoch"].null_count() == 14
    compact(folder, grace=0)
    assert Manifest(folder).documents()["epoch"].null_count() == 14


def test_a_long_run_compacts_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("derivedata.store.ledger.COMPACT_EVERY", 3)
    folder = Folder(tmp_path)
    samples.work(Ledger(folder), range(7))
    assert Snapshots(folder).newest().parts == 6
    assert len(samples.read_back(folder)) == 28


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", range(5))
@pytest.mark.parametrize("look", ["committed", "view"])
def test_compaction_between_any_two_listings_loses_and_doubles_nothing(folder, monkeypatch, look, call, moment):
    monkeypatch.setattr(
        compaction, "SMALL", 1
    )  # files of old snapshots stay, which hides nothing from a careless reader
    compact(folder, grace=0)
    samples.work(Ledger(folder), [5, 6])
    names, calls = Folder.names, iter(range(1000))

    def disturbed(self, prefix=""):
        if next(calls) != call:
            return names(self, prefix)
        with monkeypatch.context() as undisturbed:
            undisturbed.setattr(Folder, "names", names)
            if moment == "before":
                compact(Folder(folder.url), grace=0)
            found = names(self, prefix)
            if moment == "after":
                compact(Folder(folder.url), grace=0)
            return found

    monkeypatch.setattr(Folder, "names", disturbed)
    if look == "committed":
        assert [unit.chunk for unit in Ledger(folder).committed()] == [0, 1, 2, 3, 5, 6]
    else:
        uids = Manifest(folder).table("documents", ["uid"])["uid"].to_pylist()
        assert len(uids) == len(set(uids)) == 14 + 8
