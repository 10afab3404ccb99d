"""Steps of learning, and the loss on held-out text."""

import copy
import math

import numpy as np
import pytest
import torch

from derivedata.trainers.heldout import HeldOut
from derivedata.trainers.learner import Learner, Recipe
from derivedata.trainers.ranks import Ranks
from derivedata.trainers.tokens import Entry, Label, build_store
from derivedata.trainers.vocabulary import ByteTokenizer
from tests.trainers.corpora import TINY

ALONE = Ranks(rank=0, world=1, device="cpu")
IDS = np.random.default_rng(0).integers(0, 257, (6, 64))


def learner(**recipe):
    torch.manual_seed(0)
    return Learner(TINY.model(257, 64), Recipe(**recipe), ALONE)


def weights(one):
    return {name: value.clone() for name, value in one.model.state_dict().items()}


def test_the_loss_of_a_new_model_is_that_of_guessing_and_falls():
    one = learner()
    first, _ = one.step(IDS, 1e-2)
    assert first == pytest.approx(math.log(257), abs=0.05)
    for _ in range(10):
        last, _ = one.step(IDS, 1e-2)
    assert last < first - 0.1


def test_gradients_of_small_pieces_add_up_to_those_of_the_whole():
    whole, pieces = learner(micro_batch=6), learner(micro_batch=4)
    assert whole.step(IDS, 1e-3) == pytest.approx(pieces.step(IDS, 1e-3), rel=1e-5)


def test_a_loss_that_is_not_finite_leaves_the_weights_alone():
    one = learner()
    with torch.no_grad():
        one.model.lm_head.weight[0, 0] = math.inf
    before = weights(one)
    loss, _ = one.step(IDS, 1e-2)
    assert not math.isfinite(loss)
    assert all(torch.equal(value, before[name]) for name, value in weights(one).items())


def test_norms_and_the_input_embedding_have_no_weight_decay():
    one = learner(weight_decay=0.3)
    decayed = {id(p) for g in one.optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    names = {name for name, p in one.model.named_parameters() if id(p) in decayed}
    assert "lm_head.weight" in names
    assert not any("norm" in name or "embed" in name for name in names)


def test_z_loss_pulls_the_denominator_towards_one():
    plain, pulled = learner(z_loss=0.0), learner(z_loss=1e-1)
    for _ in range(5):
        plain.step(IDS, 1e-2)
        pulled.step(IDS, 1e-2)
    with torch.no_grad():
        denominators = [one.token_losses(torch.from_numpy(IDS))[1].square().mean() for one in (plain, pulled)]
    assert denominators[1] < denominators[0]


def test_a_restored_state_goes_on_exactly():
    one = learner()
    one.step(IDS, 1e-2)
    state = copy.deepcopy(one.state())
    expected = one.step(IDS, 1e-2)
    other = learner()
    other.restore(state)
    assert other.step(IDS, 1e-2) == expected


def test_a_rank_without_rows_takes_part_with_weight_nothing():
    rows, shares = Ranks(rank=1, world=2, device="cpu").share(IDS[:1])
    assert rows.shape == (1, 64)
    assert shares.tolist() == [0.0]


def test_held_out_loss_is_told_by_source_and_style(tmp_path):
    labels = [Label("fresh", None, "books"), Label("paraphrase", "faq", "web")]
    found = [Entry(uid=f"{i:032d}", text="ab" * (40 + i), label=labels[i % 2]) for i in range(8)]
    store = build_store(tmp_path / "tokens", found, ByteTokenizer(), origin="test")
    held = HeldOut(store, 64, 10_000)
    one = learner()
    scores = held.score(one)
    assert held.tokens == 64 * (store.total // 64)
    assert set(scores.by) == {"source:books", "source:web", "style:faq"}
    assert min(scores.by.values()) <= scores.loss <= max(scores.by.values())
    # Bytes are the tokens, besides one end of text a document.
    assert scores.bits_per_byte["all"] == pytest.approx(scores.loss / math.log(2), rel=0.02)
    with torch.no_grad():
        nll, _ = one.token_losses(one.put(held._ids))
    assert scores.loss == pytest.approx(float(nll.mean()), rel=1e-5)
