"""What a batch of rewarded groups becomes in the loss: advantages, dropped groups, weights. Tensors in, tensors out.

A batch is a flat tensor of G * n rollouts, the n of a prompt one after the other. A reward of NaN is a rollout that
could not be scored: it moves neither its group's mean nor the policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from derivedata.errors import UserError

if TYPE_CHECKING:
    import torch

EPSILON = 1e-4  # TRL's, so that a batch without any spread gives zeros


def grouped(values: torch.Tensor, n: int) -> torch.Tensor:
    """A flat (G * n,) tensor as (G, n).

    Raises:
        UserError: the groups are not all of n rollouts, or n is 1.
    """
    if n < 2:
        raise UserError("a group of one rollout has no baseline", value=n, remedy="take 2 or more rollouts a problem")
    if values.numel() == 0 or values.numel() % n:
        raise UserError(f"the rollouts are not in groups of {n}", value=f"{values.numel()} rollouts")
    return values.reshape(-1, n)


def has_spread(rewards: torch.Tensor, n: int) -> torch.Tensor:
    """(G,) booleans: whether the group's scored rewards differ. The others are the zero-variance groups."""
    groups = grouped(rewards, n)
    high = groups.nan_to_num(nan=float("-inf")).amax(dim=1)
    low = groups.nan_to_num(nan=float("inf")).amin(dim=1)
    return high > low


def batch_advantages(rewards: torch.Tensor, n: int, kept: torch.Tensor | None = None) -> torch.Tensor:
    """(G * n,) advantages: reward minus the group's mean, over the standard deviation of these in the batch.

    ScaleRL's normalisation (arXiv 2510.13786, section 3). TRL's `scale_rewards="batch"` divides by the deviation of the
    raw rewards instead, which mixes in how groups differ from each other.

    Args:
        rewards: (G * n,).
        n: rollouts of a group.
        kept: (G,) booleans: groups that count; the others get 0 and don't enter the deviation. All when None.
    """
    import torch

    groups = grouped(rewards, n)
    centred = groups - groups.nanmean(dim=1, keepdim=True)
    counts = ~torch.isnan(centred)
    if kept is not None:
        counts &= kept.reshape(-1, 1)
    centred = torch.where(counts, centred, torch.zeros_like(centred))
    variance = centred.square().sum() / counts.sum().clamp(min=1)
    return (centred / (variance.sqrt() + EPSILON)).reshape(-1)


def prompt_weights(
    lengths: torch.Tensor, n: int, kept: torch.Tensor | None = None, *, tokens: torch.Tensor | float | None = None
) -> torch.Tensor:
    """(G * n,) factors that turn a mean over all tokens of the batch into a mean over prompts of means over tokens.

    CISPO and the clipped losses are homogeneous in the advantages, so multiplying advantages by these factors averages
    TRL's token-level loss by prompt: with N tokens in all, T_g of group g and K kept groups the factor is N / (K T_g).

    Args:
        lengths: (G * n,) tokens of each rollout that count in the loss.
        n: rollouts of a group.
        kept: (G,) booleans: groups that count; the others get 0. All when None.
        tokens: N as the trainer divides by it; the sum of the lengths when None.
    """
    import torch

    groups = grouped(lengths, n).to(torch.float32)
    kept = torch.ones(len(groups), dtype=torch.bool, device=groups.device) if kept is None else kept
    total = groups.sum() if tokens is None else tokens
    each = total / (kept.sum().clamp(min=1) * groups.sum(dim=1).clamp(min=1))
    return (each * kept).repeat_interleave(n)
