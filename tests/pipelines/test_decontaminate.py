"""Mixes without the text of evaluations: what is found, what is left out, and where it is written down."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from derivedata.cli import cli
from derivedata.corpus.stream import open_stream
from derivedata.errors import UserError
from derivedata.pipelines.decontaminate import INDEX
from derivedata.pipelines.mix_run import make_mix
from derivedata.pipelines.mixture import MixOptions
from derivedata.pipelines.repeat_run import RepeatOptions, repeat_corpus
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder

QUESTION = "A farmer sells 12 baskets of plums for 3 coins each: how many coins does she take home on that day?"
ANSWER = "She takes home thirty six coins."
ESSAY = "The old lighthouse keeper wrote every evening into his book which ships had passed and what the weather was."


@pytest.fixture
def place(tmp_path):
    """A corpus of 40 documents, of which two hold an evaluation, and the evaluation files."""
    plain = [
        f"Document {n} is about subject {n * 7} and nothing else that anybody would want to ask about."
        for n in range(40)
    ]
    plain[5] = f"Solved: {QUESTION.upper()} {ANSWER}"  # other case: normalised away
    plain[21] = f"Once upon a time. {ESSAY} The end."
    lines = [json.dumps({"id": f"d{n}", "source": "web", "text": text}) for n, text in enumerate(plain)]
    corpus, evals = tmp_path / "corpus" / "documents", tmp_path / "evals"
    corpus.mkdir(parents=True), evals.mkdir()
    for shard in (0, 1):
        (corpus / f"{shard}.jsonl").write_text("\n".join(lines[20 * shard : 20 * shard + 20]) + "\n")
    (evals / "sums.jsonl").write_text(json.dumps({"query": QUESTION, "gold": [ANSWER, "36"]}) + "\n")
    (evals / "essays.jsonl").write_text(json.dumps({"text": ESSAY}) + "\n")
    return tmp_path


def spec(place, **more):
    sources = [
        {"source_name": "web", "target_ratio": 0.5, "paths": ["corpus"]},
        {"source_name": "again", "target_ratio": 0.5, "paths": ["order"]},
    ]
    path = place / "mix.yaml"
    path.write_text(yaml.safe_dump({"decontaminate": ["evals"], **more, "sources": sources}))
    return str(path)


def make(place, tiny_model, out, **options):
    repeat_corpus(RepeatOptions(corpus=[str(place / "corpus")], output=str(place / "order"), epochs=3, virtual=True))
    more = options.pop("more", {})
    path = spec(place, tokenizer=str(tiny_model), **more)
    return make_mix(MixOptions(spec=path, output=str(place / out), window_bytes=2_000, **options))


def texts(place):
    stream = open_stream(str(place))
    return [document.text for window in range(stream.windows) for document in stream.read(window)]


def test_documents_with_text_of_an_evaluation_are_in_no_mix(place, tiny_model):
    mixture = make(place, tiny_model, "out")
    found = texts(place / "out")
    assert len(set(found)) == 38 and not any("plums" in text.lower() or "lighthouse" in text for text in found)
    assert mixture.contaminated == {"sums.jsonl": 2, "essays.jsonl": 2}  # in each of the two sources
    assert "plums" in " ".join(texts(place / "corpus")).lower()


def test_written_and_virtual_mixes_leave_out_the_same(place, tiny_model):
    make(place, tiny_model, "order-only")
    make(place, tiny_model, "written", materialize=True)
    assert texts(place / "written") == texts(place / "order-only")
    assert verify_corpus(str(place / "written"), count_tokens=False).problems == []


@pytest.mark.parametrize("materialize", [False, True])
def test_the_books_name_what_was_left_out_and_why(place, tiny_model, materialize):
    make(place, tiny_model, "out", materialize=materialize)
    manifest = Manifest(str(place / "out"))
    books = manifest.books()["decontaminate"]
    assert (books.planned, books.accepted, books.rejected) == (80, 76, {"contaminated": 4})
    rows = manifest.table("rejected", ["stage", "reason", "path", "source_uid", "detail"]).to_pylist()
    [row] = [row for row in rows if row["detail"].startswith("source web, row 5: sums.jsonl has 'a farmer sells 0 ")]
    assert [row[name] for name in ("stage", "reason", "path")] == ["decontaminate", "contaminated", "0.jsonl"]
    uids = {document.uid for document in open_stream(str(place / "corpus")).read(0)}
    assert len(rows) == 4 and {row["source_uid"] for row in rows} <= uids


def test_the_index_is_what_datatrove_writes_and_reads(place, tiny_model):
    """Its indexer needs lighteval only for evaluations that it downloads itself."""
    from datatrove.pipeline.decont import NGramsDecontConfig
    from datatrove.utils.hashing import create_hash_func

    make(place, tiny_model, "out")
    data = Folder(str(place / "out")).read(f"{INDEX}/essays.jsonl.index.hashes")
    hashes = np.frombuffer(data, NGramsDecontConfig().hash_config.np_descr)
    words = ESSAY.lower().rstrip(".").split()
    wanted = [" ".join(words[at : at + 12]) for at in range(len(words) - 11)]
    assert set(hashes.tolist()) == set(map(create_hash_func(NGramsDecontConfig().hash_config), wanted))


def test_other_evaluations_are_another_mix(place, tiny_model):
    make(place, tiny_model, "out")
    with (place / "evals" / "essays.jsonl").open("a") as file:
        file.write(
            json.dumps({"text": "Another essay, about a dozen words and then some more, so that it has n-grams."})
            + "\n"
        )
    with pytest.raises(UserError, match="evaluations was"):
        make(place, tiny_model, "out")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            '{"question": "What?"}',
            r"row 0: is no evaluation \(got neither query, gold nor text; the row has question\)",
        ),
        ('{"query": "What is it?", "gold": 3}', r"is no evaluation \(got `gold` is a number"),
        ('{"text": "too short"}', r"no row has 12 words, so nothing could be found"),
    ],
)
def test_an_evaluation_that_says_nothing_is_refused(place, tiny_model, line, told):
    (place / "evals" / "sums.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=told):
        make(place, tiny_model, "out")


def test_a_source_of_which_nothing_is_left_is_named(place, tiny_model):
    text = "It is about subject {} and nothing else that anybody would want to ask about."
    (place / "evals" / "sums.jsonl").write_text(json.dumps({"text": text.format(99)}) + "\n")
    documents = place / "corpus" / "documents"
    (documents / "0.jsonl").write_text(json.dumps({"id": "a", "text": text.format(3)}) + "\n")
    (documents / "1.jsonl").unlink()
    with pytest.raises(UserError, match=r"every document holds text of an evaluation.*sums.jsonl 1\b"):
        make(place, tiny_model, "out")


def test_the_command_says_how_many(place, tiny_model):
    make(place, tiny_model, "first")
    result = CliRunner().invoke(cli, ["mix", spec(place, tokenizer=str(tiny_model)), "-o", str(place / "out")])
    assert result.exit_code == 0, result.output
    assert "contaminated, and in no source: 4 documents (2 essays.jsonl, 2 sums.jsonl; the table" in result.output
