"""Effective tokens of what was seen, and in the logs of transformers' own trainer."""

import pytest

from derivedata.scaling.presets import load_preset
from derivedata.trainers.callback import EffectiveTokensCallback, seen_after
from derivedata.trainers.effective import Seen, account, value_of
from tests.trainers.corpora import TINY

LAW = load_preset("qin2026-n370")


def seen(**kinds):
    found = Seen()
    found.add({(name, None): count for name, count in kinds.items()})
    return found


def test_effective_tokens_are_those_of_the_law():
    value = value_of(seen(fresh=300_000_000, repeat=900_000_000), LAW, 30e6)
    assert value.effective == pytest.approx(float(LAW.effective_tokens(30e6, 3e8, {"repeat": 9e8})))
    assert value.loss == pytest.approx(float(LAW.loss(30e6, 3e8, 9e8, "repeat")))
    assert value.outside == ()


def test_a_strategy_the_law_does_not_know_is_told_and_left_out():
    value = value_of(seen(fresh=1000, distill=500), LAW, 30e6)
    assert value.effective == 1000
    assert value.unknown == {"distill": 500}


def test_what_the_law_was_not_fitted_on_is_starred():
    row = account(seen(fresh=1000), LAW, 1e6)
    assert row["extrapolated"]


def test_derived_tokens_before_any_fresh_one_have_no_value_yet():
    row = account(seen(paraphrase=100), LAW, 30e6)
    assert row["effective_tokens"] is None
    assert row["derived_tokens"] == 100


def test_epochs_of_a_set_turn_fresh_tokens_into_repeats():
    found = seen_after({("fresh", None): 100, ("paraphrase", "faq"): 40}, 2.5)
    assert found.fresh == 100
    assert found.derived() == {"paraphrase": 100, "repeat": 150}
    assert seen_after({("fresh", None): 100}, 0.5).fresh == 50


def test_a_trainer_of_transformers_logs_effective_tokens(tmp_path):
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": list(range(64)), "labels": list(range(64))}] * 16
    arguments = TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=2, per_device_train_batch_size=4, logging_steps=4, report_to=[],
        save_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = Trainer(model=TINY.model(257, 64), args=arguments, train_dataset=rows)
    EffectiveTokensCallback({("fresh", None): 1024}, LAW).attach(trainer)
    trainer.train()
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert [row["tokens"] for row in logged] == [1024, 2048]
    assert [row["by_strategy/repeat"] for row in logged if "by_strategy/repeat" in row] == [1024]
    assert logged[-1]["effective_tokens"] > 1024
