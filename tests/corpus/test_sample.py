"""The built-in sample corpus: what it holds, and that it is written the same way every time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from derivedata.corpus.sample import sample_documents, write_sample_corpus
from derivedata.errors import UserError
from derivedata.generation.measures import count_numbers, count_words


def test_it_holds_24_documents_of_80_to_600_words_with_ids_of_their_own():
    documents = sample_documents()
    assert len(documents) == len({document["id"] for document in documents}) == 24
    for document in documents:
        assert list(document) == ["id", "text", "source", "added", "created", "metadata"]
        assert 80 <= count_words(document["text"]) <= 620, document["id"]
        assert document["text"] == document["text"].strip()


def test_it_holds_several_languages_and_many_documents_with_numbers():
    documents = sample_documents()
    assert {document["metadata"]["language"] for document in documents} == {"en", "de", "fr", "es", "zh", "ja"}
    assert sum(count_numbers(document["text"]) >= 2 for document in documents) >= 16


def test_it_is_written_as_three_dolma_shards_that_hold_every_document_once(tmp_path):
    paths = write_sample_corpus(str(tmp_path))
    assert [str(Path(path).relative_to(tmp_path)) for path in paths] == [
        f"documents/sample-0{shard}.jsonl.gz" for shard in range(3)
    ]
    lines = [line for path in paths for line in gzip.decompress(Path(path).read_bytes()).splitlines()]
    rows = [json.loads(line) for line in lines]
    assert sorted(row["id"] for row in rows) == sorted(document["id"] for document in sample_documents())


def test_the_same_bytes_every_time_also_over_a_corpus_that_is_there(tmp_path):
    first = [Path(path).read_bytes() for path in write_sample_corpus(str(tmp_path / "one"))]
    assert [Path(path).read_bytes() for path in write_sample_corpus(str(tmp_path / "two"))] == first
    assert [Path(path).read_bytes() for path in write_sample_corpus(str(tmp_path / "one"))] == first


def test_it_never_writes_over_something_else(tmp_path):
    path = Path(write_sample_corpus(str(tmp_path))[1])
    path.write_bytes(b"mine")
    with pytest.raises(UserError, match=r"sample-01\.jsonl\.gz: holds something else already"):
        write_sample_corpus(str(tmp_path))
    assert path.read_bytes() == b"mine"


def test_a_folder_that_can_not_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="can't be written"):
        write_sample_corpus(str(tmp_path / "file"))
