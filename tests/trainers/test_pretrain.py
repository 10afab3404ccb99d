"""The language-model trainer from data to summary, interrupted and resumed, and what it refuses."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest

from derivedata.errors import UserError
from derivedata.scaling.presets import load_preset
from derivedata.store.paths import Folder
from derivedata.trainers.course import Course, Diverged
from derivedata.trainers.ladder import LADDER
from derivedata.trainers.learner import Learner
from derivedata.trainers.options import TrainOptions
from derivedata.trainers.pretrain import Quiet, train_lm
from derivedata.trainers.summary import lines
from derivedata.trainers.tokens import open_store
from tests.tiny_model import write_tiny_model
from tests.trainers.corpora import TINY, write_fresh, write_rewrites

LAW = load_preset("qin2026-n370")


@pytest.fixture
def options(tmp_path):
    """A run of some thirty small steps on fresh documents and rewrites of them."""
    fresh = write_fresh(tmp_path / "fresh", 20)
    derived = write_rewrites(tmp_path / "derived", fresh)
    return TrainOptions(
        data=(str(fresh), str(derived)),
        output=str(tmp_path / "run"),
        size=TINY,
        holdout=0.2,
        tokens=15_000,
        batch_tokens=512,
        eval_tokens=2_000,
        log_every=5,
    )


def metrics(options):
    """Rows of metrics.jsonl without what the clock says."""
    rows = [json.loads(line) for line in Folder(options.output).read("metrics.jsonl").splitlines()]
    return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in rows]


def dies_at(monkeypatch, step):
    """Let a run die before it takes a step, as a kill would."""
    take = Course.take

    def cut(self, *args):
        if self.step == step:
            raise SystemExit("killed")
        return take(self, *args)

    monkeypatch.setattr(Course, "take", cut)
    return lambda: monkeypatch.setattr(Course, "take", take)


def test_a_run_counts_its_tokens_by_kind_and_leaves_a_model(options):
    summary = train_lm(options, LAW)
    assert summary["tokens"] == 15_000 // 64 * 64
    assert summary["tokens"] == summary["fresh_tokens"] + summary["by_strategy"]["paraphrase"]
    assert summary["by_style"] == {"plain": summary["derived_tokens"]}
    assert summary["fresh_tokens"] < summary["effective_tokens"] < summary["tokens"] * 1.01
    assert set(summary["losses"]) <= {"source:books", "source:web"} and summary["losses"]
    assert {"run.json", "summary.json", "metrics.jsonl"} <= set(os.listdir(options.output))

    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(f"{options.output}/model")
    assert type(model).__name__ == "Olmo3ForCausalLM"
    told = "\n".join(lines(summary))
    assert "fresh" in told and "paraphrase" in told and "* extrapolated: N 1.5" in told


def test_the_account_grows_with_the_steps(options):
    train_lm(options, LAW)
    rows = [row for row in metrics(options) if row["kind"] == "train"]
    assert [row["step"] for row in rows] == [5, 10, 15, 20, 25, 30]
    derived = [row["by_strategy"].get("paraphrase", 0) for row in rows]
    assert derived == sorted(derived)
    assert derived[0] < derived[-1]
    assert all(row["fresh_tokens"] + row["derived_tokens"] == row["tokens"] for row in rows)


def test_a_killed_run_goes_on_to_the_same_curve(options, monkeypatch):
    whole = replace(options, output=options.output + "-whole")
    train_lm(whole, LAW)
    cut = replace(options, checkpoint_minutes=0.0)
    restore = dies_at(monkeypatch, 13)
    with pytest.raises(SystemExit):
        train_lm(cut, LAW)
    restore()
    train_lm(cut, LAW)
    assert metrics(cut) == metrics(whole)
    names = [name for name in Folder(cut.output).names("checkpoints/") if name.endswith(".pt")]
    assert len(names) == cut.keep


def test_a_finished_run_is_not_trained_again(options, monkeypatch):
    first = train_lm(options, LAW)
    dies_at(monkeypatch, 0)
    assert train_lm(options, LAW) == first


def test_another_learning_rate_is_refused_and_restart_starts_over(options):
    train_lm(options, LAW)
    with pytest.raises(UserError, match=r"schedule\.peak was 0\.01, is 0\.002.*--restart"):
        train_lm(replace(options, learning_rate=0.002), LAW)
    assert train_lm(replace(options, learning_rate=0.002, restart=True), LAW)["learning_rate"] == 0.002


def test_data_shorter_than_asked_is_refused_with_the_epochs_that_would_be(options):
    with pytest.raises(UserError, match=r"shorter than asked: 200,000 tokens would be \d+\.\d+ epochs.*--epochs"):
        train_lm(replace(options, tokens=200_000), LAW)


def test_without_held_out_text_there_is_no_run(options):
    with pytest.raises(UserError, match="no held-out split"):
        replace(options, holdout=None)
    with pytest.raises(UserError, match="no fresh document falls into it"):
        train_lm(replace(options, holdout=1e-6), LAW)


def test_runs_of_two_seeds_are_compared_on_the_same_text(options):
    first, second = (
        train_lm(replace(options, seed=n, output=f"{options.output}-{n}", tokens=1_000), LAW) for n in (0, 1)
    )
    stores = [open_store(f"{options.output}-{n}/held-out") for n in (0, 1)]
    assert stores[0].fingerprint == stores[1].fingerprint
    assert stores[0].uids.tolist() == stores[1].uids.tolist()
    assert first["loss"] != second["loss"]


def test_held_out_text_of_its_own_is_used_and_shared_documents_are_told(options, tmp_path):
    told = []
    narrator = Quiet()
    narrator.say = told.append
    train_lm(replace(options, holdout=None, eval_data=(options.data[0],), tokens=2_000), LAW, narrator)
    assert any("held-out documents are also trained on" in line for line in told)


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused(options):
    with pytest.raises(UserError, match=r"--vocab: the model's vocabulary is smaller.*Bytes has 257 ids"):
        train_lm(replace(options, vocabulary=256), LAW)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_state_before(options, monkeypatch):
    step = Learner.step

    def breaks(self, ids, rate):
        # The decay begins: by then some twenty steps were taken.
        return (float("nan"), 1.0) if rate < 0.009 else step(self, ids, rate)

    monkeypatch.setattr(Learner, "step", breaks)
    with pytest.raises(Diverged, match=r"step \d+, after [\d,]+ tokens: the loss is not finite.*kept in checkpoints/"):
        train_lm(replace(options, warmup=1), LAW)
    (name,) = Folder(options.output).names("checkpoints/")
    assert int(name[-11:-3]) > 10


def test_a_full_disk_is_told_in_one_line_and_the_run_goes_on_later(options, monkeypatch):
    real = os.fsync

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    train = replace(options, checkpoint_minutes=0.0)
    restore = dies_at(monkeypatch, 7)
    with pytest.raises(SystemExit):
        train_lm(train, LAW)
    restore()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="no space left"):
        train_lm(train, LAW)
    monkeypatch.setattr(os, "fsync", real)
    assert train_lm(train, LAW)["tokens"] == 15_000 // 64 * 64


def test_reports_go_where_they_are_asked_to(options, monkeypatch):
    with pytest.raises(UserError, match=r"--report-to: the package is not installed.*Pip install wandb"):
        monkeypatch.setitem(sys.modules, "wandb", None)
        train_lm(replace(options, report_to="wandb", tokens=1_000), LAW)


def test_rows_and_nested_numbers_reach_weights_and_biases(options, monkeypatch):
    class Run:
        rows: ClassVar[list] = []

        def log(self, row, step):
            self.rows.append((step, row))

        def finish(self):
            self.rows.append("finished")

    import transformers.models.olmo3.modeling_olmo3  # noqa: F401  looks for a real wandb, once

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **about: Run()))
    train_lm(replace(options, report_to="wandb"), LAW)
    step, row = Run.rows[0]
    assert step == 2 and row["loss"] > 0 and row["fresh_tokens"] > 0
    assert any("by_strategy/paraphrase" in row for _, row in Run.rows[:-1])
    assert Run.rows[-1] == "finished"


def test_a_killed_run_on_object_storage_goes_on_to_the_same_curve(options, monkeypatch):
    whole = replace(options, tokens=6_000)
    train_lm(whole, LAW)
    away = replace(whole, output="memory://somewhere/run", checkpoint_minutes=0.0)
    restore = dies_at(monkeypatch, 7)
    with pytest.raises(SystemExit):
        train_lm(away, LAW)
    restore()
    train_lm(away, LAW)
    assert metrics(away) == metrics(whole)
    assert Folder(away.output).exists("model/config.json")


@pytest.mark.slow
def test_two_processes_train_as_one_does(options, tmp_path):
    one = replace(options, size=LADDER[".044M"], tokens=6000, batch_tokens=1280, log_every=1, device="cpu")
    train_lm(one, LAW)
    arguments = [
        "--size",
        ".044M",
        "--holdout",
        "20%",
        "--tokens",
        "6000",
        "--batch-tokens",
        "1280",
        "--log-every",
        "1",
    ]
    arguments += ["--eval-tokens", "2000", "--device", "cpu", "-o", str(tmp_path / "two")]
    arguments += [word for place in options.data for word in ("--data", place)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29611"]
    command = [*torchrun, "-m", "derivedata.trainers.pretrain", *arguments]
    ended = subprocess.run(
        command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert ended.stdout.count("held-out loss") == 1
    one, two = metrics(one), metrics(replace(options, output=str(tmp_path / "two")))
    assert [row["step"] for row in two] == [row["step"] for row in one]
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], rel=1e-4)


def test_token_shards_are_trained_on_without_tokenising_again(options, tmp_path, monkeypatch):
    from derivedata.pipelines.tokenize import TokenizeOptions, tokenize_corpus
    from derivedata.trainers.vocabulary import ModelTokenizer

    tiny = str(write_tiny_model(tmp_path / "tiny"))
    tokenize_corpus(TokenizeOptions(corpus=options.data, output=str(tmp_path / "tokens"), tokenizer=tiny))
    shards = replace(options, data=(str(tmp_path / "tokens"),), holdout=0.3, tokens=None)
    with pytest.raises(UserError, match="the tokens were made with"):
        train_lm(replace(shards, tokenizer="bytes"), LAW)
    monkeypatch.setattr(ModelTokenizer, "encode", lambda self, texts: [] if not texts else pytest.fail("tokenised"))
    summary = train_lm(shards, LAW)
    assert summary["fresh_tokens"] > 0 and summary["by_style"]["plain"] > 0
    assert summary["tokenizer"] == "tiny"

    derived = tmp_path / "derived" / "documents" / "derived-00.jsonl"
    derived.write_text(derived.read_text().replace("the", "The"))
    with pytest.raises(UserError, match="has changed"):
        train_lm(replace(shards, restart=True), LAW)
