"""Ingest: every kind of source becomes Dolma shards whose books balance, and nothing of a row is lost."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import read_rows
from derivedata.errors import UserError
from derivedata.pipelines.ingest import IngestOptions, ingest
from derivedata.pipelines.repair import repair_corpus
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from tests.corpus.test_reference_shards import BOOKS


def take(sources, output, **options):
    """Ingest; a corpus that verify finds nothing wrong with."""
    if isinstance(sources, (str, Path)):
        sources = [sources]
    outcome = ingest(IngestOptions(sources=tuple(map(str, sources)), output=str(output), **options))
    verified = verify_corpus(str(output))
    assert (verified.problems, verified.notes) == ([], [])
    return outcome


def rows(output) -> list[dict]:
    return [row.to_dolma() for file in corpus_files([str(output)]) for row in read_rows(file)]


def books(output):
    return Manifest(output).books()["input"]


def write_lines(path: Path, lines: list, *, compressed: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    path.write_bytes(gzip.compress(data) if compressed else data)
    return path


def test_a_row_keeps_everything(tmp_path):
    row = {
        "id": "a",
        "text": "One.",
        "source": "web",
        "added": "2020-01-01",
        "created": "2019-01-01",
        "metadata": {"url": "u", "n": 1},
        "lang": "en",
        "url": "other",
    }
    write_lines(tmp_path / "in" / "x.jsonl", [row])
    take(tmp_path / "in", tmp_path / "out")
    [found] = rows(tmp_path / "out")
    kept = {"url": "u", "n": 1, "lang": "en", "top_level.url": "other"}
    assert found == {name: row[name] for name in ("id", "text", "source", "added", "created")} | {"metadata": kept}


def test_fields_of_any_name_hold_text_and_id(tmp_path):
    write_lines(tmp_path / "x.jsonl", [{"doc": {"body": "One.", "n": 1}, "key": 7, "text": "not this"}])
    take(tmp_path / "x.jsonl", tmp_path / "out", text_field="doc.body", id_field="key", source="mine")
    [found] = rows(tmp_path / "out")
    assert (found["id"], found["text"], found["source"]) == ("7", "One.", "mine")
    assert found["metadata"] == {"doc": {"n": 1}, "text": "not this"}


def test_ids_of_every_type_become_text_and_absent_ones_say_where_the_row_was(tmp_path):
    given = ["a", 5, 5.5, None, "", ["x", 1], {"k": 1}, True, "/:#%", 2**70]
    write_lines(tmp_path / "x.jsonl", [{"id": one, "text": f"Text {n}."} for n, one in enumerate(given)])
    take(tmp_path / "x.jsonl", tmp_path / "out")
    ids = [row["id"] for row in rows(tmp_path / "out")]
    assert ids == ["a", "5", "5.5", "x.jsonl/3", "x.jsonl/4", '["x", 1]', '{"k": 1}', "true", "/:#%", str(2**70)]


def test_the_index_says_which_row_of_which_file_a_document_was(tmp_path):
    write_lines(tmp_path / "in" / "a" / "x.jsonl", [{"text": ""}, {"text": "One."}])
    write_lines(tmp_path / "in" / "b.jsonl.gz", [{"text": "Two."}], compressed=True)
    take(tmp_path / "in", tmp_path / "out", max_bad_input=1)
    index = Manifest(tmp_path / "out").documents()
    assert index.select("source_path", "source_row", "strategy", "source").rows() == [
        ("a/x.jsonl", 1, "fresh", "in"),
        ("b.jsonl.gz", 0, "fresh", "in"),
    ]
    found = [row for file in corpus_files([str(tmp_path / "out")]) for row in read_rows(file)]
    assert index["uid"].to_list() == [row.uid for row in found]
    [reject] = Manifest(tmp_path / "out").rejected().to_dicts()
    assert (reject["path"], reject["line"], reject["reason"]) == ("a/x.jsonl", 1, "empty-text")


def test_all_real_and_broken_shards_have_the_books_they_should(reference_data, tmp_path):
    take(reference_data / "shards", tmp_path / "out", max_bad_input=1, tasks=3, workers=1)
    documents = sum(count for count, _ in BOOKS.values())
    rejected = sum(len(reasons) for _, reasons in BOOKS.values())
    total = books(tmp_path / "out")
    assert (total.planned, total.accepted, sum(total.rejected.values())) == (documents + rejected, documents, rejected)
    by_file = Manifest(tmp_path / "out").documents().group_by("source_path").len().rows()
    assert dict(by_file) == {path: count for path, (count, _) in BOOKS.items() if count}


def test_dolma_attributes_are_joined_by_id(reference_data, tmp_path):
    shards = reference_data / "shards" / "real"
    names = ["pii", "toxicity", "duplicate_paragraphs"]
    outcome = take(
        shards / "dolma-documents",
        tmp_path / "out",
        attributes=[str(shards / "dolma-attributes" / name) for name in names],
    )
    assert outcome.attributes == (10, 0, 0)
    found = rows(tmp_path / "out")
    assert found[2]["metadata"]["attributes"]["pii"]["email"][0] == [5407, 5422, 0.8]
    assert all("toxicity" in row["metadata"]["attributes"] for row in found)


def test_attributes_in_another_order_go_to_their_documents_and_strays_are_counted(tmp_path):
    write_lines(tmp_path / "c" / "documents" / "x.jsonl", [{"id": i, "text": f"Text {i}."} for i in (1, 2, 3)])
    values = [{"id": "3", "attributes": {"n": 3}}, {"id": 1, "attributes": {"n": 1}}, {"id": 9, "attributes": {}}]
    write_lines(tmp_path / "c" / "attributes" / "score" / "x.jsonl.gz", values, compressed=True)
    outcome = take(tmp_path / "c", tmp_path / "out", attributes=["score"], chunk_bytes=8)
    assert [row["metadata"] for row in rows(tmp_path / "out")] == [
        {"attributes": {"n": 1}},
        {},
        {"attributes": {"n": 3}},
    ]
    assert outcome.attributes == (2, 1, 1)


def test_missing_attributes_are_said_before_anything_is_written(tmp_path):
    write_lines(tmp_path / "c" / "documents" / "x.jsonl", [{"text": "One."}])
    with pytest.raises(UserError, match=r"x.jsonl: has no attributes pii"):
        take(tmp_path / "c", tmp_path / "out", attributes=["pii"])
    assert not (tmp_path / "out").exists()


def test_text_files_are_one_document_each(tmp_path):
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbfOne.\nMore of one.\n")
    (folder / "deep" / "b.txt.gz").write_bytes(gzip.compress("Zwei, mit Umlaut: ü".encode()))
    (folder / "c.txt").write_bytes(b"\xff\xfe no UTF-8")
    (folder / "d.txt").write_bytes(b"")
    (folder / "e.md").write_text("Not taken: no text file by its name.")
    take(folder, tmp_path / "out", max_bad_input=1)
    assert [(row["id"], row["text"], row["source"]) for row in rows(tmp_path / "out")] == [
        ("a.txt/0", "One.\nMore of one.\n", "notes"),
        ("deep/b.txt.gz/0", "Zwei, mit Umlaut: ü", "notes"),
    ]
    assert books(tmp_path / "out").rejected == {"not-utf8": 1, "empty-text": 1}
    take(folder / "e.md", tmp_path / "md", text_files=True)
    assert rows(tmp_path / "md")[0]["text"].startswith("Not taken")


def test_columns_of_parquet_become_metadata(tmp_path):
    table = pa.table({"content": ["One.", "Two."], "score": [0.5, None], "tags": [["a"], []], "id": [1, 2]})
    pq.write_table(table, tmp_path / "x.parquet")
    take(tmp_path / "x.parquet", tmp_path / "out", text_field="content", format="parquet")
    found = rows(tmp_path / "out")
    assert [row["metadata"] for row in found] == [{"score": 0.5, "tags": ["a"]}, {"tags": []}]
    assert [row["id"] for row in found] == ["1", "2"]


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ({"content": ["One."]}, r"no field `text`; the row has `content`\. Name the field"),
        ({"text": [[{"role": "user", "content": "Hi."}]]}, r"text-not-a-string 1"),
        ({"text": [5]}, r"text-not-a-string 1"),
    ],
)
def test_parquet_without_a_text_is_one_line(tmp_path, column, told):
    pq.write_table(pa.table(column), tmp_path / "x.parquet")
    with pytest.raises(UserError, match=told) as failed:
        take(tmp_path / "x.parquet", tmp_path / "out")
    assert "\n" not in failed.value.line


def test_no_rows_at_all_is_one_line(tmp_path):
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "x.parquet")
    (tmp_path / "y.jsonl").write_bytes(b"\n\n")
    with pytest.raises(UserError, match="holds no rows"):
        take([tmp_path / "x.parquet", tmp_path / "y.jsonl"], tmp_path / "out")


def test_a_lying_suffix_and_a_cut_archive(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"text": ["Parquet."]}), folder / "a.jsonl")
    write_lines(folder / "b.parquet", [{"text": "JSON lines."}])
    (folder / "c.jsonl").write_bytes(gzip.compress(b'{"text": "Compressed."}\n'))
    whole = gzip.compress(b"".join(json.dumps({"text": os.urandom(60).hex()}).encode() + b"\n" for _ in range(50)))
    (folder / "d.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    take(folder, tmp_path / "out", max_bad_input=1)
    texts = [row["text"] for row in rows(tmp_path / "out")]
    assert texts[:3] == ["Parquet.", "JSON lines.", "Compressed."] and len(texts) > 10
    assert books(tmp_path / "out").rejected == {"half-line": 1, "truncated-archive": 1}


def test_a_line_of_20_mb_is_a_document(tmp_path):
    write_lines(tmp_path / "x.jsonl", [{"text": "long " * 4_000_000}, {"text": "short"}])
    take(tmp_path / "x.jsonl", tmp_path / "out", chunk_bytes=1_000_000)
    assert [len(row["text"]) for row in rows(tmp_path / "out")] == [20_000_000, 5]


def test_too_many_bad_rows_end_the_run_and_a_larger_share_accepts_what_is_there(tmp_path):
    write_lines(tmp_path / "x.jsonl", [{"text": "One."}, {"text": None}, {"text": 3}])
    with pytest.raises(UserError, match=r"2 of 3 rows are no documents \(null-text 1, text-not-a-string 1\)"):
        ingest(IngestOptions(sources=(str(tmp_path / "x.jsonl"),), output=str(tmp_path / "out")))
    take(tmp_path / "x.jsonl", tmp_path / "out", max_bad_input=0.7)
    assert len(rows(tmp_path / "out")) == 1


def test_tokens_are_counted_where_asked(tmp_path, tiny_model):
    write_lines(tmp_path / "x.jsonl", [{"text": f"Some words, number {n}."} for n in range(9)])
    outcome = take(tmp_path / "x.jsonl", tmp_path / "out", tokenizer=str(tiny_model))
    assert outcome.summary.tokens == Manifest(tmp_path / "out").documents()["tokens"].sum() > 9


def test_another_configuration_or_input_is_refused_and_restart_starts_over(tmp_path):
    write_lines(tmp_path / "in" / "x.jsonl", [{"text": "One.", "content": "Other."}])
    take(tmp_path / "in", tmp_path / "out")
    with pytest.raises(UserError, match="text_field was text, is content"):
        take(tmp_path / "in", tmp_path / "out", text_field="content")
    shutil.copy(tmp_path / "in" / "x.jsonl", tmp_path / "again")  # other time, same bytes
    shutil.move(tmp_path / "again", tmp_path / "in" / "x.jsonl")
    take(tmp_path / "in", tmp_path / "out")
    write_lines(tmp_path / "in" / "y.jsonl", [{"text": "New."}])
    with pytest.raises(UserError, match=r"y\.jsonl is new"):
        take(tmp_path / "in", tmp_path / "out")
    write_lines(tmp_path / "in" / "x.jsonl", [{"text": "Two.", "content": "Other."}])
    (tmp_path / "in" / "y.jsonl").unlink()
    with pytest.raises(UserError, match=r"x\.jsonl has other content"):
        take(tmp_path / "in", tmp_path / "out")
    take(tmp_path / "in", tmp_path / "out", restart=True, text_field="content")
    assert [row["text"] for row in rows(tmp_path / "out")] == ["Other."]


def test_what_was_derived_here_is_not_taken_for_fresh(tmp_path):
    write_lines(tmp_path / "x.jsonl", [{"text": "One.", "metadata": {"derivedata": {"strategy": "paraphrase"}}}])
    with pytest.raises(UserError, match="were derived with derivedata"):
        take(tmp_path / "x.jsonl", tmp_path / "out")


def test_an_output_that_is_not_ours_or_holds_the_input_is_refused(tmp_path):
    write_lines(tmp_path / "in" / "x.jsonl", [{"text": "One."}])
    with pytest.raises(UserError, match="holds the input"):
        take(tmp_path / "in", tmp_path / "in")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty, and not ours"):
        take(tmp_path / "in", tmp_path / "out")


def test_what_is_not_repaired_says_what_to_do(tmp_path):
    write_lines(tmp_path / "in.jsonl", [{"text": f"Text {n}."} for n in range(4)])
    ingest(IngestOptions(sources=(str(tmp_path / "in.jsonl"),), output=str(tmp_path / "out")))
    [shard] = (tmp_path / "out" / "documents").iterdir()
    shard.write_bytes(shard.read_bytes()[:20])
    with pytest.raises(UserError, match=r"outputs of ingest are not repaired.*derivedata ingest` again with --restart"):
        repair_corpus(str(tmp_path / "out"))
