"""Archives: the bytes count, not the name; a cut or damaged one gives all it holds and one reject that says so."""

import bz2
import gzip
import lzma
import random
import tracemalloc

import pytest
import zstandard

from derivedata.corpus.archive import BLOCK_BYTES, Fault, blocks
from derivedata.corpus.source import Source
from tests.corpus.shards import ids, line, lines, read, reasons, shard


def zst(data: bytes, **options) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def zst_unsized(data: bytes) -> bytes:
    """A frame that does not say how much it holds, as streams make it."""
    frame = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return frame.compress(data) + frame.flush()


PACKERS = {
    "gzip": gzip.compress,
    "zstd": zst,
    "zstd-unsized": zst_unsized,
    "zstd-checksum": lambda data: zst(data, write_checksum=True),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "plain": bytes,
}
ARCHIVERS = {name: packer for name, packer in PACKERS.items() if name != "plain"}


def many(count: int, seed: int = 0) -> bytes:
    """Rows that compress badly, so that cuts and damage fall into the middle of something."""
    rng = random.Random(seed)
    return b"".join(line(number, text=f"{rng.getrandbits(2_000):x}") for number in range(count))


@pytest.mark.parametrize("packer", PACKERS.values(), ids=PACKERS)
@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.jsonl.gz", "x.json.zst", "x.jsonl.bz2", "x.parquet"])
def test_what_a_file_is_its_bytes_say(tmp_path, packer, name):
    documents, rejected = read(shard(tmp_path, packer(lines(0, 1, 2)), name))
    assert (ids(documents), rejected) == (["d0", "d1", "d2"], [])


