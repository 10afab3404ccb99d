"""The inventory: one pass that says what a shard holds and where its chunks start."""

import gzip
import hashlib
import json

import pytest

from derivedata.corpus.inventory import ShardInventory, take_inventory
from tests.corpus.shards import line, lines, shard


def test_books_hash_and_bytes_of_text(tmp_path):
    data = gzip.compress(line(0, text="größe") + b"bad\n\n" + line(1, text="abc") + b'{"text": ""}\nbad\n')
    file = shard(tmp_path, data, "x.jsonl.gz")
    rejected = []
    inventory = take_inventory(file, chunk_bytes=1_000, on_rejected=rejected.append)
    assert (inventory.rows, inventory.documents, inventory.text_bytes) == (5, 2, 7 + 3)
    assert inventory.rejected == {"bad-json": 2, "empty-text": 1}
    assert [(bad.line, bad.reason) for bad in rejected] == [(2, "bad-json"), (5, "empty-text"), (6, "bad-json")]
    assert inventory.sha256 == hashlib.sha256(data).hexdigest()
    assert (inventory.path, inventory.url, inventory.bytes) == ("x.jsonl.gz", file.url, len(data))
    assert inventory.version == file.version


@pytest.mark.parametrize("tail", [b"\0" * 100_000, b"garbage" * 50_000, gzip.compress(lines(3), mtime=0)[:-4], b""])
def test_the_hash_is_of_all_bytes_whatever_they_are(tmp_path, tail):
    data = gzip.compress(lines(0, 1), mtime=0) + tail
    assert take_inventory(shard(tmp_path, data), chunk_bytes=1).sha256 == hashlib.sha256(data).hexdigest()


def test_a_chunk_ends_with_the_document_that_fills_it(tmp_path):
    file = shard(tmp_path, b"".join(line(n, text="x" * size) for n, size in enumerate([4, 4, 4, 20, 1])))
    chunks = take_inventory(file, chunk_bytes=10).chunks
    assert [(chunk.first_row, chunk.stop_row, chunk.documents, chunk.text_bytes) for chunk in chunks] == [
        (0, 3, 3, 12),
        (3, 4, 1, 20),
        (4, 5, 1, 1),
    ]


def test_rejects_belong_to_the_chunk_they_stand_in(tmp_path):
    file = shard(tmp_path, b"bad\n" + line(0) + b"bad\n" + line(1) + b"bad\nbad\n")
    chunks = take_inventory(file, chunk_bytes=1).chunks
    assert [(chunk.first_row, chunk.stop_row, chunk.documents) for chunk in chunks] == [(0, 2, 1), (2, 6, 1)]


def test_a_shard_without_documents_has_no_chunks(tmp_path):
    inventory = take_inventory(shard(tmp_path, b"bad\n" * 3), chunk_bytes=1)
    assert (inventory.rows, inventory.documents, inventory.chunks) == (3, 0, [])
    assert take_inventory(shard(tmp_path, b""), chunk_bytes=1).rows == 0


def test_it_goes_through_json(tmp_path):
    inventory = take_inventory(shard(tmp_path, lines(0, 1, 2)), chunk_bytes=20)
    assert ShardInventory.from_dict(json.loads(json.dumps(inventory.to_dict()))) == inventory


def test_a_parquet_shard_has_the_same_books_as_the_lines_it_was_made_of(tmp_path):
    from derivedata.corpus.writer import ShardWriter

    with ShardWriter(tmp_path / "y.parquet", format="parquet", frame_bytes=100) as writer:
        for number in range(20):
            writer.write({"text": f"text {number}"})
    made = take_inventory(shard(tmp_path, (tmp_path / "y.parquet").read_bytes(), "y.parquet"), chunk_bytes=30)
    flat = take_inventory(
        shard(tmp_path, b"".join(b'{"text": "text %d"}\n' % number for number in range(20)), "y.jsonl"), chunk_bytes=30
    )
    assert made.sha256 == writer.shard.sha256
    assert [(c.first_row, c.stop_row, c.text_bytes) for c in made.chunks] == [
        (c.first_row, c.stop_row, c.text_bytes) for c in flat.chunks
    ]
