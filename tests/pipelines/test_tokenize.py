"""Token shards hold the stream token for token, in both trainers' layouts, and their own readers agree."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from derivedata.cli import main
from derivedata.cli.verify import verify
from derivedata.corpus.stream import BlockStream, open_stream
from derivedata.corpus.token_files import token_dtype
from derivedata.errors import UserError
from derivedata.generation.tokenizer import load_tokenizer
from derivedata.pipelines.token_shards import TokenizerOf, TokenizeStage, plan_spans
from derivedata.pipelines.tokenize import TokenizeOptions, tokenize_corpus
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder

EOS = "<|endoftext|>"


@pytest.fixture(autouse=True)
def small_windows(monkeypatch) -> None:
    """Windows of a file or two, so that a small corpus has many."""
    monkeypatch.setitem(BlockStream.__init__.__kwdefaults__, "window_bytes", 1_000)


@pytest.fixture
def plain(tmp_path) -> Path:
    """Eight files: among them one without a document, one with a long one, and one that speaks in control tokens."""
    folder = tmp_path / "plain" / "documents"
    folder.mkdir(parents=True)
    for number in range(8):
        texts = [f"Text {row} of file {number}. " * (5 + row) for row in range(6)]
        if number == 2:
            texts = ["  "]
        if number == 3:
            texts.append("A very long document, longer than any shard. " * 500)
        if number == 5:
            texts.append(f"{EOS} is text here,{EOS}<|im_start|> and <|im_end|> are too")
        rows = [{"id": f"{number},{i}", "text": text, "source": "made, up"} for i, text in enumerate(texts)]
        (folder / f"part-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "plain"


def options(plain, tmp_path, tiny_model, **changed) -> TokenizeOptions:
    settings = {"format": "olmo", "eos": EOS, "shard_bytes": 1} | changed
    return TokenizeOptions(corpus=(str(plain),), output=str(tmp_path / "tokens"), tokenizer=str(tiny_model), **settings)


def expected(plain, tiny_model) -> list[list[int]]:
    """Ids of every document in the order of the stream, each with its end."""
    tokenizer, stream = load_tokenizer(tiny_model), open_stream(str(plain))
    end = tokenizer.control_tokens[EOS]
    return [
        [*tokenizer.encode(document.text), end] for window in range(stream.windows) for document in stream.read(window)
    ]


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "tokens").iterdir())}


def test_olmo_shards_are_the_stream_and_say_where_documents_are(plain, tmp_path, tiny_model):
    found = tokenize_corpus(options(plain, tmp_path, tiny_model))
    documents, at = expected(plain, tiny_model), 0
    shards = sorted((tmp_path / "tokens" / "tokens").glob("*.npy"))
    assert len(shards) == found.shards > 4
    for shard in shards:
        ids = np.fromfile(shard, np.uint16)
        assert len(ids), "no shard is empty"
        with gzip.open(shard.with_suffix(".csv.gz"), "rt", newline="") as stream:
            rows = list(csv.reader(stream))
        assert int(rows[-1][1]) == len(ids)
        for start, end, uid, path, row in rows:
            assert ids[int(start) : int(end)].tolist() == documents[at]
            assert len(uid) == 32 and path.startswith("part-") and int(row) >= 0
            at += 1
    assert at == len(documents) == found.documents
    assert found.tokens == sum(map(len, documents))
    assert found.dtype == "uint16"


def test_olmo_core_reads_them(plain, tmp_path, tiny_model):
    # The layout itself is checked above, byte by byte; here by its first reader, where that is installed.
    data = pytest.importorskip("olmo_core.data.utils", reason="needs ai2-olmo-core")
    tokenize_corpus(options(plain, tmp_path, tiny_model))
    end = load_tokenizer(tiny_model).control_tokens[EOS]
    read = []
    for shard in sorted((tmp_path / "tokens" / "tokens").glob("*.npy")):
        by_file = list(data.iter_document_indices(str(shard), use_array_if_local=False))
        by_eos = list(data.iter_document_indices(str(shard), eos_token_id=end, dtype=np.uint16))
        assert by_file == [(int(a), int(b)) for a, b in by_eos]
        read += [data.load_array_slice(str(shard), a, b, np.uint16).tolist() for a, b in by_file]
    assert read == expected(plain, tiny_model)


def test_datatroves_reader_reads_nanotrons_shards(plain, tmp_path, tiny_model):
    from datatrove.utils.dataset import DatatroveFolderDataset

    tokenize_corpus(options(plain, tmp_path, tiny_model, format="nanotron"))
    folder = tmp_path / "tokens" / "tokens"
    dataset = DatatroveFolderDataset(str(folder), seq_len=0, filename_pattern="*.ds", token_size=2)
    ids = [int(dataset[i]["input_ids"]) for i in range(len(dataset))]
    assert ids == [one for document in expected(plain, tiny_model) for one in document]
    ends = [np.fromfile(path, np.uint64) for path in sorted(folder.glob("*.ds.index"))]
    assert sum(map(len, ends)) == len(expected(plain, tiny_model))


def test_nanotron_shards_are_what_datatroves_tokenizer_writes(plain, tmp_path, tiny_model):
    from datatrove.data import Document
    from datatrove.pipeline.tokens import DocumentTokenizer

    (plain / "documents" / "part-5.jsonl").unlink()  # Datatrove takes control tokens in a text for control tokens
    found = tokenize_corpus(options(plain, tmp_path, tiny_model, format="nanotron", shard_bytes=10**9))
    assert found.shards == 1
    stream = open_stream(str(plain))
    texts = [document.text for window in range(stream.windows) for document in stream.read(window)]
    theirs = DocumentTokenizer(
        str(tmp_path / "theirs"), str(tiny_model / "tokenizer.json"), eos_token=EOS, shuffle_documents=False
    )
    list(theirs.run(Document(text=text, id=str(i)) for i, text in enumerate(texts)) or [])
    for suffix in (".ds", ".ds.index"):
        [their_file] = (tmp_path / "theirs").glob(f"*{suffix}")
        assert (tmp_path / "tokens" / "tokens" / f"shard-000000{suffix}").read_bytes() == their_file.read_bytes()


def test_control_tokens_in_a_text_stay_text(plain, tmp_path, tiny_model):
    found = tokenize_corpus(options(plain, tmp_path, tiny_model))
    control = load_tokenizer(tiny_model).control_tokens
    ids = np.concatenate([np.fromfile(path, np.uint16) for path in (tmp_path / "tokens").rglob("*.npy")])
    assert int((ids == control[EOS]).sum()) == found.documents
    assert not np.isin(ids, [control["<|im_start|>"], control["<|im_end|>"]]).any()


def test_ids_take_four_bytes_where_two_are_too_few():
    assert [token_dtype(n).itemsize for n in (10, 65_535, 65_536, 200_000)] == [2, 2, 4, 4]


def test_no_shard_is_without_documents(plain):
    stream = open_stream(str(plain))
    counts = [stream.count(window) for window in range(stream.windows)]
    for size in (1, 2_000, 10**9):
        spans = plan_spans(stream, size)
        assert all(span.documents for span in spans)
        assert [span.first for span in spans] == [0, *(span.stop for span in spans[:-1])]
        assert sum(span.documents for span in spans) == sum(counts) == stream.documents


@pytest.mark.parametrize("format", ["olmo", "nanotron"])
def test_a_killed_job_goes_on_and_the_number_of_tasks_changes_nothing(plain, tmp_path, tiny_model, format, monkeypatch):
    settings = options(plain, tmp_path, tiny_model, format=format)
    tokenize_corpus(settings)
    whole = files(tmp_path / "tokens")
    # As a kill leaves it: some shards are there without their part, some parts are not there at all.
    units = sorted((tmp_path / "tokens" / "manifest" / "units").iterdir())
    for number, unit in enumerate(units):
        if number % 2:
            unit.unlink()
        if number % 4 == 1:
            for path in (tmp_path / "tokens" / "tokens").glob(f"{unit.stem}.*"):
                path.unlink()
    tokenize_corpus(settings)
    assert files(tmp_path / "tokens") == whole
    assert verify_corpus(str(tmp_path / "tokens")).problems == []
    books = Manifest(tmp_path / "tokens").books()["tokenize"]
    assert books.planned == books.accepted == len(expected(plain, tiny_model))


@pytest.mark.slow
def test_ranks_in_any_order_write_the_same_shards(plain, tmp_path, tiny_model):
    tokenize_corpus(options(plain, tmp_path, tiny_model))
    stream, other = open_stream(str(plain)), tmp_path / "other"
    eos_id = load_tokenizer(tiny_model).control_tokens[EOS]
    named = TokenizerOf(folder=str(tiny_model), name="tiny", eos=EOS, eos_id=eos_id)
    stage = TokenizeStage(str(other), stream, plan_spans(stream, 1), named=named, format="olmo")
    for rank in (2, 0, 1):
        assert list(stage.run(rank=rank, world_size=3)) == []
    assert files(other) == files(tmp_path / "tokens")


def test_other_content_or_another_tokenizer_is_refused(plain, tmp_path, tiny_model):
    tokenize_corpus(options(plain, tmp_path, tiny_model))
    with pytest.raises(UserError, match=r"eos was <\|endoftext\|>, is <\|im_end\|>"):
        tokenize_corpus(options(plain, tmp_path, tiny_model, eos=None))
    (plain / "documents" / "part-7.jsonl").write_text('{"text": "another"}\n')
    with pytest.raises(UserError, match="content was"):
        tokenize_corpus(options(plain, tmp_path, tiny_model))
    assert tokenize_corpus(options(plain, tmp_path, tiny_model, restart=True)).documents > 30
    with pytest.raises(UserError, match="not a control token"):
        tokenize_corpus(options(plain, tmp_path, tiny_model, eos="the"))


def test_the_manifest_says_what_the_tokens_were_made_from(plain, tmp_path, tiny_model, capsys):
    out = str(tmp_path / "tokens")
    main(["tokenize", str(plain), "-o", out, "--tokenizer", str(tiny_model), "--eos", EOS])
    assert "each document ended by <|endoftext|>" in capsys.readouterr().out
    [row] = Manifest(Folder(out)).summary().to_dict()["counts"]
    shards = Manifest(Folder(out)).frame("token_shards")
    # The counts leave out the token that ends each document.
    assert row["tokens"] + row["documents"] == shards["tokens"].sum()
    assert row["tokenizer"] == "tiny" and row["strategy"] is None


def test_verify_counts_the_files_of_an_output_without_documents(plain, tmp_path, tiny_model):
    tokenize_corpus(options(plain, tmp_path, tiny_model))
    told = CliRunner().invoke(verify, [str(tmp_path / "tokens")])
    files = len(list((tmp_path / "tokens" / "tokens").iterdir()))
    assert told.output.strip() == f"{files} files, 0 source files: all as it should be"
