"""Long documents: pieces join back to the whole, fit the context, and end where a reader would pause."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derivedata.errors import UserError
from derivedata.generation.pieces import split_document
from tests.examples import examples

PARAGRAPH = "One sentence here. Another one follows! A third asks why? "


def _texts():
    parts = st.sampled_from(
        [
            "word ",
            "Sentence. ",
            "\n\n",
            "\n",
            "日本語。",
            "é",
            "😀",
            "    ",
            "x" * 40,
            "a,b",
            "\u200b",
            "1234567",
            "<|im_end|>",
        ]
    )
    return st.lists(parts, max_size=120).map("".join)


@given(text=_texts(), limit=st.integers(16, 90))
@settings(max_examples=examples(150), deadline=None)
def test_pieces_join_back_to_the_text_and_fit(tokenizer, text, limit):
    pieces = split_document(tokenizer, text, limit)
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.index for piece in pieces] == list(range(len(pieces)))
    for piece in pieces:
        assert piece.tokens == tokenizer.encode(piece.text)
        assert len(piece.tokens) <= limit


@given(text=_texts(), limit=st.integers(16, 90), draw=st.floats(0, 1, exclude_max=True))
@settings(max_examples=examples(100), deadline=None)
def test_a_window_is_one_piece_of_the_text(tokenizer, text, limit, draw):
    pieces = split_document(tokenizer, text, limit, "window", draw=draw)
    assert len(pieces) == 1
    assert pieces[0].text in text
    assert len(pieces[0].tokens) <= limit


def test_a_document_that_fits_is_one_piece_whatever_the_rule(tokenizer):
    for rule in ("split", "window", "truncate", "skip"):
        assert [piece.text for piece in split_document(tokenizer, "Short.", 16, rule)] == ["Short."]


def test_pieces_end_at_paragraphs_if_they_can(tokenizer):
    text = "\n\n".join([PARAGRAPH.strip()] * 12)
    limit = 3 * len(tokenizer.encode(PARAGRAPH))
    pieces = split_document(tokenizer, text, limit)
    assert len(pieces) > 2
    assert all(piece.text.endswith("\n\n") for piece in pieces[:-1])


def test_and_at_sentences_if_there_are_no_paragraphs(tokenizer):
    pieces = split_document(tokenizer, PARAGRAPH * 12, 2 * len(tokenizer.encode(PARAGRAPH)))
    assert all(piece.text.rstrip().endswith((".", "!", "?")) for piece in pieces)


def test_pieces_are_of_like_size(tokenizer):
    text = PARAGRAPH * 11
    total, limit = len(tokenizer.encode(text)), len(tokenizer.encode(PARAGRAPH * 10))
    sizes = [len(piece.tokens) for piece in split_document(tokenizer, text, limit)]
    assert len(sizes) == 2
    assert max(sizes) < 0.7 * total  # not a full piece and a scrap


def test_truncate_keeps_the_beginning(tokenizer):
    text = PARAGRAPH * 20
    (piece,) = split_document(tokenizer, text, 60, "truncate")
    assert text.startswith(piece.text)
    assert 30 <= len(piece.tokens) <= 60


def test_windows_lie_all_over_the_document(tokenizer):
    text = "".join(f"Sentence number {number} stands here. " for number in range(200))
    begins = [text.index(split_document(tokenizer, text, 100, "window", draw=d / 10)[0].text) for d in range(10)]
    assert begins[0] == 0
    assert begins == sorted(begins)
    assert len(set(begins)) == 10


def test_windows_begin_with_a_sentence_where_one_is_close(tokenizer):
    text = PARAGRAPH * 50
    for number in range(1, 10):
        (piece,) = split_document(tokenizer, text, 200, "window", draw=number / 10)
        assert piece.text.startswith(("One", "Another", "A third"))


def test_skip_gives_no_piece(tokenizer):
    assert split_document(tokenizer, PARAGRAPH * 20, 60, "skip") == []


def test_a_context_too_small_for_a_sentence_is_an_error(tokenizer):
    with pytest.raises(UserError, match="no room for a sentence"):
        split_document(tokenizer, "Text.", 7)
