"""A corpus several times: each epoch whole and in another order, written or virtual alike, exactly once."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict

import pytest

from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import read_rows
from derivedata.corpus.stream import open_stream
from derivedata.errors import UserError
from derivedata.pipelines.repeat import RepeatStage
from derivedata.pipelines.repeat_run import RepeatOptions, repeat_corpus
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest


def write_plain(folder, *, documents=60, size=2_000):
    """Rows of many shapes in shards of many kinds."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = [{"a": 1}, {}, None, "text", {"metadata": {"b": 2}}]
    for shard, pack in enumerate((bytes, gzip.compress, bz2.compress)):
        lines = []
        for n in range(documents):
            row = {"id": f"{shard}-{n}", "text": f'{shard}/{n} "metadata": {{' + "word " * (size // 5 + n)}
            if n % 6:
                row["metadata"] = metadata[n % 5]
            lines.append(json.dumps(row).encode())
        lines.insert(3, b"{broken")
        lines.insert(5, b"  ")
        suffix = ("", ".gz", ".bz2")[shard]
        (folder / f"part-{shard}.jsonl{suffix}").write_bytes(pack(b"\r\n".join(lines)))
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_plain(tmp_path_factory.mktemp("plain") / "in")


def options(corpus, out, tokenizer=None, **more):
    defaults = {
        "windows_per_shard": 1,
        "window_bytes": 100_000,
        "block_bytes": 10_000,
        "count_tokens": tokenizer is not None,
        "max_bad_input": 0.1,
    }
    place = [str(corpus)]
    return RepeatOptions(corpus=place, output=str(out), tokenizer=tokenizer and str(tokenizer), **{**defaults, **more})


def order(place):
    """(text, epoch) of every document, in order."""
    stream = open_stream(str(place))
    return [(d.text, origin.epoch) for w in range(stream.windows) for d, origin in stream.read_with_origin(w)]


def rows(place):
    return [row for file in corpus_files([str(place)]) for row in read_rows(file) if hasattr(row, "uid")]


def test_written_and_virtual_repeats_are_the_same_documents_in_the_same_order(plain, tmp_path):
    repeat_corpus(options(plain, tmp_path / "written", epochs=2.5))
    repeat_corpus(options(plain, tmp_path / "virtual", epochs=2.5, virtual=True))
    assert order(tmp_path / "written") == order(tmp_path / "virtual")
    assert not list((tmp_path / "virtual").rglob("documents"))
    by_epoch = {epoch: [t for t, e in order(tmp_path / "virtual") if e == epoch] for epoch in (1, 2, 3)}
    texts = sorted(row.text for row in rows(plain))
    assert sorted(by_epoch[1]) == sorted(by_epoch[2]) == texts
    assert len(by_epoch[3]) == 90 and len({tuple(by_epoch[1]), tuple(by_epoch[2])}) == 2


def test_a_copy_is_its_source_and_its_derivation(plain, tmp_path):
    repeat_corpus(options(plain, tmp_path / "out", epochs=2))
    sources = {row.uid: row for row in rows(plain)}
    seen = Counter()
    for row in rows(tmp_path / "out"):
        derivation = row.fields["metadata"].pop("derivedata")
        source = sources[derivation["source_uid"]]
        assert derivation["source_id"] == source.id
        assert derivation["strategy"] == ("repeat" if derivation["epoch"] > 1 else "fresh")
        before = source.metadata or ({"source_metadata": "text"} if source.fields.get("metadata") == "text" else {})
        assert row.fields == {**source.fields, "metadata": before}
        seen[source.uid, derivation["epoch"]] += 1
    assert set(seen.values()) == {1} and len(seen) == 2 * len(sources)


def test_tokens_and_books_of_every_shard(plain, tmp_path, tiny_model):
    outcome = repeat_corpus(options(plain, tmp_path / "out", tiny_model, epochs=3))
    summary = Manifest(tmp_path / "out").summary()
    by_strategy = {row["strategy"]: row for row in summary.styles.to_dicts()}
    assert by_strategy["fresh"]["tokens"] == outcome.tokens
    assert by_strategy["repeat"]["tokens"] == 2 * outcome.tokens
    assert summary.books["repeat"].accepted == 3 * 180
    assert summary.books["input"].rejected == {"bad-json": 3}
    assert verify_corpus(str(tmp_path / "out")).problems == []


def test_a_token_budget_is_met_by_the_shortest_prefix(plain, tmp_path, tiny_model):
    whole = repeat_corpus(options(plain, tmp_path / "whole", tiny_model, epochs=2))
    wanted = whole.tokens + whole.tokens // 3
    part = repeat_corpus(options(plain, tmp_path / "part", tiny_model, tokens=wanted))
    assert order(tmp_path / "part") == order(tmp_path / "whole")[: part.total_documents]
    tokens = Manifest(tmp_path / "part").documents().sort("shard", "row")["tokens"].to_list()
    assert sum(tokens) >= wanted > sum(tokens[:-1])
    virtual = repeat_corpus(options(plain, tmp_path / "virtual", tiny_model, tokens=wanted, virtual=True))
    assert order(tmp_path / "virtual") == order(tmp_path / "part")
    assert virtual.copied == 0


def test_more_epochs_extend_the_output_and_change_nothing_that_is_there(plain, tmp_path):
    repeat_corpus(options(plain, tmp_path / "out", epochs=1.3))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("documents/*/*")}
    again = repeat_corpus(options(plain, tmp_path / "out", epochs=3))
    assert again.written == round(1.7 * 180)
    assert all(path.stat().st_mtime_ns == time_ for path, time_ in before.items())
    repeat_corpus(options(plain, tmp_path / "fresh", epochs=3))
    assert order(tmp_path / "out") == order(tmp_path / "fresh")
    assert repeat_corpus(options(plain, tmp_path / "out", epochs=3)).written == 0


def test_tasks_and_workers_change_nothing(plain, tmp_path):
    repeat_corpus(options(plain, tmp_path / "one", epochs=2))
    repeat_corpus(options(plain, tmp_path / "two", epochs=2, tasks=2, workers=2))
    assert order(tmp_path / "one") == order(tmp_path / "two")


def test_an_output_of_ours_is_repeated_with_the_tokens_it_has(plain, tmp_path, tiny_model):
    repeat_corpus(options(plain, tmp_path / "once", tiny_model, epochs=1))
    again = repeat_corpus(options(tmp_path / "once", tmp_path / "again", epochs=2, count_tokens=True))
    assert again.tokenizer == Manifest(tmp_path / "once").shards()["tokenizer"][0]
    repeat_corpus(options(tmp_path / "once", tmp_path / "virtual", epochs=2, virtual=True))
    assert order(tmp_path / "again")[:180] == order(tmp_path / "virtual")[:180]
    derivation = rows(tmp_path / "again")[0].metadata
    assert derivation["derivedata"]["source_uid"] != derivation["source_derivation"]["source_uid"]


@pytest.mark.parametrize("form", ["jsonl.gz", "parquet"])
def test_every_format_holds_the_same(plain, tmp_path, form):
    repeat_corpus(options(plain, tmp_path / "zst", epochs=1))
    repeat_corpus(options(plain, tmp_path / "other", epochs=1, format=form))
    assert order(tmp_path / "zst") == order(tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seed": 1}, "seed was 0, is 1"),
        ({"virtual": True}, "virtual was false, is true"),
        ({"format": "jsonl.gz"}, "format was jsonl.zst, is jsonl.gz"),
    ],
)
def test_a_changed_configuration_is_refused_and_restart_starts_over(plain, tmp_path, change, told):
    repeat_corpus(options(plain, tmp_path / "out", epochs=1))
    with pytest.raises(UserError, match=told):
        repeat_corpus(options(plain, tmp_path / "out", epochs=1, **change))
    repeat_corpus(options(plain, tmp_path / "out", epochs=1, restart=True, **change))
    assert len(order(tmp_path / "out")) == 180


