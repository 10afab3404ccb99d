"""From finished requests to a committed unit, exactly once."""

from __future__ import annotations

import hashlib

import pytest

from derivedata.errors import UserError
from derivedata.store.books import Books, BooksError
from derivedata.store.ledger import AlreadyCommitted, Decision, Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.tables import DOCUMENTS, Part, declare, rows_to_table
from derivedata.store.units import Unit
from tests.store import samples

pytestmark = pytest.mark.faults

UNIT = Unit(0, 0, 3, 0, 1, samples.STYLES)


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


def journalled(folder: Folder, unit: Unit = UNIT, text=str, writer: str | None = None) -> Ledger:
    """A ledger whose writer has finished all requests of the unit."""
    ledger = Ledger(folder, writer)
    with ledger.journal(unit) as journal:
        for key in samples.keys(unit):
            journal.append({"key": key, "text": text(key)})
    return ledger


def test_a_unit_from_journal_to_commit(folder):
    ledger = journalled(folder)
    assert ledger.started() == [UNIT] and ledger.committed() == []
    decision = ledger.decide(UNIT, {"run_id": "r"}, keys=6)
    assert decision.totals == {"run_id": "r"} and list(ledger.decisions()) == [UNIT]
    assert samples.materialise(ledger, decision)
    assert ledger.committed() == [UNIT] and ledger.started() == [] and ledger.decisions() == {}
    assert samples.read_back(folder) == {key: key for key in samples.keys(UNIT)}
    assert folder.names("journal/") == folder.names("ledger/") == []


def test_committing_again_changes_nothing(folder):
    ledger = journalled(folder)
    decision = ledger.decide(UNIT, keys=6)
    assert samples.materialise(ledger, decision)
    before = {name: folder.read(name) for name in folder.names()}
    assert not samples.derive(Ledger(folder), UNIT, lambda key: "another text")
    assert {name: folder.read(name) for name in folder.names()} == before
    assert Ledger(folder).decide(UNIT) is None


def test_the_loser_of_a_race_takes_the_winners_decision(folder):
    first = journalled(folder, text=lambda key: f"{key} by a", writer="a")
    won = first.decide(UNIT, {"run_id": "a"}, keys=6)
    second = journalled(folder, text=lambda key: f"{key} by b", writer="b")
    assert second.decide(UNIT, {"run_id": "b"}, keys=6) == won
    assert samples.materialise(second, won) and not samples.materialise(first, won)
    assert set(samples.read_back(folder).values()) == {f"{key} by a" for key in samples.keys(UNIT)}


def test_a_decision_lists_only_segments_that_bring_something(folder):
    journalled(folder, writer="a")
    ledger = journalled(folder, writer="b")
    assert ledger.decide(UNIT).segments == (f"journal/{UNIT.name}/a-000000.jsonl.zst",)


def test_unfinished_units_are_not_decided(folder):
    ledger = Ledger(folder)
    with ledger.journal(UNIT) as journal:
        journal.append({"key": "0/0/0/faq", "text": ""})
    with pytest.raises(UserError, match="has 1 finished requests of 6"):
        ledger.decide(UNIT, keys=6)
    assert folder.names("ledger/") == []


def test_an_earlier_run_may_have_gone_further(folder):
    ledger = journalled(folder)
    assert ledger.decide(UNIT, keys=4).keys == 6


def test_a_late_writer_whose_segments_were_cleared_is_told_that_all_is_done(folder):
    late = journalled(folder, writer="late")
    other = Ledger(folder, "other")
    decision = other.decide(UNIT, keys=6)
    assert samples.materialise(other, decision)
    with late.journal(UNIT) as journal:
        journal.append({"key": "0/0/0/faq", "text": ""})
    assert late.decide(UNIT, keys=6) is None
    with pytest.raises(AlreadyCommitted):
        list(late.records(decision))
    assert folder.names("journal/") == []


def test_a_decision_made_after_the_winner_cleared_up_is_dropped(folder, monkeypatch):
    """The writer looked before the other one committed, and wrote its decision after that had cleared away."""
    late, other = journalled(folder, writer="late"), Ledger(folder, "other")
    create = folder.create

    def others_come_first(path: str, data: bytes) -> bool:
        if path.startswith("ledger/") and not other.committed():
            monkeypatch.setattr(folder, "create", create)
            samples.materialise(other, other.decide(UNIT, keys=6))
        return create(path, data)

    monkeypatch.setattr(folder, "create", others_come_first)
    assert late.decide(UNIT, keys=6) is None
    assert folder.names("ledger/") == []


