"""The whole road: repeat and mix, share out, stop and go on, and train fifty steps."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader

import derivedata
from derivedata.cli import main
from derivedata.corpus.sample import write_sample_corpus
from derivedata.pipelines.count import count_tokens
from derivedata.pipelines.repeat_run import RepeatOptions, repeat_corpus
from derivedata.pipelines.tokenize import TokenizeOptions, tokenize_corpus
from tests.pipelines.test_load import joined, tiny_llama
from tests.pipelines.test_mix import made, mix, three, write_spec  # noqa: F401
from tests.pipelines.test_tokenize import EOS

LENGTH = 64


@pytest.fixture
def corpus(tmp_path) -> str:
    write_sample_corpus(str(tmp_path / "corpus"))
    return str(tmp_path / "corpus")


def repeat(corpus: str, output: str, *, virtual: bool) -> str:
    """Three epochs, in windows so small that the sample corpus has as many as a large one."""
    small = {"window_bytes": 4_000, "block_bytes": 1_000, "count_tokens": False}
    repeat_corpus(RepeatOptions(corpus=(corpus,), output=output, epochs=3, seed=1, virtual=virtual, **small))
    return output


@pytest.fixture
def repeated(corpus, tmp_path) -> str:
    """Three epochs that are only an order."""
    return repeat(corpus, str(tmp_path / "virtual"), virtual=True)


def stream_of(place: str, **options):
    return derivedata.load_corpus(place, streaming=True, **options)


def uids(documents) -> list[tuple[str, int]]:
    return [(row["uid"], row["epoch"]) for row in documents]


def test_three_epochs_are_the_same_written_or_not(corpus, repeated, tmp_path):
    written = repeat(corpus, str(tmp_path / "written"), virtual=False)
    texts = [[row["text"] for row in stream_of(place)] for place in (written, repeated, corpus)]
    assert texts[0] == texts[1]
    assert Counter(texts[0]) == Counter({text: 3 * n for text, n in Counter(texts[2]).items()})
    epochs = [row["epoch"] for row in stream_of(repeated)]
    assert epochs == sorted(epochs) and set(epochs) == {1, 2, 3}


def test_two_ranks_with_two_workers_share_every_epoch_and_go_on_in_the_middle_of_one(repeated):
    everything = uids(stream_of(repeated))
    assert stream_of(repeated).num_shards > 8
    parts = []
    for rank in range(2):
        loader = DataLoader(
            stream_of(repeated, rank=rank, world_size=2).select_columns(["uid", "epoch"]),
            batch_size=None,
            num_workers=2,
        )
        parts += uids(loader)
    assert Counter(parts) == Counter(everything) and len(set(everything)) == 3 * 24
    stopped = stream_of(repeated)
    reading = iter(stopped)
    for _ in range(41):
        next(reading)
    again = stream_of(repeated)
    again.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert uids(again) == everything[41:]


def test_fifty_steps_of_a_tiny_model_with_a_stop_in_the_middle(repeated, tmp_path, tiny_model):
    """Stopped after 20 steps and gone on from the state, it is the same training as in one go."""
    out = str(tmp_path / "tokens")
    tokenize_corpus(TokenizeOptions(corpus=(repeated,), output=out, tokenizer=str(tiny_model), eos=EOS))

    def train(model, optimizer, blocks, steps) -> list[float]:
        losses = []
        for _, batch in zip(range(steps), DataLoader(blocks, batch_size=4), strict=False):
            batch.pop("document_ids")
            loss = model(**batch, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def begin():
        model = tiny_llama()
        return (
            model,
            torch.optim.AdamW(model.parameters(), lr=3e-3),
            derivedata.load_tokens(out, sequence_length=LENGTH),
        )

    model, optimizer, blocks = begin()
    whole = train(model, optimizer, blocks, 50)
    model, optimizer, blocks = begin()
    first = train(model, optimizer, blocks, 20)
    state = json.loads(json.dumps(blocks.state_dict()))
    blocks = derivedata.load_tokens(out, sequence_length=LENGTH)
    blocks.load_state_dict(state)
    assert first + train(model, optimizer, blocks, 30) == pytest.approx(whole, abs=1e-5)
    assert len(whole) == 50 and sum(whole[-5:]) < sum(whole[:5]) - 2.5


def test_tokens_of_an_order_are_those_of_its_documents(repeated, tmp_path, tiny_model):
    """Tokenised on the way or beforehand, a repeat is the same tokens."""
    out = str(tmp_path / "tokens")
    tokenize_corpus(TokenizeOptions(corpus=(repeated,), output=out, tokenizer=str(tiny_model), eos=EOS))
    beforehand = derivedata.load_tokens(out, sequence_length=LENGTH)
    on_the_way = derivedata.load_tokens(repeated, sequence_length=LENGTH, tokenizer=str(tiny_model), eos=EOS)
    assert joined(beforehand) == joined(on_the_way)


@pytest.fixture
def mixture(made, tmp_path, tiny_model) -> str:  # noqa: F811
    """Half fresh, a quarter repeated, a quarter FAQs; only an order."""
    spec = write_spec(tmp_path / "spec", three(made, "virtual"), tokenizer=tiny_model)
    mix(spec, tmp_path / "mix")
    return str(tmp_path / "mix")


def test_a_mix_is_shared_out_stopped_and_gone_on_with_like_any_corpus(mixture):
    everything = [(row["mix_source"], row["text"]) for row in derivedata.load_mixture(mixture, streaming=True)]
    assert {name for name, _ in everything} == {"web", "again", "faq"}
    parts = []
    for rank in range(2):
        share = derivedata.load_mixture(mixture, streaming=True, rank=rank, world_size=2)
        share = share.select_columns(["mix_source", "text"])
        parts += [tuple(row.values()) for row in DataLoader(share, batch_size=None, num_workers=2)]
    assert Counter(parts) == Counter(everything)
    stopped = derivedata.load_mixture(mixture, streaming=True)
    reading = iter(stopped)
    for _ in range(len(everything) // 2):
        next(reading)
    again = derivedata.load_mixture(mixture, streaming=True)
    again.load_state_dict(stopped.state_dict())
    assert [(row["mix_source"], row["text"]) for row in again] == everything[len(everything) // 2 :]


def test_the_tokens_of_a_mix_are_what_it_asks_for(mixture, tmp_path, tiny_model, capsys):
    """Counted, tokenised on the way, or beforehand: the same tokens, half of them fresh."""
    counts = count_tokens([mixture], str(tiny_model))
    by_style = Counter()
    for row in counts.frame.to_dicts():
        by_style[row["style"]] += row["tokens"]
    total = sum(by_style.values())
    assert by_style["faq"] / total == pytest.approx(0.25, abs=0.03)
    out = str(tmp_path / "tokens")
    found = tokenize_corpus(TokenizeOptions(corpus=(mixture,), output=out, tokenizer=str(tiny_model), eos=EOS))
    assert found.tokens - found.documents == total
    on_the_way = derivedata.load_tokens(mixture, sequence_length=LENGTH, tokenizer=str(tiny_model), eos=EOS)
    assert joined(derivedata.load_tokens(out, sequence_length=LENGTH)) == joined(on_the_way)
    main(["report", mixture, "-o", str(tmp_path / "page.html")])
    main(["sample", mixture, "-n", "3"])
    assert "again" in (tmp_path / "page.html").read_text() and "3 of" in capsys.readouterr().err
