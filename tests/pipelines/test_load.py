"""Blocks for a trainer: every token once, documents kept apart, a place to go on from, and trainers that take them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import derivedata
from derivedata.corpus import packing
from derivedata.corpus.stream import BlockStream, open_stream
from derivedata.errors import UserError
from derivedata.generation.tokenizer import load_tokenizer
from derivedata.pipelines.tokenize import TokenizeOptions, tokenize_corpus
from tests.pipelines.test_tokenize import EOS

LENGTH = 64


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch) -> None:
    """Windows of a file or two and runs of a few blocks, so that a small corpus has many."""
    monkeypatch.setitem(BlockStream.__init__.__kwdefaults__, "window_bytes", 1_500)
    monkeypatch.setattr(packing, "RUN_TOKENS", 5 * LENGTH)


@pytest.fixture
def plain(tmp_path) -> Path:
    folder = tmp_path / "plain"
    folder.mkdir()
    for number in range(9):
        rows = [{"text": f"In town {number}, {row} people ask a question. " * (row + 1)} for row in range(7)]
        (folder / f"part-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def shards(plain, tmp_path, tiny_model) -> Path:
    out = tmp_path / "tokens"
    tokenize_corpus(
        TokenizeOptions(
            corpus=(str(plain),), output=str(out), tokenizer=str(tiny_model), eos=EOS, shard_bytes=1, format="nanotron"
        )
    )
    return out


@pytest.fixture(params=["shards", "texts"])
def load(request, plain, shards, tiny_model):
    """Both ways to the same tokens: `load(rank=, world_size=, sequence_length=)`."""
    from_texts = {"tokenizer": str(tiny_model), "eos": EOS}
    place, more = (str(shards), {}) if request.param == "shards" else (str(plain), from_texts)
    return lambda **options: derivedata.load_tokens(place, **({"sequence_length": LENGTH} | more | options))


def tokens(plain: Path, tiny_model: Path) -> list[int]:
    tokenizer, stream = load_tokenizer(tiny_model), open_stream(str(plain))
    end = tokenizer.control_tokens[EOS]
    texts = [document.text for window in range(stream.windows) for document in stream.read(window)]
    return [one for text in texts for one in [*tokenizer.encode(text), end]]


def joined(blocks) -> list[int]:
    """The ids of blocks without the padding."""
    return [one for block in blocks for one in block["input_ids"][block["labels"] != -100].tolist()]


def test_the_blocks_are_the_tokens_in_their_order(load, plain, tiny_model):
    blocks = list(load())
    assert {tuple(block["input_ids"].shape) for block in blocks} == {(LENGTH,)}
    assert joined(blocks) == tokens(plain, tiny_model)
    assert sum(int((block["labels"] == -100).any()) for block in blocks) <= 1, "only the last is filled up"


def test_positions_begin_again_with_each_document(load, tiny_model):
    end = load_tokenizer(tiny_model).control_tokens[EOS]
    for block in load():
        position = document = 0
        for at, one in enumerate(block["input_ids"].tolist()):
            if block["labels"][at] == -100:
                assert one == end and block["document_ids"][at] == -1
                continue
            assert (int(block["position_ids"][at]), int(block["document_ids"][at])) == (position, document)
            position, document = (0, document + 1) if one == end else (position + 1, document)


def test_two_ranks_with_two_workers_each_read_every_token_once(load, plain, tiny_model):
    seen = []
    for rank in range(2):
        blocks = load(rank=rank, world_size=2)
        seen += joined(DataLoader(blocks, batch_size=None, num_workers=2))
    assert sorted(seen) == sorted(tokens(plain, tiny_model))


def test_going_on_begins_with_the_very_next_token(load):
    everything = [block["input_ids"].tolist() for block in load()]
    for count in (1, 2, 5, 6, len(everything) - 1):
        blocks = load()
        reading = iter(blocks)
        for _ in range(count):
            next(reading)
        again = load()
        again.load_state_dict(json.loads(json.dumps(blocks.state_dict())))
        assert [block["input_ids"].tolist() for block in again] == everything[count:]
        assert [block["input_ids"].tolist() for block in again] == everything, "the next epoch begins at the beginning"


def test_a_state_of_something_else_is_refused(load, shards, plain, tiny_model):
    blocks = load()
    next(iter(blocks))
    state = blocks.state_dict()
    with pytest.raises(UserError, match="blocks of another length"):
        load(sequence_length=32).load_state_dict(state)
    with pytest.raises(UserError, match="another rank, worker, or number of them"):
        load(world_size=2).load_state_dict(state)
    (plain / "part-9.jsonl").write_text('{"text": "one more"}\n')
    other = derivedata.load_tokens(str(plain), sequence_length=LENGTH, tokenizer=str(tiny_model), eos=EOS)
    with pytest.raises(UserError, match="other content or another order"):
        other.load_state_dict(state)
    with pytest.raises(UserError, match="not a state"):
        load().load_state_dict({})


def test_what_does_not_fit_is_said_in_one_line(shards, plain, tmp_path, tiny_model):
    with pytest.raises(UserError, match="a tokenizer is wanted"):
        derivedata.load_tokens(str(plain), sequence_length=LENGTH)
    for length in (0, -1):
        with pytest.raises(UserError, match="sequence_length: must be 1 or more"):
            derivedata.load_tokens(str(shards), sequence_length=length)
    definition = json.loads((tiny_model / "tokenizer.json").read_text())
    definition["model"]["merges"] = definition["model"]["merges"][:-1]
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(UserError, match="the tokens were made with tiny"):
        derivedata.load_tokens(str(shards), sequence_length=LENGTH, tokenizer=str(other))
    shard = next(iter(sorted((shards / "tokens").glob("*.ds"))))
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(UserError, match=r"does not hold the .* tokens that the manifest says"):
        list(derivedata.load_tokens(str(shards), sequence_length=LENGTH))


def test_olmo_and_nanotron_shards_give_the_same_blocks(shards, plain, tmp_path, tiny_model):
    tokenize_corpus(
        TokenizeOptions(corpus=(str(plain),), output=str(tmp_path / "npy"), tokenizer=str(tiny_model), eos=EOS)
    )
    one = derivedata.load_tokens(str(shards), sequence_length=LENGTH)
    other = derivedata.load_tokens(str(tmp_path / "npy"), sequence_length=LENGTH)
    assert one.fingerprint == other.fingerprint and len(one) == len(other)
    assert all(np.array_equal(a["input_ids"], b["input_ids"]) for a, b in zip(one, other, strict=True))


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=600, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=LENGTH,
        )
    )  # fmt: skip


def test_documents_of_a_block_do_not_see_each_other(shards):
    """transformers takes positions that begin again for the boundaries of documents."""
    model = tiny_llama().eval()
    block = next(
        block for block in derivedata.load_tokens(str(shards), sequence_length=LENGTH) if block["document_ids"][-1] > 0
    )
    second = block["document_ids"] == 1
    with torch.no_grad():
        # Without a cache, as in training: beside one, transformers takes positions for a continued text.
        inputs = {"input_ids": block["input_ids"][None], "position_ids": block["position_ids"][None]}
        together = model(**inputs, use_cache=False).logits[0, second]
        alone = model(input_ids=block["input_ids"][second][None]).logits[0]
    assert torch.allclose(together, alone, atol=1e-5)


def test_a_plain_pytorch_loop_learns_and_goes_on_where_it_stopped(shards):
    # example: begin
    def train(model, blocks, steps, state=None):
        if state:
            blocks.load_state_dict(state)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for _, batch in zip(range(steps), DataLoader(blocks, batch_size=4), strict=False):
            batch.pop("document_ids")
            loss = model(**batch, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, blocks.state_dict()

    # example: end
    model = tiny_llama()
    first, state = train(model, derivedata.load_tokens(str(shards), sequence_length=LENGTH), 5)
    rest, _ = train(model, derivedata.load_tokens(str(shards), sequence_length=LENGTH), 5, state)
    assert rest[-1] < first[0] - 0.3
    # The first batch after the pause is the sixth of the whole.
    blocks = derivedata.load_tokens(str(shards), sequence_length=LENGTH)
    sixth = [block["input_ids"].tolist() for block in blocks][20]
    blocks.load_state_dict(state)
    assert next(iter(blocks))["input_ids"].tolist() == sixth


def test_the_trainer_of_transformers_takes_the_blocks(shards, tmp_path):
    from transformers import Trainer, TrainingArguments

    blocks = derivedata.load_tokens(str(shards), sequence_length=LENGTH)
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=6, per_device_train_batch_size=4, learning_rate=3e-3,
        logging_steps=1, save_strategy="no", report_to="none", use_cpu=True,
    )  # fmt: skip
    trainer = Trainer(model=tiny_llama(), args=arguments, train_dataset=blocks)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 6 and losses[-1] < losses[0]
