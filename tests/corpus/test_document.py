"""Documents keep what they came with; their uid is path, row and text."""

import hashlib
import pickle

import pytest

from derivedata.corpus.document import Document, document_uid
from tests.corpus.shards import line, lines, read, shard


def test_absent_stays_absent_and_null_stays_null():
    fields = {"unknown": [1], "text": "a", "source": None}
    document = Document.from_fields(dict(fields), "x.jsonl", 0)
    assert list(document.to_dolma().items()) == list(fields.items())
    assert (document.id, document.source, document.metadata, document.extra) == (None, None, None, {"unknown": [1]})


def test_made_by_keyword():
    document = Document(text="a", id=5, metadata={"n": 1}, extra={"lang": "en"}, path="x.jsonl", row=3)
    assert document.to_dolma() == {"id": 5, "text": "a", "metadata": {"n": 1}, "lang": "en"}
    assert document.uid == document_uid("x.jsonl", 3, "a")


def test_metadata_that_is_no_mapping_is_kept_but_not_offered():
    document = Document.from_fields({"text": "a", "metadata": "odd", "source": 5}, "x.jsonl", 0)
    assert (document.metadata, document.source) == (None, None)
    assert document.to_dolma() == {"text": "a", "metadata": "odd", "source": 5}


def test_uid_is_sha256_over_path_row_and_text():
    inner = hashlib.sha256("größe".encode()).digest()
    assert document_uid("a/x.jsonl.zst", 12, "größe") == hashlib.sha256(b"a/x.jsonl\n12\n" + inner).hexdigest()[:32]


@pytest.mark.parametrize("other", [("y.jsonl", 0, "a"), ("x.jsonl", 1, "a"), ("x.jsonl", 0, "b")])
def test_uid_tells_path_row_and_text_apart(other):
    assert document_uid(*other) != document_uid("x.jsonl", 0, "a")


def test_uid_takes_any_file_name_and_text():
    assert len(document_uid("caf\udce9.jsonl", 0, "\ud800")) == 32


def test_uid_survives_moving_and_compressing_again(tmp_path):
    import gzip

    import zstandard

    data = lines(0, 1) + b"bad\n\n" + line(2)
    uids = set()
    for folder, name, archive in (
        ("here", "x.jsonl", data),
        ("there", "x.jsonl.gz", gzip.compress(data)),
        ("elsewhere", "x.jsonl.zst", zstandard.ZstdCompressor().compress(data)),
    ):
        (tmp_path / folder).mkdir()
        documents, _ = read(shard(tmp_path / folder, archive, name))
        uids.add(tuple(document.uid for document in documents))
    assert len(uids) == 1 and len(set(uids.pop())) == 3


def test_documents_cross_process_boundaries():
    document = Document(text="a", id="x", path="x.jsonl", row=1)
    assert pickle.loads(pickle.dumps(document)) == document