def test_a_corpus_that_changed_is_refused_by_name(tmp_path):
    corpus = write_plain(tmp_path / "in", documents=10, size=100)
    repeat_corpus(options(corpus, tmp_path / "out", epochs=1))
    repeat_corpus(options(corpus, tmp_path / "virtual", epochs=2, virtual=True))
    (corpus / "part-0.jsonl").write_text('{"text": "other"}\n')
    with pytest.raises(UserError, match=r"part-0\.jsonl: the shard is not what it was"):
        repeat_corpus(options(corpus, tmp_path / "out", epochs=2))
    with pytest.raises(UserError, match=r"part-0\.jsonl: the shard is not what it was"):
        open_stream(str(tmp_path / "virtual"))
    (corpus / "part-9.jsonl").write_text('{"text": "new"}\n')
    with pytest.raises(UserError, match=r"part-9\.jsonl is new"):
        repeat_corpus(options(corpus, tmp_path / "out", epochs=2))


def test_what_cannot_work_is_said_before_anything_is_written(plain, tmp_path):
    with pytest.raises(UserError, match="give --epochs or --tokens"):
        RepeatOptions(corpus=[str(plain)], output="x")
    with pytest.raises(UserError, match="within the corpus"):
        repeat_corpus(options(plain, plain / "out", epochs=2))
    with pytest.raises(UserError, match="3 of 183 rows are no documents"):
        repeat_corpus(options(plain, tmp_path / "out", epochs=1, max_bad_input=0.01))


