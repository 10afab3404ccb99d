"""Bad runs: one clear line each, or a warning where the fit still means something."""

from dataclasses import replace

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.scaling.diagnostics import check_runs, noise, overfitted
from derivedata.scaling.presets import load_preset
from derivedata.scaling.runs import Runs
from tests.scaling.data import synthetic

LAW = load_preset("qin2026-n370")
RUNS = synthetic(LAW)


def changed(column: str, row: int, value: float) -> Runs:
    return replace(RUNS, **{column: np.where(RUNS.row == row, value, getattr(RUNS, column))})


def test_good_runs_pass_without_a_word():
    runs, notes = check_runs(RUNS)
    assert len(runs) == len(RUNS)
    assert notes == []


@pytest.mark.parametrize(
    ("runs", "line"),
    [
        (
            replace(RUNS, N=RUNS.N / 1e6),
            "n_params looks to be in millions or billions (got 380 at most). Give plain counts",
        ),
        (replace(RUNS, D=RUNS.D / 1e9), "fresh_tokens looks to be in millions or billions"),
        (changed("N", 7, np.nan), "row 7: n_params must be positive (got nan)"),
        (changed("D", 8, 0.0), "row 8: fresh_tokens must be positive (got 0.0)"),
        (changed("Dp", 9, -1.0), "row 9: derived_tokens must be zero or more (got -1.0)"),
        (changed("Dp", 9, 1e17), "row 9: derived_tokens are more than 100000 times the fresh ones"),
        (replace(RUNS, loss=np.full(len(RUNS), 3.0)), "every run has the same loss: there is nothing to fit (got 3.0)"),
        (changed("loss", 10, -2.0), "row 10: loss must be positive, in nats a token (got -2.0)"),
        (changed("loss", 11, 30.0), "row 11: loss is above ln V = 12.61 of any vocabulary in use"),
        (RUNS.take([]), "no runs. Give a table"),
    ],
)
def test_bad_runs_are_refused_in_one_line(runs, line):
    with pytest.raises(UserError) as error:
        check_runs(runs)
    assert error.value.line.startswith(line)


def test_a_known_vocabulary_lowers_the_ceiling():
    with pytest.raises(UserError, match=r"above ln V = 5\.55 of a vocabulary of 256"):
        check_runs(changed("loss", 3, 6.0), vocabulary=256)


def test_a_diverged_run_is_left_out_and_said():
    runs, notes = check_runs(changed("loss", 4, np.nan))
    assert 4 not in runs.row
    assert notes == ["row 4: no finite loss (diverged?), left out"]


def test_a_doubled_row_is_left_out_and_a_replicate_is_kept():
    again = RUNS.take([*range(len(RUNS)), 2])
    runs, notes = check_runs(replace(again, row=np.arange(1, len(again) + 1)))
    assert len(runs) == len(RUNS)
    assert notes == ["row 85: the same run as an earlier row, left out"]
    replicate = replace(again, row=np.arange(1, 86), loss=np.where(np.arange(85) == 84, again.loss * 1.01, again.loss))
    runs, notes = check_runs(replicate)
    assert len(runs) == 85
    assert "kept as replicates" in notes[0]


def test_seeds_make_replicates_that_need_no_remark():
    twice = RUNS.take([*range(len(RUNS)), *range(len(RUNS))])
    seeded = replace(twice, seed=np.repeat(["1", "2"], len(RUNS)).astype(object))
    assert check_runs(seeded)[1] == []


def test_nominal_paraphrase_tokens_are_recognised():
    rewrites = {"paraphrase": (0, 1, 2, 4, 8), "faq": (0, 0.31, 0.62, 1.24)}
    for strategy, xs in rewrites.items():
        runs = synthetic(LAW, "repeat", xs=xs)
        notes = check_runs(replace(runs, strategy=np.full(len(runs), strategy, object)))[1]
        assert notes[0].startswith(f"{strategy}: D' is an exact multiple of D")


def test_measured_tokens_and_exact_repeats_are_not():
    assert check_runs(RUNS)[1] == []
    measured = replace(RUNS, strategy=np.full(len(RUNS), "faq", object), Dp=RUNS.Dp * (1 + 0.003 * np.sin(RUNS.row)))
    assert check_runs(measured)[1] == []


def test_a_loss_that_rises_to_the_last_epoch_is_overfitting():
    rise = {6: 1.2, 7: 1.4}
    runs = replace(RUNS, loss=RUNS.loss * np.array([rise.get(row, 1.0) for row in RUNS.row]))
    assert sorted(runs.row[list(overfitted(runs))]) == [6, 7]
    # Rows 5 and 6 lie far above row 4, but row 7 is back down: a disturbance, not overfitting.
    fall = np.where(RUNS.row == 4, 0.8, np.where(RUNS.row == 7, 0.8 * RUNS.loss[3] / RUNS.loss[6] * 1.005, 1.0))
    assert overfitted(replace(RUNS, loss=RUNS.loss * fall)) == {}


def test_noise_comes_from_seeds_where_there_are_some():
    rng = np.random.default_rng(0)
    runs = RUNS.take(np.repeat(np.arange(20), 5))
    runs = replace(
        runs, loss=runs.loss * np.exp(rng.normal(0, 0.02, 100)), seed=np.tile(np.arange(5), 20).astype(object)
    )
    assert noise(runs) == pytest.approx(0.02, rel=0.2)
    assert 0.005 < noise(synthetic(LAW, noise=0.01)) < 0.03
