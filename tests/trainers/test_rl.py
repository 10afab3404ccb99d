"""`derivedata train rl` on a CPU, for real: a run, its logs, a kill, staleness, and one line for what can't be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from click.testing import CliRunner

from derivedata.cli import cli
from derivedata.errors import UserError
from derivedata.generation.asking import PLAIN, Asker
from derivedata.problems.problem import problem_uid
from derivedata.problems.read import read_all
from derivedata.store.paths import Folder
from derivedata.trainers import rl
from derivedata.trainers.rl import require_trl, train_rl
from derivedata.trainers.rl_options import RLOptions, plain_prompt, training_rows, validation_rows
from tests.tiny_model import write_tiny_model
from tests.trainers.rl_models import parity, random_model, write_problems


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def problems(tmp_path):
    write_problems(tmp_path / "easy-validation.parquet", 3, first=100)
    return write_problems(tmp_path / "easy.parquet", 12)


def options(model, problems, output, **given) -> RLOptions:
    shape = {"problems_per_batch": 2, "rollouts": 4, "iterations": 3, "max_tokens": 8, "cpu": True}
    return RLOptions(
        problems=(str(problems),), model=str(model), output=str(output), **(shape | {"lr_at_1024": 0.1} | given)
    )


def lines(folder, name) -> list[dict]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_three_steps_write_what_the_planner_reads(model, problems, tmp_path):
    run = tmp_path / "run"
    given = ["--problems", problems, "--model", model, "--problems-per-batch", 2, "--rollouts", 4, "--budget", 24]
    result = CliRunner().invoke(
        cli, ["train", "rl", *map(str, given), "--max-tokens", "8", "--eval-every", "3", "--cpu", "-o", str(run)]
    )
    assert result.exit_code == 0, result.output
    assert "2 problems x 4 rollouts x 3 iterations = 24 rollouts" in result.output

    steps = lines(run, "steps")
    assert [row["rollouts"] for row in steps] == [8, 16, 24]
    assert all((row["B_p"], row["n"], row["dropped"], row["retired"]) == (2, 4, 0, 0) for row in steps)
    assert all(row["entropy"] > 0 and row["kl"] is not None and 0 < row["length"] <= 8 for row in steps)
    assert steps[0]["kl"] == pytest.approx(0, abs=1e-6)
    counts = lines(run, "problems")
    assert {row["problem"] for row in counts} <= {problem_uid("p", row, f"{row} + 1 =") for row in range(12)}
    assert [(row["step"], row["n"], row["policy"]) for row in counts] == [(s, 4, s - 1) for s in (1, 1, 2, 2, 3, 3)]
    assert len({row["problem"] for row in counts}) == 6
    evaluations = lines(run, "evaluations")
    assert [(row["rollouts"], row["k"], row["problems"]) for row in evaluations] == [(0, 4, 3), (24, 4, 3)]
    assert all(row["worst"] <= row["avg"] <= row["best"] for row in evaluations)
    config = json.loads((run / "run.json").read_text())["config"]
    assert (config["recipe"], config["problems_per_batch"], config["rollouts_per_problem"]) == ("easy", 2, 4)
    assert (run / "model" / "model.safetensors").exists()


@pytest.mark.slow
def test_a_killed_run_goes_on_and_counts_no_rollout_twice(model, problems, tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    shape = {"iterations": 30, "save_every": 2, "eval_every": 30}
    code = (
        "from tests.trainers.rl_models import parity\n"
        "from tests.trainers.test_rl import options\n"
        "from derivedata.trainers.rl import train_rl\n"
        f"train_rl(options({str(model)!r}, {str(problems)!r}, {str(killed)!r}, **{shape!r}), reward=parity)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": "."})
    steps = killed / "steps.jsonl"
    while child.poll() is None and (not steps.exists() or steps.read_bytes().count(b"\n") < 5):
        time.sleep(0.02)
    assert child.poll() is None, "it ended before it could be killed"
    child.send_signal(signal.SIGKILL)
    child.wait()
    # What a kill in the middle of writing leaves behind.
    with steps.open("a") as file:
        file.write('{"step": 99, "rol')
    (killed / "checkpoints" / "checkpoint-28").mkdir()

    resumed = train_rl(options(model, problems, killed, **shape), reward=parity)
    train_rl(options(model, problems, whole, **shape), reward=parity)

    assert resumed.resumed_at >= 4 and resumed.resumed_at % 2 == 0
    assert [row["rollouts"] for row in lines(killed, "steps")] == [8 * step for step in range(1, 31)]
    # Not only the count: the very same rollouts, problems and evaluations as without the kill.
    for name in ("steps", "problems", "evaluations"):
        assert lines(killed, name) == lines(whole, name)
    assert json.loads((killed / "run.json").read_text())["resumed"][0]["at"] == resumed.resumed_at


@pytest.mark.slow
@pytest.mark.parametrize("k", [0, 8])
def test_every_rollout_tells_the_policy_that_made_it(model, problems, tmp_path, k, monkeypatch):
    from derivedata.trainers.rl_hooks import RecipeGRPOTrainer

    run = tmp_path / "run"
    trained = []
    loss = RecipeGRPOTrainer.compute_loss

    def watched(self, model, inputs, *args, **named):
        if self.model.training:
            trained.append(Counter(map(tuple, inputs["prompt_ids"].tolist())))
        return loss(self, model, inputs, *args, **named)

    monkeypatch.setattr(RecipeGRPOTrainer, "compute_loss", watched)
    given = {"recipe": "scalerl", "staleness": k, "iterations": 18, "thinking_tokens": 0, "eval_every": 18}
    done = train_rl(
        options(model, problems, run, **given), reward=lambda **columns: [2 * r - 1 for r in parity(**columns)]
    )
    rows = lines(run, "problems")
    policies = {row["step"]: row["policy"] for row in rows}
    assert policies == {step: (step - 1) // (k + 1) * (k + 1) for step in range(1, 19)}
    # Each step is trained on whole groups of its own two problems, and the counts are those of the reward.
    assert [sorted(counts.values()) for counts in trained] == [[4, 4]] * 18
    assert all(len({row["problem"] for row in rows if row["step"] == step}) == 2 for step in policies)
    steps = lines(run, "steps")
    for row in steps:
        of_step = [r["k"] for r in rows if r["step"] == row["step"]]
        assert row["reward"] == pytest.approx(2 * sum(of_step) / 8 - 1)
        assert row["dropped"] == sum(count in (0, 4) for count in of_step)
    assert done.evaluations[-1]["rollouts"] == 18 * 8


@pytest.mark.slow
def test_thinking_is_ended_by_force_and_does_not_count_in_the_loss(model, problems, tmp_path, monkeypatch):
    from derivedata.trainers import rl_hooks

    seen = []
    shaped = rl_hooks.RecipeGRPOTrainer._shaped
    monkeypatch.setattr(
        rl_hooks.RecipeGRPOTrainer,
        "_shaped",
        lambda self, output, rows: seen.append((self, output)) or shaped(self, output, rows),
    )
    given = {"recipe": "scalerl", "staleness": 0, "iterations": 1, "max_tokens": 90, "thinking_tokens": 6}
    train_rl(
        options(model, problems, tmp_path / "run", **given), reward=lambda **columns: [1.0] * len(columns["prompts"])
    )
    trainer, output = seen[0]
    forced = list(trainer.thinking.forced)
    interrupted = 0
    for ids, mask, tool in zip(output["completion_ids"], output["completion_mask"], output["tool_mask"], strict=True):
        ids, tool = ids[mask.bool()].tolist(), tool[mask.bool()].tolist()
        if len(ids) <= 6:
            assert all(tool)
            continue
        interrupted += 1
        assert ids[6 : 6 + len(forced)] == forced
        assert tool == [1] * 6 + [0] * len(forced) + [1] * (len(ids) - 6 - len(forced))
        assert len(ids) <= 90
    assert interrupted


@pytest.mark.slow
def test_the_callback_works_on_a_stock_trainer(model, problems, tmp_path):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from derivedata.trainers.rl_log import RolloutLogCallback

    log = RolloutLogCallback(tmp_path / "run")
    args = GRPOConfig(
        output_dir=str(tmp_path / "out"),
        num_generations=4,
        per_device_train_batch_size=8,
        max_steps=2,
        max_completion_length=8,
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"prompt": [f"{i} + 1 =" for i in range(8)], "answer": [str(i + 1) for i in range(8)]})
    GRPOTrainer(str(model), reward_funcs=log.watch(parity), args=args, train_dataset=data, callbacks=[log]).train()
    steps = lines(tmp_path / "run", "steps")
    assert [(row["B_p"], row["n"], row["rollouts"]) for row in steps] == [(2, 4, 8), (2, 4, 16)]
    assert sum(row["k"] for row in lines(tmp_path / "run", "problems")) == 8 * sum(row["reward"] for row in steps)


@pytest.mark.slow
def test_a_lora_adapter_is_trained(model, problems, tmp_path):
    train_rl(options(model, problems, tmp_path / "run", iterations=1, peft=True), reward=parity)
    assert (tmp_path / "run" / "model" / "adapter_config.json").exists()


# -- one line ------------------------------------------------------------------------------------------------------


def told(*args, **given) -> str:
    with pytest.raises(UserError) as error:
        train_rl(options(*args, **given))
    return error.value.line


def test_problems_without_a_checkable_answer(tmp_path):
    rows = [{"problem": "1+1", "answer": "2"}, {"problem": "1+2", "answer": ""}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = told("m", tmp_path / "p.jsonl", tmp_path / "run")
    assert line.startswith("p.jsonl:2: 1 of 2 problems have no checkable answer (no_answer)")


def test_a_validation_set_is_found_beside_its_split(problems, tmp_path):
    file, rows = validation_rows(options("m", problems, tmp_path))
    assert (file, len(rows)) == (str(tmp_path / "easy-validation.parquet"), 3)
    (tmp_path / "easy-validation.parquet").unlink()
    assert validation_rows(options("m", problems, tmp_path)) == (None, [])
    # A band that was too small to hold any out.
    empty = write_problems(tmp_path / "easy-validation.parquet", 0)
    assert validation_rows(options("m", problems, tmp_path)) == (str(empty), [])
    with pytest.raises(UserError, match="validation set is empty"):
        validation_rows(options("m", problems, tmp_path, validation=str(empty)))


def test_a_validation_set_that_is_trained_on(problems, tmp_path):
    line = told("m", problems, tmp_path / "run", validation=str(problems))
    assert "problems of the validation set are trained on too (got 12 of 12)" in line


def test_another_configuration_in_the_same_folder(problems, tmp_path, monkeypatch):
    monkeypatch.setattr("derivedata.trainers.rl_run.run_trainer", lambda *_, **__: pytest.fail("it trained"))
    run = tmp_path / "run"
    run.mkdir()
    first = options("m", problems, run)
    rows = training_rows(read_all([str(problems)]))
    rl._open(Folder(run), first, first.resolved_recipe(), first.resolved_budget(), rows, [], False)
    line = told("m", problems, run, rollouts=8)
    assert "rollouts_per_problem was 4, is 8" in line and "--restart" in line


def test_a_restart_throws_the_run_away_and_nothing_else(tmp_path):
    for name in ("checkpoints/checkpoint-2/derivedata.json", "model/config.json", "steps.jsonl", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    rl._clear(Folder(str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_without_trl(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(UserError, match=r"pip install 'derivedata\[rl\]'"):
        require_trl()


def test_with_another_trl(monkeypatch):
    import trl

    monkeypatch.setattr(trl, "__version__", "1.17.0")
    with pytest.raises(UserError, match=r"written for TRL 1\.16"):
        require_trl()


def test_a_model_that_was_never_saved(problems, tmp_path):
    with pytest.raises(UserError, match="must be saved first"):
        RLOptions(problems=(str(problems),), model=object(), output=str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rollouts": 1}, "no baseline"),
        ({"iterations": None, "budget": 30}, "--budget 24 (--iterations 3) or --budget 32 (--iterations 4)"),
        ({"recipe": "easy", "kl": 0.0}, "together or not at all"),
        ({"recipe": "scalerl"}, "must be a multiple"),
        ({"micro_batch": 3}, "Take 2"),
    ],
)
def test_options_that_do_not_fit(model, problems, tmp_path, given, said):
    assert said in told(model, problems, tmp_path / "run", **given)


def test_a_model_without_weights(problems, tmp_path):
    bare = write_tiny_model(tmp_path / "bare")
    assert "holds no weights" in told(bare, problems, tmp_path / "run")


def test_prompts_that_leave_no_room_for_an_answer(model, problems, tmp_path):
    line = told(model, problems, tmp_path / "run", max_tokens=510)
    assert "--max-tokens 510 don't fit the model's context (got 512 tokens)" in line


def test_a_reporter_that_is_not_installed(problems, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "--report-to wandb needs wandb" in told("m", problems, tmp_path / "run", report_to="wandb")


def test_a_plain_prompt_is_the_one_that_difficulty_measured_with():
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "1+1"}]

    class Characters:
        def beginning(self):
            return []

        def encode(self, text):
            return [ord(c) for c in text]

    asked = Asker(Characters(), template=PLAIN).ask(messages)
    assert "".join(map(chr, asked)) == plain_prompt(messages)
