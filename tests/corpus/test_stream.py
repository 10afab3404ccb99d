"""Documents in an order: every document once an epoch, the same order everywhere, any window by itself."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from derivedata.corpus.blocks import open_blocks
from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import read_rows
from derivedata.corpus.stream import BlockStream, Origin, open_stream
from derivedata.corpus.windows import measure_mixing, order_blocks
from derivedata.errors import UserError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DERIVEDATA_CACHE", str(tmp_path / "cache"))


def write_shards(folder, *, shards=3, documents=400, size=9_000):
    """About 3.6 MB of text a shard; the second is gzip, the others plain. Row 7 of the first is no document."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        rows = [{"id": f"{shard}-{n}", "text": f"{shard}/{n} " + "word " * (size // 5)} for n in range(documents)]
        lines = [json.dumps(row).encode() + b"\n" for row in rows]
        if shard == 0:
            lines.insert(7, b"{broken\n")
        data = b"".join(lines)
        name = f"part-{shard:02d}.jsonl"
        if shard == 1:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data, 1, mtime=0))
        else:
            (folder / name).write_bytes(data)
    return folder


def everything(stream):
    return [document.uid for window in range(stream.windows) for document in stream.read(window)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("plain") / "in")


def test_a_plain_corpus_comes_as_it_stands(corpus):
    stream = open_stream(str(corpus))
    as_read = [row.uid for file in corpus_files([str(corpus)]) for row in read_rows(file) if hasattr(row, "uid")]
    assert everything(stream) == as_read
    assert stream.documents == len(as_read) == 1200
    assert stream.blocks.rejected == {"bad-json": 1}


def test_each_epoch_holds_each_document_once_in_another_order(corpus):
    blocks = open_blocks(str(corpus))
    stream = BlockStream(blocks, seed=3, epochs=2, window_bytes=4 << 20)
    assert stream.windows == 2 * stream.epoch_windows and stream.epoch_windows == 3
    by_epoch = {1: [], 2: []}
    for window in range(stream.windows):
        for document, origin in stream.read_with_origin(window):
            by_epoch[origin.epoch].append(document.uid)
    once = sorted(everything(open_stream(str(corpus))))
    assert sorted(by_epoch[1]) == sorted(by_epoch[2]) == once
    assert by_epoch[1] != by_epoch[2]


def test_the_counts_of_windows_need_no_text_and_are_right(corpus):
    stream = BlockStream(open_blocks(str(corpus)), seed=1, epochs=1, extra=500, window_bytes=2 << 20)
    counts = [stream.count(window) for window in range(stream.windows)]
    assert counts == [len(stream.read(window)) for window in range(stream.windows)]
    assert sum(counts) == stream.documents == 1700


def test_a_fraction_of_an_epoch_is_a_prefix_of_the_whole(corpus):
    blocks = open_blocks(str(corpus))
    whole = everything(BlockStream(blocks, seed=1, epochs=1, window_bytes=4 << 20))
    for extra in (1, 500, 1200):
        assert everything(BlockStream(blocks, seed=1, epochs=0, extra=extra, window_bytes=4 << 20)) == whole[:extra]


def test_compression_and_place_change_neither_order_nor_uids(corpus, tmp_path):
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in corpus_files([str(corpus)]):
        data = Path(file.url).read_bytes()
        if file.path.endswith(".gz"):
            (moved / file.path.removesuffix(".gz")).write_bytes(gzip.decompress(data))
        else:
            (moved / f"{file.path}.gz").write_bytes(gzip.compress(data, 1))
    one, two = (BlockStream(open_blocks(str(place)), seed=5, window_bytes=4 << 20) for place in (corpus, moved))
    assert everything(one) == everything(two)


def test_the_order_depends_on_the_seed(corpus):
    blocks = open_blocks(str(corpus))
    orders = {tuple(everything(BlockStream(blocks, seed=seed))) for seed in (0, 0, 1)}
    assert len(orders) == 2
    assert len({BlockStream(blocks, seed=seed).fingerprint for seed in (0, 0, 1, None)}) == 3


def test_a_stream_goes_to_another_process(corpus):
    stream = BlockStream(open_blocks(str(corpus)), seed=2, epochs=2, extra=7)
    again = pickle.loads(pickle.dumps(stream))
    assert again.fingerprint == stream.fingerprint and everything(again) == everything(stream)


def test_a_shard_that_changed_is_named(tmp_path):
    corpus = write_shards(tmp_path / "in", documents=20)
    stream = open_stream(str(corpus))
    (corpus / "part-02.jsonl").write_bytes(b'{"text": "other"}\n')
    with pytest.raises(UserError, match=r"part-02\.jsonl: the shard is not what it was"):
        everything(stream)


def test_documents_of_a_plain_corpus_are_fresh_and_have_no_style(corpus):
    _, origin = open_stream(str(corpus)).read_with_origin(0)[0]
    assert origin == Origin(strategy="fresh", style=None, epoch=1, source=None)
    with pytest.raises(UserError, match="a plain corpus has no documents of one style"):
        open_stream(str(corpus), style="faq")


def test_windows_mix_many_blocks_and_epochs_mix_windows():
    rng = np.random.default_rng(0)
    sizes, documents = np.full(1000, 1 << 20), rng.integers(100, 900, 1000)
    orders = [order_blocks(rng.random(1000), sizes, documents, 63) for _ in range(2)]
    mixing = measure_mixing(documents, *orders)
    assert 1 / 16 < mixing.neighbours < 1 / 11
    assert mixing.ideal < 0.002
    assert mixing.together < 0.12
    as_it_stands = order_blocks(None, sizes, documents, 63)
    assert measure_mixing(documents, as_it_stands, as_it_stands).together == pytest.approx(1.0)


def test_a_corpus_of_no_documents_has_an_empty_stream(tmp_path):
    (tmp_path / "none.jsonl").write_bytes(b"\n{broken\n")
    stream = open_stream(str(tmp_path / "none.jsonl"))
    assert (stream.documents, everything(stream)) == (0, [])
