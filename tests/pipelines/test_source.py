"""The input is counted once, its rejects are kept, and its chunks and documents have one seeded order."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from derivedata.corpus.files import corpus_files
from derivedata.errors import UserError
from derivedata.pipelines.source import TakeInventory, close_inventory, open_source
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from tests.fake_text import SUBJECTS, prose


def source_text(shard: int, number: int) -> str:
    """A few sentences in the words the fake server answers with, so that its answers are about their source."""
    draw = random.Random(f"{shard}/{number}")
    subjects = ", ".join(draw.sample(SUBJECTS, 12))
    report = f"In {1900 + number} report {number} of town {shard} described {subjects}."
    return f"{report} {prose(draw, SUBJECTS, 3)} It supports, records, explains, attracts, produces and protects them."


def write_corpus(folder: Path, *, shards: int = 3, documents: int = 20) -> Path:
    for shard in range(shards):
        path = folder / "documents" / f"part-{shard}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"id": f"{shard}-{i}", "text": source_text(shard, i)} for i in range(documents)]
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode(), mtime=0))
    return folder


def count(corpus, output: Path, *, chunk_bytes: int = 2_000, world_size: int = 1):
    files = corpus_files([str(corpus)])
    step = TakeInventory(files, str(output), chunk_bytes=chunk_bytes, run_id="r")
    for rank in range(world_size):
        assert list(step.run(None, rank, world_size)) == []
    folder = Folder(str(output))
    close_inventory(folder, files)
    return folder, files


def test_every_document_is_in_one_chunk(tmp_path):
    folder, files = count(write_corpus(tmp_path / "in"), tmp_path / "out")
    source = open_source(folder, files, seed=1)
    assert source.documents == 60
    assert len(source.chunks) > 6
    ids = [document.id for chunk in source.chunks for document in source.read(chunk)]
    assert len(ids) == len(set(ids)) == 60
    assert [chunk.before for chunk in source.chunks][-1] + source.chunks[-1].documents == 60


def test_the_order_depends_on_the_seed_alone(tmp_path):
    corpus = write_corpus(tmp_path / "in")
    one = count(corpus, tmp_path / "one")
    three = count(corpus, tmp_path / "three", world_size=3)

    def order(counted, seed):
        source = open_source(*counted, seed=seed)
        return [document.uid for chunk in source.chunks for document in source.read(chunk)]

    assert order(one, 7) == order(three, 7)
    assert order(one, 7) != order(one, 8)
    assert sorted(order(one, 7)) == sorted(order(one, 8))


def test_moving_and_recompressing_keeps_every_uid(tmp_path):
    corpus = write_corpus(tmp_path / "in")
    moved = tmp_path / "moved"
    (moved / "documents").mkdir(parents=True)
    for path in (corpus / "documents").iterdir():
        (moved / "documents" / path.name.removesuffix(".gz")).write_bytes(gzip.decompress(path.read_bytes()))

    def uids(corpus, output):
        source = open_source(*count(corpus, output), seed=0)
        return {document.uid for chunk in source.chunks for document in source.read(chunk)}

    assert uids(corpus, tmp_path / "a") == uids(moved, tmp_path / "b")


def test_a_copy_with_another_time_is_the_same_input(tmp_path):
    corpus = write_corpus(tmp_path / "in")
    folder, files = count(corpus, tmp_path / "out")
    shutil.copytree(corpus, tmp_path / "copy")
    for path in (tmp_path / "copy" / "documents").iterdir():
        os.utime(path, (1, 1))
    again = corpus_files([str(tmp_path / "copy")])
    assert not {file.version for file in again} & {file.version for file in files}
    assert open_source(folder, again, seed=0).documents == 60


def test_changed_input_is_refused_by_name(tmp_path):
    corpus = write_corpus(tmp_path / "in")
    folder, _ = count(corpus, tmp_path / "out")
    (corpus / "documents" / "part-1.jsonl.gz").write_bytes(gzip.compress(b'{"text": "other"}\n'))
    (corpus / "documents" / "part-9.jsonl").write_text('{"text": "new"}\n')
    with pytest.raises(UserError, match=r"part-9.jsonl is new; part-1.jsonl.gz has other content"):
        open_source(folder, corpus_files([str(corpus)]), seed=0)


def test_a_shard_replaced_while_it_is_used_is_noticed(tmp_path):
    corpus = write_corpus(tmp_path / "in")
    source = open_source(*count(corpus, tmp_path / "out"), seed=0)
    (corpus / "documents" / "part-0.jsonl.gz").write_bytes(gzip.compress(b'{"text": "other"}\n'))
    with pytest.raises(UserError, match="are not what they were"):
        for chunk in source.chunks:
            source.read(chunk)


def test_nasty_input_balances_and_keeps_its_rejects(tmp_path, reference_data):
    folder, files = count(reference_data / "shards" / "nasty", tmp_path / "out", chunk_bytes=1 << 20)
    source = open_source(folder, files, seed=0)
    assert source.rows == source.documents + sum(source.rejected.values())
    kept = [entry.path for entry in folder.list("rejected")]
    import zstandard

    rows = []
    for path in kept:
        with zstandard.ZstdDecompressor().stream_reader(folder.read(path), read_across_frames=True) as stream:
            rows += [json.loads(line) for line in stream.read().splitlines()]
    assert len(rows) == sum(source.rejected.values())
    assert all(row["path"] and row["reason"] for row in rows)


def test_a_file_that_comes_after_a_stopped_count_changes_no_books(tmp_path):
    corpus = write_corpus(tmp_path / "in")
    files = corpus_files([str(corpus)])
    list(TakeInventory(files[2:], str(tmp_path / "out"), chunk_bytes=2_000, run_id="r").run())
    folder, files = count(corpus, tmp_path / "out")
    assert Manifest(folder).books()["input"].planned == 60


def test_names_that_are_no_utf8_are_names(tmp_path):
    corpus = write_corpus(tmp_path / "in", shards=1)
    path = next((corpus / "documents").iterdir())
    os.rename(path, os.fsencode(path.parent) + b"/caf\xe9.jsonl.gz")
    source = open_source(*count(corpus, tmp_path / "out"), seed=0)
    assert sum(len(source.read(chunk)) for chunk in source.chunks) == 20


def test_a_damaged_inventory_is_one_line(tmp_path):
    folder, files = count(write_corpus(tmp_path / "in"), tmp_path / "out")
    folder.replace("plan/inventory.json", b"[{}]")
    with pytest.raises(UserError, match="is damaged"):
        open_source(folder, files, seed=0)
