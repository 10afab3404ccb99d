"""Verify on an ingested corpus: each single fault is found, with the file that has it."""

from __future__ import annotations

import re
import shutil

import pytest

from derivedata.pipelines.derived_from import DerivedOptions, ingest_derived
from derivedata.pipelines.ingest import IngestOptions, ingest
from derivedata.store.compaction import compact
from derivedata.store.paths import Folder
from tests.pipelines.faults import alter, books, constant, cut, delete, edit_record, flip, rejected_row, write
from tests.pipelines.test_derived_from import SOURCES, write_finephrase
from tests.pipelines.test_ingest import write_lines
from tests.pipelines.test_verify import broken, told

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, tiny_model):
    """A good corpus of six pieces, with two rejected rows."""
    place = tmp_path_factory.mktemp("fresh")
    bad = [{"text": None}, {"id": 1}]
    write_lines(place / "in" / "a.jsonl", [*bad, *({"id": 1, "text": f"Text number {n}."} for n in range(9))])
    write_lines(place / "in" / "b.jsonl", [{"id": n, "text": f"Other text {n}."} for n in range(9)])
    options = IngestOptions(
        sources=(str(place / "in"),),
        output=str(place / "out"),
        chunk_bytes=50,
        max_bad_input=1,
        tokenizer=str(tiny_model),
    )
    ingest(options)
    return place / "out"


@pytest.fixture(scope="module")
def derived(tmp_path_factory, tiny_model):
    """What others derived, taken in; two pieces a style."""
    place = tmp_path_factory.mktemp("derived")
    write_lines(place / "corpus" / "documents" / "a.jsonl", SOURCES)
    options = DerivedOptions(
        sources=(str(write_finephrase(place / "fine")),),
        output=str(place / "out"),
        strategy="paraphrase",
        derived_from=str(place / "corpus"),
        chunk_bytes=300,
        tokenizer=str(tiny_model),
    )
    ingest_derived(options)
    return place / "out"


SHARD = r"documents/00000\d\.0000\d\.jsonl\.zst"
FRESH = {
    "shard flipped": (flip("documents/*"), f"{SHARD}: has other content"),
    "shard deleted": (delete("documents/*"), f"{SHARD}: is missing"),
    "shard stray": (write("documents/more.jsonl", '{"text": "more"}'), "documents/more.jsonl: is not in the manifest"),
    "text hash altered": (alter("documents", "text_sha256", constant("0" * 64)), f"{SHARD}: row 0: text_sha256 is"),
    "uid altered": (alter("documents", "uid", constant("0" * 32)), f"{SHARD}: row 0: uid is"),
    "id altered": (alter("documents", "id", constant("other")), f"{SHARD}: row 0: id is"),
    "tokens altered": (alter("documents", "tokens", lambda row, old: old + 1), f"{SHARD}: .*tokens"),
    "strategy altered": (alter("documents", "strategy", constant("paraphrase")), "strategy"),
    "source altered": (alter("documents", "source_path", constant("other.jsonl")), "source_shard"),
    "index deleted": (delete("manifest/documents/*"), r"manifest/documents/.*parquet: is missing"),
    "index cut": (cut("manifest/ingested/*"), r"manifest/ingested/.*parquet: (is damaged|has other content)"),
    "rejects deleted": (delete("rejected/*"), "rejected/input-000000.00000.jsonl.zst: is missing"),
    "rejects altered": (rejected_row(line=7), "the index of input has 2 rejected rows"),
    "books altered": (
        books(lambda told: told.update(accepted=told["accepted"] + 1, planned=told["planned"] + 1)),
        "its books accept",
    ),
    "plan cut": (cut("plan/inputs.json"), "plan/inputs.json: is damaged"),
    "record altered": (edit_record(everywhere=False, text_field="content"), "run.json"),
    "card deleted": (delete("README.md"), "README.md: is missing"),
}


def test_both_are_good_also_compacted(fresh, derived, tmp_path):
    for good in (fresh, derived):
        assert told(good) == []
        assert told(broken(good, tmp_path / good.parent.name, lambda out: compact(Folder(out), grace=0))) == []


@pytest.mark.parametrize("fault", FRESH)
def test_each_fault_of_an_ingested_corpus_is_found(fresh, tmp_path, fault):
    damage, words = FRESH[fault]
    problems = told(broken(fresh, tmp_path, damage))
    assert re.search(words, "\n".join(problems)), problems


DERIVED = {
    "shard flipped": (flip("documents/*/*"), "documents/style=faq/.*: has other content"),
    "lineage altered": (alter("documents", "source_uid", constant("0" * 32)), "source_uid is"),
    "sources altered": (alter("sources", "path", constant("other.jsonl")), "other.jsonl: is no longer in the source"),
    "model altered": (alter("documents", "model", constant("other")), "model is"),
}


@pytest.mark.parametrize("fault", DERIVED)
def test_each_fault_of_what_others_derived_is_found(derived, tmp_path, fault):
    damage, words = DERIVED[fault]
    problems = told(broken(derived, tmp_path, damage))
    assert re.search(words, "\n".join(problems)), problems


def test_a_source_that_changed_is_found(derived, tmp_path):
    shutil.copytree(derived.parent / "corpus", tmp_path / "corpus")
    write_lines(tmp_path / "corpus" / "documents" / "a.jsonl", [{"id": "x", "text": "Other."}])
    problems = told(derived, source=[str(tmp_path / "corpus")])
    assert re.search("row 0 is not the document that was derived from", "\n".join(problems))


def test_documents_that_are_not_derived_have_no_source_to_be_looked_for(fresh):
    assert told(fresh, source=[str(fresh.parent / "in")]) == []
