"""Paraphrasing end to end against a fake server over real HTTP: what comes out, what is refused, what is extended."""

from __future__ import annotations

import json

import datasets
import polars as pl
import pytest
import zstandard

from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import read_rows
from derivedata.errors import UserError
from derivedata.pipelines.run import paraphrase_corpus
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from tests.fake_server import FakeServer
from tests.pipelines.fakes import job, serve_at
from tests.pipelines.test_source import source_text, write_corpus


def run(server, *args, **options):
    return paraphrase_corpus(job(*args, **options), serve=serve_at(server.endpoint.url))


def keys(output):
    return sorted(Manifest(output).documents()["id"].to_list())


def texts(output):
    return {row.id: row.text for file in corpus_files([str(output)]) for row in read_rows(file)}


def test_every_request_has_one_outcome_and_the_output_verifies(server, corpus, tiny_model, tmp_path):
    outcome = run(server, corpus, tmp_path / "out", tiny_model)
    books = outcome.summary.books
    assert books["input"].planned == books["input"].accepted == 24
    assert books["generation"].planned == 24 * 4
    assert books["generation"].settled == books["generation"].planned
    assert outcome.summary.documents == books["generation"].accepted > 60
    assert max(server.received.values()) == 1
    verified = verify_corpus(str(tmp_path / "out"))
    assert verified.problems == [] and verified.notes == []
    assert verified.sources == 2


def test_a_derived_document_says_what_it_was_made_from(server, corpus, tiny_model, tmp_path):
    run(server, corpus, tmp_path / "out", tiny_model, styles=("faq",))
    sources = {row.uid: row for file in corpus_files([str(corpus)]) for row in read_rows(file)}
    for file in corpus_files([str(tmp_path / "out")]):
        for row in read_rows(file):
            derivation = row.metadata["derivedata"]
            source = sources[derivation["source_uid"]]
            assert derivation["source_id"] == source.id
            assert row.text != source.text
            assert row.source == "unknown/derived/faq"
            assert derivation["style"] == "faq"
            assert derivation["strategy"] == "paraphrase"
            assert derivation["prompt_tokens"] > 0


def test_run_again_there_is_nothing_to_do(server, corpus, tiny_model, tmp_path):
    run(server, corpus, tmp_path / "out", tiny_model)
    asked = sum(server.received.values())
    run(server, corpus, tmp_path / "out", tiny_model)
    assert sum(server.received.values()) == asked


def test_more_rewrites_styles_and_documents_extend_the_output(server, corpus, tiny_model, tmp_path):
    out = tmp_path / "out"
    run(server, corpus, out, tiny_model, styles=("faq",), documents=10)
    first = texts(out)
    run(server, corpus, out, tiny_model, styles=("faq", "table"), documents=10)
    run(server, corpus, out, tiny_model, styles=("faq", "table"), documents=10, rewrites=2)
    run(server, corpus, out, tiny_model, styles=("faq", "table"), rewrites=2)
    assert max(server.received.values()) == 1
    assert Manifest(out).books()["generation"].planned == 24 * 2 * 2
    extended = texts(out)
    assert first.items() <= extended.items()
    at_once = tmp_path / "at-once"
    run(server, corpus, at_once, tiny_model, styles=("faq", "table"), rewrites=2)
    assert texts(at_once) == extended
    assert verify_corpus(str(out)).problems == []


def test_tasks_and_chunks_change_nothing_about_the_keys(server, corpus, tiny_model, tmp_path):
    run(server, corpus, tmp_path / "one", tiny_model)
    run(server, corpus, tmp_path / "three", tiny_model, tasks=3, workers=2)
    assert texts(tmp_path / "one") == texts(tmp_path / "three")


