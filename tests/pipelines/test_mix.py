"""Mixtures: OLMo-core's ratios and limits, lineage, the order, and the same written out."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest
import yaml

from derivedata.cli.eta.holdings import read_holdings
from derivedata.corpus.files import corpus_files
from derivedata.corpus.stream import open_stream
from derivedata.errors import UserError
from derivedata.pipelines.count import count_tokens
from derivedata.pipelines.mix import olmo_core_config
from derivedata.pipelines.mix_plan import Population, most_tokens, share_out
from derivedata.pipelines.mix_run import make_mix
from derivedata.pipelines.mix_spec import MixSource, read_spec
from derivedata.pipelines.mixture import MixOptions
from derivedata.pipelines.repeat_run import RepeatOptions, repeat_corpus
from derivedata.pipelines.run import paraphrase_corpus
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL, job, serve_at
from tests.pipelines.test_source import write_corpus


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny_model):
    """A corpus, its FAQs, and a written and a virtual repeat of it."""
    place = tmp_path_factory.mktemp("made")
    corpus = write_corpus(place / "corpus", shards=3, documents=40)
    with FakeServer(tokenizer=tiny_model, model=MODEL) as server:
        options = job(corpus, place / "derived", tiny_model, styles=("faq",), rewrites=2)
        paraphrase_corpus(options, serve=serve_at(server.endpoint.url))
    common = {"corpus": [str(corpus)], "tokenizer": str(tiny_model), "window_bytes": 8_000, "block_bytes": 2_000}
    repeat_corpus(RepeatOptions(output=str(place / "repeated"), epochs=3, **common))
    repeat_corpus(RepeatOptions(output=str(place / "virtual"), epochs=3, virtual=True, **common))
    return place


def write_spec(folder, sources, tokenizer=None, **more):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mix.yaml"
    more |= {"tokenizer": str(tokenizer)} if tokenizer else {}
    path.write_text(yaml.safe_dump({**more, "sources": sources}))
    return str(path)


def source(name, ratio, path, **more):
    return {"source_name": name, "target_ratio": ratio, "paths": [str(path)], **more}


def three(made, repeated="repeated", **faq):
    strategy = {} if repeated == "virtual" else {"strategy": "repeat"}
    return [
        source("web", 0.5, made / "corpus"),
        source("again", 0.25, made / repeated, max_repetition_ratio=2, **strategy),
        source("faq", 0.25, made / "derived", style="faq", **faq),
    ]


def mix(spec, out, **options):
    return make_mix(MixOptions(spec=spec, output=str(out), window_bytes=3_000, windows_per_shard=2, **options))


def order(place):
    stream = open_stream(str(place))
    return [
        (d.text, o.strategy, o.style, o.epoch)
        for window in range(stream.windows)
        for d, o in stream.read_with_origin(window)
    ]


def test_a_mix_has_its_ratios_everywhere(made, tmp_path, tiny_model):
    mixture = mix(write_spec(tmp_path, three(made), tiny_model, requested_tokens=8000), tmp_path / "out")
    stream = open_stream(str(tmp_path / "out"))
    assert stream.windows > 3 and stream.fingerprint == mixture.stream.fingerprint
    shares = [Counter(origin.source for _, origin in stream.read_with_origin(w)) for w in range(stream.windows)]
    whole = sum(shares, Counter())
    assert whole == {p.share.population.source.source_name: p.documents for p in mixture.portions}
    for window, share in enumerate(shares):
        assert sum(share.values()) == stream.count(window)
        assert all(abs(share[name] - whole[name] / stream.windows) < 1 for name in whole)
    by_name = {p.share.population.source.source_name: p.share.tokens for p in mixture.portions}
    assert by_name == {"web": 4000, "again": 2000, "faq": 2000}


def test_any_window_can_be_read_alone(made, tmp_path, tiny_model):
    mix(write_spec(tmp_path, three(made), tiny_model, requested_tokens=8000), tmp_path / "out")
    there = open_stream(str(tmp_path / "out"))
    in_turn = [there.read(window) for window in range(there.windows)]
    for window in reversed(range(there.windows)):
        assert open_stream(str(tmp_path / "out")).read(window) == in_turn[window]


def test_derived_documents_come_from_the_fresh_part_alone(made, tmp_path, tiny_model):
    mixture = mix(write_spec(tmp_path, three(made), tiny_model, requested_tokens=6000), tmp_path / "out")
    stream = open_stream(str(tmp_path / "out"))
    fresh, sources = set(), set()
    for window in range(stream.windows):
        for document, origin in stream.read_with_origin(window):
            if origin.source == "web":
                fresh.add(document.uid)
            else:
                sources.add(document.metadata["derivedata"]["source_uid"])
    assert sources <= fresh and len(fresh) < 120
    assert all(portion.orphans for portion in mixture.portions if portion.is_derived)


def test_lineage_is_dropped_where_a_source_says_so(made, tmp_path, tiny_model):
    spec = write_spec(tmp_path, three(made, derived_from="anything"), tiny_model, requested_tokens=4000)
    mixture = mix(spec, tmp_path / "out")
    assert [portion.orphans > 0 for portion in mixture.portions] == [False, True, False]


def test_a_written_mix_is_the_virtual_one(made, tmp_path, tiny_model):
    spec = write_spec(tmp_path, three(made), tiny_model, requested_tokens=8000)
    mix(spec, tmp_path / "virtual")
    mixture = mix(spec, tmp_path / "written", materialize=True)
    assert order(tmp_path / "written") == order(tmp_path / "virtual")
    mix(spec, tmp_path / "tasks", materialize=True, tasks=3, workers=1)
    assert order(tmp_path / "tasks") == order(tmp_path / "written")
    manifest = Manifest(tmp_path / "written")
    tokens = manifest.documents().group_by("strategy").agg(pl.col("tokens").sum())
    found = dict(tokens.iter_rows())
    for portion in mixture.portions:
        strategy = portion.strategy
        assert portion.share.tokens <= found[strategy] < portion.share.tokens + 300
    assert verify_corpus(str(tmp_path / "written")).problems == []


def test_eta_reads_fresh_and_derived_tokens_of_a_mix(made, tmp_path, tiny_model):
    spec = write_spec(tmp_path, three(made), tiny_model, requested_tokens=8000)
    for name, options in (("virtual", {}), ("written", {"materialize": True})):
        mix(spec, tmp_path / name, **options)
    with pytest.raises(UserError, match=r"lists no documents.*derivedata tokens"):
        read_holdings([str(tmp_path / "virtual")])
    count_tokens([str(tmp_path / "virtual")], str(tiny_model))
    written, virtual = (read_holdings([str(tmp_path / name)]) for name in ("written", "virtual"))
    assert {one.strategy for one in written.held} == {"paraphrase", "repeat"}
    assert 4000 <= written.fresh_tokens < 4300
    assert (virtual.fresh_tokens, set(virtual.held)) == (written.fresh_tokens, set(written.held))
    assert verify_corpus(str(tmp_path / "virtual")).problems == []
    verified = verify_corpus(str(tmp_path / "written"))
    assert verified.tokens_counted and (verified.problems, verified.notes) == ([], [])


def test_the_same_documents_in_two_sources_are_refused(made, tmp_path, tiny_model):
    sources = [source("web", 0.5, made / "corpus"), source("again", 0.5, made / "corpus", max_repetition_ratio=2)]
    with pytest.raises(UserError, match=r"sources\[1\]\.paths: has documents of source web, too"):
        read_spec(write_spec(tmp_path, sources))
    sources = [source("faq", 0.5, made / "derived", style="faq"), source("table", 0.5, made / "derived", style="table")]
    assert len(read_spec(write_spec(tmp_path, sources)).sources) == 2


def test_a_virtual_repeat_is_a_source_beyond_its_first_epoch(made, tmp_path, tiny_model):
    spec = write_spec(tmp_path, three(made, "virtual"), tiny_model, requested_tokens=8000)
    mixture = mix(spec, tmp_path / "out")
    assert mixture.portions[1].share.population.most == 2.0
    assert {epoch for _, strategy, _, epoch in order(tmp_path / "out") if strategy == "repeat"} <= {2, 3}


def test_without_a_number_the_mix_is_as_large_as_it_can_be(made, tmp_path, tiny_model):
    sources = [source("web", 0.8, made / "corpus"), source("faq", 0.2, made / "derived", style="faq")]
    mixture = mix(write_spec(tmp_path, sources, tiny_model), tmp_path / "out")
    web, faq = mixture.portions
    assert web.share.population.tokens - 2 <= web.share.tokens or faq.share.population.tokens - 2 <= faq.share.tokens
    with pytest.raises(UserError, match=r"These ratios and limits allow requested_tokens up to"):
        mix(write_spec(tmp_path / "b", sources, tiny_model), tmp_path / "more", tokens=mixture.tokens + 200)


def test_a_fraction_limits_what_is_used_at_all(made, tmp_path, tiny_model):
    sources = [source("web", 1.0, made / "corpus", max_source_fraction=0.25, max_repetition_ratio=3)]
    mixture = mix(write_spec(tmp_path, sources, tiny_model), tmp_path / "out")
    texts = Counter(text for text, *_ in order(tmp_path / "out"))
    assert 10 < len(texts) < 50 and max(texts.values()) == 3
    fresh, derived = mixture.by_strategy()
    assert derived == {"repeat": 2 * fresh}


def test_outputs_of_one_tokenizer_need_no_counting(made, tmp_path):
    sources = [
        source("web", 0.5, made / "repeated", strategy="fresh"),
        source("faq", 0.5, made / "derived", style="faq"),
    ]
    mixture = mix(write_spec(tmp_path, sources, requested_tokens=4000), tmp_path / "out")
    assert mixture.tokenizer == Manifest(made / "derived").shards()["tokenizer"][0]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"paths": ["missing"]}, "source web: .*missing: no such file or folder"),
        ({"style": "table"}, "a plain corpus has no documents of one style"),
        ({"max_repetition_ratio": 0.5}, r"mix\.yaml:\d+: sources\[0\]\.max_repetition_ratio: must be a number 1 or"),
        ({"max_repetitions": 2}, r"max_repetitions: no such field .* Did you mean max_repetition_ratio\?"),
        ({"target_ratio": 0.7}, r"the target_ratios add up to 1\.2, not to 1"),
        ({"derived_from": "all"}, "no such choice .*Write fresh part or anything"),
    ],
)
def test_what_cannot_be_read_is_said_with_line_and_field(made, tmp_path, tiny_model, change, told):
    sources = three(made)
    sources[0] |= change
    with pytest.raises(UserError, match=told):
        mix(write_spec(tmp_path, sources, tiny_model, requested_tokens=100), tmp_path / "out")


def test_a_style_that_is_not_there_names_those_that_are(made, tmp_path, tiny_model):
    sources = three(made)
    sources[2]["style"] = "table"
    with pytest.raises(UserError, match=r"no such style in this output \(got table\)\. There are faq"):
        mix(write_spec(tmp_path, sources, tiny_model, requested_tokens=100), tmp_path / "out")


def test_more_than_repetition_allows_is_refused_with_the_numbers(made, tmp_path, tiny_model):
    with pytest.raises(UserError, match=r"source \w+: needs [\d,]+ tokens \(0\.\d+ of 900,000\), and may give [\d,]+"):
        mix(write_spec(tmp_path, three(made), tiny_model, requested_tokens=900_000), tmp_path / "out")
    # Nothing was made, so a smaller one needs no --restart.
    assert mix(write_spec(tmp_path, three(made), tiny_model, requested_tokens=4000), tmp_path / "out").tokens == 4000


def test_a_killed_mix_goes_on_where_it_was(made, tmp_path, tiny_model, monkeypatch):
    spec = write_spec(tmp_path, three(made), tiny_model, requested_tokens=8000)
    mix(spec, tmp_path / "whole", materialize=True)
    commit, left = Ledger.commit, []

    def die(self, unit, part, decision=None):
        # The second shard is there and its part of the manifest is not: as after a kill between the two.
        if left:
            self._create_shard(part.shards[0])
            raise KeyboardInterrupt
        left.append(unit)
        return commit(self, unit, part, decision)

    monkeypatch.setattr(Ledger, "commit", die)
    with pytest.raises(KeyboardInterrupt):
        mix(spec, tmp_path / "out", materialize=True)
    monkeypatch.setattr(Ledger, "commit", commit)
    mix(spec, tmp_path / "out", materialize=True)
    assert left and order(tmp_path / "out") == order(tmp_path / "whole")
    assert verify_corpus(str(tmp_path / "out"), count_tokens=False).problems == []


def test_fresh_and_derived_documents_in_one_source_are_refused(made, tmp_path, tiny_model):
    with pytest.raises(UserError, match="source all: holds fresh and derived documents"):
        mix(write_spec(tmp_path, [source("all", 1.0, made / "repeated")], tiny_model), tmp_path / "out")


def test_a_mix_without_its_fresh_part_is_refused(made, tmp_path, tiny_model):
    faq = source("faq", 1.0, made / "derived", style="faq")
    with pytest.raises(UserError, match="no source is fresh"):
        mix(write_spec(tmp_path, [faq], tiny_model), tmp_path / "out")
    other = write_corpus(tmp_path / "other", shards=1, documents=30)
    for path in (other / "documents").iterdir():
        path.rename(path.with_name(f"x-{path.name}"))
    sources = [source("web", 0.5, other), {**faq, "target_ratio": 0.5}]
    with pytest.raises(UserError, match=r"source faq: none of its \d+ documents was derived from a document of the fr"):
        mix(write_spec(tmp_path / "b", sources, tiny_model, requested_tokens=500), tmp_path / "out2")


def test_a_changed_mixture_is_refused_and_a_virtual_mix_is_no_corpus(made, tmp_path, tiny_model):
    mix(write_spec(tmp_path, three(made), tiny_model, requested_tokens=4000), tmp_path / "out")
    with pytest.raises(UserError, match="requested_tokens was 4000, is 5000"):
        mix(write_spec(tmp_path, three(made), tiny_model, requested_tokens=5000), tmp_path / "out")
    mix(write_spec(tmp_path, three(made), tiny_model, requested_tokens=5000), tmp_path / "out", restart=True)
    with pytest.raises(UserError, match="a virtual mix is an order over several corpora"):
        corpus_files([str(tmp_path / "out")])


def test_the_arithmetic_is_that_of_olmo_core():
    def population(ratio, tokens, repetition=1.0):
        one = MixSource(source_name="x", target_ratio=ratio, paths=("x",), max_repetition_ratio=repetition)
        return Population(source=one, documents=1, tokens=tokens, most=repetition)

    populations = [population(0.6, 600), population(0.4, 100, 2.0)]
    assert most_tokens(populations) == 500
    assert [share.tokens for share in share_out(populations, 500)] == [300, 200]
    assert [(share.epochs, share.rest) for share in share_out(populations, 400)] == [(0, 240), (1, 60)]
    with pytest.raises(UserError, match=r"needs 240 tokens \(0.4 of 600\), and may give 200: 100 tokens x 2"):
        share_out(populations, 600)


def test_olmo_core_gets_its_own_words(made, tmp_path):
    sources = read_spec(write_spec(tmp_path, three(made), requested_tokens="1M")).sources
    populations = [Population(source=one, documents=1, tokens=5, most=one.max_repetition_ratio) for one in sources]
    text = olmo_core_config(populations, requested=1_000_000, token_root="tokens", sequence_length=512, batch=1024)
    told = yaml.safe_load(text)
    assert set(told) == {"source_list", "requested_tokens", "global_batch_size", "processes"}
    assert told["source_list"]["sources"][1] == {
        "source_name": "again",
        "target_ratio": 0.25,
        "paths": ["tokens/again/*.npy"],
        "max_repetition_ratio": 2.0,
        "max_source_fraction": 1.0,
    }
