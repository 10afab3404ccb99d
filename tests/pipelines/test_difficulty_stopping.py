"""Early stopping, more samples for borderline problems, fresh ones: the real thing against a replaying server."""

from __future__ import annotations

import json
import random

import numpy as np
import polars as pl
import pytest

from derivedata.errors import UserError
from derivedata.generation.asking import Asker
from derivedata.generation.seeds import request_seed
from derivedata.generation.tokenizer import load_tokenizer
from derivedata.pipelines.difficulty_tables import remarks
from derivedata.pipelines.measured import Measured, Pilot, read_pilot
from derivedata.pipelines.problem_set import open_problems
from derivedata.pipelines.verify import verify_corpus
from derivedata.problems.bands import parse_bands
from derivedata.problems.early_stopping import replay, stopping_rule
from derivedata.problems.passrate import BetaMixture
from derivedata.problems.read import read_all
from derivedata.store.books import Books
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from tests.fake_answers import answer, is_right, write_problems
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL
from tests.pipelines.measuring import measure


@pytest.fixture
def server(tiny_model):
    with FakeServer(tokenizer=tiny_model, model=MODEL, reply=answer, max_num_seqs=64) as fake:
        yield fake


def full_labels(problems, model) -> dict[str, str]:
    """The label of all sixteen samples of each problem: the server's answers are known without asking it."""
    asker, bands = Asker(load_tokenizer(model)), parse_bands("isocompute")
    labels = {}
    for problem in open_problems([str(problems)], None, seed=0, chunk_problems=8).problems:
        ids, rate = asker.ask(problem.prompt), float(problem.question.split("rate ")[1].rstrip(")"))
        right = sum(is_right(ids, request_seed(0, problem.uid, "sample", i, 0), rate) for i in range(16))
        labels[problem.uid] = bands.label(right / 16)
    return labels


def compare(measured, labels) -> tuple[float, float]:
    """Share of labels that differ from those of sixteen samples, and share of rollouts saved."""
    rows = measured.problems.select("uid", "band").iter_rows()
    changed = np.mean([labels[uid] != band for uid, band in rows])
    return float(changed), 1 - len(measured.rollouts) / (16 * measured.problems.height)


def guru_rates(reference_data, count):
    guru = read_all([str(reference_data / "problems" / "guru-math-512.parquet")])
    rates = [problem.carried["qwen2.5_7b_pass_rate"] for problem in guru]
    return random.Random(7).choices([rate for rate in rates if rate is not None], k=count)


def weak_rates(count):
    draw = random.Random(8)
    return [draw.betavariate(0.1, 20) if draw.random() < 0.8 else draw.betavariate(0.5, 1) for _ in range(count)]


def test_exact_stopping_saves_rollouts_and_changes_no_label(server, tiny_model, tmp_path):
    problems = write_problems(tmp_path / "p.jsonl", [number / 40 for number in range(40)])
    measured = measure(server, problems, tmp_path / "out", tiny_model, early_stop="exact")
    changed, saved = compare(measured, full_labels(problems, tiny_model))
    assert changed == 0 and saved > 0.05
    books = Manifest(tmp_path / "out").books()["rollouts"]
    assert books.planned == 16 * 40 == books.accepted + books.outside["early_stop"]
    assert not measured.unscored
    assert verify_corpus(str(tmp_path / "out")).problems == []


def test_a_band_that_holds_everything_still_takes_a_sample(server, tiny_model, tmp_path):
    problems = write_problems(tmp_path / "p.jsonl", [0.5] * 5)
    measured = measure(server, problems, tmp_path / "out", tiny_model, early_stop="exact", bands="any=0:1")
    assert (measured.problems["n"] == 1).all() and set(measured.problems["band"]) == {"any"}


def test_which_samples_are_drawn_does_not_depend_on_timing(tiny_model, tmp_path):
    problems = write_problems(tmp_path / "p.jsonl", [number / 24 for number in range(24)])
    found = []
    for speed, places in ((0, 64), (300, 3)):
        with FakeServer(
            tokenizer=tiny_model, model=MODEL, reply=answer, tokens_per_second=speed, max_num_seqs=places
        ) as server:
            out = tmp_path / f"out{speed}"
            measure(server, problems, out, tiny_model, early_stop="exact")
            found.append(sorted(Manifest(out).frame("rollouts").select("uid", "sample").iter_rows()))
    assert found[0] == found[1]


def test_a_prior_from_a_random_pilot_decides_when_to_stop(server, tiny_model, tmp_path):
    # Sorted by difficulty, so that the first rows are no random sample.
    problems = write_problems(tmp_path / "p.jsonl", sorted(weak_rates(400)))
    measured = measure(server, problems, tmp_path / "out", tiny_model, early_stop="0.99", chunk_problems=64)
    pilot = read_pilot(Folder(tmp_path / "out"))
    assert len(pilot.uids) == 100
    by_uid = dict(measured.problems.select("uid", "row").iter_rows())
    assert 120 < np.mean([by_uid[uid] for uid in pilot.uids]) < 280
    full = measured.problems.filter(pl.col("uid").is_in(list(pilot.uids)))
    assert (full["n"] == 16).all()
    changed, saved = compare(measured, full_labels(problems, tiny_model))
    assert changed <= 0.02 and saved > 0.25
    assert any("early stopping (0.99)" in line and "may differ" in line for line in remarks(measured))
    # pass@k comes from the pilot alone: those that stopped early would bend it.
    assert measured.passes()


