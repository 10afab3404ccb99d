"""The loss of the scalerl recipe in plain NumPy, as the paper writes it (arXiv 2510.13786, section 3)."""

from __future__ import annotations

import numpy as np


def kept_groups(rewards, n):
    return [len({float(r) for r in group if not np.isnan(r)}) > 1 for group in np.reshape(rewards, (-1, n))]


def advantages(rewards, n, kept):
    """Reward minus the mean of its group, over the deviation of these in the kept groups of the batch."""
    out = np.zeros(len(rewards))
    values = []
    for g, group in enumerate(np.reshape(rewards, (-1, n)).astype(float)):
        if not kept[g]:
            continue
        scored = group[~np.isnan(group)]
        for i, reward in enumerate(group):
            if not np.isnan(reward):
                out[g * n + i] = reward - scored.mean()
                values.append(out[g * n + i])
    return out / (np.sqrt(np.mean(np.square(values))) + 1e-4) if values else out


def prompt_mean(token_losses, mask, n, kept):
    """Mean over kept prompts of the mean over all tokens of the prompt's rollouts."""
    means = []
    for g in range(len(mask) // n):
        rows = slice(g * n, (g + 1) * n)
        if kept[g] and mask[rows].sum():
            means.append((token_losses[rows] * mask[rows]).sum() / mask[rows].sum())
    return sum(means) / max(sum(kept), 1)


def cispo(logps, old, advantage, clip):
    """-min(ratio, clip), without gradient, times advantage times log-probability, by token."""
    return -np.minimum(np.exp(logps - old), clip) * advantage[:, None] * logps


def cispo_gradient(logps, old, advantage, clip):
    """Its derivative by the log-probabilities: the clipped ratio is a constant."""
    return -np.minimum(np.exp(logps - old), clip) * advantage[:, None]


def scalerl_loss(logps, old, mask, rewards, n, clip):
    """The loss, and its gradient by the log-probabilities."""
    kept = kept_groups(rewards, n)
    advantage = advantages(rewards, n, kept)
    loss = prompt_mean(cispo(logps, old, advantage, clip), mask, n, kept)
    gradient = np.zeros_like(logps)
    for g in range(len(mask) // n):
        rows = slice(g * n, (g + 1) * n)
        if kept[g] and mask[rows].sum():
            of_tokens = cispo_gradient(logps[rows], old[rows], advantage[rows], clip) * mask[rows]
            gradient[rows] = of_tokens / mask[rows].sum() / sum(kept)
    return loss, gradient
