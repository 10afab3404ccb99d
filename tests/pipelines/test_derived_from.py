"""What others derived is taken in as our own derivations: sources found, tokens counted, books balanced."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from derivedata.cli.eta.holdings import read_holdings
from derivedata.errors import UserError
from derivedata.generation.tokenizer import load_tokenizer
from derivedata.pipelines.derived_from import DerivedOptions, ingest_derived
from derivedata.pipelines.ingest import IngestOptions, ingest
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from tests.pipelines.test_ingest import rows, write_lines

SOURCES = [{"id": f"<urn:{n}>", "text": f"Source {n}. " + "Plain words of it. " * n, "source": "web"} for n in range(8)]


@pytest.fixture
def corpus(tmp_path) -> Path:
    """A plain Dolma corpus without a manifest."""
    write_lines(tmp_path / "corpus" / "documents" / "a.jsonl.gz", SOURCES[:5], compressed=True)
    write_lines(tmp_path / "corpus" / "documents" / "b.jsonl", SOURCES[5:])
    return tmp_path / "corpus"


def write_finephrase(folder: Path, *, rollouts: int = 2) -> Path:
    """FinePhrase's layout: a folder a style; `text` is the source, the generations stand in `rollout_results`."""
    for style in ("faq", "table"):
        table = []
        for number, source in enumerate(SOURCES):
            results = [
                {
                    "text": f"{style} {number}.{i}: made of the source.",
                    "finish_reason": "stop",
                    "usage": {"prompt_tokens": 100 + number, "completion_tokens": 9, "total_tokens": 109 + number},
                }
                for i in range(rollouts)
            ]
            row = {"text": source["text"], "id": source["id"], "url": f"https://x/{number}", "score": 2.5 + number}
            table.append({**row, "rollout_results": results})
        (folder / style).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(table), folder / style / "00000_0.parquet", row_group_size=3)
    return folder


def take(source, output, tokenizer, **options):
    settings = {"strategy": "paraphrase", "tokenizer": str(tokenizer)} | options
    outcome = ingest_derived(DerivedOptions(sources=(str(source),), output=str(output), **settings))
    verified = verify_corpus(str(output))
    assert (verified.problems, verified.notes) == ([], [])
    return outcome


def test_finephrase_goes_in_with_its_sources_by_text(tmp_path, corpus, tiny_model):
    place = write_finephrase(tmp_path / "fine")
    outcome = take(place, tmp_path / "out", tiny_model, derived_from=str(corpus), model="smol", chunk_bytes=400)
    styles = outcome.summary.styles.select("strategy", "style", "documents").rows()
    assert styles == [("paraphrase", "faq", 16), ("paraphrase", "table", 16)]
    assert outcome.summary.books["generation"].planned == 32
    index = Manifest(tmp_path / "out").documents()
    assert index["source_path"].unique().sort().to_list() == ["a.jsonl.gz", "b.jsonl"]
    found = rows(tmp_path / "out")
    derivation = found[1]["metadata"]["derivedata"]
    assert (derivation["source_id"], derivation["rewrite"], derivation["model"]) == ("<urn:0>", 1, "smol")
    assert (derivation["prompt_tokens"], derivation["completion_tokens"]) == (100, 9)
    assert derivation["seed"] is None and derivation["prompt_sha256"] is None
    assert json.loads(found[1]["metadata"]["source_metadata"]) == {"id": "<urn:0>", "score": 2.5, "url": "https://x/0"}
    assert found[1]["source"] == "web/derived/faq" and found[1]["text"] == "faq 0.1: made of the source."


def test_tokens_of_source_and_derivation_are_what_eta_reads(tmp_path, corpus, tiny_model):
    take(write_finephrase(tmp_path / "fine"), tmp_path / "out", tiny_model, derived_from=str(corpus))
    held = read_holdings([str(tmp_path / "out")])
    counter = load_tokenizer(tiny_model)
    assert held.fresh_tokens == sum(counter.count([source["text"] for source in SOURCES]))
    assert {one.style: one.tokens for one in held.held} == {
        style: sum(counter.count([row["text"] for row in rows(tmp_path / "out") if row["text"].startswith(style)]))
        for style in ("faq", "table")
    }


def test_a_corpus_with_a_manifest_is_not_read_again(tmp_path, corpus, tiny_model, monkeypatch):
    ingest(IngestOptions(sources=(str(corpus),), output=str(tmp_path / "taken"), tokenizer=str(tiny_model)))
    monkeypatch.setattr("derivedata.pipelines.source_index.read_rows", None)
    place = write_finephrase(tmp_path / "fine")
    take(place, tmp_path / "out", tiny_model, derived_from=str(tmp_path / "taken"))
    assert Manifest(tmp_path / "out").frame("sources").height == 16  # a row a source and unit
    assert Manifest(tmp_path / "out").documents()["source_uid"].n_unique() == 8


