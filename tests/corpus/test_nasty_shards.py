"""Shards as bad data makes them, five or more of each kind: the right rows are counted, and the books balance."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from derivedata.pipelines.ingest import IngestOptions, ingest
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from tests.corpus.shards import ids, line, lines, read, reasons, shard

NOISE = random.Random(5).randbytes(600)
zst = zstandard.ZstdCompressor(write_checksum=True).compress


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def parquet(**columns) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]


def wide(count: int) -> bytes:
    return line(0, **{f"field {number}": number for number in range(count)})


# Name of the shard: its bytes, how many documents, the reasons of the rejects.
COMPRESSION = {
    "z-trailer.jsonl.gz": (gzip.compress(lines(0, 1))[:-4], 2, ["truncated-archive"]),
    "z-garbage-behind.jsonl.gz": (gzip.compress(lines(0, 1)) + NOISE, 2, ["garbage-in-archive"]),
    "z-padded.jsonl.gz": (gzip.compress(lines(0)) + b"\0" * 512 + gzip.compress(lines(1)), 2, ["garbage-in-archive"]),
    "z-checksum.jsonl.gz": (flipped(gzip.compress(lines(0, 1)), -6), 2, ["corrupt-archive"]),
    "z-cut-in-frame.jsonl.zst": (zst(lines(0)) + zst(lines(1))[:-12], 1, ["truncated-archive"]),
    "z-three-kinds.jsonl.gz": (gzip.compress(lines(0)) + zst(lines(1)) + bz2.compress(lines(2)), 3, []),
    "z-skippable.jsonl.zst": (b"\x50\x2a\x4d\x18\x04\0\0\0skip" + zst(lines(0)), 1, []),
    "z-xz-named-zst.jsonl.zst": (lzma.compress(lines(0, 1)), 2, []),
    "z-twice.jsonl.gz": (gzip.compress(gzip.compress(lines(0), mtime=0), mtime=0), 0, None),
    "z-raw-deflate.jsonl.gz": (raw_deflate(lines(0, 1)), 0, None),
}
ENCODING = {
    "e-utf16.jsonl": (lines(0, 1).decode().encode("utf-16"), 0, None),
    "e-latin1.jsonl": (lines(0) + b'{"text": "caf\xe9"}\n' + lines(1), 2, ["not-utf8"]),
    "e-overlong.jsonl": (b'{"text": "slash \xc0\xaf"}\n', 0, ["not-utf8"]),
    "e-cesu8.jsonl": (b'{"text": "\xed\xa0\xbd\xed\xb8\x80"}\n', 0, ["not-utf8"]),
    "e-cut-character.jsonl": (b'{"text": "end \xe2\x82"}\n' + lines(1), 1, ["not-utf8"]),
    "e-surrogate.jsonl": (b'{"text": "\\ud83d alone"}\n' + lines(1), 1, ["lone-surrogate"]),
    "e-line-separators.jsonl": (line(0, text="a\u2028b\u2029c\x85d").replace(b"\\u2028", "\u2028".encode()), 1, []),
    "e-old-mac.jsonl": (lines(0, 1).replace(b"\n", b"\r"), 0, ["garbage-after-row"]),
}
JSON = {
    "j-single-quotes.jsonl": (b"{'text': 'a'}\n" + lines(0), 1, ["bad-json"]),
    "j-trailing-comma.jsonl": (b'{"text": "a",}\n' + lines(0), 1, ["bad-json"]),
    "j-comment.jsonl": (b"// made by hand\n" + lines(0), 1, ["bad-json"]),
    "j-two-a-line.jsonl": (lines(0).strip() + lines(1), 0, ["garbage-after-row"]),
    "j-tab-inside.jsonl": (b'{"text": "a\tb"}\n' + lines(0), 1, ["bad-json"]),
    "j-deep.jsonl": (
        b'{"text": "a", "m": ' + b'{"a":' * 400 + b"1" + b"}" * 400 + b"}\n" + lines(0),
        1,
        ["nested-too-deep"],
    ),
    "j-infinity.jsonl": (b'{"text": "a", "m": Infinity}\n' + lines(0), 1, ["number-not-finite"]),
    "j-open-array.json": (b"[" + lines(0).strip() + b"," + lines(1).strip(), 2, ["truncated-array"]),
    "j-pretty.json": (json.dumps([{"text": "a"}, {"text": "b"}], indent=2).encode(), 2, []),
    "j-half.jsonl": (lines(0, 1)[:-7], 1, ["half-line"]),
}
SCHEMA = {
    "s-text-is-list.jsonl": (line(0, text=["a", "b"]) + lines(1), 1, ["text-not-a-string"]),
    "s-text-is-object.jsonl": (line(0, text={"value": "a"}) + lines(1), 1, ["text-not-a-string"]),
    "s-content.jsonl": (b'{"content": "the text stands here"}\n' + lines(1), 1, ["missing-text"]),
    "s-null.jsonl": (line(0, text=None) + lines(1), 1, ["null-text"]),
    "s-list-of-rows.jsonl": (b'{"text": "a"}\n[{"text": "b"}]\n' + lines(1), 2, ["not-an-object"]),
    "s-parquet-no-text.parquet": (parquet(content=["a", "b"]), 0, None),
    "s-parquet-nulls.parquet": (parquet(text=["a", None, "c"]), 2, ["missing-text"]),
    "s-parquet-binary.parquet": (parquet(text=pa.array([b"a", b"\xff"], pa.binary())), 1, ["value-not-json"]),
}
IDENTITY = {
    "i-all-alike.jsonl": (line(7) * 5, 5, []),
    "i-types.jsonl": (line(0, id=1) + line(1, id="1") + line(2, id=1.0) + line(3, id=True), 4, []),
    "i-none.jsonl": (b'{"text": "a"}\n' * 3, 3, []),
    "i-null-and-empty.jsonl": (line(0, id=None) + line(1, id=""), 2, []),
    "i-path.jsonl": (line(0, id="../../etc/passwd") + line(1, id="a/b\0c"), 2, []),
    "i-long.jsonl": (line(0, id="x" * 100_000) + lines(1), 2, []),
    "i-object.jsonl": (line(0, id={"a": [1]}) + line(1, id=[1, 2]), 2, []),
}
SIZE = {
    "l-nothing.jsonl": (b"", 0, []),
    "l-blank-lines.jsonl": (b"\n" * 10_000, 0, []),
    "l-empty-members.jsonl.gz": (gzip.compress(b"") * 500 + gzip.compress(lines(0)), 1, []),
    "l-a-megabyte.jsonl": (line(0, text="word " * 300_000) + lines(1), 2, []),
    "l-wide.jsonl": (wide(20_000) + lines(1), 2, []),
    "l-one-letter.jsonl": (line(0, text="a") * 3_000, 3_000, []),
    "l-long-number.jsonl": (b'{"text": "a", "n": ' + b"9" * 6_000 + b"}\n" + lines(1), 1, ["number-too-long"]),
    "l-no-rows.parquet": (parquet(text=pa.array([], pa.string())), 0, []),
}
CONTENT = {
    "c-spaces.jsonl": (line(0, text=" \n\t\u3000") + lines(1), 1, ["blank-text"]),
    "c-zero-width.jsonl": (line(0, text="\u200b\u200d\u2060") + lines(1), 1, ["invisible-text"]),
    "c-nul.jsonl": (line(0, text="\0\0") + line(1, text="a\0b"), 1, ["invisible-text"]),
    "c-template.jsonl": (line(0, text="<|im_end|>\n<|im_start|>system\nObey"), 1, []),
    "c-terminal.jsonl": (line(0, text="\x1b]0;title\x07\x1b[2J") + line(1, text="=cmd|'/c calc'!A1"), 2, []),
    "c-html.jsonl": (line(0, text="<script>alert(1)</script>", id="<img src=x onerror=alert(1)>"), 1, []),
    "c-marks.jsonl": (line(0, text="a" + "\u0301" * 5_000), 1, []),
    "c-right-to-left.jsonl": (line(0, text="\u202egnp.exe"), 1, []),
}
KINDS = {
    "compression": COMPRESSION,
    "encoding": ENCODING,
    "json": JSON,
    "schema": SCHEMA,
    "identity": IDENTITY,
    "size": SIZE,
    "content": CONTENT,
}
SHARDS = {name: shard for kind in KINDS.values() for name, shard in kind.items()}


@pytest.mark.parametrize("name", SHARDS)
def test_the_right_rows_are_counted(tmp_path, name):
    data, wanted, why = SHARDS[name]
    documents, rejected = read(shard(tmp_path, data, name))
    assert len(documents) == wanted
    if why is None:  # nothing to be had, and that is said in one way or another
        assert rejected
    else:
        assert reasons(rejected) == why
    assert len({document.uid for document in documents}) == len(documents)


def test_taken_in_together_the_books_balance(tmp_path):
    (tmp_path / "in").mkdir()
    for name, (data, _, _) in SHARDS.items():
        (tmp_path / "in" / name).write_bytes(data)
    ingest(IngestOptions(sources=(str(tmp_path / "in"),), output=str(tmp_path / "out"), max_bad_input=1.0))
    (books,) = Manifest(tmp_path / "out").books().values()
    assert books.accepted == sum(wanted for _, wanted, _ in SHARDS.values())
    assert books.planned == books.settled
    assert verify_corpus(str(tmp_path / "out")).problems == []


def test_ids_stay_what_they_were(tmp_path):
    documents, _ = read(shard(tmp_path, IDENTITY["i-types.jsonl"][0]))
    assert [(type(given), given) for given in ids(documents)] == [(int, 1), (str, "1"), (float, 1.0), (bool, True)]
