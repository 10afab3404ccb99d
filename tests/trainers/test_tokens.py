"""Token stores, and the blocks cut from them."""

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.trainers.corpus import entries, is_held_out, open_corpus, training_store
from derivedata.trainers.packing import Chain, Packed
from derivedata.trainers.tokens import Entry, Label, build_store, open_store
from derivedata.trainers.vocabulary import ByteTokenizer, head_rows, open_tokenizer
from tests.tiny_model import write_tiny_model
from tests.trainers.corpora import write_fresh, write_rewrites

BYTES, END = ByteTokenizer(), 256
FRESH = Label("fresh", None, "books")
FAQ = Label("paraphrase", "faq", "books/derived/faq")


def entry(letter, length=10, label=FRESH, **more):
    return Entry(uid=letter * 32, text=letter * length, label=label, **more)


def store(folder, *found, need=None):
    return build_store(folder / "tokens", found, BYTES, origin="test", need=need)


def test_documents_follow_each_other_with_an_end_of_text(tmp_path):
    packed = Packed(store(tmp_path, entry("a", 3), entry("b", 4)), 4)
    assert packed.read(0, 2).tolist() == [[97, 97, 97, END], [98, 98, 98, 98]]
    assert packed.tokens == 9
    assert packed.blocks == 2  # the last end of text fills no block


def test_any_run_of_blocks_is_what_lies_there(tmp_path):
    rng = np.random.default_rng(0)
    found = [entry(chr(97 + i), int(rng.integers(0, 30))) for i in range(20)]
    packed = Packed(store(tmp_path, *found), 7)
    whole = np.concatenate([[*e.text.encode(), END] for e in found])
    for first in range(packed.blocks):
        for count in (1, packed.blocks - first):
            expected = whole[7 * first : 7 * (first + count)].reshape(count, 7)
            assert (packed.read(first, count) == expected).all()


def test_a_document_that_comes_again_is_stored_once_and_counted_as_repeat(tmp_path):
    found = store(tmp_path, entry("a"), entry("b"), entry("a", epoch=2), entry("b", epoch=2))
    assert len(found.tokens) == 22
    assert found.total == 44
    assert Packed(found, 11).kinds(0, 4) == {("fresh", None): 22, ("repeat", None): 22}
    assert (Packed(found, 11).read(0, 2) == Packed(found, 11).read(2, 2)).all()


def test_kinds_of_blocks_add_up_and_split_inside_a_document(tmp_path):
    packed = Packed(store(tmp_path, entry("a", 9), entry("b", 5, FAQ), entry("c", 7)), 4)
    assert packed.kinds(0, 6) == {("fresh", None): 18, ("paraphrase", "faq"): 6}
    assert packed.kinds(2, 1) == {("fresh", None): 2, ("paraphrase", "faq"): 2}
    assert sum((packed.kinds(i, 1) for i in range(6)), packed.kinds(0, 0)) == packed.kinds(0, 6)


def test_passes_are_chained_at_whole_blocks(tmp_path):
    found = store(tmp_path, entry("a"), entry("b"))
    passes = Chain([Packed(found, 8), Packed(found, 8, np.array([1, 0]), 2)])
    assert passes.blocks == 4
    assert passes.read(1, 2).tolist() == [*Packed(found, 8).read(1, 1).tolist(), [98] * 8]
    assert passes.kinds(0, 4) == {("fresh", None): 16, ("repeat", None): 16}


def test_it_stops_once_there_are_enough_tokens(tmp_path):
    assert store(tmp_path, *(entry(c) for c in "abcdef"), need=23).total == 33


def test_a_store_made_of_the_same_things_is_opened_and_another_is_made_anew(tmp_path):
    first = store(tmp_path, entry("a"))
    assert store(tmp_path, entry("b")).fingerprint == first.fingerprint  # the same origin: nothing is read
    assert len(build_store(tmp_path / "tokens", [entry("b", 3)], BYTES, origin="other").tokens) == 4


def test_a_cut_store_is_told_in_one_line(tmp_path):
    store(tmp_path, entry("a"))
    path = tmp_path / "tokens" / "tokens.bin"
    path.write_bytes(path.read_bytes()[:6])
    with pytest.raises(UserError, match=r"a damaged token store.*3 tokens where 11 were written"):
        open_store(tmp_path / "tokens")


def test_what_derives_from_a_held_out_document_is_held_out_too(tmp_path):
    fresh = write_fresh(tmp_path / "fresh")
    derived = write_rewrites(tmp_path / "derived", fresh)
    stream = open_corpus((str(fresh), str(derived)))
    kept = training_store(tmp_path / "tokens", stream, BYTES, share=0.3, seed=0, need=None)
    out = [e for e in entries(stream, BYTES) if is_held_out(e, 0.3, 0)]
    assert 2 <= len(out) // 2 < 30
    assert len(out) + len(kept.label) == stream.documents
    assert not {e.parent.encode() for e in out} & set(kept.parents.tolist())


def test_a_model_tokenizer_reads_text_literally_and_names_its_end(tmp_path):
    tokenizer = open_tokenizer(str(write_tiny_model(tmp_path / "model")))
    (ids,) = tokenizer.encode(["<|im_end|>"])
    assert tokenizer.end_of_text not in ids
    assert tokenizer.end_of_text == 2


def test_heads_are_padded_where_vocabularies_are_large():
    assert head_rows(257) == 257
    assert head_rows(100_278) == 100_352