def test_nemotrons_folders_say_style_and_quality(tmp_path, corpus, tiny_model):
    place = tmp_path / "nemotron" / "quality=high"
    lines = b"".join(
        json.dumps({"text": f"Distilled {n}.", "warc_record_id": SOURCES[n]["id"], "language": "eng"}).encode() + b"\n"
        for n in range(3)
    )
    for kind, kind2 in (("synthetic", "distill"), ("actual", "actual")):
        folder = place / f"kind={kind}" / f"kind2={kind2}"
        folder.mkdir(parents=True)
        (folder / "part-0.jsonl.zstd").write_bytes(zstandard.compress(lines))
    take(tmp_path / "nemotron", tmp_path / "out", tiny_model, strategy="distill", derived_from=str(corpus))
    found = rows(tmp_path / "out")
    assert [row["text"] for row in found] == ["Distilled 0.", "Distilled 1.", "Distilled 2."]
    assert found[0]["metadata"]["derivedata"]["style"] == "distill"
    rest = json.loads(found[0]["metadata"]["source_metadata"])
    assert rest["quality"] == "high" and rest["language"] == "eng"


COSMOPEDIA = [
    {"prompt": "Write.", "text": f"A textbook {n}.", "seed_data": "web", "format": "text book", "audience": "all"}
    for n in range(3)
]


def test_cosmopedia_names_no_source_so_it_is_kept_only_when_asked(tmp_path, corpus, tiny_model):
    place = write_lines(tmp_path / "c.jsonl", COSMOPEDIA)
    with pytest.raises(UserError, match=r"3 of 3 generations are turned down \(no-source 3\).*--unmatched keep"):
        take(place, tmp_path / "no", tiny_model, derived_from=str(corpus))
    assert verify_corpus(str(tmp_path / "no")).problems == []
    take(place, tmp_path / "out", tiny_model, unmatched="keep")
    [first, *_] = rows(tmp_path / "out")
    assert first["metadata"]["derivedata"]["style"] == "text-book"
    assert first["metadata"]["derivedata"]["source_uid"] is None
    assert json.loads(first["metadata"]["source_metadata"])["prompt"] == "Write."
    assert Manifest(tmp_path / "out").documents()["source_uid"].null_count() == 3


def test_plain_rows_name_their_source_in_a_field(tmp_path, corpus, tiny_model):
    lines = [
        {"id": 1, "text": "Of two.", "orig": "<urn:2>"},
        {"id": 1, "text": "Of two again.", "orig": "<urn:2>"},
        {"id": 2, "text": "", "orig": "<urn:3>"},
        {"id": 3, "text": "Of nobody.", "orig": "<urn:99>"},
        {"id": 4},
    ]
    place = write_lines(tmp_path / "d.jsonl", lines)
    outcome = take(
        place,
        tmp_path / "out",
        tiny_model,
        derived_from=str(corpus),
        source_id_field="orig",
        style="free",
        max_bad_input=1,
    )
    assert [row["text"] for row in rows(tmp_path / "out")] == ["Of two.", "Of two again."]
    assert outcome.summary.books["generation"].rejected == {"empty-text": 1, "no-source": 1}
    assert outcome.summary.books["input"].rejected == {"missing-text": 1}


def test_an_id_that_several_documents_have_is_no_source_unless_the_text_tells(tmp_path, tiny_model):
    twice = [{"id": "a", "text": "One."}, {"id": "a", "text": "Two."}]
    write_lines(tmp_path / "corpus" / "x.jsonl", twice)
    place = write_lines(tmp_path / "d.jsonl", [{"text": "Derived.", "source_id": "a"}])
    with pytest.raises(UserError, match="ambiguous-source 1"):
        take(place, tmp_path / "no", tiny_model, derived_from=str(tmp_path / "corpus"))
    rollouts = [{"text": "Derived.", "finish_reason": None, "usage": None}]
    place = write_lines(tmp_path / "faq" / "f.jsonl", [{"id": "a", "text": "Two.", "rollout_results": rollouts}])
    take(place, tmp_path / "out", tiny_model, derived_from=str(tmp_path / "corpus"))
    assert Manifest(tmp_path / "out").documents()["source_row"].to_list() == [1]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tokenizer": None}, "a tokenizer is wanted"),
        ({}, "what were they derived from"),
        ({"strategy": "no such/name", "unmatched": "keep"}, "not a name for a strategy"),
        ({"strategy": "fresh", "unmatched": "keep"}, "is no way to derive documents"),
        ({"derived_from": "nowhere"}, "no such file or folder"),
    ],
)
def test_what_is_missing_is_one_line(tmp_path, tiny_model, options, told):
    place = write_lines(tmp_path / "d.jsonl", [{"text": "Derived."}])
    settings = {"strategy": "paraphrase", "tokenizer": str(tiny_model)} | options
    with pytest.raises(UserError, match=told):
        ingest_derived(DerivedOptions(sources=(str(place),), output=str(tmp_path / "out"), **settings))


def test_a_later_stop_changes_nothing(tmp_path, corpus, tiny_model, monkeypatch):
    from derivedata.store.ledger import Ledger

    place, publish, made = write_finephrase(tmp_path / "fine"), Ledger.publish, []

    def dying(self, name, part):
        made.append(name)
        if len(made) == 4:  # between the rows of a piece and what was made of them
            raise KeyboardInterrupt
        return publish(self, name, part)

    settings = {"derived_from": str(corpus), "chunk_bytes": 150}
    take(place, tmp_path / "quiet", tiny_model, **settings)
    monkeypatch.setattr(Ledger, "publish", dying)
    stops = 0
    while True:
        made.clear()
        try:
            take(place, tmp_path / "out", tiny_model, **settings)
            break
        except KeyboardInterrupt:
            stops += 1
    assert stops > 3
    strip = [(row["id"], row["text"]) for row in rows(tmp_path / "quiet")]
    assert [(row["id"], row["text"]) for row in rows(tmp_path / "out")] == strip