def test_a_lost_segment_is_named(folder):
    ledger = journalled(folder)
    decision = ledger.decide(UNIT, keys=6)
    folder.remove(decision.segments[0])
    with pytest.raises(UserError, match=r"000000.jsonl.zst: a decided journal segment is lost or torn. Remove ledger/"):
        list(ledger.records(decision))
    folder.remove(f"ledger/{UNIT.name}.json")
    assert samples.derive(Ledger(folder), UNIT)


def test_a_damaged_decision_is_named(folder):
    ledger = journalled(folder)
    folder.create(f"ledger/{UNIT.name}.json", b"{")
    with pytest.raises(UserError, match=r"ledger/.*json: not a decision"):
        ledger.decide(UNIT, keys=6)


def test_a_decision_comes_back_from_its_file():
    decision = Decision(unit=UNIT, segments=("a", "b"), keys=6, totals={"tokens": 7}, writer="me")
    assert Decision.from_json(decision.to_json()) == decision


def test_a_file_left_without_its_part_is_adopted_with_its_own_hash(folder):
    ledger = journalled(folder)
    decision = ledger.decide(UNIT, keys=6)
    samples.materialise(ledger, decision)
    path = f"documents/style=faq/{UNIT.name}.jsonl.zst"
    folder.remove(
        f"manifest/units/{UNIT.name}.parquet"
    )  # as if killed before the commit point, by another zstd version
    ledger = journalled(folder)
    assert samples.materialise(ledger, ledger.decide(UNIT, keys=6), level=19)
    (row,) = [r for r in Manifest(folder).table("shards").to_pylist() if r["path"] == path]
    assert row["sha256"] == hashlib.sha256(folder.read(path)).hexdigest()
    assert row["frames"] == [{"offset": 0, "length": row["bytes"], "first_row": 0, "rows": 3}]
    samples.read_back(folder)


def test_a_file_of_other_documents_is_refused_by_name(folder):
    ledger = journalled(folder, text=lambda key: "old " + key)
    samples.materialise(ledger, ledger.decide(UNIT, keys=6))
    folder.remove(f"manifest/units/{UNIT.name}.parquet")
    ledger = journalled(folder)
    with pytest.raises(UserError, match=rf"style=faq/{UNIT.name}.jsonl.zst: a file of this name holds other documents"):
        samples.materialise(ledger, ledger.decide(UNIT, keys=6))
    assert ledger.committed() == []


def test_a_damaged_file_is_refused_by_name(folder):
    path = f"documents/style=faq/{UNIT.name}.jsonl.zst"
    folder.create(path, b"half a shard")
    ledger = journalled(folder)
    with pytest.raises(UserError, match=rf"{UNIT.name}.jsonl.zst: the file is damaged"):
        samples.materialise(ledger, ledger.decide(UNIT, keys=6))


def test_an_index_without_its_units_part_counts_for_nothing(folder):
    samples.derive(Ledger(folder), UNIT)
    samples.derive(Ledger(folder), Unit(1, 0, 3, 0, 1, samples.STYLES))
    folder.remove(f"manifest/units/{UNIT.name}.parquet")
    assert Manifest(folder).documents().height == 6 and Manifest(folder).shards().height == 2


def test_a_budget_may_cut_a_decided_unit(folder):
    ledger = journalled(folder)
    decision = ledger.decide(UNIT, keys=6)
    cut = Unit(0, 0, 2, 0, 1, samples.STYLES)
    assert samples.materialise(ledger, decision, cut)
    assert ledger.committed() == [cut] and ledger.decisions() == {} and ledger.started() == []
    assert set(samples.read_back(folder)) == set(samples.keys(cut))
    late = journalled(folder, writer="late")
    assert late.decide(UNIT, keys=6) is None
    with pytest.raises(AlreadyCommitted):
        list(late.records(decision))
    with pytest.raises(ValueError):
        ledger.commit(Unit(1, 0, 1, 0, 1, samples.STYLES), Part(books=Books()), decision)


def test_a_kill_between_the_commit_of_a_cut_unit_and_clearing_up_leaves_nothing_to_do(folder, monkeypatch):
    ledger = journalled(folder)
    decision = ledger.decide(UNIT, keys=6)
    monkeypatch.setattr(ledger, "_clear", lambda unit: None)
    samples.materialise(ledger, decision, Unit(0, 0, 2, 0, 1, samples.STYLES))
    after = Ledger(folder)
    assert after.decisions() == {}
    journalled(folder)
    assert after.sweep() == 1
    assert folder.names("journal/") == folder.names("ledger/") == []


