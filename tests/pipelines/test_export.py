"""Export: a corpus in the layouts that others read, every document once, read back by load_dataset."""

from __future__ import annotations

import json

import datasets
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from derivedata.cli.export import export as command
from derivedata.errors import UserError
from derivedata.pipelines.export import ExportOptions, ExportStage, export
from derivedata.pipelines.ingest import IngestOptions, ingest
from derivedata.store.manifest import Manifest
from tests.pipelines.test_derived_from import SOURCES, corpus, take, write_finephrase  # noqa: F401
from tests.pipelines.test_ingest import rows, write_lines


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture
def derived(tmp_path, corpus, tiny_model):  # noqa: F811
    """FinePhrase's layout, taken in: two styles of eight documents, two generations each."""
    place = write_finephrase(tmp_path / "fine")
    take(place, tmp_path / "derived", tiny_model, derived_from=str(corpus), chunk_bytes=300)
    return tmp_path / "derived"


def write(corpus, output, layout, **options):  # noqa: F811
    return export(ExportOptions(corpus=str(corpus), output=str(output), layout=layout, **options))


def loaded(folder, config=None) -> list[dict]:
    return list(datasets.load_dataset(str(folder), config, split="train"))


def test_a_finephrase_file_comes_out_as_it_went_in(tmp_path, derived):
    exported = write(derived, tmp_path / "out", "finephrase")
    assert [(one.name, one.rows, one.documents) for one in exported.configs] == [("faq", 8, 16), ("table", 8, 16)]
    for style in ("faq", "table"):
        before = pq.read_table(tmp_path / "fine" / style / "00000_0.parquet").to_pylist()
        after = {row["id"]: row for row in loaded(tmp_path / "out", style)}
        assert len(after) == len(before)
        for row in before:
            assert {name: after[row["id"]][name] for name in ("text", "rollout_results")} == {
                "text": row["text"],
                "rollout_results": row["rollout_results"],
            }


def test_what_was_exported_comes_back_in_every_style(tmp_path, derived, corpus, tiny_model):  # noqa: F811
    write(derived, tmp_path / "out", "finephrase")
    take(tmp_path / "out", tmp_path / "back", tiny_model, derived_from=str(corpus))
    went, came = (Manifest(place).summary().styles for place in (derived, tmp_path / "back"))
    assert came.select("style", "documents", "tokens").rows() == went.select("style", "documents", "tokens").rows()


def test_the_same_corpus_in_the_hubs_layout(tmp_path, derived):
    write(derived, tmp_path / "out", "hub")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "export.json", "faq", "table"]
    for style in ("faq", "table"):
        found = loaded(tmp_path / "out", style)
        ours = [row for row in rows(derived) if row["metadata"]["derivedata"]["style"] == style]
        assert found == ours
        streamed = datasets.load_dataset(str(tmp_path / "out"), style, split="train", streaming=True)
        assert list(streamed) == found and streamed.features is not None
    info = datasets.load_dataset_builder(str(tmp_path / "out"), "faq").info
    assert info.splits["train"].num_examples == 16


def test_documents_that_are_not_derived_keep_all_their_metadata(tmp_path):
    lines = [{"id": n, "text": f"Text {n}.", "kind": kind} for n, kind in enumerate(["a", 1, None, ["x"]])]
    write_lines(tmp_path / "in.jsonl", lines)
    ingest(IngestOptions(sources=(str(tmp_path / "in.jsonl"),), output=str(tmp_path / "corpus"), chunk_bytes=8))
    exported = write(tmp_path / "corpus", tmp_path / "out", "hub", file_bytes=1)
    assert exported.configs[0].files > 1
    found = loaded(tmp_path / "out")
    assert [row["text"] for row in found] == [line["text"] for line in lines]
    assert [json.loads(row["metadata"])["kind"] for row in found] == ["a", 1, None, ["x"]]
    with pytest.raises(UserError, match="no documents that can be exported so"):
        write(tmp_path / "corpus", tmp_path / "other", "finephrase")


def test_without_their_source_documents_have_no_place_in_finephrases_layout(tmp_path, corpus, tiny_model):  # noqa: F811
    lines = [{"text": "Of two.", "source_id": SOURCES[2]["id"]}, {"text": "Of nobody.", "source_id": "?"}]
    write_lines(tmp_path / "d.jsonl", lines)
    take(tmp_path / "d.jsonl", tmp_path / "derived", tiny_model, derived_from=str(corpus), unmatched="keep")
    exported = write(tmp_path / "derived", tmp_path / "out", "finephrase")
    assert exported.left_out == {"no-source": 1}
    [row] = loaded(tmp_path / "out")
    assert row["text"] == SOURCES[2]["text"] and row["rollout_results"][0]["text"] == "Of two."


def test_a_source_that_is_gone_or_changed_is_said(tmp_path, derived, corpus):  # noqa: F811
    corpus.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="no such file or folder"):
        write(derived, tmp_path / "out", "finephrase")
    write(derived, tmp_path / "out", "finephrase", source=(str(tmp_path / "moved"),))
    write_lines(tmp_path / "moved" / "documents" / "b.jsonl", [{"id": "x", "text": "Other."}] * 3)
    with pytest.raises(UserError, match="is not the document that was derived from"):
        write(derived, tmp_path / "out", "finephrase", source=(str(tmp_path / "moved"),), restart=True)


def test_a_stopped_export_goes_on_and_makes_the_same_files(tmp_path, derived, monkeypatch):
    write(derived, tmp_path / "quiet", "hub", file_bytes=1)
    files = sorted(path.relative_to(tmp_path / "quiet") for path in (tmp_path / "quiet").rglob("*.parquet"))
    assert len(files) == 4
    real, made = ExportStage._write, []

    def dying(self, file, place):
        made.append(file.path)
        if len(made) in (2, 4):
            raise KeyboardInterrupt
        real(self, file, place)

    monkeypatch.setattr(ExportStage, "_write", dying)
    with pytest.raises(KeyboardInterrupt):
        write(derived, tmp_path / "out", "hub", file_bytes=1)
    assert not (tmp_path / "out" / "README.md").exists()
    while not (tmp_path / "out" / "README.md").exists():
        try:
            write(derived, tmp_path / "out", "hub", file_bytes=1)
        except KeyboardInterrupt:
            continue
    for file in files:
        assert pq.read_table(tmp_path / "out" / file) == pq.read_table(tmp_path / "quiet" / file)


def test_another_corpus_or_layout_in_the_same_folder_is_refused(tmp_path, derived):
    write(derived, tmp_path / "out", "hub")
    with pytest.raises(UserError, match="holds another export; changed: layout"):
        write(derived, tmp_path / "out", "finephrase")
    write(derived, tmp_path / "out", "finephrase", restart=True)
    assert not (tmp_path / "out" / "faq" / "train-00000-of-00001.parquet").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty, and not ours"):
        write(derived, tmp_path / "mine", "hub")


def test_a_damaged_shard_stops_the_export(tmp_path, derived):
    path = next((derived / "documents" / "style=faq").glob("*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"is damaged|does not hold the documents"):
        write(derived, tmp_path / "out", "hub")


def test_the_command(tmp_path, derived):
    told = CliRunner().invoke(command, ["hub", str(derived), "-o", str(tmp_path / "out")])
    assert told.exit_code == 0, told.output
    assert "faq" in told.output and "16" in told.output
