"""Subsets of a corpus: prefixes of one order, disjoint from what is held out, and corpora to every command."""

from __future__ import annotations

import pytest

from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import read_rows
from derivedata.corpus.stream import open_stream
from derivedata.errors import UserError
from derivedata.generation.tokenizer import load_tokenizer
from derivedata.pipelines.repeat_run import RepeatOptions, repeat_corpus
from derivedata.pipelines.run import paraphrase_corpus
from derivedata.pipelines.serving import Silence
from derivedata.pipelines.subset import CountKeys
from derivedata.pipelines.subset_run import SubsetOptions, name_of, take_subsets
from derivedata.pipelines.verify import verify_corpus
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL, job, serve_at
from tests.pipelines.test_repeat import options as repeat_options
from tests.pipelines.test_repeat import order, rows, write_plain
from tests.pipelines.test_source import write_corpus


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_plain(tmp_path_factory.mktemp("plain") / "in", size=400)


def options(corpus, out, tokenizer, tokens, **more):
    return SubsetOptions(
        corpus=[str(corpus)], output=str(out), tokens=tokens, tokenizer=str(tokenizer), block_bytes=5_000, **more
    )


def uids(place):
    return [row.uid for row in rows(place)]


def test_larger_subsets_contain_smaller_ones_and_nothing_that_is_held_out(plain, tmp_path, tiny_model):
    sizes = (2_000, 6_000, 10_000)
    taken, _ = take_subsets(options(plain, tmp_path / "out", tiny_model, sizes, validation=0.2))
    small, middle, large, held = (set(uids(one.folder)) for one in taken)
    assert small < middle < large <= set(uids(plain))
    assert held and not held & large
    count = load_tokenizer(tiny_model).count
    for one, wanted in zip(taken, sizes, strict=False):
        tokens = [count([row.text])[0] for row in rows(one.folder)]
        assert (len(tokens), sum(tokens)) == (one.cut.documents, one.cut.tokens)
        assert wanted <= sum(tokens) < wanted + max(tokens)


def test_a_subset_is_read_in_the_order_of_its_corpus_and_knows_how_many_documents_it_holds(plain, tmp_path, tiny_model):
    taken, _ = take_subsets(options(plain, tmp_path / "out", tiny_model, (5_000,), validation=0))
    stream = open_stream(taken[0].folder)
    assert stream.documents == taken[0].cut.documents
    assert [d.uid for window in range(stream.windows) for d in stream.read(window)] == uids(taken[0].folder)


def test_another_seed_takes_other_documents_and_more_sizes_extend(plain, tmp_path, tiny_model):
    one, _ = take_subsets(options(plain, tmp_path / "a", tiny_model, (5_000,)))
    two, _ = take_subsets(options(plain, tmp_path / "b", tiny_model, (5_000,), seed=1))
    assert set(uids(one[0].folder)) != set(uids(two[0].folder))
    again, _ = take_subsets(options(plain, tmp_path / "a", tiny_model, (5_000, 9_000)))
    assert uids(again[0].folder) == uids(one[0].folder)
    with pytest.raises(UserError, match="seed was 0, is 1"):
        take_subsets(options(plain, tmp_path / "a", tiny_model, (5_000,), seed=1))
    other, _ = take_subsets(options(plain, tmp_path / "a", tiny_model, (5_000,), seed=1, restart=True))
    assert uids(other[0].folder) == uids(two[0].folder) and not (tmp_path / "a" / "9k").exists()


def test_a_share_that_holds_out_nothing_is_said(plain, tmp_path, tiny_model):
    said = []
    listener = Silence()
    listener.say = said.append
    taken, _ = take_subsets(options(plain, tmp_path / "out", tiny_model, (2_000,), validation=1e-9), listener)
    assert taken[-1].cut.documents == 0
    assert said[-1].startswith("no document is held out: 1e-09 of 180 documents")


def test_the_tasks_change_nothing(plain, tmp_path, tiny_model):
    one, _ = take_subsets(options(plain, tmp_path / "a", tiny_model, (5_000,)))
    two, _ = take_subsets(options(plain, tmp_path / "b", tiny_model, (5_000,), tasks=3, workers=1))
    assert uids(one[0].folder) == uids(two[0].folder)


