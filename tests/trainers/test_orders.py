"""What `repeat` makes, written out or not, is trained on as what it is: fresh tokens once, then repeats."""

import pytest
import yaml

from derivedata.pipelines.mix_run import make_mix
from derivedata.pipelines.mixture import MixOptions
from derivedata.pipelines.repeat_run import RepeatOptions, repeat_corpus
from derivedata.trainers.corpus import entries, is_held_out, open_corpus, training_store
from derivedata.trainers.packing import Packed
from derivedata.trainers.vocabulary import ByteTokenizer
from tests.tiny_model import write_tiny_model
from tests.trainers.corpora import write_fresh, write_rewrites

BYTES = ByteTokenizer()


def kinds(folder, place, share=0.0):
    store = training_store(folder, open_corpus(str(place), 0), BYTES, share=share, seed=0, need=None)
    packed = Packed(store, 1)
    return packed.kinds(0, packed.blocks), store


@pytest.mark.parametrize("virtual", [True, False])
def test_three_epochs_are_fresh_once_and_repeated_twice(tmp_path, virtual):
    fresh = write_fresh(tmp_path / "fresh", 12)
    repeat_corpus(
        RepeatOptions(
            corpus=[str(fresh)], output=str(tmp_path / "repeated"), epochs=3, virtual=virtual, count_tokens=False
        )
    )
    (once, _), (found, store) = kinds(tmp_path / "a", fresh), kinds(tmp_path / "b", tmp_path / "repeated")
    count = once[("fresh", None)]
    assert found == {("fresh", None): count, ("repeat", None): 2 * count}
    assert len(store.order) == 36
    if virtual:
        assert len(store.tokens) == count  # each document is stored once


@pytest.mark.parametrize("virtual", [True, False])
def test_a_held_out_document_is_held_out_in_every_epoch(tmp_path, virtual):
    fresh = write_fresh(tmp_path / "fresh", 12)
    repeat_corpus(
        RepeatOptions(
            corpus=[str(fresh)], output=str(tmp_path / "repeated"), epochs=3, virtual=virtual, count_tokens=False
        )
    )
    found, _ = kinds(tmp_path / "b", tmp_path / "repeated", share=0.3)
    assert found[("repeat", None)] == 2 * found[("fresh", None)] > 0


@pytest.mark.parametrize("materialize", [False, True])
def test_in_a_mix_what_derives_from_a_held_out_document_is_left_out(tmp_path, materialize):
    fresh = write_fresh(tmp_path / "fresh", 12)
    derived = write_rewrites(tmp_path / "derived", fresh)
    spec = {
        "tokenizer": str(write_tiny_model(tmp_path / "tiny")),
        "sources": [
            {"source_name": "web", "target_ratio": 0.6, "paths": [str(fresh)]},
            {"source_name": "plain", "target_ratio": 0.4, "paths": [str(derived)], "derived_from": "anything"},
        ],
    }
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(spec))
    make_mix(MixOptions(spec=str(tmp_path / "mix.yaml"), output=str(tmp_path / "mix"), materialize=materialize))
    whole, _ = kinds(tmp_path / "a", tmp_path / "mix")
    found, store = kinds(tmp_path / "b", tmp_path / "mix", share=0.4)
    assert whole[("paraphrase", "plain")] > found[("paraphrase", "plain")] > 0
    corpus = open_corpus(str(fresh))
    out = {e.uid.encode() for e in entries(corpus, BYTES) if is_held_out(e, 0.4, 0)}
    assert out and not out & set(store.parents.tolist())
    assert {label.source for label in store.labels} == {"web", "plain"}
