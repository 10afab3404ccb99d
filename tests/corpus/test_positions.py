"""Any run of rows can be read without what comes before it, and is what a full read gives."""

import gzip
import random

import pytest
import zstandard

from derivedata.corpus.frames import Position, position_of_row
from derivedata.corpus.inventory import take_inventory
from derivedata.corpus.reader import RowReader, read_rows
from derivedata.corpus.source import Source
from derivedata.corpus.writer import ShardWriter
from tests.corpus.shards import line, lines, shard


def in_parts(data: bytes, packer, parts: int) -> bytes:
    cuts = sorted(random.Random(0).sample(range(len(data)), parts - 1))
    return b"".join(packer(data[start:stop]) for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True))


def rows_of_all_kinds(count: int = 60) -> bytes:
    """Documents, rejects, blank lines, and lines of very different length."""
    rng = random.Random(7)
    kinds = [b"\n", b"bad\n", b'{"text": ""}\r\n', b" \t\n"]
    return b"".join(
        rng.choice(kinds) if rng.random() < 0.3 else line(number, text="wörter " * rng.choice([1, 5, 900]))
        for number in range(count)
    )


PACKED = {
    "plain": lambda data: data,
    "gzip of one member": gzip.compress,
    "gzip of many": lambda data: in_parts(data, gzip.compress, 25),
    "zstd of one frame": zstandard.ZstdCompressor().compress,
    "zstd of many": lambda data: in_parts(data, zstandard.ZstdCompressor().compress, 25),
    "cut": lambda data: in_parts(data, gzip.compress, 5)[:-30],
    "damaged": lambda data: gzip.compress(data)[:-6] + b"!" * 6 + gzip.compress(data),
    "array": lambda data: b"[" + lines(*range(40)).strip().replace(b"\n", b",\n") + b"]",
}


@pytest.fixture(params=PACKED.values(), ids=PACKED)
def packed(request, tmp_path):
    return shard(tmp_path, request.param(rows_of_all_kinds()))


def test_any_run_of_rows_is_a_slice_of_the_whole(packed):
    rows = list(read_rows(packed))
    for first, stop in [(0, 0), (0, 1), (1, 2), (3, 17), (20, None), (0, 10**9), (10**9, None), (5, 3)]:
        assert list(read_rows(packed, first_row=first, stop_row=stop)) == rows[first:stop]


def test_every_position_leads_to_its_row(packed):
    rows = list(read_rows(packed))
    reader = RowReader(packed)
    for row in reader:
        for number in (row.row, row.row + 1):
            at = reader.position(number)
            assert at.row <= number
            assert list(read_rows(packed, first_row=number, stop_row=number + 3, at=at)) == rows[number : number + 3]


def test_every_chunk_is_found(packed):
    rows = list(read_rows(packed))
    inventory = take_inventory(packed, chunk_bytes=300)
    assert [chunk.first_row for chunk in inventory.chunks[1:]] == [chunk.stop_row for chunk in inventory.chunks[:-1]]
    assert inventory.chunks[0].first_row == 0 and inventory.chunks[-1].stop_row == len(rows)
    for chunk in inventory.chunks:
        at = Position.from_dict(chunk.position.to_dict())
        found = list(read_rows(packed, first_row=chunk.first_row, stop_row=chunk.stop_row, at=at))
        assert found == rows[chunk.first_row : chunk.stop_row]


@pytest.mark.parametrize("format", ["jsonl.zst", "jsonl.gz", "parquet"])
def test_frames_of_our_own_shards_lead_to_any_row(tmp_path, format):
    with ShardWriter(tmp_path / f"y.{format}", format=format, frame_bytes=500) as writer:
        for number in range(100):
            writer.write({"text": f"text {number} " + "x" * number})
    frames = writer.shard.frames
    file = shard(tmp_path, writer.shard.path.read_bytes(), f"y.{format}")
    rows = list(read_rows(file))
    assert len(frames) > 5
    for row in range(0, 100, 7):
        at = position_of_row([tuple(frame) for frame in frames], row, format=format)
        assert at.row <= row
        assert list(read_rows(file, first_row=row, stop_row=row + 2, at=at)) == rows[row : row + 2]


def test_a_position_saves_reading_what_comes_before(tmp_path, monkeypatch):
    packer = zstandard.ZstdCompressor().compress
    frames = [packer(b"".join(line(n, text=f"{random.Random(n).getrandbits(80_000):x}") for n in range(k, k + 20)))
              for k in range(0, 400, 20)]  # fmt: skip
    file = shard(tmp_path, b"".join(frames))
    reader = RowReader(file)
    positions = {row.row: reader.position(row.row) for row in reader}
    read = []
    fetch = Source._fetch
    monkeypatch.setattr(Source, "_fetch", lambda self, size: read.append(fetch(self, size)) or read[-1])
    [last] = read_rows(file, first_row=399, at=positions[399])
    assert last.id == "d399"
    assert sum(map(len, read)) < file.bytes / 10


def test_a_line_of_a_plain_file_may_look_like_an_archive(tmp_path):
    file = shard(tmp_path, lines(0) + b"\x28\xb5\x2f\xfd no frame\n" + lines(2))
    reader = RowReader(file)
    positions = {row.row: reader.position(row.row) for row in reader}
    bad, document = read_rows(file, first_row=1, at=positions[1])
    assert (bad.reason, bad.line, document.id) == ("not-utf8", 2, "d2")


def test_the_position_in_a_plain_file_is_the_row_itself(tmp_path):
    file = shard(tmp_path, b"\n" + lines(0) + b"\n\n" + lines(1, 2))
    reader = RowReader(file)
    found = {row.row: reader.position(row.row) for row in reader}
    starts = [1, 1 + len(line(0)) + 2, 1 + len(line(0)) + 2 + len(line(1))]
    assert [(at.row, at.line, at.offset, at.skip) for at in found.values()] == [
        (0, 2, starts[0], 0),
        (1, 5, starts[1], 0),
        (2, 6, starts[2], 0),
    ]


def test_a_stop_before_the_position_is_nothing(tmp_path):
    file = shard(tmp_path, lines(*range(9)))
    reader = RowReader(file)
    positions = {row.row: reader.position(row.row) for row in reader}
    assert list(read_rows(file, stop_row=3, at=positions[5])) == []
    assert [row.id for row in read_rows(file, stop_row=7, at=positions[5])] == ["d5", "d6"]