def test_commands_with_unlike_extents_cannot_both_commit(folder):
    small, large = Unit(0, 0, 3, 0, 1, ("faq",)), Unit(0, 1, 5, 0, 1, ("faq",))
    one, two = journalled(folder, small, writer="one"), journalled(folder, large, writer="two")
    decision = one.decide(small, keys=3)
    with pytest.raises(UserError, match=rf"unit {large.name} overlaps {small.name}, which another command made"):
        two.decide(large, keys=4)
    assert samples.materialise(one, decision)
    with pytest.raises(UserError, match="overlaps"):
        two.commit(large, Part(books=Books()))
    assert one.committed() == [small]


def test_of_two_overlapping_decisions_the_second_is_forgotten_on_resume(folder):
    small, large = Unit(0, 0, 3, 0, 1, ("faq",)), Unit(0, 1, 5, 0, 1, ("faq",))
    one, two = journalled(folder, small, writer="one"), journalled(folder, large, writer="two")
    late = Decision(unit=large, segments=(), keys=0, writer="two")
    samples.materialise(one, one.decide(small, keys=3))
    folder.create(f"ledger/{large.name}.json", late.to_json())  # killed before it looked around
    assert two.decisions() == {}
    assert folder.names("ledger/") == []


def test_sweep_clears_what_late_writers_left(folder):
    samples.derive(Ledger(folder), UNIT)
    journalled(folder, writer="late")
    folder.create(f"ledger/{UNIT.name}.json", Decision(unit=UNIT, segments=(), keys=0).to_json())
    other = Unit(1, 0, 3, 0, 1, samples.STYLES)
    journalled(folder, other)
    ledger = Ledger(folder)
    assert ledger.sweep() == 1
    assert ledger.started() == [other] and ledger.decisions() == {}


def test_discard_forgets_finished_requests(folder):
    ledger = journalled(folder)
    ledger.decide(UNIT, keys=6)
    ledger.discard(UNIT)
    assert ledger.started() == []


def test_books_that_do_not_balance_are_not_committed():
    with pytest.raises(BooksError):
        Part(books=Books(planned=2, accepted=1))


def test_rejected_rows_are_committed_with_the_unit(folder):
    ledger = Ledger(folder)
    assert samples.derive(ledger, UNIT, lambda key: "bad" if key.endswith("table") else key)
    manifest = Manifest(folder)
    assert manifest.rejected()["reason"].to_list() == ["bad"] * 3
    assert manifest.books()["generation"] == Books(planned=6, accepted=3, rejected={"bad": 3})


def test_other_stages_publish_under_other_names(folder):
    ledger = Ledger(folder)
    part = Part(stage="input", books=Books(planned=3, accepted=2, rejected={"no_text": 1}))
    assert ledger.publish("input-0123abcd", part) and not ledger.publish("input-0123abcd", part)
    samples.derive(ledger, UNIT)
    assert ledger.committed() == [UNIT]
    assert set(Manifest(folder).books()) == {"input", "generation"}
    with pytest.raises(UserError, match="not a name for a part"):
        ledger.publish("../x", part)


def test_files_of_a_part_are_created_before_it_counts(folder, tmp_path):
    (tmp_path / "text").write_bytes(b"why")
    part = Part(books=Books(), files={"rejected/x.jsonl.zst": tmp_path / "text"})
    assert Ledger(folder).publish("input-1", part)
    assert folder.read("rejected/x.jsonl.zst") == b"why"


def test_tables_have_declared_schemas():
    import pyarrow as pa

    with pytest.raises(ValueError, match="not declared"):
        Part(books=Books(), tables={"nonsense": pa.table({"a": [1]})})
    with pytest.raises(ValueError, match="another schema"):
        Part(books=Books(), tables={"documents": pa.table({"uid": ["a"]})})
    with pytest.raises(ValueError, match="no such column"):
        rows_to_table([{"uid": "a", "text": "b"}], DOCUMENTS)
    with pytest.raises(ValueError, match="not a name"):
        declare("units", DOCUMENTS)


def test_a_hash_of_kinds_stands_for_one_set(folder):
    ledger = Ledger(folder)
    ledger.journal(UNIT)
    path = folder.names("manifest/kinds/")[0]
    folder.replace(path, b'["others"]')
    with pytest.raises(UserError, match="two sets of styles have the same hash"):
        Ledger(folder).journal(UNIT)


def test_an_empty_output_has_no_units(folder):
    ledger = Ledger(folder)
    assert ledger.committed() == [] and ledger.started() == [] and ledger.decisions() == {} and ledger.sweep() == 0