def test_a_budget_is_met_by_the_same_documents_whatever_the_tasks(server, corpus, tiny_model, tmp_path):
    run(server, corpus, tmp_path / "all", tiny_model)
    total = Manifest(tmp_path / "all").summary().tokens
    target = total // 2
    run(server, corpus, tmp_path / "one", tiny_model, tokens=target)
    run(server, corpus, tmp_path / "two", tiny_model, tokens=target, tasks=2, workers=1)
    assert keys(tmp_path / "one") == keys(tmp_path / "two")
    tokens = Manifest(tmp_path / "one").summary().tokens
    assert target <= tokens < total
    # The prefix is the shortest: without its last document in the seeded order the budget is not met.
    by_source = Manifest(tmp_path / "one").documents().group_by("source_uid").agg(pl.col("tokens").sum())
    assert tokens - by_source["tokens"].max() < target


def test_a_larger_budget_goes_on_where_the_smaller_ended(server, corpus, tiny_model, tmp_path):
    out = tmp_path / "out"
    run(server, corpus, out, tiny_model, tokens=2_000)
    small = texts(out)
    run(server, corpus, out, tiny_model, tokens=6_000)
    assert small.items() < texts(out).items()
    run(server, corpus, out, tiny_model)
    run(server, corpus, tmp_path / "all", tiny_model)
    assert texts(out) == texts(tmp_path / "all")
    assert verify_corpus(str(out)).problems == []


def test_a_style_mix_draws_one_style_a_document_and_rewrite(server, corpus, tiny_model, tmp_path):
    mix = {"faq": 1, "table": 3}
    run(server, corpus, tmp_path / "out", tiny_model, style_mix=mix, rewrites=4)
    books = Manifest(tmp_path / "out").books()["generation"]
    assert books.planned == 24 * 4
    documents = Manifest(tmp_path / "out").documents()
    assert documents.select("source_uid", "rewrite").is_duplicated().sum() == 0
    table = (documents["style"] == "table").sum()
    assert 0.6 < table / len(documents) < 0.9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temperature": 0.1}, "temperature was not set, is 0.1"),
        ({"seed": 3}, "seed was 0, is 3"),
        ({"style_mix": {"faq": 1.0, "table": 1.0}, "styles": ()}, "style_mix was not set"),
        ({"max_tokens": 9}, "max_new was not set, is 9"),
    ],
)
def test_a_change_that_would_alter_texts_is_refused_by_name(server, corpus, tiny_model, tmp_path, change, words):
    out = tmp_path / "out"
    run(server, corpus, out, tiny_model, styles=("faq",))
    before = keys(out)
    with pytest.raises(UserError, match=words):
        run(server, corpus, out, tiny_model, **({"styles": ("faq",)} | change))
    assert keys(out) == before


def test_restart_starts_over(server, corpus, tiny_model, tmp_path):
    out = tmp_path / "out"
    run(server, corpus, out, tiny_model, styles=("faq",))
    run(server, corpus, out, tiny_model, styles=("table",), temperature=0.1, restart=True)
    assert set(Manifest(out).documents()["style"]) == {"table"}
    assert verify_corpus(str(out)).problems == []


