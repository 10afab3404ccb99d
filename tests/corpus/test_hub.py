"""Data sets in Hugging Face's layouts are found, and read by our own reader where that can read them."""

from __future__ import annotations

import json

import datasets
import pytest

from derivedata.corpus.hub import find_hub_data
from derivedata.errors import UserError
from derivedata.pipelines.ingest import IngestOptions, ingest
from tests.pipelines.test_ingest import rows, take, write_lines


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """No test may ask the hub, or leave a cache."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def saved(folder, count=30):
    made = {
        name: datasets.Dataset.from_dict(
            {"text": [f"{name} {n}." for n in range(size)], "n": list(range(size)), "tags": [["a"]] * size}
        )
        for name, size in (("train", count), ("test", 3))
    }
    datasets.DatasetDict(made).save_to_disk(folder, num_shards={"train": 3, "test": 1})
    return folder


def test_a_folder_of_save_to_disk(tmp_path):
    take(saved(tmp_path / "mine"), tmp_path / "out")
    found = rows(tmp_path / "out")
    assert [row["text"] for row in found] == [f"train {n}." for n in range(30)]
    assert found[7]["metadata"] == {"n": 7, "tags": ["a"]} and found[7]["source"] == "mine"
    take(tmp_path / "mine", tmp_path / "test", split="test")
    assert len(rows(tmp_path / "test")) == 3
    take(tmp_path / "mine" / "test", tmp_path / "alone")
    assert rows(tmp_path / "alone")[0]["text"] == "test 0."


def test_a_saved_selection_and_a_missing_file_are_refused(tmp_path):
    folder = saved(tmp_path / "mine")
    next((folder / "train").glob("*.arrow")).unlink()
    with pytest.raises(UserError, match="a data file is missing"):
        find_hub_data(str(folder), config=None, split=None)
    state = json.loads((folder / "test" / "state.json").read_text())
    (folder / "test" / "state.json").write_text(json.dumps(state | {"_indices_data_files": [{"filename": "i.arrow"}]}))
    with pytest.raises(UserError, match="saved as a selection of rows"):
        find_hub_data(str(folder), config=None, split="test")


def hub_folder(folder):
    """A folder as the hub shows it: two configurations, one with two splits."""
    card = """---
configs:
- config_name: en
  default: true
  data_files:
  - split: train
    path: en/train-*.jsonl
  - split: test
    path: en/test-*.jsonl
- config_name: de
  data_files: de/*.jsonl
---
"""
    write_lines(folder / "en" / "train-0.jsonl", [{"text": f"train {n}."} for n in range(4)])
    write_lines(folder / "en" / "test-0.jsonl", [{"text": "test."}])
    write_lines(folder / "de" / "a.jsonl", [{"text": "Eins."}])
    (folder / "README.md").write_text(card)
    return folder


def test_a_folder_in_the_hubs_layout(tmp_path):
    folder = hub_folder(tmp_path / "set")
    data = find_hub_data(str(folder), config=None, split=None)
    assert [file.rpartition("/")[2] for file in data.files] == ["train-0.jsonl"] and data.other_splits == ("test",)
    assert data.other_configs == ("de",) and not find_hub_data(str(folder), config="en", split=None).other_configs
    take(folder, tmp_path / "out")
    assert [row["text"] for row in rows(tmp_path / "out")] == [f"train {n}." for n in range(4)]
    take(folder, tmp_path / "de", config="de")
    assert [row["text"] for row in rows(tmp_path / "de")] == ["Eins."]


def test_what_our_reader_does_not_know_streams_through_datasets(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a.csv").write_text("text,n\nEins.,1\nZwei.,2\n")
    take(folder, tmp_path / "out", split="train", chunk_bytes=5)
    assert [(row["text"], row["metadata"]) for row in rows(tmp_path / "out")] == [
        ("Eins.", {"n": 1}),
        ("Zwei.", {"n": 2}),
    ]


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"config": "fr"}, "is no data set that can be read"),
        ({"split": "dev"}, "has no such split"),
    ],
)
def test_an_unknown_configuration_or_split_is_one_line(tmp_path, wanted, told):
    with pytest.raises(UserError, match=told) as failed:
        take(hub_folder(tmp_path / "set"), tmp_path / "out", **wanted)
    assert "\n" not in failed.value.line


def test_a_slip_in_a_path_is_not_asked_of_the_hub(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("derivedata.corpus.hub._resolved", lambda *wanted: pytest.fail("asked the hub"))
    with pytest.raises(UserError, match="no such file or folder"):
        ingest(IngestOptions(sources=("data/corpse.jsonl",), output="out"))


def test_a_name_that_is_no_folder_and_not_on_the_hub_is_one_line(tmp_path):
    with pytest.raises(UserError, match="is no data set that can be read"):
        ingest(IngestOptions(sources=("nobody/has-this",), output=str(tmp_path / "out")))
    with pytest.raises(UserError, match="no such file or folder"):
        ingest(IngestOptions(sources=("no-such-thing",), output=str(tmp_path / "out")))
