"""Units: their names, and which of them a wanted output still lacks."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derivedata.errors import UserError
from derivedata.store.units import Unit, is_unit_name, kinds_hash, missing
from tests.examples import examples
from tests.store.samples import keys


def test_a_name_says_what_the_unit_is():
    unit = Unit(7, 0, 120, 1, 3, ("math", "faq"))
    assert unit.name == f"000007.000000-000120.r1-3.{kinds_hash(['faq', 'math'])}"
    assert Unit.parse(unit.name, {kinds_hash(unit.kinds): unit.kinds}) == unit
    assert is_unit_name(unit.name) and not is_unit_name("input-12ab")


def test_the_order_of_the_kinds_does_not_matter():
    assert Unit(0, 0, 1, 0, 1, ("b", "a")) == Unit(0, 0, 1, 0, 1, ("a", "b", "a"))


def test_numbers_may_outgrow_their_places():
    unit = Unit(12_345_678, 1_000_000, 2_000_000, 0, 128, ("x",))
    assert Unit.parse(unit.name, {kinds_hash(["x"]): ("x",)}) == unit


def test_names_of_unknown_kinds_and_foreign_names_are_refused():
    with pytest.raises(UserError, match=r"manifest/kinds/[0-9a-f]{8}.json is missing"):
        Unit.parse(Unit(0, 0, 1, 0, 1, ("x",)).name, {})
    with pytest.raises(UserError, match="not the name of a unit"):
        Unit.parse("../../etc/passwd", {})


@pytest.mark.parametrize("fields", [(0, 1, 1, 0, 1), (0, 0, 1, 2, 2), (-1, 0, 1, 0, 1), (0, 2, 1, 0, 1)])
def test_empty_units_are_impossible(fields):
    with pytest.raises(ValueError):
        Unit(*fields, ("x",))


def wanted(documents: int, kinds: tuple[str, ...], rewrites: int, committed=(), started=()) -> list[Unit]:
    return missing(committed, chunk=3, documents=documents, kinds=kinds, rewrites=rewrites, started=started)


def test_all_is_missing_at_first_and_nothing_at_the_end():
    assert wanted(10, ("faq", "math"), 2) == [Unit(3, 0, 10, 0, 2, ("faq", "math"))]
    assert wanted(10, ("faq", "math"), 2, [Unit(3, 0, 10, 0, 2, ("faq", "math"))]) == []
    assert wanted(0, ("faq",), 1) == []


def test_more_rewrites_extend():
    assert wanted(10, ("faq",), 3, [Unit(3, 0, 10, 0, 1, ("faq",))]) == [Unit(3, 0, 10, 1, 3, ("faq",))]


def test_another_style_extends():
    done = [Unit(3, 0, 10, 0, 2, ("faq",))]
    assert wanted(10, ("faq", "math"), 2, done) == [Unit(3, 0, 10, 0, 2, ("math",))]


def test_a_later_cut_extends():
    assert wanted(10, ("faq",), 1, [Unit(3, 0, 4, 0, 1, ("faq",))]) == [Unit(3, 4, 10, 0, 1, ("faq",))]


def test_a_later_cut_and_more_rewrites_make_two_rectangles():
    assert wanted(10, ("faq",), 2, [Unit(3, 0, 4, 0, 1, ("faq",))]) == [
        Unit(3, 0, 4, 1, 2, ("faq",)),
        Unit(3, 4, 10, 0, 2, ("faq",)),
    ]


def test_less_than_there_is_wants_nothing():
    assert wanted(3, ("faq",), 1, [Unit(3, 0, 10, 0, 2, ("faq", "math"))]) == []


def test_other_chunks_do_not_count():
    assert wanted(2, ("faq",), 1, [Unit(4, 0, 2, 0, 1, ("faq",))]) == [Unit(3, 0, 2, 0, 1, ("faq",))]


def test_a_started_unit_keeps_its_shape():
    begun = Unit(3, 0, 4, 0, 1, ("faq",))
    assert wanted(10, ("faq",), 1, started=[begun]) == [begun, Unit(3, 4, 10, 0, 1, ("faq",))]


def test_a_started_unit_that_does_not_fit_is_let_go():
    committed = [Unit(3, 0, 5, 0, 1, ("faq",))]
    assert wanted(10, ("faq",), 1, committed, started=[Unit(3, 4, 8, 0, 1, ("faq",))]) == [
        Unit(3, 5, 10, 0, 1, ("faq",))
    ]
    assert wanted(5, ("faq",), 1, started=[Unit(3, 0, 9, 0, 1, ("faq",))]) == [Unit(3, 0, 5, 0, 1, ("faq",))]


kinds = st.lists(st.sampled_from("abc"), min_size=1, unique=True).map(tuple)
wishes = st.tuples(st.integers(1, 8), kinds, st.integers(1, 4))


@settings(max_examples=examples(200), deadline=None)
@given(history=st.lists(wishes, max_size=4), wish=wishes, chance=st.randoms(use_true_random=False))
def test_committed_and_missing_make_the_wanted_output_without_overlap(history, wish, chance: random.Random):
    """Whatever was wanted before, and however much of it was committed or begun, in whatever order."""
    committed: list[Unit] = []
    started: list[Unit] = []
    for documents, styles, rewrites in history:
        units = wanted(documents, styles, rewrites, committed, started)
        chance.shuffle(units)
        kept = chance.randint(0, len(units))
        committed += units[:kept]
        started = [unit for unit in (*started, *units[kept:]) if chance.random() < 0.5]
    documents, styles, rewrites = wish
    found = wanted(documents, styles, rewrites, committed, started)
    everything = Counter(key for unit in (*committed, *found) for key in keys(unit))
    assert set(everything.values()) <= {1}
    assert everything.keys() >= set(keys(Unit(3, 0, documents, 0, rewrites, styles)))
    assert all(unit.within(Unit(3, 0, documents, 0, rewrites, styles)) for unit in found)


@settings(max_examples=examples(200), deadline=None)
@given(history=st.lists(wishes, max_size=3), wish=wishes, chance=st.randoms(use_true_random=False))
def test_a_writer_that_comes_later_sees_the_same_units(history, wish, chance: random.Random):
    committed: list[Unit] = []
    for documents, styles, rewrites in history:
        units = wanted(documents, styles, rewrites, committed)
        committed += chance.sample(units, chance.randint(0, len(units)))
    documents, styles, rewrites = wish
    early = wanted(documents, styles, rewrites, committed)
    done = chance.sample(early, chance.randint(0, len(early)))
    begun = [unit for unit in early if unit not in done and chance.random() < 0.5]
    late = wanted(documents, styles, rewrites, [*committed, *done], begun)
    assert set(late) == set(early) - set(done)