def test_derived_documents_are_no_first_epoch(plain, tmp_path):
    repeat_corpus(options(plain, tmp_path / "written", epochs=2))
    with pytest.raises(UserError, match=r"holds derived documents \(got repeat\)"):
        repeat_corpus(options(tmp_path / "written", tmp_path / "again", epochs=2))
    assert not (tmp_path / "again").exists()


def test_verify_counts_with_the_tokenizer_of_the_repeat_again(plain, tmp_path, tiny_model):
    repeat_corpus(options(plain, tmp_path / "once", tiny_model, epochs=1))
    repeat_corpus(options(tmp_path / "once", tmp_path / "listed", epochs=2, count_tokens=True))
    for name in ("once", "listed"):
        verified = verify_corpus(str(tmp_path / name))
        assert verified.tokens_counted and (verified.problems, verified.notes) == ([], [])


def test_verify_says_whether_an_order_can_still_be_read(tmp_path):
    corpus = write_plain(tmp_path / "in", documents=10, size=100)
    repeat_corpus(options(corpus, tmp_path / "virtual", epochs=2, virtual=True))
    assert verify_corpus(str(tmp_path / "virtual")).problems == []
    (corpus / "part-0.jsonl").unlink()
    [problem] = verify_corpus(str(tmp_path / "virtual")).problems
    assert "part-0.jsonl is gone" in problem.what


def test_an_archive_that_cannot_be_read_from_the_middle_is_rewritten_once(plain, tmp_path, monkeypatch):
    repeat_corpus(options(plain, tmp_path / "near", epochs=2, virtual=True))
    monkeypatch.setattr("derivedata.pipelines.repeat_run.MOST_SKIPPED", 20_000)
    outcome = repeat_corpus(options(plain, tmp_path / "far", epochs=2, virtual=True))
    assert outcome.copied == 2 == len(list((tmp_path / "far" / "plan" / "blocks").iterdir()))
    assert order(tmp_path / "far") == order(tmp_path / "near")
    uids = {row.uid for row in rows(plain)}
    stream = open_stream(str(tmp_path / "far"))
    assert all(document.uid in uids for window in range(stream.windows) for document in stream.read(window))


def test_a_unit_is_the_same_bytes_whoever_writes_it(plain, tmp_path, monkeypatch):
    repeat_corpus(options(plain, tmp_path / "whole", epochs=1))
    commit, left = Ledger.commit, []

    def die(self, unit, part, decision=None):
        # The shard is there and its part of the manifest is not: as after a kill between the two.
        self._create_shard(part.shards[0])
        left.append(unit.name)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "commit", die)
    with pytest.raises(KeyboardInterrupt):
        repeat_corpus(options(plain, tmp_path / "out", epochs=1))
    monkeypatch.setattr(Ledger, "commit", commit)
    repeat_corpus(options(plain, tmp_path / "out", epochs=1))
    assert left and order(tmp_path / "out") == order(tmp_path / "whole")
    assert verify_corpus(str(tmp_path / "out"), count_tokens=False).problems == []


def test_kills_lose_nothing_and_double_nothing(tmp_path):
    corpus = write_plain(tmp_path / "in", documents=100, size=6_000)
    out = tmp_path / "out"
    asked = json.dumps(asdict(options(corpus, out, epochs=6, windows_per_shard=2)))
    script = "import json,sys; from derivedata.pipelines.repeat_run import *; "
    script += "repeat_corpus(RepeatOptions(**json.loads(sys.argv[1])))"

    def begin():
        return subprocess.Popen([sys.executable, "-c", script, asked], stderr=subprocess.PIPE, text=True)

    for wanted in (1, 20):
        process = begin()
        while len(list(out.glob("manifest/units/0*.parquet"))) < wanted and process.poll() is None:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    process = begin()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    repeat_corpus(options(corpus, tmp_path / "quiet", epochs=6))
    assert order(out) == order(tmp_path / "quiet")
    assert verify_corpus(str(out), count_tokens=False).problems == []


def test_the_stage_stands_in_a_datatrove_pipeline(plain, tmp_path):
    outcome = repeat_corpus(options(plain, tmp_path / "out", epochs=1))
    assert outcome.mixing.blocks > 3
    assert RepeatStage.type == "🧬 - DERIVE"