def test_a_filter_is_asked_before_commit(server, corpus, tiny_model, tmp_path, monkeypatch):
    run(server, corpus, tmp_path / "all", tiny_model, styles=("faq",))
    lengths = sorted(len(text) for text in texts(tmp_path / "all").values())
    middle = lengths[len(lengths) // 2]
    module = tmp_path / "myfilter.py"
    module.write_text(f"def short(document):\n    return len(document.text) < {middle}, 'long'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = run(server, corpus, tmp_path / "out", tiny_model, styles=("faq",), filter="myfilter:short")
    assert outcome.summary.books["generation"].rejected["filter"] > 0
    kept = texts(tmp_path / "out")
    assert kept and all(len(text) < middle for text in kept.values())
    with pytest.raises(UserError, match="can't be imported"):
        run(server, corpus, tmp_path / "no", tiny_model, filter="myfilter:long")


def test_a_document_with_control_tokens_is_a_document(server, tiny_model, tmp_path, reference_data):
    source = reference_data / "shards" / "nasty" / "12-template-injection.jsonl"
    outcome = run(server, source, tmp_path / "out", tiny_model, styles=("faq",))
    assert outcome.summary.books["input"].accepted == 4


def test_too_much_bad_input_ends_the_run_and_keeps_the_rejects(server, tiny_model, tmp_path, reference_data):
    source = reference_data / "shards" / "nasty" / "11-empty-text.jsonl"
    with pytest.raises(UserError, match="input rows are no documents"):
        run(server, source, tmp_path / "out", tiny_model)
    assert server.received == {}
    (kept,) = (tmp_path / "out" / "rejected").glob("*.zst")
    with zstandard.ZstdDecompressor().stream_reader(kept.read_bytes(), read_across_frames=True) as stream:
        rows = [json.loads(line) for line in stream.read().splitlines()]
    assert {row["line"] for row in rows} and all(row["reason"] for row in rows)


def test_hopeless_generations_end_the_run(server, tiny_model, tmp_path):
    corpus = write_corpus(tmp_path / "in", shards=3, documents=30)
    with pytest.raises(UserError, match="of the first 200 generations were rejected"):
        run(server, corpus, tmp_path / "out", tiny_model, max_tokens=1, rewrites=4)


def test_real_and_nasty_shards_come_out_balanced(server, tiny_model, tmp_path, reference_data):
    shards = reference_data / "shards"
    expected = {"real/c4": 30, "real/dolma-documents": 10}
    for number, (name, documents) in enumerate(expected.items()):
        outcome = run(server, shards / name, tmp_path / f"real{number}", tiny_model, chunk_bytes=8_000, max_tokens=200)
        assert outcome.summary.books["input"].accepted == documents
        assert verify_corpus(str(tmp_path / f"real{number}")).problems == []
    outcome = run(server, shards / "nasty", tmp_path / "nasty", tiny_model, chunk_bytes=8_000, max_bad_input=1.0)
    books = outcome.summary.books["input"]
    assert books.planned == books.accepted + sum(books.rejected.values())
    assert 100 <= books.accepted <= 110
    assert verify_corpus(str(tmp_path / "nasty")).problems == []


def test_every_kind_of_server_fault_is_survived(corpus, tiny_model, tmp_path):
    faults = {"429": 0.05, "500": 0.05, "503": 0.05, "garbage": 0.05, "half": 0.05, "reset": 0.05, "empty": 0.05}
    with FakeServer(tokenizer=tiny_model, model="fake", faults=faults, fail_first=1) as shaky:
        outcome = run(shaky, corpus, tmp_path / "out", tiny_model)
    assert outcome.summary.books["generation"].planned == 24 * 4
    assert "server_error" not in outcome.summary.books["generation"].rejected
    assert verify_corpus(str(tmp_path / "out")).problems == []


def test_the_formats_hold_the_same_documents(server, corpus, tiny_model, tmp_path):
    for form in ("jsonl.zst", "jsonl.gz", "parquet"):
        run(server, corpus, tmp_path / form, tiny_model, styles=("faq",), format=form)
        assert verify_corpus(str(tmp_path / form)).problems == []
    assert texts(tmp_path / "jsonl.zst") == texts(tmp_path / "jsonl.gz") == texts(tmp_path / "parquet")


@pytest.mark.parametrize("form", ["jsonl.zst", "jsonl.gz", "parquet"])
def test_datasets_loads_each_style_streaming_and_not(server, tiny_model, tmp_path, form):
    path = tmp_path / "in" / "documents" / "mixed.jsonl"
    path.parent.mkdir(parents=True)
    kinds = [{"a": 1}, {"a": "one", "b": [1]}, None, {}]
    rows = [{"id": i, "text": source_text(0, i), "metadata": kinds[i % 4]} for i in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out"
    run(server, tmp_path / "in", out, tiny_model, styles=("faq", "table"), format=form, chunk_bytes=600)
    plain = datasets.load_dataset(str(out), "faq", split="train", cache_dir=str(tmp_path / "cache"))
    streamed = list(datasets.load_dataset(str(out), "faq", split="train", streaming=True))
    assert sorted(plain["id"]) == sorted(row["id"] for row in streamed)
    assert len(plain) == Manifest(out).documents().filter(pl.col("style") == "faq").height


def test_the_input_is_never_taken_for_the_output(server, corpus, tiny_model, tmp_path):
    for restart in (False, True):
        with pytest.raises(UserError, match="the output folder holds the input"):
            run(server, corpus, corpus, tiny_model, restart=restart)
        with pytest.raises(UserError, match="the output folder holds the input"):
            run(server, corpus / "documents", corpus, tiny_model, restart=restart)
    assert len(list((corpus / "documents").iterdir())) == 2


def test_a_folder_that_is_not_ours_is_left_alone(server, corpus, tiny_model, tmp_path):
    out = tmp_path / "out"
    (out / "documents").mkdir(parents=True)
    (out / "documents" / "thesis.txt").write_text("mine")
    for restart in (False, True):
        with pytest.raises(UserError, match=r"not empty, and not ours \(got documents/thesis.txt\)"):
            run(server, corpus, out, tiny_model, restart=restart)
    assert (out / "documents" / "thesis.txt").read_text() == "mine"


def test_an_output_inside_the_corpus_is_not_part_of_it(server, corpus, tiny_model):
    loose = corpus / "documents"
    for rewrites in (1, 2):
        run(server, loose, loose / "out", tiny_model, styles=("faq",), rewrites=rewrites)
    assert Manifest(loose / "out").books()["input"].planned == 24
    assert Manifest(loose / "out").books()["generation"].planned == 48


def test_a_missing_run_record_is_not_taken_for_a_new_output(server, corpus, tiny_model, tmp_path):
    run(server, corpus, tmp_path / "out", tiny_model, styles=("faq",))
    (tmp_path / "out" / "run.json").unlink()
    with pytest.raises(UserError, match="not ours"):
        run(server, corpus, tmp_path / "out", tiny_model, styles=("faq",), temperature=0.1)


def test_a_server_that_refuses_everything_ends_the_run_and_burns_nothing(corpus, tiny_model, tmp_path):
    told = r"refused each of the first 32 requests: .*maximum context length"
    with FakeServer(tokenizer=tiny_model, model="fake", context=16) as server, pytest.raises(UserError, match=told):
        run(server, corpus, tmp_path / "out", tiny_model)
    assert Manifest(tmp_path / "out").books().get("generation") is None


def test_the_order_and_scale_of_a_mix_do_not_matter(server, corpus, tiny_model, tmp_path):
    run(server, corpus, tmp_path / "a", tiny_model, style_mix={"faq": 1, "table": 1})
    run(server, corpus, tmp_path / "b", tiny_model, style_mix={"table": 2, "faq": 2})
    run(server, corpus, tmp_path / "a", tiny_model, style_mix={"table": 3, "faq": 3})
    assert keys(tmp_path / "a") == keys(tmp_path / "b")


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_budget_counts_what_an_added_style_brings(server, corpus, tiny_model, tmp_path, tasks):
    everything = run(server, corpus, tmp_path / "all", tiny_model, styles=("faq", "table")).summary.tokens
    target, out = everything // 2, tmp_path / "out"
    run(server, corpus, out, tiny_model, styles=("faq",), tokens=target // 3, tasks=tasks, workers=1)
    run(server, corpus, out, tiny_model, styles=("faq", "table"), tokens=target, tasks=tasks, workers=1)
    run(server, corpus, tmp_path / "at-once", tiny_model, styles=("faq", "table"), tokens=target)
    assert keys(out) == keys(tmp_path / "at-once")
    assert verify_corpus(str(out)).problems == []


def test_what_cannot_work_is_refused_before_it_becomes_the_configuration(server, corpus, tiny_model, tmp_path):
    for wrong in ({"temperature": -1.0}, {"context": 64}, {"max_tokens": 100_000}, {"tokens": 0}):
        with pytest.raises(UserError):
            run(server, corpus, tmp_path / "out", tiny_model, styles=("faq",), **wrong)
    run(server, corpus, tmp_path / "out", tiny_model, styles=("faq",))


def test_a_filter_that_fails_is_told_in_one_line(server, corpus, tiny_model, tmp_path, monkeypatch):
    (tmp_path / "badfilter.py").write_text("def f(document):\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"the filter failed on .*ZeroDivisionError"):
        run(server, corpus, tmp_path / "out", tiny_model, styles=("faq",), filter="badfilter:f")