def stopped_early(rates, prior, seed) -> Measured:
    """A measurement at 0.99 of problems with these rates, without a server."""
    outcomes = np.random.default_rng(seed).random((len(rates), 16)) < np.array(rates)[:, None]
    done = replay(stopping_rule(parse_bands("isocompute"), 16, 0.99, prior), outcomes)
    correct = [int(row[:n].sum()) for row, n in zip(outcomes, done.used, strict=True)]
    uids = [str(i) for i in range(len(rates))]
    first = pl.DataFrame({"uid": uids, "data_source": "s", "correct": correct, "n": done.used}).with_columns(
        avg_at_k=pl.col("correct") / pl.col("n"), unscored=pl.lit(None), k=16, band=pl.lit("hard")
    )
    drawn = [
        (uid, sample, "sample", "correct" if row[sample] else "wrong")
        for uid, row, n in zip(uids, outcomes, done.used, strict=True)
        for sample in range(n)
    ]
    rollouts = pl.DataFrame(drawn, schema=["uid", "sample", "purpose", "verdict"], orient="row")
    identity = {"early_stop": "0.99", "samples": 16, "bands": "isocompute"}
    return Measured(problems=first, first=first, rescored=None, identity=identity, books=Books(), rollouts=rollouts,
                    pilot=Pilot(uids=(), prior=prior), carried=pl.DataFrame())  # fmt: skip


def test_the_mean_of_a_set_is_not_bent_by_stopping_early():
    # Problems that stop after a few wrong answers have a rate of 0: their mean is no mean of the set.
    prior, inside, bent = BetaMixture((0.8, 0.2), (0.1, 0.5), (20.0, 1.0)), [], []
    for seed in range(20):
        measured = stopped_early([0.05] * 600, prior, seed)
        _, low, high = measured.mean
        inside.append(low <= 0.05 <= high)
        bent.append(measured.first["avg_at_k"].mean())
    assert 0 < measured.certain_samples < 16
    assert np.mean(inside) >= 0.85
    assert np.mean(bent) < 0.045


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "most", "least"), [("guru", 0.005, 0.12), ("weak", 0.01, 0.35)])
def test_ten_thousand_problems_keep_their_labels(server, tiny_model, tmp_path, reference_data, kind, most, least):
    rates = guru_rates(reference_data, 10_000) if kind == "guru" else weak_rates(10_000)
    problems = write_problems(tmp_path / "p.jsonl", rates)
    measured = measure(server, problems, tmp_path / "out", tiny_model, early_stop="0.99", chunk_problems=500)
    changed, saved = compare(measured, full_labels(problems, tiny_model))
    print(f"{kind}: changed {changed:.4f}, saved {saved:.4f}")
    print("\n".join(remarks(measured)))
    assert changed <= most
    assert saved >= least


def test_borderline_problems_get_more_samples(server, tiny_model, tmp_path):
    problems = write_problems(tmp_path / "p.jsonl", [0.0] * 30 + [0.05, 0.1, 0.2, 0.28, 0.62, 0.65] * 4)
    plain = measure(server, problems, tmp_path / "out", tiny_model)
    refined = measure(server, problems, tmp_path / "out", tiny_model, refine_borderline=48)
    more = refined.problems.filter("refined")
    assert 0 < more.height < refined.problems.height
    assert (more["n"] == 64).all() and (more["k"] == 64).all()
    assert refined.first.equals(plain.first)
    narrower = more.join(plain.problems, on="uid", suffix="_before")
    width = narrower["interval_high"] - narrower["interval_low"]
    assert (width < narrower["interval_high_before"] - narrower["interval_low_before"]).mean() > 0.9
    assert Manifest(tmp_path / "out").books()["rollouts"].planned == 16 * 54 + 48 * more.height
    assert verify_corpus(str(tmp_path / "out")).problems == []
    # Asked for again, there is nothing to do; the choice stands.
    asked = sum(server.received.values())
    again = measure(server, problems, tmp_path / "out", tiny_model, refine_borderline=48)
    assert sum(server.received.values()) == asked and again.problems.equals(refined.problems)


def test_rescoring_draws_fresh_samples_and_shows_the_regression(server, tiny_model, tmp_path):
    problems = write_problems(tmp_path / "p.jsonl", [0.15] * 60)
    measured = measure(server, problems, tmp_path / "out", tiny_model)
    assert any("no baseline" in line for line in remarks(measured))
    rescored = measure(server, problems, tmp_path / "out", tiny_model, rescore=True)
    assert rescored.problems.equals(measured.problems)
    by_band = {row["band"]: row for row in rescored.fresh()}
    # All have the rate .15: what looked hard was luck, and comes back to it.
    assert by_band["hard"]["selected_on"] < 0.07 < by_band["hard"]["fresh"]
    assert max(server.received.values()) == 1
    assert verify_corpus(str(tmp_path / "out")).problems == []


def test_a_pilot_without_samples_is_said(tiny_model, tmp_path):
    # One problem: with more, a server that refuses everything ends the run before the pilot is counted.
    problems = write_problems(tmp_path / "p.jsonl", [0.5])
    narrow = FakeServer(tokenizer=tiny_model, model=MODEL, reply=answer, context=20)
    with narrow, pytest.raises(UserError, match="no problem of the pilot has a sample"):
        measure(narrow, problems, tmp_path / "out", tiny_model, early_stop="0.99")
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "failed"
