"""JSON arrays of objects are read as they stream, element by element."""

import gzip
import json
import tracemalloc

import pytest

from derivedata.corpus.arrays import ArrayScanner
from tests.corpus.shards import ids, lines, read, reasons, shard

ROWS = [
    {"id": "d0", "text": 'quotes " and \\ and \n and [brackets] and {braces}', "metadata": {"deep": [[{}], []]}},
    {"id": "d1", "text": "ends with a backslash \\", "metadata": None},
    {"id": "d2", "text": "größe 漢字", "metadata": {}},
]


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n \t\n"])
def test_an_array_is_its_elements(tmp_path, indent, start):
    data = (start + json.dumps(ROWS, indent=indent, ensure_ascii=False) + "\n\n").encode()
    documents, rejected = read(shard(tmp_path, data, "x.json"))
    assert ([document.to_dolma() for document in documents], rejected) == (ROWS, [])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_it_does_not_matter_where_the_blocks_end(tmp_path, size):
    data = json.dumps(ROWS, indent=1).encode()
    archive = b"".join(gzip.compress(data[at : at + size]) for at in range(0, len(data), size))
    documents, rejected = read(shard(tmp_path, archive))
    assert ([document.to_dolma() for document in documents], rejected) == (ROWS, [])


def test_an_empty_array_is_no_row(tmp_path):
    assert read(shard(tmp_path, b" [ ] \n")) == ([], [])


def test_a_bad_element_costs_itself(tmp_path):
    data = b'[{"text": "a"}, {"text": oops}, {"text": ""}, 17, {"text": "b"}]'
    documents, rejected = read(shard(tmp_path, data))
    assert [document.text for document in documents] == ["a", "b"]
    assert reasons(rejected) == ["bad-json", "empty-text", "not-an-object"]


def test_a_string_that_is_never_closed_costs_its_line(tmp_path):
    data = b'[\n{"text": "a"},\n{"text": "open},\n{"text": "b"},\n{"text": "c"}\n]\n'
    documents, [bad] = read(shard(tmp_path, data))
    assert [document.text for document in documents] == ["a", "b", "c"]
    assert (bad.line, bad.reason) == (3, "bad-json")


def test_lines_are_counted(tmp_path):
    data = b'[\n\n{"text": "a",\n "id": 1},\n\n{"text": 5},\n{"text": 6}]'
    _, rejected = read(shard(tmp_path, data))
    assert [bad.line for bad in rejected] == [6, 7]


def test_a_cut_element_is_a_half_line(tmp_path):
    documents, [half] = read(shard(tmp_path, b'[{"text": "a"}, {"text": "b'))
    assert ([document.text for document in documents], half.reason) == (["a"], "half-line")


def test_an_array_that_is_never_closed_is_said(tmp_path):
    documents, [bad] = read(shard(tmp_path, b'[{"text": "a"}, {"text": "b"},\n'))
    assert len(documents) == 2
    assert (bad.reason, bad.line) == ("truncated-array", 0)


def test_what_follows_an_array_is_read_too(tmp_path):
    documents, rejected = read(shard(tmp_path, b'[{"id": 1, "text": "a"}]\n[{"id": 2, "text": "b"}]\n' + lines(3)))
    assert (ids(documents), rejected) == ([1, 2, "d3"], [])


def test_a_line_that_is_a_list_of_numbers_does_not_make_the_file_an_array(tmp_path):
    documents, [bad] = read(shard(tmp_path, b"[1, 2]\n" + lines(0)))
    assert (ids(documents), bad.reason) == (["d0"], "not-an-object")


def test_an_endless_element_is_not_held(tmp_path):
    data = b'[{"text": "a"}, {"text": "' + b"x" * 30_000_000 + b'"}, {"text": "b"}]'
    file = shard(tmp_path, gzip.compress(data))
    tracemalloc.start()
    documents, [bad] = read(file, max_line_bytes=100_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [document.text for document in documents] == ["a", "b"]
    assert (bad.reason, bad.line) == ("line-too-long", 1)
    assert peak < 10_000_000


def test_many_small_blocks_are_not_scanned_again_and_again():
    scanner = ArrayScanner(1, 1 << 30)
    scanned = [len(element) for _ in range(20_000) for _, element, _ in scanner.feed(b'{"a": "' + b"x" * 50 + b'"},')]
    assert len(scanned) == 20_000
