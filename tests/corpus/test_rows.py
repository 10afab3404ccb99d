"""What a row must be to be a document, and what a bad one costs: itself."""

import json

import pytest

from tests.corpus.shards import ids, line, lines, read, reasons, shard

BAD = {
    b"{not json}": "bad-json",
    b"plain words": "bad-json",
    b'{"text": "a"} trailing': "garbage-after-row",
    b'{"text": "a"}{"text": "b"}': "garbage-after-row",
    b'{"text": "\xff\xfe"}': "not-utf8",
    b'{"text": "\xed\xa0\x80"}': "not-utf8",
    b'{"text": "raw \x00 byte"}': "bad-json",
    b"\x00" * 300: "bad-json",
    b"[1, 2]": "not-an-object",
    b'"a string"': "not-an-object",
    b"17": "not-an-object",
    b"null": "not-an-object",
    b"NaN": "number-not-finite",
    rb'{"text": "half \ud800 pair"}': "lone-surrogate",
    rb'{"text": "a", "metadata": {"\udfff": 1}}': "lone-surrogate",
    b'{"text": "a", "metadata": {"score": NaN}}': "number-not-finite",
    b'{"text": "a", "score": -Infinity}': "number-not-finite",
    b'{"text": "a", "score": 1e400}': "number-not-finite",
    b'{"text": "a", "n": ' + b"7" * 5_000 + b"}": "number-too-long",
    b'{"text": "a", "deep": ' + b"[" * 300 + b"1" + b"]" * 300 + b"}": "nested-too-deep",
    b'{"text": "a", "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}": "nested-too-deep",
    b"{}": "missing-text",
    b'{"Text": "a"}': "missing-text",
    b'{"text": null}': "null-text",
    b'{"text": 5}': "text-not-a-string",
    b'{"text": ["a"]}': "text-not-a-string",
    b'{"text": ""}': "empty-text",
    rb'{"text": " \n\t\u00a0"}': "blank-text",
    rb'{"text": "\u200b\u200c\ufeff"}': "invisible-text",
    rb'{"text": "\u0000\u0000"}': "invisible-text",
}


@pytest.mark.parametrize(("row", "reason"), BAD.items(), ids=range(len(BAD)))
def test_a_bad_row_is_rejected_by_name_and_costs_no_other(tmp_path, row, reason):
    documents, [bad] = read(shard(tmp_path, lines(0, 1) + row + b"\n" + lines(2)))
    assert ids(documents) == ["d0", "d1", "d2"]
    assert (bad.path, bad.line, bad.row, bad.reason) == ("x.jsonl", 3, 2, reason)
    assert bad.detail and len(bad.text) <= 2_000
    json.dumps(bad.to_dict(), ensure_ascii=False).encode()


GOOD = [
    {"text": "."},
    {"text": "(begins without a letter)"},
    {"text": "\u200bvisible after zero width"},
    {"text": "NUL \0 inside, and \x85 and \u2028"},
    {"text": "\u0301"},
    {"text": "emoji 🎉 and 漢字"},
    {"text": "a", "metadata": {"big": 2**64, "bigger": -(10**30), "limit": 2**63, "small": -(2**63)}},
    {"text": "a", "metadata": {"float": 0.1, "tiny": 5e-324, "huge": 1.7e308, "whole": 1e19, "zero": -0.0}},
    {"text": "a", "metadata": [1, "two", None, {"three": [3.0, True]}]},
    {"text": "a", "metadata": "a string", "source": None, "id": None},
    {"text": "a", "id": 7, "source": {"odd": 1}, "added": 5, "created": [], "unknown": {"kept": True}},
    {"created": "order of keys", "text": "stays", "id": "as it is"},
]


@pytest.mark.parametrize("row", GOOD, ids=range(len(GOOD)))
@pytest.mark.parametrize("ascii_only", [True, False])
def test_what_json_can_hold_comes_through_exactly(tmp_path, row, ascii_only):
    [document], rejected = read(shard(tmp_path, json.dumps(row, ensure_ascii=ascii_only).encode() + b"\n"))
    assert not rejected
    assert json.dumps(document.to_dolma()) == json.dumps(row)  # as text: types, order of keys and -0.0 too


def test_of_a_key_given_twice_the_last_counts(tmp_path):
    [document], _ = read(shard(tmp_path, b'{"text": "first", "id": 1, "text": "second", "id": 2}'))
    assert (document.text, document.id) == ("second", 2)


def test_blank_lines_are_no_rows_but_count_as_lines(tmp_path):
    documents, [bad] = read(shard(tmp_path, b"\n \t\n" + line(0) + b"\r\n\n" + b"bad\n" + b"\xef\xbb\xbf\n" + line(1)))
    assert ids(documents) == ["d0", "d1"]
    assert (bad.line, bad.row) == (6, 1)


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n", b"\r\n\xef\xbb\xbf"])
def test_byte_order_mark_and_crlf(tmp_path, start):
    documents, rejected = read(shard(tmp_path, start + lines(0, 1).replace(b"\n", b"\r\n")))
    assert (ids(documents), rejected) == (["d0", "d1"], [])


def test_a_byte_order_mark_in_the_middle_comes_from_files_put_together(tmp_path):
    documents, rejected = read(shard(tmp_path, lines(0) + b"\xef\xbb\xbf" + lines(1)))
    assert (ids(documents), rejected) == (["d0", "d1"], [])


def test_the_last_line_needs_no_end(tmp_path):
    documents, rejected = read(shard(tmp_path, lines(0, 1).rstrip()))
    assert (ids(documents), rejected) == (["d0", "d1"], [])


def test_a_cut_last_line_is_a_half_line(tmp_path):
    documents, [half] = read(shard(tmp_path, lines(0, 1)[:-9]))
    assert ids(documents) == ["d0"]
    assert (half.reason, half.line) == ("half-line", 2)


def test_lines_beyond_the_limit_are_rejected_not_held(tmp_path):
    data = lines(0) + line(1, text="x" * 5_000_000) + lines(2) + line(3, text="y" * 2_000)
    documents, rejected = read(shard(tmp_path, data), max_line_bytes=1_000)
    assert ids(documents) == ["d0", "d2"]
    assert [(bad.line, bad.reason, len(bad.text)) for bad in rejected] == [
        (2, "line-too-long", 1_000),
        (4, "line-too-long", 2_000),
    ]


def test_a_line_beyond_the_limit_can_be_passed_over(tmp_path):
    file = shard(tmp_path, lines(0) + line(1, text="x" * 5_000_000) + lines(2, 3))
    documents, rejected = read(file, max_line_bytes=1_000, first_row=2)
    assert (ids(documents), rejected) == (["d2", "d3"], [])


def test_a_long_line_within_the_limit_is_read(tmp_path):
    [document], _ = read(shard(tmp_path, line(0, text="x" * 5_000_000)))
    assert len(document.text) == 5_000_000


def test_an_empty_file_is_fine(tmp_path):
    for name, data in {"a.jsonl": b"", "b.json": b"", "c.jsonl": b"\n\n", "d.jsonl": b"\xef\xbb\xbf"}.items():
        assert read(shard(tmp_path, data, name)) == ([], [])


def test_reasons_are_known(tmp_path):
    from derivedata.corpus.strict import REASONS

    _, rejected = read(shard(tmp_path, b"".join(row + b"\n" for row in BAD)))
    assert set(reasons(rejected)) <= set(REASONS)
