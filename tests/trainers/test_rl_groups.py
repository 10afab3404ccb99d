"""Advantages, dropped groups and prompt weights against plain NumPy, on random and degenerate groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from derivedata.errors import UserError
from derivedata.trainers.rl_groups import batch_advantages, grouped, has_spread, prompt_weights
from tests.trainers import rl_reference as reference

CASES = {
    "random": ([0, 1, 1, 0, 1, 1, 1, 0], [3, 5, 2, 7, 1, 1, 4, 6]),
    "plus and minus one": ([-1, 1, -1, -1, 1, 1, -1, 1], [3, 5, 2, 7, 1, 1, 4, 6]),
    "one group all right": ([1, 1, 1, 1, 0, 1, 0, 0], [2, 2, 3, 3, 4, 4, 5, 5]),
    "all right": ([1] * 8, [3] * 8),
    "all wrong": ([0] * 8, [3] * 8),
    "truncated rollouts count no token": ([0, 1, 0, 1, 1, 0, 0, 0], [0, 4, 0, 4, 0, 0, 0, 0]),
    "one sample scored": ([1, np.nan, np.nan, np.nan, 0, 1, np.nan, 1], [3, 5, 2, 7, 1, 1, 4, 6]),
    "nothing scored": ([np.nan] * 8, [2] * 8),
}


@pytest.mark.parametrize("case", CASES)
def test_advantages_over_the_batch_equal_the_reference(case):
    rewards, _ = CASES[case]
    kept = reference.kept_groups(rewards, 4)
    ours = batch_advantages(torch.tensor(rewards, dtype=torch.float32), 4, torch.tensor(kept))
    assert np.allclose(ours.numpy(), reference.advantages(np.array(rewards, float), 4, kept), atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_groups_without_spread_are_told(case):
    rewards, _ = CASES[case]
    assert has_spread(torch.tensor(rewards, dtype=torch.float32), 4).tolist() == reference.kept_groups(rewards, 4)


@pytest.mark.parametrize("case", CASES)
def test_a_weighted_token_mean_is_the_mean_over_prompts(case):
    rewards, lengths = CASES[case]
    kept = reference.kept_groups(rewards, 4)
    losses = np.random.default_rng(0).normal(size=(8, 7)).astype(np.float32)
    mask = (np.arange(7) < np.array(lengths)[:, None]).astype(np.float32)
    weights = prompt_weights(torch.tensor(lengths), 4, torch.tensor(kept)).numpy()
    ours = (losses * mask * weights[:, None]).sum() / max(mask.sum(), 1)
    assert ours == pytest.approx(reference.prompt_mean(losses, mask, 4, kept), abs=1e-5)


def test_a_thousand_random_batches():
    random = np.random.default_rng(1)
    for _ in range(1000):
        n, groups = int(random.integers(2, 9)), int(random.integers(1, 6))
        rewards = random.choice([0.0, 1.0, np.nan], n * groups, p=[0.45, 0.45, 0.1])
        kept = reference.kept_groups(rewards, n)
        ours = batch_advantages(torch.tensor(rewards, dtype=torch.float32), n, torch.tensor(kept))
        assert np.allclose(ours.numpy(), reference.advantages(rewards, n, kept), atol=1e-5)


def test_without_dropping_every_group_counts():
    rewards = torch.tensor([1.0, 1.0, 0.0, 1.0])
    all_kept = batch_advantages(rewards, 2)
    assert all_kept.tolist() == pytest.approx([0, 0, -(2**0.5), 2**0.5], abs=1e-3)
    assert batch_advantages(rewards, 2, torch.tensor([False, True])).tolist() == pytest.approx([0, 0, -1, 1], abs=1e-3)


@pytest.mark.parametrize(("count", "n"), [(7, 4), (0, 4)])
def test_groups_of_unequal_size_are_refused(count, n):
    with pytest.raises(UserError, match="not in groups of 4"):
        grouped(torch.zeros(count), n)


def test_one_rollout_has_no_baseline():
    with pytest.raises(UserError, match="no baseline"):
        batch_advantages(torch.zeros(4), 1)
