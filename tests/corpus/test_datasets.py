"""A corpus as a Hugging Face dataset: fixed features, the order of the stream, and a place in it to go on from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

import derivedata
from derivedata.corpus.datasets import FEATURES
from derivedata.corpus.stream import BlockStream, open_stream
from derivedata.errors import UserError


@pytest.fixture(autouse=True)
def small_windows(monkeypatch, tmp_path) -> None:
    """Windows of a file or two, so that a small corpus has many; and nothing kept outside the test."""
    monkeypatch.setitem(BlockStream.__init__.__kwdefaults__, "window_bytes", 800)
    monkeypatch.setenv("DERIVEDATA_CACHE", str(tmp_path / "cache"))


def write(folder: Path, files: int = 10) -> str:
    folder.mkdir()
    for number in range(files):
        rows = [
            {
                "id": number * 10 + row if row % 2 else f"d{number}-{row}",
                "text": f"Document {row} of file {number}. " * (number % 3 + 8),
                "source": "made-up",
                "metadata": [{"n": 2**70}, {"n": "one"}, None, "odd"][row % 4],
                "lang": "en",
            }
            for row in range(4)
        ]
        (folder / f"part-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


@pytest.fixture
def corpus(tmp_path) -> str:
    return write(tmp_path / "corpus")


def uids(documents) -> list[str]:
    return [document["uid"] for document in documents]


def in_order(corpus: str) -> list[str]:
    stream = open_stream(corpus)
    assert stream.windows > 5
    return [document.uid for window in range(stream.windows) for document in stream.read(window)]


def stream_of(corpus: str, **options):
    return derivedata.load_corpus(corpus, streaming=True, **options)


def test_documents_come_in_the_order_of_the_stream_with_fixed_features(corpus, tmp_path):
    stream = stream_of(corpus)
    stored = derivedata.load_corpus(corpus, cache_dir=str(tmp_path / "hf"))
    assert stream.features == stored.features == FEATURES
    assert uids(stream) == uids(stored) == in_order(corpus)
    assert list(stream) == list(stored)
    first = next(iter(stream))
    assert first["id"] == "d0-0" and json.loads(first["metadata"]) == {"n": 2**70}
    assert (first["strategy"], first["style"], first["epoch"], first["mix_source"]) == ("fresh", None, 1, None)
    assert json.loads(first["extra"]) == {"lang": "en"}
    assert [row["id"] for row in stream][1] == "1", "an id of any type is text"


def test_an_epoch_of_the_trainer_does_not_change_the_order(corpus):
    stream = stream_of(corpus)
    stream.set_epoch(3)
    assert uids(stream) == in_order(corpus)


def test_two_ranks_with_two_workers_each_read_everything_once(corpus):
    parts = []
    for rank in range(2):
        documents = stream_of(corpus, rank=rank, world_size=2).select_columns(["uid"])
        parts.append(uids(DataLoader(documents, batch_size=None, num_workers=2)))
    assert all(parts) and sorted(parts[0] + parts[1]) == sorted(in_order(corpus))
    # The windows of one rank are dealt out in turn, so that its workers stay level.
    assert abs(len(parts[0]) - len(parts[1])) <= 8


def test_datasets_own_way_to_split_by_rank_gives_the_same_parts(corpus):
    for rank in range(2):
        theirs = split_dataset_by_node(stream_of(corpus), rank, 2, strategy="shards")
        assert uids(theirs) == uids(stream_of(corpus, rank=rank, world_size=2))


def test_going_on_begins_with_the_very_next_document(corpus):
    everything = in_order(corpus)
    for count in (1, 3, 4, 5, len(everything) - 1):
        stream = stream_of(corpus)
        reading = iter(stream)
        for _ in range(count):
            next(reading)
        state = json.loads(json.dumps(stream.state_dict()))
        again = stream_of(corpus)
        again.load_state_dict(state)
        assert uids(again) == everything[count:]


def test_going_on_survives_what_datasets_does_on_top(corpus):
    def dressed():
        return stream_of(corpus, rank=1, world_size=2).map(lambda row: {"chars": len(row["text"])})

    everything = uids(dressed())
    documents = dressed()
    reading = iter(documents)
    for _ in range(7):
        next(reading)
    again = dressed()
    again.load_state_dict(documents.state_dict())
    assert uids(again) == everything[7:]


def test_a_state_of_other_content_or_another_share_is_refused(corpus, tmp_path):
    stream = stream_of(corpus)
    next(iter(stream))
    state = stream.state_dict()
    other = stream_of(write(tmp_path / "other", files=9))
    other.load_state_dict(state)
    with pytest.raises(UserError, match="other content or another order"):
        next(iter(other))
    half = stream_of(corpus, rank=0, world_size=2)
    half.load_state_dict(state)
    with pytest.raises(UserError, match="another rank, worker, or number of them"):
        next(iter(half))
    foreign = stream_of(corpus)
    foreign.load_state_dict({"examples_iterable": {"shard_idx": 0}, "epoch": 0})
    with pytest.raises(UserError, match="not one of a corpus of derivedata"):
        next(iter(foreign))


def test_what_is_not_there_is_said_in_one_line(corpus):
    with pytest.raises(UserError, match="no such split"):
        derivedata.load_corpus(corpus, "test")
    with pytest.raises(UserError, match="is no mix"):
        derivedata.load_mixture(corpus)
    with pytest.raises(UserError, match="rank: must be 0 or more, and below world_size"):
        stream_of(corpus, rank=2, world_size=2)


def test_importing_the_package_imports_nothing_heavy():
    heavy = "{'torch', 'datasets', 'pyarrow', 'transformers', 'polars', 'numpy'}"
    code = f"import sys, derivedata; print('load_corpus' in dir(derivedata), sorted({heavy} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told == "True []\n"
