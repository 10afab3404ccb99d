"""Shards as they are written: the same bytes each time, in frames that stand alone, hashed, whole or not there."""

import datetime
import gzip
import hashlib
import json
import math
import os
import resource
import subprocess
import zlib
from collections import OrderedDict

import numpy as np
import pytest
import zstandard

from derivedata.corpus.writer import ShardWriter, encode_row
from derivedata.errors import UserError
from tests.corpus.shards import read, shard

FORMATS = ["jsonl.zst", "jsonl.gz", "parquet"]
ROWS = [{"id": f"d{n}", "text": f"Text {n}: " + "wörter " * (n % 40), "metadata": {"n": n}} for n in range(300)]


def write(path, rows=ROWS, **options):
    with ShardWriter(path, **options) as writer:
        for row in rows:
            writer.write(row)
    return writer.shard


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("frame_bytes", [1, 3_000, 1 << 20])
def test_what_is_written_is_what_was_given(tmp_path, format, frame_bytes):
    written = write(tmp_path / f"x.{format}", format=format, frame_bytes=frame_bytes)
    data = written.path.read_bytes()
    assert (written.bytes, written.documents) == (len(data), 300)
    assert written.sha256 == hashlib.sha256(data).hexdigest()
    documents, rejected = read(shard(tmp_path, data, f"x.{format}"))
    assert ([document.to_dolma() for document in documents], rejected) == (ROWS, [])


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_rows_give_the_same_bytes(tmp_path, format):
    one, other = (write(tmp_path / name, format=format, frame_bytes=2_000) for name in ("one", "other"))
    assert one.sha256 == other.sha256 and one.frames == other.frames


@pytest.mark.parametrize(
    ("format", "unpack"),
    [("jsonl.zst", zstandard.ZstdDecompressor().decompress), ("jsonl.gz", gzip.decompress)],
)
def test_each_frame_stands_alone(tmp_path, format, unpack):
    written = write(tmp_path / "x", format=format, frame_bytes=4_000)
    data, row, offset = written.path.read_bytes(), 0, 0
    assert len(written.frames) > 5
    for frame in written.frames:
        assert (frame.offset, frame.first_row) == (offset, row)
        plain = unpack(data[offset : offset + frame.length])
        assert [json.loads(line) for line in plain.splitlines()] == ROWS[row : row + frame.rows]
        row, offset = row + frame.rows, offset + frame.length
    assert (row, offset) == (300, len(data))


def test_parquet_frames_are_row_groups(tmp_path):
    import pyarrow.parquet as pq

    written = write(tmp_path / "x", format="parquet", frame_bytes=4_000)
    footer = pq.read_metadata(written.path)
    assert [frame.rows for frame in written.frames] == [
        footer.row_group(group).num_rows for group in range(footer.num_row_groups)
    ]


def test_other_tools_read_every_frame(tmp_path):
    lines = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in ROWS).encode()
    packed = write(tmp_path / "x.gz", format="jsonl.gz", frame_bytes=2_000)
    assert subprocess.run(["gzip", "-dc", packed.path], capture_output=True, check=True).stdout == lines
    framed = write(tmp_path / "x.zst", frame_bytes=2_000)
    reader = zstandard.ZstdDecompressor().stream_reader(framed.path.read_bytes(), read_across_frames=True)
    assert reader.read() == lines


@pytest.mark.parametrize("format", FORMATS)
def test_an_empty_shard_is_a_valid_file(tmp_path, format):
    written = write(tmp_path / "x", [], format=format)
    assert (written.documents, sum(frame.rows for frame in written.frames)) == (0, 0)
    assert written.bytes > 0
    assert read(shard(tmp_path, written.path.read_bytes(), "y.jsonl")) == ([], [])


def test_the_gzip_header_holds_no_time_and_no_name(tmp_path):
    head = write(tmp_path / "x", format="jsonl.gz").path.read_bytes()[:10]
    assert head[3] == 0 and head[4:8] == b"\0\0\0\0"


