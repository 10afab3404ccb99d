"""Verify: a good output is good in every form; each single fault is found, with the file that has it."""

from __future__ import annotations

import gzip
import json
import re
import shutil

import pytest
from click.testing import CliRunner

from derivedata.cli.verify import verify
from derivedata.pipelines.run import paraphrase_corpus
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.compaction import compact
from derivedata.store.paths import Folder
from tests.fake_answers import answer, write_problems
from tests.fake_server import FakeServer
from tests.pipelines import faults
from tests.pipelines.fakes import MODEL, job, serve_at
from tests.pipelines.faults import alter, both, constant, cut, delete, edit_record, edit_run, flip, write
from tests.pipelines.measuring import measure
from tests.pipelines.test_source import source_text, write_corpus

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Two files of documents, and a third with one bad row."""
    corpus = write_corpus(tmp_path_factory.mktemp("source") / "in", shards=2, documents=9)
    rows = ["{}", *(json.dumps({"id": f"9-{i}", "text": source_text(9, i)}) for i in range(19))]
    (corpus / "documents" / "part-9.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode(), mtime=0))
    return corpus


@pytest.fixture(scope="module")
def outputs(source, tiny_model, tmp_path_factory):
    """One good output of each format; the first compacted too."""
    place = tmp_path_factory.mktemp("good")
    with pytest.MonkeyPatch.context() as patch, FakeServer(tokenizer=tiny_model, model=MODEL) as server:
        patch.setenv("DERIVEDATA_CACHE", str(place / "cache"))
        for form in ("jsonl.zst", "jsonl.gz", "parquet"):
            options = job(source, place / form, tiny_model, format=form, styles=("faq", "table"))
            paraphrase_corpus(options, serve=serve_at(server.endpoint.url))
    shutil.copytree(place / "jsonl.zst", place / "compacted")
    compact(Folder(place / "compacted"), grace=0)
    return place


@pytest.fixture(scope="module")
def measured(tiny_model, tmp_path_factory):
    """A good measurement of difficulty."""
    place = tmp_path_factory.mktemp("measured")
    problems = write_problems(place / "problems.jsonl", [0.1, 0.4, 0.5, 0.5, 0.7, 0.9, 0.2, 0.6, 0.3, 0.8])
    with (
        pytest.MonkeyPatch.context() as patch,
        FakeServer(tokenizer=tiny_model, model=MODEL, reply=answer) as server,
    ):
        patch.setenv("DERIVEDATA_CACHE", str(place / "cache"))
        measure(server, problems, place / "out", tiny_model)
    return place / "out"


def broken(good, tmp_path, fault):
    """A copy of a good output with a fault."""
    out = tmp_path / "out"
    shutil.copytree(good, out)
    fault(out)
    return out


def told(out, **options) -> list[str]:
    verified = verify_corpus(str(out), **options)
    return [f"{problem.where}: {problem.what}" for problem in verified.problems]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("form", ["jsonl.zst", "jsonl.gz", "parquet"])
def test_a_good_output_is_good(outputs, tmp_path, form, compacted):
    out = broken(outputs / form, tmp_path, lambda out: compact(Folder(out), grace=0) if compacted else None)
    assert (out / "manifest" / "snapshots").exists() == compacted
    verified = verify_corpus(str(out), tasks=2)
    assert verified.problems == [] and verified.notes == []
    assert verified.tokens_counted and verified.sources == 3 and verified.documents > 40


@pytest.mark.parametrize("compacted", [False, True])
def test_a_good_measurement_is_good(measured, tmp_path, compacted):
    out = broken(measured, tmp_path, lambda out: compact(Folder(out), grace=0) if compacted else None)
    verified = verify_corpus(str(out))
    assert verified.problems == [] and verified.notes == []


SHARD = r"documents/style=faq/\d{6}\.[^/]*"
UNIT = r"\d{6}\.\d{6}-\d{6}\.r0-1\.[0-9a-f]{8}"
BAD = r"(other content|damaged)"

FAULTS = {
    # Shards.
    "shard flipped": (flip("documents/*/*"), rf"{SHARD}: has other content"),
    "shard cut": (cut("documents/*/*"), rf"{SHARD}: has other content .*bytes instead of"),
    "shard deleted": (delete("documents/*/*"), rf"{SHARD}: is missing"),
    "shard stray": (write("documents/style=faq/more.jsonl.zst", "x"), "more.jsonl.zst: is not in the manifest"),
    # Rejects.
    "rejects deleted": (delete("rejected/*", every=True), rf"rejected/{UNIT}.jsonl.zst: is missing"),
    "rejects of the input deleted": (delete("rejected/input*"), "rejected/input-.*: is missing"),
    "rejects flipped": (flip("rejected/*"), rf"rejected/{UNIT}.jsonl.zst: has other content"),
    "rejects stray": (write("rejected/more.jsonl.zst", "x"), "rejected/more.jsonl.zst: is not in the manifest"),
    "a kept reject altered": (faults.rejected_row(reason="other"), "rejected: the index of generation has"),
    # The manifest's files.
    **{
        f"{table} {how}": (damage(f"manifest/{table}/*.parquet"), rf"manifest/{table}/{UNIT}.parquet: .*{words}")
        for table in ("units", "documents", "rejected", "sources")
        for how, damage, words in (("flipped", flip, BAD), ("cut", cut, BAD), ("deleted", delete, "is missing"))
        if (table, how) != ("units", "deleted")
    },
    "units doubled": (
        lambda out: shutil.copyfile(unit := faults.first(out, "manifest/units/0*"), unit.with_name(f"9{unit.name}")),
        r"manifest/documents/9\d{6}\.[^\n]*",
    ),
    "units deleted": (
        delete("manifest/units/*.parquet"),
        rf"(?s)manifest/sources/{UNIT}.parquet: belongs to no committed part.*style=faq.* is not in the manifest",
    ),
    "a unit of the input deleted": (
        delete("manifest/units/input*"),
        "inventory.json: names 3 files, the manifest has 2 parts of the input",
    ),
    "a unit forgotten": (faults.forget_unit("manifest/units/*.parquet"), "the run left generation with 74 planned"),
    "kinds deleted": (delete("manifest/kinds/*", every=True), r"manifest/kinds/[0-9a-f]{8}.json: is missing"),
    "kinds altered": (lambda out: faults.first(out, "manifest/kinds/*").write_text('["faq"]'), "names other kinds"),
    "books altered": (
        faults.books(lambda books: books.update(planned=books["planned"] + 1)),
        rf"manifest/units/{UNIT}.parquet: the books do not balance",
    ),
    "reasons swapped": (
        faults.books(lambda books: books.update(rejected={"other": sum(books["rejected"].values())})),
        "manifest/rejected: the books of generation reject .*'other'",
    ),
    # The index, wrong from the beginning.
    "tokens moved": (
        alter("documents", "tokens", lambda row, value: value + (row == 0) - (row == 1)),
        rf"{SHARD}: row 0: has \d+ tokens, the index says",
    ),
    **{
        f"documents.{name}": (alter("documents", name, constant(value)), rf"{SHARD}: row 0: {name} is")
        for name, value in {
            "chars": 1,
            "model": "gpt",
            "completion_tokens": 0,
            "finish_reason": "length",
            "source_id": "zz",
            "strategy": "repeat",
            "run_id": "other",
            "text_sha256": "0",
            "source": "elsewhere",
        }.items()
    },
    "documents.source_path": (
        alter("documents", "source_path", constant("nowhere.jsonl")),
        r"(?s)the index says nowhere.jsonl.*manifest/sources: has no document at nowhere.jsonl row",
    ),
    "documents.source_row": (
        alter("documents", "source_row", lambda row, value: value + 1),
        "manifest/sources: has no document at part-0.jsonl.gz row",
    ),
    "documents.shard": (alter("documents", "shard", constant("documents/no")), "documents/no: is not in the manifest"),
    "documents.id doubled": (alter("documents", "id", constant("one")), "document one is there .* times"),
    "documents.run_id": (alter("documents", "run_id", constant("x")), "manifest/documents: names run x, of which"),
    "documents.chars, unsealed": (
        alter("documents", "chars", constant(1), sealed=False),
        rf"manifest/documents/{UNIT}.parquet: has other content than was committed",
    ),
    "rejected.reason": (
        alter("rejected", "reason", constant("other")),
        "manifest/rejected: the books of generation reject .*'other'",
    ),
    "rejected.source_uid": (
        alter("rejected", "source_uid", constant("f" * 32)),
        "rejected: the index of generation has .* rejected rows that are not the",
    ),
    "sources.id": (alter("sources", "id", constant("zz")), "part-0.jsonl.gz: row .* the index says 'zz'"),
    # What the units part says of the shards.
    "units.frames none": (alter("units", "frames", constant([])), rf"{SHARD}: the manifest names frames with 0 rows"),
    "units.frames rows": (
        alter("units", "frames", lambda row, frames: [frame | {"rows": frame["rows"] + 1} for frame in frames]),
        rf"{SHARD}: the manifest names a frame",
    ),
    "units.frames length": (
        alter("units", "frames", lambda row, frames: [frame | {"length": 9} for frame in frames]),
        rf"{SHARD}: the manifest names a frame that can't be read alone",
    ),
    "units.tokenizer": (alter("units", "tokenizer", constant("gpt")), rf"{SHARD}: the manifest says tokenizer gpt"),
    "units.source_shard": (alter("units", "source_shard", constant("z")), rf"{SHARD}: .* says source_shard z"),
    "units.style": (alter("units", "style", constant("math")), rf"{SHARD}: the manifest says style math"),
    "units.unit": (alter("units", "unit", constant("other")), rf"{SHARD}: the manifest says unit other"),
    "units.run_id": (alter("units", "run_id", constant("x")), rf"{SHARD}: the manifest says run x"),
    "units.tokens": (alter("units", "tokens", constant(1)), rf"{SHARD}: .* add up to \d+, the manifest says 1"),
    "units.documents": (
        alter("units", "documents", constant(1)),
        rf"manifest/units/{UNIT}.parquet: its shards hold 2 documents",
    ),
    # Records.
    "run.json deleted": (delete("run.json"), "run.json: is missing"),
    "run.json garbage": (write("run.json", "{"), "run.json: is not a run record"),
    "seed edited": (edit_record(everywhere=False, seed=99), "run.json: its identity is not the one"),
    "seed edited everywhere": (edit_record(everywhere=True, seed=99), "row 0: seed is .* by the run record"),
    "model edited everywhere": (edit_record(everywhere=True, model="gpt"), "row 0: model is 'tiny', by the run record"),
    "style edited everywhere": (
        edit_record(everywhere=True, styles={"faq": "0" * 64}),
        "row 0: style_sha256 is .* by the run record",
    ),
    "books of the run edited": (edit_run(books={}), "run.json: its books is not what manifest/runs/"),
    "history deleted": (delete("manifest/runs/*"), r"manifest/runs/[\w-]+.json: is missing"),
    "history garbage": (lambda out: faults.first(out, "manifest/runs/*").write_text("["), "is not a run record"),
    "a mix with two styles of a document": (
        edit_record(everywhere=True, style_mix={"faq": 0.5, "table": 0.5}),
        "rewrite 0 of piece 0 of document [0-9a-f]{32} is there 2 times",
    ),
    "plan deleted": (lambda out: shutil.rmtree(out / "plan"), "plan/inventory.json: is missing"),
    "plan garbage": (write("plan/inventory.json", "["), "plan/inventory.json: is damaged"),
    "card deleted": (delete("README.md"), "README.md: is missing"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_and_its_file_named(outputs, tmp_path, fault):
    damage, words = FAULTS[fault]
    problems = told(broken(outputs / "jsonl.zst", tmp_path, damage))
    assert re.search(words, "\n".join(problems)), problems


COMPACTED = {
    **{
        f"{table} {how}": (damage(f"manifest/snapshots/*/*-{table}-0.parquet"), rf"-{table}-0.parquet: .*{words}")
        for table in ("shards", "documents", "rejected", "sources", "books", "units")
        for how, damage, words in (("flipped", flip, BAD), ("cut", cut, BAD), ("deleted", delete, "missing"))
    },
    "snapshot garbage": (write("manifest/snapshots/00000001/snapshot.json", "{}"), "not a snapshot"),
    "snapshot deleted": (delete("manifest/snapshots/*/snapshot.json"), f"{SHARD}: is not in the manifest"),
    "rejects deleted": (delete("rejected/*"), rf"rejected/{UNIT}.jsonl.zst: is missing"),
    "rejects flipped": (flip("rejected/*"), rf"rejected/{UNIT}.jsonl.zst: has other content"),
    "rejects stray": (write("rejected/more.jsonl.zst", "x"), "rejected/more.jsonl.zst: is not in the manifest"),
    "shard deleted": (delete("documents/*/*"), f"{SHARD}: is missing"),
    "shard flipped": (flip("documents/*/*"), f"{SHARD}: has other content"),
    "kinds deleted": (delete("manifest/kinds/*"), r"manifest/kinds/[0-9a-f]{8}.json: is missing"),
}


@pytest.mark.parametrize("fault", COMPACTED)
def test_each_fault_of_a_compacted_output_is_found(outputs, tmp_path, fault):
    damage, words = COMPACTED[fault]
    problems = told(broken(outputs / "compacted", tmp_path, damage))
    assert re.search(words, "\n".join(problems)), problems


@pytest.mark.parametrize("form", ["jsonl.gz", "parquet"])
@pytest.mark.parametrize(
    "change",
    [
        constant([]),
        lambda row, frames: [frame | {"rows": frame["rows"] + 1} for frame in frames],
        lambda row, frames: [frame | {"offset": frame["offset"] + 1} for frame in frames],
    ],
)
def test_frames_are_checked_in_every_format(outputs, tmp_path, form, change):
    problems = told(broken(outputs / form, tmp_path, alter("units", "frames", change)))
    assert re.search(rf"{SHARD}: the manifest names", "\n".join(problems))


def test_what_was_wrong_before_compaction_is_still_found(outputs, tmp_path):
    wrong = both(alter("documents", "chars", constant(1)), alter("rejected", "source_uid", constant("f" * 32)))
    out = broken(outputs / "jsonl.zst", tmp_path, lambda out: (wrong(out), compact(Folder(out), grace=0)))
    problems = "\n".join(told(out))
    assert re.search(rf"{SHARD}: row 0: chars is", problems)
    assert "the index of generation has" in problems


def test_one_damaged_part_does_not_hide_another_fault(outputs, tmp_path):
    damage = both(cut("manifest/units/*.parquet"), delete("rejected/input*"))
    problems = told(broken(outputs / "jsonl.zst", tmp_path, damage))
    assert len(problems) == 2
    assert re.search(rf"manifest/units/{UNIT}.parquet: a damaged part", problems[0])
    assert "rejected/input-" in problems[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "part-0.jsonl.gz").unlink(), "part-0.jsonl.gz: is no longer in the source"),
        (
            lambda folder: (folder / "part-0.jsonl.gz").rename(folder / "part-5.jsonl.gz"),
            "part-0.jsonl.gz: is no longer in the source",
        ),
        (
            lambda folder: (folder / "part-1.jsonl.gz").write_bytes(gzip.compress(b'{"id": 1, "text": "other"}\n')),
            "part-1.jsonl.gz: row 0 is not the document",
        ),
    ],
)
def test_a_source_that_is_not_what_it_was_is_found(outputs, source, tmp_path, change, words):
    shutil.copytree(source, tmp_path / "in")
    assert told(outputs / "jsonl.zst", source=[str(tmp_path / "in")]) == []
    change(tmp_path / "in" / "documents")
    assert re.search(words, "\n".join(told(outputs / "jsonl.zst", source=[str(tmp_path / "in")])))


def test_a_source_compressed_otherwise_is_the_same_source(outputs, source, tmp_path):
    (tmp_path / "in").mkdir()
    for path in (source / "documents").iterdir():
        (tmp_path / "in" / path.name.removesuffix(".gz")).write_bytes(gzip.decompress(path.read_bytes()))
    assert told(outputs / "jsonl.zst", source=[str(tmp_path / "in")]) == []


def test_without_any_record_it_is_said_what_could_not_be_checked(outputs, tmp_path):
    out = broken(outputs / "jsonl.zst", tmp_path, both(delete("run.json"), delete("manifest/runs/*")))
    verified = verify_corpus(str(out))
    assert [problem.what for problem in verified.problems] == ["is missing"]
    assert re.search("lineage not checked: run.json is missing", verified.notes[1])
    assert re.search("tokens not counted again: run.json is missing", verified.notes[0])


def test_the_command_names_the_file_and_fails(outputs, tmp_path):
    good = CliRunner().invoke(verify, [str(outputs / "jsonl.zst")])
    assert good.exit_code == 0 and "all as it should be" in good.output
    bad = CliRunner().invoke(verify, [str(broken(outputs / "jsonl.zst", tmp_path, delete("rejected/input*")))])
    assert bad.exit_code == 1 and re.search(r"/rejected/input-\w+.jsonl.zst: is missing\n", bad.output)


ROLLOUTS = {
    "rollouts flipped": (flip("rollouts/*"), "rollouts/.*: has other content"),
    "rollouts deleted": (delete("rollouts/*"), "rollouts/.*: is missing"),
    "index flipped": (flip("manifest/rollouts/*.parquet"), f"manifest/rollouts/.*parquet: .*{BAD}"),
    "problems cut": (cut("manifest/problems/*.parquet"), f"manifest/problems/.*parquet: .*{BAD}"),
    "verdicts altered": (alter("rollouts", "verdict", constant("correct")), "its rollouts are"),
    "run.json deleted": (delete("run.json"), "run.json: is missing"),
}


@pytest.mark.parametrize("fault", ROLLOUTS)
def test_each_fault_of_a_measurement_is_found(measured, tmp_path, fault):
    damage, words = ROLLOUTS[fault]
    problems = told(broken(measured, tmp_path, damage))
    assert re.search(words, "\n".join(problems)), problems
