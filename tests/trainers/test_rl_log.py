"""The logs of a run: what a step is, what a resume cuts off, and two runs in one folder."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from derivedata.errors import UserError
from derivedata.trainers.rl_log import EVALUATIONS, PROBLEMS, STEPS, LogFiles, RolloutLogCallback

ARGS = SimpleNamespace(
    num_generations=2,
    num_generations_eval=2,
    max_completion_length=5,
    world_size=1,
    steps_per_generation=2,
    gradient_accumulation_steps=1,
)
TOKENIZER = SimpleNamespace(eos_token_id=0, pad_token_id=0)


def state(step: int):
    return SimpleNamespace(global_step=step, is_world_process_zero=True)


def started(folder, step: int = 0, **given):
    """A callback at the beginning of training, and the model that tells it training from evaluation."""
    log = RolloutLogCallback(folder, **given)
    model = SimpleNamespace(training=True, generation_config=SimpleNamespace(eos_token_id=[0, 9]))
    log.on_train_begin(ARGS, state(step), None, model=model, processing_class=TOKENIZER)
    return log, model


def answer(log, step: int, uids: str, rewards: list, ids: list) -> None:
    reward = log.watch(lambda prompts, completions, **_: rewards)
    reward(
        prompts=list(uids), completions=[""] * len(ids), completion_ids=ids, uid=list(uids), trainer_state=state(step)
    )


def test_a_round_of_two_steps(tmp_path):
    log, _ = started(tmp_path, dropping=True, retired=lambda: 7)
    long, short = [1, 2, 3, 4, 5], [1, 9]
    answer(log, 0, "aabbccdd", [1, 0, 1, 1, 0, 0, 1, None], [short, long, short, short, short, short, long, long])
    log.on_step_end(ARGS, state(1), None)
    log.on_log(ARGS, state(1), None, logs={"entropy": 0.5, "kl": 0.1})
    log.on_step_end(ARGS, state(2), None)
    log.on_train_end(ARGS, state(2), None)
    first, second = log.files.rows(STEPS)
    assert first == {
        **{"step": 1, "B_p": 2, "n": 2, "rollouts": 4, "tokens": 11, "reward": 0.75, "entropy": 0.5, "kl": 0.1},
        **{"length": 2.75, "truncated": 0.25, "zero_variance": 0.5, "dropped": 1, "retired": 7},
    }
    # Nothing was logged for the second step, and one of its rollouts could not be scored.
    assert (second["rollouts"], second["tokens"], second["entropy"], second["kl"]) == (8, 25, None, None)
    assert second["reward"] == pytest.approx(1 / 3, abs=1e-6)
    assert list(log.files.rows(PROBLEMS)) == [
        {"step": 1, "problem": "a", "k": 1, "n": 2, "policy": 0},
        {"step": 1, "problem": "b", "k": 2, "n": 2, "policy": 0},
        {"step": 2, "problem": "c", "k": 0, "n": 2, "policy": 0},
        {"step": 2, "problem": "d", "k": 1, "n": 2, "policy": 0},
    ]


def test_an_evaluation_takes_k_answers_of_each_problem(tmp_path):
    log, model = started(tmp_path)
    model.training = False
    answer(log, 0, "aabbaacc", [1, 1, 0, 1, 0, 0, 0, 0], [[1, 9]] * 8)  # a is there twice, to fill up a batch
    log.on_evaluate(ARGS, state(0), None)
    assert list(log.files.rows(EVALUATIONS)) == [
        {"step": 0, "rollouts": 0, "avg": 0.5, "best": 0.666667, "worst": 0.333333, "k": 2, "problems": 3}
    ]


def test_rollouts_that_are_not_in_groups_are_refused(tmp_path):
    log, _ = started(tmp_path)
    with pytest.raises(UserError, match="not in groups of 2"):
        answer(log, 0, "aab", [1, 0, 1], [[1]] * 3)


def test_a_problem_without_a_uid_is_told_by_its_prompt(tmp_path):
    log, _ = started(tmp_path)
    watched = log.watch(lambda prompts, **_: [1.0] * len(prompts))
    prompts = [[{"role": "user", "content": text}] for text in ("x", "x", "y", "y")]
    watched(prompts=prompts, completions=[""] * 4, completion_ids=[[1]] * 4, trainer_state=state(0))
    log.on_step_end(ARGS, state(1), None)
    log.on_step_end(ARGS, state(2), None)
    names = [row["problem"] for row in log.files.rows(PROBLEMS)]
    assert len(set(names)) == 2


def filled(folder) -> LogFiles:
    files = LogFiles(folder)
    files.append(STEPS, [{"step": s, "rollouts": 8 * s, "tokens": 10 * s} for s in (1, 2, 3)])
    files.append(PROBLEMS, [{"step": s} for s in (1, 2, 3)])
    files.append(EVALUATIONS, [{"step": s} for s in (0, 2, 3)])
    with (folder / STEPS).open("a") as file:
        file.write('{"step": 4, "roll')
    return files


def test_a_resumed_run_counts_on_from_its_checkpoint(tmp_path):
    files = filled(tmp_path)
    log, _ = started(tmp_path, step=2)
    assert [row["step"] for row in files.rows(STEPS)] == [1, 2]
    assert [row["step"] for row in files.rows(PROBLEMS)] == [1, 2]
    assert [row["step"] for row in files.rows(EVALUATIONS)] == [0, 2]
    assert log.lost_steps == 1
    answer(log, 2, "aabb", [1, 0, 0, 0], [[1, 2]] * 4)
    log.on_step_end(ARGS, state(3), None)
    log.on_train_end(ARGS, state(3), None)
    assert list(files.rows(STEPS))[-1]["rollouts"] == 16 + 2
    assert list(files.rows(STEPS))[-1]["tokens"] == 20 + 4


def test_killed_before_its_first_checkpoint_a_run_starts_over(tmp_path):
    files = filled(tmp_path)
    started(tmp_path, overwrite=True)
    assert [list(files.rows(name)) for name in (STEPS, PROBLEMS, EVALUATIONS)] == [[], [], []]


def test_a_second_run_in_the_same_folder_is_refused(tmp_path):
    filled(tmp_path)
    with pytest.raises(UserError, match="logs of another run"):
        started(tmp_path)
