"""Any interleaving of writers, compaction, kills and restarts gives each key once, with one text."""

from __future__ import annotations

import uuid
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derivedata.store.compaction import compact
from derivedata.store.ledger import Ledger
from derivedata.store.paths import Folder
from derivedata.store.units import Unit
from tests.examples import examples
from tests.store import samples
from tests.store.steps import Writer

pytestmark = pytest.mark.faults

CHUNKS = 2
WANTED = {key for chunk in range(CHUNKS) for key in samples.keys(Unit(chunk, 0, 2, 0, 1, samples.STYLES))}


def job(number: int, *, compacts: bool):
    def run(folder: Folder) -> None:
        ledger = Ledger(folder)
        for chunk in range(CHUNKS):
            samples.work(ledger, [chunk], text=lambda key: f"{key} by {number}")
            if compacts:
                compact(folder, grace=0)

    return run


# (writer, number of steps it takes, whether it is killed after them and another one starts in its place)
turns = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(0, 4).map(lambda n: n == 0)), max_size=40)


@settings(max_examples=examples(60), deadline=None)
@given(turns)
def test_any_interleaving_gives_one_outcome(schedule):
    place = f"memory://{uuid.uuid4().hex}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # memory has no conditional put, and needs none: one step at a time
        # Two that generate, with different texts, and one that compacts as well.
        writers = [Writer(place, job(number, compacts=number == 2)) for number in range(3)]
        started = len(writers)
        for who, steps, dies in schedule:
            for _ in range(steps):
                writers[who].step()
            if dies:
                writers[who].kill()
                writers[who] = Writer(place, job(started, compacts=who == 2))
                started += 1
        while not all(writer.finished for writer in writers):
            for writer in writers:
                writer.step()
        assert [writer.fault for writer in writers] == [None] * 3
        folder = Folder(place)
        texts = samples.read_back(folder)
        assert set(texts) == WANTED
        for chunk in range(CHUNKS):
            assert len({text.rpartition(" ")[2] for key, text in texts.items() if key.startswith(f"{chunk}/")}) == 1
        Ledger(folder).sweep()
        assert folder.names("journal/") == folder.names("ledger/") == []
