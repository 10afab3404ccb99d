"""The hooks of TRL's trainer: their signatures, and the loss that comes out against plain NumPy."""

from __future__ import annotations

import inspect
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from trl import GRPOTrainer

from derivedata.trainers.rl_hooks import HOOKS, RecipeGRPOTrainer, in_order
from derivedata.trainers.rl_log import step_rows
from derivedata.trainers.rl_recipes import RECIPES
from tests.trainers import rl_reference as reference


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_has_the_signature_that_it_was_written_for(name):
    """When this fails TRL has changed: read the method again before the pin in pyproject.toml is moved."""
    assert str(inspect.signature(getattr(GRPOTrainer, name))) == HOOKS[name]


def test_every_method_of_trl_that_is_overridden_is_in_the_list():
    ours = {name for name in vars(RecipeGRPOTrainer) if name != "__init__" and hasattr(GRPOTrainer, name)}
    ours = {name for name in ours if inspect.isfunction(vars(RecipeGRPOTrainer)[name])}
    assert ours == set(HOOKS)


def test_what_the_hooks_rest_on_is_still_said_in_trl():
    source = inspect.getsource(GRPOTrainer)
    for said in (
        "self._buffered_inputs[self._step % self.args.steps_per_generation]",
        "shuffle_sequence_dict(generation_batch)",
        'inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes',
        "torch.clamp(coef_1, max=self.epsilon_high).detach()",
        'extra_fields.pop("env_mask", None)',
        "self.generation_config = GenerationConfig(**generation_kwargs",
    ):
        assert said in source


class Accelerator(SimpleNamespace):
    """One process."""

    num_processes, process_index, sync_gradients, device = 1, 0, True, "cpu"

    def gather(self, value):
        return value

    def reduce(self, value, reduction):
        return value


def trainer(rewards: np.ndarray, n: int, logps: torch.Tensor, rounds: int = 1) -> SimpleNamespace:
    """What TRL's loss and our hook look at in a trainer of the scalerl recipe."""
    return SimpleNamespace(
        recipe=RECIPES["scalerl"],
        rounds=rounds,
        num_generations=n,
        _rewards=torch.tensor(rewards, dtype=torch.float32),
        accelerator=Accelerator(),
        args=SimpleNamespace(steps_per_generation=rounds),
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        loss_type="cispo",
        epsilon_high=5.0,
        beta=0.0,
        importance_sampling_level="token",
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (logps, torch.zeros_like(logps), None),
    )


def batch(lengths: np.ndarray, old: np.ndarray, rewards: np.ndarray, n: int) -> dict:
    mask = (np.arange(old.shape[1]) < lengths[:, None]).astype(np.int64)
    groups = rewards.reshape(-1, n)
    centred = np.nan_to_num(groups - np.nanmean(groups, axis=1, keepdims=True))
    return {
        "prompt_ids": torch.zeros(len(old), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(old), 1, dtype=torch.long),
        "completion_ids": torch.zeros(*old.shape, dtype=torch.long),
        "completion_mask": torch.tensor(mask),
        "advantages": torch.tensor(centred.reshape(-1), dtype=torch.float32),
        "num_items_in_batch": torch.tensor(float(mask.sum())),
        "old_per_token_logps": torch.tensor(old, dtype=torch.float32),
    }


CASES = {
    "random": [[-1, 1, 1, -1], [1, 1, -1, 1], [-1, -1, 1, -1]],
    "all right beside others": [[1, 1, 1, 1], [1, 1, -1, 1], [-1, -1, 1, -1]],
    "all right": [[1, 1, 1, 1]],
    "all wrong": [[-1, -1, -1, -1], [-1, -1, -1, -1]],
    "one sample scored": [[1, np.nan, np.nan, np.nan], [1, -1, np.nan, 1]],
}


@pytest.mark.parametrize("masked", [False, True], ids=["", "truncated masked out"])
@pytest.mark.parametrize("case", CASES)
def test_trls_cispo_with_our_advantages_is_the_papers_loss(case, masked):
    rewards = np.array(CASES[case], float).reshape(-1)
    random = np.random.default_rng(len(case))
    shape = (len(rewards), 9)
    lengths = random.integers(1, 10, len(rewards))
    if masked:
        lengths[::3] = 0
    old = -random.gamma(2.0, 0.5, shape).astype(np.float32)
    now = torch.tensor(old + random.normal(0, 1.2, shape).astype(np.float32), requires_grad=True)
    inputs = batch(lengths, old, rewards, 4)
    stub = trainer(rewards, 4, now)
    inputs["advantages"] = RecipeGRPOTrainer._shaped(stub, inputs, step_rows(len(rewards), 1))

    loss = GRPOTrainer._compute_loss(stub, None, inputs)
    loss.backward()

    mask = inputs["completion_mask"].numpy()
    expected, gradient = reference.scalerl_loss(now.detach().numpy(), old, mask, rewards, 4, 5.0)
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    assert np.allclose(now.grad.numpy(), gradient, atol=1e-5)


def test_each_step_of_a_round_is_a_batch_of_its_own():
    random = np.random.default_rng(3)
    rewards = np.array([-1, 1, 1, 1, -1, -1, 1, -1], float)  # two steps of two groups of two
    lengths = random.integers(1, 10, 8)
    old = -random.gamma(2.0, 0.5, (8, 9)).astype(np.float32)
    inputs = batch(lengths, old, rewards, 2)
    stub = trainer(rewards, 2, torch.tensor(old), rounds=2)
    shaped = RecipeGRPOTrainer._shaped(stub, inputs, step_rows(8, 2))
    mask = inputs["completion_mask"].numpy()
    for step in (slice(0, 4), slice(4, 8)):
        part = {name: value if value.ndim == 0 else value[step] for name, value in inputs.items()}
        part["advantages"] = shaped[step]
        stub._get_per_token_logps_and_entropies = lambda *_, at=step, **__: (
            torch.tensor(old)[at],
            torch.zeros(4, 9),
            None,
        )
        loss = GRPOTrainer._compute_loss(stub, None, part)
        expected, _ = reference.scalerl_loss(old[step], old[step], mask[step], rewards[step], 2, 5.0)
        assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_a_shuffled_round_is_put_back_in_order():
    shuffled = torch.tensor([3, 0, 5, 1, 4, 2])
    batches = [{"order": part, "x": part * 10, "total": torch.tensor(6)} for part in shuffled.chunk(3)]
    assert [batch["x"].tolist() for batch in in_order(batches)] == [[0, 10], [20, 30], [40, 50]]


def test_gathered_rollouts_are_told_apart_by_step():
    # Two processes, two steps: process 0 holds 0..3, of which 0 and 1 are of the first step.
    assert step_rows(8, 2, 2).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