@pytest.mark.parametrize("packer", ARCHIVERS.values(), ids=ARCHIVERS)
def test_members_and_frames_follow_each_other_even_inside_a_line(tmp_path, packer):
    data = many(50)
    cuts = sorted(random.Random(1).sample(range(len(data)), 20))
    parts = [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    archive = packer(b"") + b"".join(packer(part) for part in parts) + packer(b"")
    documents, rejected = read(shard(tmp_path, archive))
    assert (len(documents), rejected) == (50, [])


def test_kinds_may_be_mixed_and_padded(tmp_path):
    skippable = b"\x53\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"about"
    archive = gzip.compress(lines(0)) + zst(lines(1)) + skippable + bz2.compress(lines(2)) + b"\0" * 10_000
    documents, rejected = read(shard(tmp_path, skippable + archive))
    assert (ids(documents), rejected) == (["d0", "d1", "d2"], [])


@pytest.mark.parametrize("packer", ARCHIVERS.values(), ids=ARCHIVERS)
def test_a_cut_archive_gives_what_it_holds(tmp_path, packer):
    whole = packer(lines(0, 1)) + packer(many(2_000))
    documents, rejected = read(shard(tmp_path, whole[: len(whole) * 2 // 3]))
    if packer is bz2.compress:  # decodes 900 kB or nothing
        assert (ids(documents), reasons(rejected)) == (["d0", "d1"], ["truncated-archive"])
    else:
        assert len(documents) > 900
        assert reasons(rejected) == ["half-line", "truncated-archive"]


@pytest.mark.parametrize("missing", [1, 4, 8])
def test_a_lost_trailer_costs_no_document(tmp_path, missing):
    documents, rejected = read(shard(tmp_path, gzip.compress(lines(0, 1))[:-missing]))
    assert ids(documents) == ["d0", "d1"]
    assert reasons(rejected) == ["truncated-archive"]


@pytest.mark.parametrize("packer", ARCHIVERS.values(), ids=ARCHIVERS)
def test_after_a_damaged_frame_the_next_is_read(tmp_path, packer):
    damaged = bytearray(packer(many(1_000)))
    damaged[len(damaged) // 2 : len(damaged) * 3 // 4] = b"\xff" * (len(damaged) * 3 // 4 - len(damaged) // 2)
    documents, rejected = read(shard(tmp_path, packer(lines(1, 2)) + damaged + packer(lines(3, 4))))
    assert ids(documents)[:2] == ["d1", "d2"]
    assert "corrupt-archive" in reasons(rejected)
    [fault] = [bad for bad in rejected if bad.line == 0]
    assert "damaged" in fault.detail
    assert ids(documents)[-2:] == ["d3", "d4"]
    assert len(documents) >= (4 if packer is bz2.compress else 300)


def test_a_wrong_checksum_is_said_and_costs_no_document(tmp_path):
    for number, archive in enumerate((gzip.compress(lines(0, 1)), zst(lines(0, 1), write_checksum=True))):
        wrong = bytearray(archive)
        wrong[-5 if number == 0 else -1] ^= 1
        documents, rejected = read(shard(tmp_path, bytes(wrong)))
        assert reasons(rejected) == ["corrupt-archive"]
        if number == 0:  # zstd's last block and its checksum are decoded as one
            assert ids(documents) == ["d0", "d1"]


def test_garbage_behind_an_archive_is_said(tmp_path):
    documents, rejected = read(shard(tmp_path, gzip.compress(lines(0)) + b"no archive" + gzip.compress(lines(1))))
    assert ids(documents) == ["d0", "d1"]
    assert reasons(rejected) == ["garbage-in-archive"]


@pytest.mark.parametrize("head", [b"PK\x03\x04", b"\x04\x22\x4d\x18", b"7z\xbc\xaf\x27\x1c"])
def test_what_is_not_read_here_is_refused_by_name(tmp_path, head):
    documents, [bad] = read(shard(tmp_path, head + b"\0" * 100))
    assert (documents, bad.reason, bad.line) == ([], "unsupported-archive", 0)


def test_only_magic_is_no_archive(tmp_path):
    for head in (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh9", b"\xfd7zXZ\x00", b"PAR1"):
        documents, rejected = read(shard(tmp_path, head))
        assert documents == [] and len(rejected) == 1


@pytest.mark.parametrize("packer", ARCHIVERS.values(), ids=ARCHIVERS)
def test_an_archive_cannot_explode(tmp_path, packer):
    bomb = packer(b"x" * 60_000_000 + b"\n") + packer(lines(1))
    file = shard(tmp_path, bomb)
    assert len(bomb) < 80_000
    with Source(file.url) as source:
        assert max(len(block.data) for block in blocks(source)) <= BLOCK_BYTES
    tracemalloc.start()
    documents, [bad] = read(file, max_line_bytes=1_000_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (ids(documents), bad.reason) == (["d1"], "line-too-long")
    assert peak < 20_000_000


def test_frames_say_where_they_are(tmp_path):
    first, second = gzip.compress(lines(0)), gzip.compress(lines(1))
    with Source(shard(tmp_path, first + second).url) as source:
        found = [(block.frame, block.skip, block.data) for block in blocks(source) if not isinstance(block, Fault)]
    assert found == [(0, 0, lines(0)), (len(first), 0, lines(1))]


def bomb(packer, megabytes: int) -> bytes:
    return packer(lines(1, 2) + line(3, text="a" * (megabytes << 20)) + lines(4))


@pytest.mark.parametrize("name", ["gzip", "zstd", "bz2", "xz"])
def test_an_archive_that_swells_beyond_measure_is_left_with_a_reject_that_says_so(tmp_path, name):
    # The line is within the limit on lines only for a reader that takes any; the archive's own limit comes first.
    documents, rejected = read(shard(tmp_path, bomb(ARCHIVERS[name], 80)), max_line_bytes=1 << 20)
    assert ids(documents) == ["d1", "d2"]
    assert "exploding-archive" in reasons(rejected)
    told = next(row.detail for row in rejected if row.reason == "exploding-archive")
    assert "DERIVEDATA_MAX_EXPANSION" in told


def test_an_archive_that_is_meant_to_swell_is_let_through(tmp_path, monkeypatch):
    monkeypatch.setenv("DERIVEDATA_MAX_EXPANSION", "0")
    documents, rejected = read(shard(tmp_path, bomb(gzip.compress, 80)), max_line_bytes=1 << 20)
    assert (ids(documents), reasons(rejected)) == (["d1", "d2", "d4"], ["line-too-long"])


def test_text_that_compresses_well_is_no_bomb(tmp_path):
    # 100 MB of the same row: some 200 to 1 with gzip.
    row = line(1, text="The same sentence again and again. " * 20)
    documents, rejected = read(shard(tmp_path, gzip.compress(row * (70_000_000 // len(row)), 1)))
    assert not rejected
    assert len(documents) == 70_000_000 // len(row)
