"""`verify --repair`: whatever is deleted or corrupted, the same keys come back; only what was lost is asked for."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest
from click.testing import CliRunner

from derivedata.cli.verify import verify
from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import read_rows
from derivedata.errors import UserError
from derivedata.pipelines.repair import repair_corpus
from derivedata.pipelines.repair_job import Given
from derivedata.pipelines.run import paraphrase_corpus
from derivedata.store.compaction import compact
from derivedata.store.manifest import Manifest
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
def engine(tiny_model):
    with FakeServer(tokenizer=tiny_model, model=MODEL) as server:
        yield server


@pytest.fixture(scope="module")
def outputs(source, engine, tiny_model, tmp_path_factory):
    """A good output, the same compacted, and one with a budget of tokens."""
    place = tmp_path_factory.mktemp("good")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DERIVEDATA_CACHE", str(place / "cache"))
        serve = serve_at(engine.endpoint.url)
        paraphrase_corpus(job(source, place / "plain", tiny_model, styles=("faq", "table")), serve=serve)
        paraphrase_corpus(job(source, place / "budget", tiny_model, styles=("faq",), tokens=900), serve=serve)
    shutil.copytree(place / "plain", place / "compacted")
    compact(Folder(place / "compacted"), grace=0)
    return place


def texts(output):
    return {row.id: row.text for file in corpus_files([str(output)]) for row in read_rows(file)}


def mended(good, tmp_path, fault, engine):
    """Break a copy of a good output and repair it; the repair, and how many requests it took."""
    out = tmp_path / "out"
    shutil.copytree(good, out)
    fault(out)
    before = sum(engine.received.values())
    repaired = repair_corpus(str(out), serve=serve_at(engine.endpoint.url))
    assert repaired.verified.problems == []
    assert texts(out) == texts(good)
    now, then = Manifest(out).books(), Manifest(good).books()
    assert now == then
    return repaired, sum(engine.received.values()) - before


# Fault -> whether something was lost that only the model can give back.
LOST = {
    "shard deleted": (delete("documents/*/*"), True),
    "shard flipped": (flip("documents/*/*"), True),
    "shard cut": (cut("documents/*/*"), True),
    "shard with another text": (faults.other_text, True),
    "shard stray": (write("documents/style=faq/more.jsonl.zst", "x"), False),
    "rejects deleted": (delete("rejected/0*", every=True), True),
    "rejects flipped": (flip("rejected/0*"), True),
    "rejects of the input deleted": (delete("rejected/input*"), False),
    "a kept reject altered": (faults.rejected_row(reason="other"), True),
    "units deleted": (delete("manifest/units/*.parquet"), False),
    "units flipped": (flip("manifest/units/*.parquet"), False),
    "a unit of the input deleted": (delete("manifest/units/input*"), False),
    "a unit forgotten": (faults.forget_unit("manifest/units/*.parquet"), True),
    **{
        f"{table} {how}": (damage(f"manifest/{table}/*.parquet"), False)
        for table in ("documents", "rejected", "sources")
        for how, damage in (("flipped", flip), ("deleted", delete))
    },
    "kinds deleted": (delete("manifest/kinds/*", every=True), False),
    "books altered": (faults.books(lambda books: books.update(planned=books["planned"] + 1)), False),
    "frames altered": (alter("units", "frames", constant([])), False),
    "index altered": (alter("documents", "chars", constant(1)), False),
    "reasons altered": (alter("rejected", "reason", constant("other")), True),
    "ids doubled": (alter("documents", "id", constant("one")), False),
    "run.json deleted": (delete("run.json"), False),
    "run.json garbage": (write("run.json", "{"), False),
    "run.json edited": (edit_run(books={}), False),
    "history deleted": (delete("manifest/runs/*"), False),
    "plan garbage": (write("plan/inventory.json", "["), False),
    "card deleted": (delete("README.md"), False),
}


@pytest.mark.parametrize("fault", LOST)
def test_what_is_damaged_comes_back_as_it_was(outputs, engine, tmp_path, fault):
    damage, needs_model = LOST[fault]
    _, asked = mended(outputs / "plain", tmp_path, damage, engine)
    assert bool(asked) == needs_model


COMPACTED = {
    **{
        f"{table} {how}": (damage(f"manifest/snapshots/*/*-{table}-0.parquet"), False)
        for table in ("shards", "documents", "rejected", "sources", "books", "units")
        for how, damage in (("flipped", flip), ("deleted", delete))
    },
    "snapshot garbage": (write("manifest/snapshots/00000001/snapshot.json", "{}"), False),
    "snapshot deleted": (delete("manifest/snapshots/*/snapshot.json"), False),
    "shard deleted": (delete("documents/*/*"), True),
    "shard flipped": (flip("documents/*/*"), True),
    "rejects flipped": (flip("rejected/0*"), True),
    "rejects of the input deleted": (delete("rejected/input*"), False),
    "kinds deleted": (delete("manifest/kinds/*"), False),
}


@pytest.mark.parametrize("fault", COMPACTED)
def test_a_compacted_output_is_mended_too(outputs, engine, tmp_path, fault):
    damage, needs_model = COMPACTED[fault]
    _, asked = mended(outputs / "compacted", tmp_path, damage, engine)
    assert bool(asked) == needs_model


def test_no_more_is_asked_for_than_was_lost(outputs, engine, tmp_path):
    good = outputs / "plain"
    shard = faults.first(good, "documents/style=table/*")
    documents = Manifest(good).documents()
    lost = documents.filter(documents["shard"] == f"documents/style=table/{shard.name}").height
    repaired, asked = mended(good, tmp_path, delete(f"documents/style=table/{shard.name}"), engine)
    assert 0 < asked == lost == repaired.asked
    assert len(repaired.parts) == 1 and repaired.kept > 0


def test_damaged_and_foreign_files_are_moved_away_and_not_deleted(outputs, engine, tmp_path):
    damage = both(flip("documents/style=faq/*"), write("documents/style=faq/thesis.jsonl.zst", "mine"))
    repaired, _ = mended(outputs / "plain", tmp_path, damage, engine)
    assert len(repaired.quarantined) == 2
    (kept,) = (tmp_path / "out" / "quarantine").rglob("thesis.jsonl.zst")
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("damage", [delete("documents/*/*"), delete("manifest/units/0*", every=True)])
def test_a_budget_stays_what_it_was(outputs, engine, tmp_path, damage):
    mended(outputs / "budget", tmp_path, damage, engine)


def test_a_repair_of_an_interrupted_job_does_not_go_on_with_it(outputs, source, engine, tiny_model, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(outputs / "plain", out)
    faults.forget_unit("manifest/units/0*.parquet")(out)  # as if the run had been killed before that unit
    edit_run(status="stopped", books={})(out)
    shutil.copyfile(out / "run.json", next((out / "manifest" / "runs").glob("*.json")))
    there = texts(out)
    delete("documents/style=faq/*")(out)
    repaired = repair_corpus(str(out), serve=serve_at(engine.endpoint.url))
    assert texts(out) == there and len(there) < len(texts(outputs / "plain"))
    assert repaired.unfinished and repaired.verified.problems == []


def test_many_faults_at_once(outputs, engine, tmp_path):
    damage = both(
        cut("documents/style=table/*"),
        flip("manifest/units/0*"),
        delete("rejected/0*", every=True),
        delete("run.json"),
        delete("manifest/kinds/*", every=True),
        write("plan/inventory.json", "["),
    )
    mended(outputs / "plain", tmp_path, damage, engine)


def test_a_sound_output_is_left_alone(outputs, engine, tmp_path):
    good = {path: path.read_bytes() for path in sorted((outputs / "plain").rglob("*")) if path.is_file()}
    repaired = repair_corpus(str(outputs / "plain"), serve=serve_at("http://127.0.0.1:9"))
    assert (repaired.parts, repaired.quarantined, repaired.restored) == ([], [], [])
    now = {path: path.read_bytes() for path in sorted((outputs / "plain").rglob("*")) if path.is_file()}
    assert good == now


def test_a_record_that_the_documents_contradict_is_not_obeyed(outputs, engine, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(outputs / "plain", out)
    edit_record(everywhere=True, seed=99)(out)
    with pytest.raises(UserError, match=r"as it was committed, and has seed .* Put run.json back"):
        repair_corpus(str(out), serve=serve_at(engine.endpoint.url))
    assert texts(out) == texts(outputs / "plain")


def test_what_cannot_be_known_is_said(outputs, source, engine, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(outputs / "plain", out)
    both(delete("run.json"), delete("manifest/runs/*"))(out)
    with pytest.raises(UserError, match="without a run record nobody knows"):
        repair_corpus(str(out))
    shutil.rmtree(out)
    shutil.copytree(outputs / "plain", out)
    shutil.copytree(source, tmp_path / "in")
    (tmp_path / "in" / "documents" / "part-1.jsonl.gz").write_bytes(gzip.compress(b'{"id": 1, "text": "other"}\n'))
    delete("documents/*/*")(out)
    with pytest.raises(UserError, match="the input is not what this output was started from"):
        repair_corpus(str(out), given=Given(source=(str(tmp_path / "in"),)))


def test_the_command_says_what_it_did(outputs, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(outputs / "plain", out)
    delete("manifest/sources/*")(out)
    told = CliRunner().invoke(verify, [str(out), "--repair"])
    assert told.exit_code == 0, told.output
    assert "made anew: 1 part" in told.output and "all as it should be" in told.output
    assert CliRunner().invoke(verify, [str(out), "--style", "x.yaml"]).exit_code != 0


@pytest.fixture(scope="module")
def measured(tiny_model, tmp_path_factory):
    """A measurement with all three purposes, some rollouts stopped early, and one compacted."""
    place = tmp_path_factory.mktemp("measured")
    rates = [0.1, 0.4, 0.5, 0.5, 0.7, 0.9, 0.2, 0.6, 0.3, 0.8]
    problems = write_problems(place / "problems.jsonl", rates)
    with (
        pytest.MonkeyPatch.context() as patch,
        FakeServer(tokenizer=tiny_model, model=MODEL, reply=answer) as server,
    ):
        patch.setenv("DERIVEDATA_CACHE", str(place / "cache"))
        options = {"early_stop": "exact", "refine_borderline": 2, "rescore": True, "chunk_problems": 4}
        measure(server, problems, place / "out", tiny_model, **options)
        shutil.copytree(place / "out", place / "compacted")
        compact(Folder(place / "compacted"), grace=0)
        yield place, server


ROLLOUTS = {
    "rollouts flipped": ("out", flip("rollouts/0*"), True),
    "rollouts of another purpose deleted": ("out", delete("rollouts/rescore*"), True),
    "index flipped": ("out", flip("manifest/rollouts/*.parquet"), False),
    "problems cut": ("out", cut("manifest/problems/*.parquet"), False),
    "units deleted": ("out", delete("manifest/units/0*"), False),
    "input deleted": ("out", delete("manifest/units/input*"), False),
    "card deleted": ("out", delete("README.md"), False),
    "compacted, rollouts deleted": ("compacted", delete("rollouts/0*"), True),
    "compacted, problems deleted": ("compacted", delete("manifest/snapshots/*/*-problems-0.parquet"), False),
}


@pytest.mark.parametrize("fault", ROLLOUTS)
def test_a_measurement_is_mended(measured, tmp_path, fault):
    (place, server), (which, damage, needs_model) = measured, ROLLOUTS[fault]
    out = tmp_path / "out"
    shutil.copytree(place / which, out)
    damage(out)
    before = sum(server.received.values())
    repaired = repair_corpus(str(out), serve=serve_at(server.endpoint.url))
    assert repaired.verified.problems == []
    assert bool(sum(server.received.values()) - before) == needs_model
    columns = ["uid", "sample", "purpose", "verdict", "seed", "text_sha256"]
    rollouts = [
        Manifest(place).table("rollouts", columns).sort_by([(name, "ascending") for name in columns])
        for place in (out, place / which)
    ]
    assert rollouts[0].equals(rollouts[1])
    assert Manifest(out).books() == Manifest(place / which).books()


def test_an_output_made_behind_an_endpoint_is_mended_through_it(source, engine, tiny_model, tmp_path):
    options = {"styles": ("faq",), "endpoints": (engine.endpoint.url,), "tokenizer": str(tiny_model)}
    paraphrase_corpus(job(source, tmp_path / "out", MODEL, **options))
    good = texts(tmp_path / "out")
    delete("documents/*/*")(tmp_path / "out")
    repaired = repair_corpus(str(tmp_path / "out"))
    assert repaired.asked > 0 and repaired.verified.problems == [] and texts(tmp_path / "out") == good
