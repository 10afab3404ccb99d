"""The reader answers any bytes with rows, never with an exception, and every row is a document or a reject."""

import bz2
import gzip
import json
import tempfile
from pathlib import Path

import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from derivedata.corpus.document import Document
from derivedata.corpus.frames import Position
from derivedata.corpus.inventory import take_inventory
from derivedata.corpus.reader import read_rows
from derivedata.corpus.strict import REASONS
from derivedata.corpus.writer import ShardWriter
from tests.corpus.shards import shard
from tests.examples import examples

PIECES = [
    b"\n", b"\r\n", b"\n\n", b" ", b"[", b"]", b"{", b"}", b",", b'"', b"\\", b"\0", b"\xef\xbb\xbf", b"\xff",
    b'{"text": "a"}', b'{"text": "b", "id": 1}\n', b'{"text": ""}\n', b'{"text": 18446744073709551616}',
    rb'{"text": "\ud800"}', b'{"text": "x", "n": NaN}\n', b'[{"text": "a"}, {"text": "b"}]', b'[{"text": "c"},',
    b"\x1f\x8b", b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd", b"PAR1", b"BZh9",
]  # fmt: skip
text = st.lists(st.sampled_from(PIECES) | st.binary(max_size=8), max_size=12).map(b"".join)
packed = st.sampled_from([bytes, gzip.compress, zstandard.ZstdCompressor().compress, bz2.compress])
members = st.lists(st.tuples(packed, text).map(lambda pair: pair[0](pair[1])), min_size=1, max_size=4)


@st.composite
def files(draw) -> bytes:
    """Members of text, then perhaps cut and damaged."""
    data = bytearray(b"".join(draw(members)))
    for place in draw(st.lists(st.integers(0, max(len(data) - 1, 0)), max_size=3)) if data else ():
        data[place] ^= draw(st.integers(1, 255))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


@settings(max_examples=examples(300), deadline=None)
@given(files(), st.integers(20, 60))
def test_every_row_is_a_document_or_a_reject(data, limit):
    with tempfile.TemporaryDirectory() as folder:
        file = shard(Path(folder), data)
        rows = list(read_rows(file, max_line_bytes=limit))
        assert [row.row for row in rows] == list(range(len(rows)))
        for row in rows:
            if not isinstance(row, Document):
                assert row.reason in REASONS
                json.dumps(row.to_dict(), ensure_ascii=False).encode()


@settings(max_examples=examples(200), deadline=None)
@given(files())
def test_books_balance_and_chunks_give_what_a_full_read_gives(data):
    with tempfile.TemporaryDirectory() as folder:
        file = shard(Path(folder), data)
        rows = list(read_rows(file))
        rejected = []
        inventory = take_inventory(file, chunk_bytes=1, on_rejected=rejected.append)
        assert inventory.rows == len(rows) == inventory.documents + sum(inventory.rejected.values())
        assert len(rejected) == sum(inventory.rejected.values())
        again = []
        for chunk in inventory.chunks:
            position = Position.from_dict(chunk.position.to_dict())
            again += read_rows(file, first_row=chunk.first_row, stop_row=chunk.stop_row, at=position)
        assert again == (rows if inventory.chunks else [])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
rows_of_documents = st.lists(
    st.fixed_dictionaries(
        {"text": st.text(min_size=1).map(lambda text: "a" + text)},
        optional=dict.fromkeys(("id", "source", "added", "created", "metadata", "unknown"), json_values),
    ),
    max_size=6,
)


@settings(max_examples=examples(60), deadline=None)
@given(rows_of_documents, st.sampled_from(["jsonl.zst", "jsonl.gz"]), st.integers(1, 200))
def test_what_is_written_reads_back_the_same(rows, format, frame_bytes):
    with tempfile.TemporaryDirectory() as folder:
        with ShardWriter(Path(folder) / f"x.{format}", format=format, frame_bytes=frame_bytes) as writer:
            for row in rows:
                writer.write(row)
        file = shard(Path(folder), writer.shard.path.read_bytes(), f"x.{format}")
        assert json.dumps([row.to_dolma() for row in read_rows(file)]) == json.dumps(rows)
