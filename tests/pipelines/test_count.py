"""Tokens are counted exactly, once, and several tokenizers stand side by side in the manifest."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from derivedata.cli import main
from derivedata.cli.eta.holdings import read_holdings
from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import read_rows
from derivedata.errors import UserError
from derivedata.generation.tokenizer import load_tokenizer
from derivedata.pipelines import count as counting
from derivedata.pipelines.count import count_tokens
from derivedata.pipelines.ingest import IngestOptions, ingest
from derivedata.pipelines.token_counts import CountTokens, manifest_shards
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.query import run_query
from tests.pipelines.outputs import made, out  # noqa: F401
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def other_tokenizer(tmp_path_factory) -> Path:
    """A tokenizer of another name and vocabulary: bytes alone."""
    folder = write_tiny_model(tmp_path_factory.mktemp("other") / "bytes")
    definition = json.loads((folder / "tokenizer.json").read_text())
    kept = [token for token in definition["model"]["vocab"] if len(token) == 1]
    special = [token["content"] for token in definition["added_tokens"]]
    definition["model"] |= {"vocab": {token: i for i, token in enumerate(special + kept)}, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    return folder


def expected(corpus: Path, tokenizer: Path) -> Counter:
    counter, found = load_tokenizer(tokenizer), Counter()
    for file in corpus_files([str(corpus)]):
        for row in read_rows(file):
            found[(row.metadata or {}).get("derivedata", {}).get("style"), row.source] += len(counter.encode(row.text))
    return found


def by_style(frame) -> dict:
    return {(row["style"], row["source"]): row["tokens"] for row in frame.to_dicts()}


def test_counts_are_those_of_the_tokenizer_and_the_manifest_keeps_them(out, tiny_model):  # noqa: F811
    counts = count_tokens([str(out)], str(tiny_model))
    assert by_style(counts.frame) == expected(out, tiny_model)
    assert counts.totals()[0][1] == Manifest(out).summary().documents
    sql = "SELECT style, sum(tokens) AS n FROM token_counts GROUP BY style ORDER BY style"
    by_sql = {row["style"]: row["n"] for row in run_query({"c": out}, sql).to_pylist()}
    assert by_sql == {style: n for (style, _), n in expected(out, tiny_model).items()}
    # The tiny model counted the generations themselves, so two ways of counting agree.
    assert sum(by_sql.values()) == Manifest(out).summary().tokens


def test_several_tokenizers_stand_side_by_side_and_the_output_still_verifies(out, tiny_model, other_tokenizer):  # noqa: F811
    count_tokens([str(out)], str(tiny_model))
    counts = count_tokens([str(out)], str(other_tokenizer))
    assert [name for name, _, _ in counts.totals()] == ["bytes", "tiny"]
    texts = sum(len(row.text.encode()) for file in corpus_files([str(out)]) for row in read_rows(file))
    assert counts.totals()[0][2] == texts
    assert verify_corpus(str(out)).problems == []
    Manifest(out).compact()
    assert counts.frame.equals(counting.read_counts(Folder(out)))
    assert {row["tokenizer"] for row in Manifest(out).summary().to_dict()["counts"]} == {"bytes", "tiny"}


def test_a_shard_is_counted_once_whoever_was_killed(out, tiny_model):  # noqa: F811
    shards = manifest_shards(Folder(out))
    assert len(shards) > 3
    step = CountTokens(shards[:2], str(out), tokenizer=str(tiny_model), name="tiny")
    assert list(step.run()) == []
    step.run()  # two writers, one part
    counts = count_tokens([str(out)], str(tiny_model))
    assert counts.counted == len(shards) - 2
    assert by_style(counts.frame) == expected(out, tiny_model)
    assert count_tokens([str(out)], str(tiny_model)).counted == 0


def test_ranks_share_the_shards(out, tiny_model):  # noqa: F811
    step = CountTokens(manifest_shards(Folder(out)), str(out), tokenizer=str(tiny_model), name="tiny")
    for rank in range(3):
        assert list(step.run(rank=rank, world_size=3)) == []
    counts = count_tokens([str(out)], str(tiny_model))
    assert counts.counted == 0 and by_style(counts.frame) == expected(out, tiny_model)


def test_a_corpus_without_a_manifest_gets_one_for_its_counts(made, tiny_model, tmp_path):  # noqa: F811
    corpus = Path(shutil.copytree(made / "in", tmp_path / "in"))
    (corpus / "documents" / "odd.jsonl").write_text('{"text": "<|im_end|> is text", "source": "s"}\n{"text": ""}\n')
    loose = count_tokens([str(corpus)], str(tiny_model))
    assert loose.kept_in is None and loose.skipped == 1
    assert by_style(loose.frame) == expected_plain(corpus, tiny_model)
    kept = count_tokens([str(corpus)], str(tiny_model), output=str(tmp_path / "counts"))
    assert kept.frame.equals(loose.frame)
    assert count_tokens([str(corpus)], str(tiny_model), output=str(tmp_path / "counts")).counted == 0
    assert verify_corpus(str(tmp_path / "counts")).problems == []
    assert sorted(path.name for path in corpus.iterdir()) == ["documents"]


def expected_plain(corpus: Path, tokenizer: Path) -> Counter:
    counter, found = load_tokenizer(tokenizer), Counter()
    for file in corpus_files([str(corpus)]):
        for row in read_rows(file):
            if hasattr(row, "fields"):
                found[None, row.source] += len(counter.encode(row.text))
    return found


def test_what_was_counted_and_changed_is_refused(made, tiny_model, tmp_path):  # noqa: F811
    corpus = Path(shutil.copytree(made / "in", tmp_path / "in"))
    counts = str(tmp_path / "counts")
    count_tokens([str(corpus)], str(tiny_model), output=counts)
    moved = Path(shutil.copytree(corpus, tmp_path / "moved", copy_function=shutil.copyfile))
    assert count_tokens([str(moved)], str(tiny_model), output=counts).counted == 0, "a copy is the same corpus"
    (corpus / "documents" / "part-0.jsonl.gz").unlink()
    with pytest.raises(UserError, match=r"part-0.jsonl.gz is gone since it was counted.*--restart"):
        count_tokens([str(corpus)], str(tiny_model), output=counts)
    assert count_tokens([str(corpus)], str(tiny_model), output=counts, restart=True).counted == 1


def test_a_shard_that_is_not_the_manifests_is_refused(out, tiny_model):  # noqa: F811
    shard = sorted(out.glob("documents/style=faq/*"))[0]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 255
    shard.write_bytes(bytes(data))
    with pytest.raises(UserError, match="not what the manifest says"):
        count_tokens([str(out)], str(tiny_model))


def test_one_name_is_one_tokenizer(out, tiny_model, other_tokenizer, tmp_path):  # noqa: F811
    count_tokens([str(out)], str(tiny_model))
    namesake = shutil.copytree(other_tokenizer, tmp_path / "tiny")
    with pytest.raises(UserError, match="under the name tiny were made with another tokenizer"):
        count_tokens([str(out)], str(namesake))


def test_the_command_prints_counts_and_the_manifest_shows_them(out, tiny_model, capsys):  # noqa: F811
    main(["tokens", str(out), "--tokenizer", str(tiny_model)])
    printed = capsys.readouterr().out
    assert "unknown/derived/faq" in printed and "counted with tiny" in printed
    main(["manifest", str(out)])
    assert "counted:" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["tokens", str(out), "--tokenizer", str(tiny_model), "-o", str(out)])
    assert "Leave out -o" in capsys.readouterr().err


def test_an_order_without_texts_is_counted_by_its_windows(made, tiny_model, tmp_path):  # noqa: F811
    main(["repeat", str(made / "in"), "-o", str(tmp_path / "twice"), "--epochs", "2", "--virtual", "--seed", "3"])
    counts = count_tokens([str(tmp_path / "twice")], str(tiny_model))
    once = count_tokens([str(made / "in")], str(tiny_model)).totals()[0]
    by_strategy = {row["strategy"]: (row["documents"], row["tokens"]) for row in counts.frame.to_dicts()}
    assert by_strategy == {None: once[1:], "repeat": once[1:]}
    assert count_tokens([str(tmp_path / "twice")], str(tiny_model)).counted == 0


def test_eta_takes_the_counts_of_a_corpus_that_was_made_without(tmp_path, tiny_model):
    (tmp_path / "in.jsonl").write_text('{"text": "One."}\n{"text": "And two."}\n')
    ingest(IngestOptions(sources=(str(tmp_path / "in.jsonl"),), output=str(tmp_path / "corpus")))
    assert read_holdings([str(tmp_path / "corpus")]).fresh_tokens is None
    counts = count_tokens([str(tmp_path / "corpus")], str(tiny_model))
    assert read_holdings([str(tmp_path / "corpus")]).fresh_tokens == counts.totals()[0][2] > 0
