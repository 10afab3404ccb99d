"""The books balance, or the stage fails."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derivedata.store.books import Books, BooksError

counts = st.dictionaries(st.sampled_from(["refusal", "copy", "too_short"]), st.integers(0, 1000))


@st.composite
def balanced(draw) -> Books:
    accounts = {name: draw(counts) for name in ("rejected", "skipped", "outside")}
    accepted = draw(st.integers(0, 1000))
    planned = accepted + sum(sum(account.values()) for account in accounts.values())
    return Books(planned=planned, accepted=accepted, **accounts)


def test_books_that_do_not_balance_say_all_accounts():
    books = Books(planned=10, accepted=6, rejected={"refusal": 2}, skipped={"no_numbers": 1})
    with pytest.raises(BooksError, match="planned 10 is not accepted 6, rejected 2, skipped 1, outside 0") as caught:
        books.balance("unit 3")
    assert caught.value.line.startswith("unit 3: ")
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), BooksError)


@given(st.lists(balanced(), max_size=5))
def test_balanced_books_add_up_to_balanced_books(books):
    total = sum(books, Books()).balance()
    assert total.planned == sum(b.planned for b in books)


@given(balanced())
def test_books_come_back_from_json_and_from_rows(books):
    assert Books.from_dict(books.to_dict()) == books
    assert Books.from_rows(books.rows()) == books


@pytest.mark.parametrize("fields", [{"planned": -1}, {"planned": 1.0}, {"planned": True}, {"rejected": {"x": -2}}])
def test_counts_are_whole_numbers(fields):
    with pytest.raises(BooksError, match="whole number"):
        Books(**fields)


def test_reasons_that_never_came_up_are_left_out():
    assert Books(planned=1, accepted=1, rejected={"refusal": 0}) == Books(planned=1, accepted=1)
