"""The journal: what is finished survives a kill, in whole segments."""

from __future__ import annotations

import math
import time

import pytest

from derivedata.errors import UserError
from derivedata.store.journal import Journal, read_segment, writer_name
from derivedata.store.paths import Folder

pytestmark = pytest.mark.faults


def journal(folder: Folder, writer: str = "me", **settings) -> Journal:
    return Journal(folder, "unit", writer, **({"seconds": 3600} | settings))


def test_records_come_back_as_they_went_in(tmp_path):
    folder = Folder(tmp_path)
    odd = {"key": "k", "lone": "\ud800", "nul": "\x00", "lines": "a\nb\r\u2028c", "big": 10**30, "nan": float("nan")}
    with journal(folder) as mine:
        mine.append(odd)
    (back,) = journal(folder).records()
    assert math.isnan(back.pop("nan")) and math.isnan(odd.pop("nan"))
    assert back == odd


def test_nothing_is_written_before_it_is_time(tmp_path):
    mine = journal(Folder(tmp_path))
    mine.append({"key": "a"})
    assert mine.segments() == []
    mine.flush()
    assert mine.segments() == ["journal/unit/me-000000.jsonl.zst"]
    mine.flush()
    assert len(mine.segments()) == 1


def test_a_segment_is_written_after_a_while_without_further_records(tmp_path):
    mine = journal(Folder(tmp_path), seconds=0.05)
    mine.append({"key": "a"})
    mine.append({"key": "b"})
    for _ in range(200):
        if mine.segments():
            break
        time.sleep(0.02)
    assert [record["key"] for record in mine.records()] == ["a", "b"]


def test_a_full_segment_is_written_at_once(tmp_path):
    mine = journal(Folder(tmp_path), max_bytes=1000)
    mine.append({"key": "a", "text": "x" * 2000})
    assert len(mine.segments()) == 1


def test_object_storage_gets_fewer_segments(tmp_path):
    assert Journal(Folder(tmp_path), "u", "me").seconds == 5
    assert Journal(Folder("memory://j"), "u", "me").seconds == 30


def test_the_first_record_of_a_key_wins(tmp_path):
    folder = Folder(tmp_path)
    for writer, text in (("a", "first"), ("b", "second")):
        with journal(folder, writer) as mine:
            mine.append({"key": "k", "text": text})
            mine.append({"key": writer})
    assert list(journal(folder).records()) == [{"key": "k", "text": "first"}, {"key": "a"}, {"key": "b"}]


def test_a_torn_segment_is_skipped_and_named(tmp_path):
    folder = Folder(tmp_path)
    for writer in ("a", "b"):
        with journal(folder, writer) as mine:
            mine.append({"key": writer, "text": "x" * 500})
    whole = folder.read("journal/unit/a-000000.jsonl.zst")
    folder.replace("journal/unit/a-000000.jsonl.zst", whole[:-8])
    with pytest.warns(UserWarning, match=r"unit/a-000000.jsonl.zst: a torn journal segment"):
        assert [record["key"] for record in journal(folder).records()] == ["b"]


@pytest.mark.parametrize("content", [b"", b"not zstd", b"\x28\xb5\x2f\xfd\x00"])
def test_segments_of_any_bytes_are_torn_segments(tmp_path, content):
    folder = Folder(tmp_path)
    folder.create("journal/unit/a-000000.jsonl.zst", content)
    with pytest.warns(UserWarning, match="torn"):
        assert read_segment(folder, "journal/unit/a-000000.jsonl.zst") is None


def test_a_failed_flush_keeps_the_records(tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    mine = journal(folder)
    mine.append({"key": "a"})
    create = folder.create
    monkeypatch.setattr(folder, "create", _full_disk)
    with pytest.raises(UserError, match="no space left"):
        mine.flush()
    monkeypatch.setattr(folder, "create", create)
    mine.append({"key": "b"})
    mine.close()
    assert [record["key"] for record in mine.records()] == ["a", "b"]


def test_a_fault_of_the_timer_reaches_the_writer(tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    mine = journal(folder, seconds=0.01)
    monkeypatch.setattr(folder, "create", _full_disk)
    mine.append({"key": "a"})
    with pytest.raises(UserError, match="no space left"):
        for _ in range(200):
            time.sleep(0.02)
            mine.append({"key": "b"})
    monkeypatch.undo()
    mine.close()
    assert {record["key"] for record in mine.records()} == {"a", "b"}


def _full_disk(path: str, data: bytes) -> bool:
    raise UserError("no space left", where=path)


def test_a_put_whose_answer_was_lost_counts_as_done(tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    mine = journal(folder)
    create = folder.create
    monkeypatch.setattr(folder, "create", lambda path, data: create(path, data) and False)
    mine.append({"key": "a"})
    mine.flush()
    mine.append({"key": "b"})
    mine.flush()
    assert [record["key"] for record in mine.records()] == ["a", "b"]


def test_writers_never_share_a_name(tmp_path):
    assert writer_name() != writer_name()
    folder = Folder(tmp_path)
    for text in ("one", "two"):
        twin = journal(folder, "twin")
        twin.append({"key": text})
        if text == "one":
            twin.flush()
        else:
            with pytest.raises(UserError, match="another writer has this writer's name"):
                twin.flush()


def test_a_record_needs_a_key(tmp_path):
    with pytest.raises(ValueError, match="key"):
        journal(Folder(tmp_path)).append({"text": "x"})