@pytest.mark.parametrize(("format", "levels"), [("jsonl.zst", (1, 19)), ("jsonl.gz", (0, 3)), ("parquet", (1, 19))])
def test_levels_trade_time_for_size(tmp_path, format, levels):
    rng = np.random.default_rng(0)
    rows = [{"text": "a" + " ".join(map(str, rng.integers(0, 300, 400)))} for _ in range(50)]
    low, high = (write(tmp_path / str(level), rows, format=format, level=level).bytes for level in levels)
    assert high < low


@pytest.mark.parametrize("options", [{"format": "jsonl"}, {"level": 99}, {"format": "jsonl.gz", "level": 9}])
def test_unknown_formats_and_levels_are_refused(tmp_path, options):
    with pytest.raises(UserError):
        ShardWriter(tmp_path / "x", **options)
    assert not (tmp_path / "x").exists()


BAD_VALUES = [
    math.nan,
    [{"deep": -math.inf}],
    "half \ud800 pair",
    {1: "number as a key"},
    datetime.datetime(2026, 1, 1),
    {1, 2},
    b"bytes",
    np.float64("nan"),
]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("value", BAD_VALUES, ids=range(len(BAD_VALUES)))
def test_what_json_cannot_hold_is_refused_not_changed(tmp_path, format, value):
    with pytest.raises(UserError, match="cannot be written as JSON"):
        write(tmp_path / "x", [{"text": "a", "metadata": {"value": value}}], format=format)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**70), 1e19, None, [None], (1, 2), OrderedDict(a=1), np.float64(0.5), "null", "a" * 5, True, -0.0],
)
def test_a_row_reads_back_the_same(value):
    row = {"text": "a", "value": value}
    assert encode_row(row) == json.dumps(row, separators=(",", ":")).encode()


def test_deep_rows_are_written_as_far_as_they_are_read(tmp_path):
    deep: object = 1
    for _ in range(198):
        deep = [deep]
    [document], _ = read(shard(tmp_path, encode_row({"text": "a", "deep": deep})))
    assert document.extra == {"deep": deep}


def test_a_failing_block_leaves_no_file(tmp_path):
    with pytest.raises(RuntimeError), ShardWriter(tmp_path / "x", frame_bytes=1) as writer:
        writer.write(ROWS[0])
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_closing_twice_gives_the_same_and_then_it_is_closed(tmp_path):
    writer = ShardWriter(tmp_path / "x")
    writer.write(ROWS[0])
    assert writer.close() == writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(ROWS[1])


def test_the_file_is_on_the_disk_when_it_is_closed(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_size) or fsync(number))
    written = write(tmp_path / "x")
    assert synced == [written.bytes]


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_is_an_expected_failure(tmp_path, format):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(UserError, match="cannot be written"):
            write(tmp_path / "x", format=format, frame_bytes=100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_an_expected_failure(tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        ShardWriter(tmp_path / "nowhere" / "x")


def test_zlib_reads_a_member_alone(tmp_path):
    written = write(tmp_path / "x", format="jsonl.gz", frame_bytes=4_000)
    frame = written.frames[3]
    member = written.path.read_bytes()[frame.offset : frame.offset + frame.length]
    assert zlib.decompress(member, 31).count(b"\n") == frame.rows


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("frame_bytes", [1, 3_000, 1 << 20])
def test_rows_that_are_lines_already_give_the_same_shard(tmp_path, format, frame_bytes, ahead):
    expected = write(tmp_path / "rows", format=format, frame_bytes=frame_bytes)
    lines = [encode_row(row) + b"\n" for row in ROWS]
    with ShardWriter(tmp_path / "lines", format=format, frame_bytes=frame_bytes, ahead=ahead) as writer:
        for first, stop in ((0, 7), (7, 7), (7, 250), (250, 300)):
            ends = np.cumsum([len(line) for line in lines[first:stop]], dtype=np.int64)
            writer.write_rows(memoryview(b"".join(lines[first:stop])), ends)
    assert (writer.shard.sha256, writer.shard.frames) == (expected.sha256, expected.frames)
