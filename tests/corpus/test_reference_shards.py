"""Real and broken shards give the books they should."""

import pytest

from derivedata.corpus.files import corpus_files
from tests.corpus.shards import ids, read, reasons

# path: documents, reasons of the rejects
BOOKS = {
    "nasty/01-truncated.jsonl.gz": (39, ["half-line", "truncated-archive"]),
    "nasty/02-multi-member.jsonl.gz": (12, []),
    "nasty/04-lone-surrogate.jsonl": (2, ["lone-surrogate"]),
    "nasty/06-bom-crlf.jsonl": (3, []),
    "nasty/08-mixed-metadata.jsonl": (11, []),
    "nasty/09a-id-collision.jsonl": (5, []),
    "nasty/09b-id-collision.jsonl": (5, []),
    "nasty/11-empty-text.jsonl": (2, ["empty-text", "blank-text", "null-text", "invisible-text", "missing-text"]),
    "nasty/12-template-injection.jsonl": (4, []),
    "nasty/15-multi-frame.jsonl.zst": (12, []),
    "nasty/16a-zero-bytes.jsonl.gz": (0, []),
    "nasty/16b-empty-member.jsonl.gz": (0, []),
    "nasty/20-duplicate-keys.jsonl": (2, ["garbage-after-row"]),
    "nasty/22a-plain-named.jsonl.gz": (3, []),
    "nasty/23-problems.jsonl": (0, ["missing-text"] * 15),
    "real/c4/c4-sample.01.json.gz": (10, []),
    "real/c4/c4-sample.02.json.gz": (10, []),
    "real/c4/c4-sample.03.json.gz": (10, []),
    "real/dolma-attributes/duplicate_paragraphs/000.json.gz": (0, ["missing-text"] * 10),
    "real/dolma-attributes/pii/000.json.gz": (0, ["missing-text"] * 10),
    "real/dolma-attributes/sample/000.json.gz": (0, ["missing-text"] * 10),
    "real/dolma-attributes/toxicity/000.json.gz": (0, ["missing-text"] * 10),
    "real/dolma-documents/000.json.gz": (10, []),
}


@pytest.fixture(scope="module")
def shards(reference_data):
    return {file.path: file for file in corpus_files([str(reference_data / "shards")])}


@pytest.mark.parametrize("path", BOOKS)
def test_books(shards, path):
    documents, rejected = read(shards[path])
    assert (len(documents), reasons(rejected)) == BOOKS[path]


def test_no_shard_is_left_out(shards):
    assert set(shards) == set(BOOKS)


def test_ids_stay_as_they_are(shards):
    documents, _ = read(shards["nasty/09b-id-collision.jsonl"])
    assert any(not isinstance(given, str) for given in ids(documents))
    assert len({document.uid for document in documents}) == len(documents)


def test_the_cut_archive_says_where(shards):
    _, (half, archive) = read(shards["nasty/01-truncated.jsonl.gz"])
    assert (half.line, archive.line) == (40, 0)
    assert half.text.startswith('{"id": "n-0039"')
