"""Parquet shards of other makers: text, Dolma's columns, everything else into the extra fields."""

import datetime
import decimal
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from derivedata.corpus.writer import ShardWriter
from tests.corpus.shards import ids, read, reasons, shard


def put(folder, columns: dict, **options):
    path = folder / "made.parquet"
    pq.write_table(pa.table(columns), path, **options)
    return shard(folder, path.read_bytes(), "x.parquet")


def test_columns_become_fields_and_nulls_are_absent(tmp_path):
    file = put(
        tmp_path,
        {
            "url": ["u0", "u1"],
            "text": ["a", "b"],
            "id": [1, None],
            "metadata": [{"n": 1, "tags": ["x"]}, None],
            "score": [0.5, None],
        },
    )
    documents, rejected = read(file)
    assert rejected == []
    assert [document.to_dolma() for document in documents] == [
        {"url": "u0", "text": "a", "id": 1, "metadata": {"n": 1, "tags": ["x"]}, "score": 0.5},
        {"url": "u1", "text": "b"},
    ]
    assert documents[0].extra == {"url": "u0", "score": 0.5}


def test_metadata_may_be_a_json_string(tmp_path):
    documents, _ = read(put(tmp_path, {"text": ["a", "b", "c"], "metadata": ['{"n": 1}', "plain words", "17"]}))
    assert [document.fields["metadata"] for document in documents] == [{"n": 1}, "plain words", "17"]


def test_values_that_json_does_not_know(tmp_path):
    file = put(
        tmp_path,
        {
            "text": ["a"],
            "added": [datetime.datetime(2026, 1, 2, 3, 4, 5)],
            "created": [datetime.date(2026, 1, 2)],
            "price": [decimal.Decimal("1.50")],
            "name": [b"bytes"],
            "deep": [[{"when": datetime.date(2026, 1, 2)}]],
        },
    )
    [document], _ = read(file)
    assert document.to_dolma() == {
        "text": "a",
        "added": "2026-01-02T03:04:05",
        "created": "2026-01-02",
        "price": "1.50",
        "name": "bytes",
        "deep": [{"when": "2026-01-02"}],
    }
    json.dumps(document.to_dolma())


def test_bad_rows_are_rejected_by_name(tmp_path):
    file = put(
        tmp_path,
        {
            "text": pa.array([b"a", b"\xff", b"", None, b" ", b"b", b"c"], pa.binary()),
            "score": [0.0, 0.0, 0.0, 0.0, 0.0, float("nan"), 1.0],
        },
    )
    documents, rejected = read(file)
    assert [document.text for document in documents] == ["a", "c"]
    assert [(bad.line, bad.reason) for bad in rejected] == [
        (2, "value-not-json"),
        (3, "empty-text"),
        (4, "missing-text"),
        (5, "blank-text"),
        (6, "number-not-finite"),
    ]


def test_a_string_column_that_is_no_utf8_costs_its_row(tmp_path):
    text = pa.array([b"a", b"\xff\xfe", b"c"], pa.binary()).view(pa.string())
    documents, [bad] = read(put(tmp_path, {"text": text}))
    assert [document.text for document in documents] == ["a", "c"]
    assert (bad.line, bad.reason) == (2, "not-utf8")


def test_without_a_text_column_every_row_is_a_reject(tmp_path):
    documents, rejected = read(put(tmp_path, {"prompt": ["a", "b"]}))
    assert (documents, reasons(rejected)) == ([], ["missing-text"] * 2)
    assert rejected[0].text == '{"prompt": "a"}'


def test_a_file_cut_short_is_one_reject(tmp_path):
    whole = put(tmp_path, {"text": ["a"] * 100})
    data = (tmp_path / "x.parquet").read_bytes()
    assert len(read(whole)[0]) == 100
    documents, [bad] = read(shard(tmp_path, data[: len(data) // 2], "cut.parquet"))
    assert (documents, bad.reason, bad.line) == ([], "corrupt-archive", 0)


def test_a_damaged_row_group_costs_no_other(tmp_path):
    import random

    texts = [f"{random.Random(number).getrandbits(4_000):x}" for number in range(40)]
    file = put(tmp_path, {"text": texts}, row_group_size=10, use_dictionary=False, compression="zstd")
    start = pq.read_metadata(file.url).row_group(1).column(0).data_page_offset
    data = bytearray((tmp_path / "x.parquet").read_bytes())
    data[start : start + 200] = b"\xff" * 200
    documents, [bad] = read(shard(tmp_path, bytes(data), "damaged.parquet"))
    assert [document.text for document in documents] == texts[:10] + texts[20:]
    assert (bad.reason, bad.line, bad.row) == ("corrupt-archive", 0, 10)


@pytest.mark.parametrize("name", ["x.jsonl", "x.json.gz"])
def test_parquet_under_another_name(tmp_path, name):
    put(tmp_path, {"text": ["a"], "id": ["one"]})
    assert ids(read(shard(tmp_path, (tmp_path / "x.parquet").read_bytes(), name))[0]) == ["one"]


def test_our_own_schema_is_fixed_whatever_the_rows_hold(tmp_path):
    rows = [
        {"text": "a", "id": 5, "metadata": {"n": 1}, "source": "s"},
        {"text": "b", "metadata": "odd", "unknown": [1, {"deep": 2**70}], "created": {"y": 2026}},
        {"text": "c"},
    ]
    schemas = []
    for number, some in enumerate((rows, rows[2:])):
        with ShardWriter(tmp_path / f"{number}.parquet", format="parquet") as writer:
            for row in some:
                writer.write(row)
        schemas.append(pq.read_schema(tmp_path / f"{number}.parquet"))
    assert schemas[0] == schemas[1]
    assert [field.name for field in schemas[0]] == ["text", "id", "source", "added", "created", "metadata", "extra"]
    assert pq.read_table(tmp_path / "0.parquet").column("metadata").to_pylist() == ['{"n":1}', '"odd"', None]
    documents, _ = read(shard(tmp_path, (tmp_path / "0.parquet").read_bytes(), "z.parquet"))
    # Ids and times are strings in this schema; all else comes back as it was.
    assert [document.to_dolma() for document in documents] == [
        rows[0] | {"id": "5"},
        rows[1] | {"created": '{"y":2026}'},
        rows[2],
    ]