def test_a_killed_count_goes_on_with_the_file_it_was_at(plain, tmp_path, tiny_model, monkeypatch):
    whole, _ = take_subsets(options(plain, tmp_path / "whole", tiny_model, (5_000,)))
    count, counted = CountKeys._count, []

    def die(self, file):
        if len(counted) == 1:
            raise KeyboardInterrupt
        counted.append(file.path)
        return count(self, file)

    monkeypatch.setattr(CountKeys, "_count", die)
    with pytest.raises(KeyboardInterrupt):
        take_subsets(options(plain, tmp_path / "out", tiny_model, (5_000,)))

    def again(self, file):
        assert file.path not in counted or self.selection.low
        return count(self, file)

    monkeypatch.setattr(CountKeys, "_count", again)
    taken, _ = take_subsets(options(plain, tmp_path / "out", tiny_model, (5_000,)))
    assert uids(taken[0].folder) == uids(whole[0].folder)


def test_the_impossible_is_refused_with_the_numbers(plain, tmp_path, tiny_model):
    with pytest.raises(UserError, match=r"the corpus has [\d,]+ tokens beside the held-out documents, 10,000,000 are"):
        take_subsets(options(plain, tmp_path / "out", tiny_model, (10_000_000,)))
    taken, _ = take_subsets(options(plain, tmp_path / "ok", tiny_model, (5_000,)))
    with pytest.raises(UserError, match="is a subset already"):
        take_subsets(options(taken[0].folder, tmp_path / "again", tiny_model, (1_000,)))
    with pytest.raises(UserError, match="a virtual corpus is given alone"):
        corpus_files([taken[0].folder, str(plain)])


def test_a_subset_is_repeated_written_or_not(plain, tmp_path, tiny_model):
    taken, _ = take_subsets(options(plain, tmp_path / "out", tiny_model, (5_000,)))
    place = taken[0].folder
    repeat_corpus(repeat_options(place, tmp_path / "written", epochs=2))
    repeat_corpus(repeat_options(place, tmp_path / "virtual", epochs=2, virtual=True))
    assert order(tmp_path / "written") == order(tmp_path / "virtual")
    assert {row.metadata["derivedata"]["source_uid"] for row in rows(tmp_path / "written")} == set(uids(place))
    assert verify_corpus(str(tmp_path / "written"), count_tokens=False).problems == []
    # A virtual repeat asked for documents is its corpus, each once.
    assert uids(tmp_path / "virtual") == uids(place)


def test_an_output_of_ours_has_subsets_by_the_tokens_in_its_manifest(plain, tmp_path, tiny_model):
    repeat_corpus(
        RepeatOptions(corpus=[str(plain)], output=str(tmp_path / "once"), epochs=1, tokenizer=str(tiny_model))
    )
    taken, name = take_subsets(
        SubsetOptions(corpus=[str(tmp_path / "once")], output=str(tmp_path / "out"), tokens=(5_000,))
    )
    assert open_stream(taken[0].folder).documents == taken[0].cut.documents == len(uids(taken[0].folder))
    assert name and taken[0].cut.tokens >= 5_000


def test_a_subset_is_paraphrased_and_its_lineage_checked(tmp_path, tiny_model):
    corpus = write_corpus(tmp_path / "in", shards=2, documents=20)
    taken, _ = take_subsets(options(corpus, tmp_path / "out", tiny_model, (2_500,), validation=0))
    place = taken[0].folder
    with FakeServer(tokenizer=tiny_model, model=MODEL) as server:
        paraphrase_corpus(job(place, tmp_path / "derived", tiny_model), serve=serve_at(server.endpoint.url))
    sources = {row.metadata["derivedata"]["source_uid"] for row in rows(tmp_path / "derived")}
    assert sources <= set(uids(place)) and 0 < len(sources) < 40
    assert verify_corpus(str(tmp_path / "derived")).problems == []


def test_names_are_what_people_write():
    assert [name_of(n) for n in (100_000_000, 2_400_000_000, 5_000, 1_234_567, 12)] == [
        "100M",
        "2.4B",
        "5k",
        "1234567",
        "12",
    ]


def test_rows_outside_the_subset_are_not_read(plain, tmp_path, tiny_model):
    taken, _ = take_subsets(options(plain, tmp_path / "out", tiny_model, (5_000,)))
    [file, *_] = corpus_files([taken[0].folder])
    found = [row.row for row in read_rows(file)]
    assert found == sorted(found) and len(found) < 60
    part = [row.row for row in read_rows(file, first_row=found[1], stop_row=found[3])]
    assert part == found[1:3]
