"""Recipes of RL runs as data: what the IsoCompute Playbook and ScaleRL train with, by name.

    RECIPES["easy"].learning_rate(512)      1e-6 * sqrt(512 / 1024)

Both papers' rates are for models of 4-8B parameters. What carries over to other sizes is the square-root law, not the
rate itself: tune `lr_at_1024` once a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from derivedata.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How one optimizer step is made of rollouts."""

    name: str
    loss: str  # TRL's loss_type: grpo (mean over each rollout's tokens, then over rollouts) or cispo
    clip_high: float | None = None  # cispo: upper bound of the importance weight; None: TRL's clipping
    average: str = "rollout"  # what counts the same in the loss: each rollout, or each prompt
    advantages: str = "group"  # divided by: group (its rewards' deviation) or batch (the batch's advantages' deviation)
    kl: float = 0.0  # weight of the KL divergence from the model that training starts with
    entropy: float = 0.0  # weight of the entropy bonus
    drop_zero_variance: bool = False  # groups that are all right or all wrong don't count in the loss
    retire_at: float | None = None  # prompts are no longer drawn when their pass rate so far reaches this
    fp32_head: bool = False
    thinking_share: float | None = None  # thinking is ended by force at this share of the longest completion
    staleness: int = 0  # k: optimizer steps that rollouts may lag behind the policy
    lr_at_1024: float = 1e-6  # learning rate of a batch of 1,024 rollouts
    warmup_steps: int = 10  # then the rate is constant
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    temperature: float = 0.6
    rewards: tuple[float, float] = (0.0, 1.0)  # of a wrong and of a right answer

    def __post_init__(self):
        if (self.kl > 0) != (self.entropy > 0):
            raise UserError(
                "KL and entropy are used together or not at all", value=f"kl {self.kl:g}, entropy {self.entropy:g}"
            )
        if self.kl < 0 or self.entropy < 0:
            raise UserError("KL and entropy weights can't be negative", value=f"{self.kl:g}, {self.entropy:g}")
        if not self.lr_at_1024 > 0:
            raise UserError("the learning rate must be positive", where="--lr-at-1024", value=self.lr_at_1024)
        if self.staleness < 0:
            raise UserError("staleness can't be negative", where="--staleness", value=self.staleness)
        if not self.temperature > 0:
            raise UserError("training needs a positive temperature", where="--temperature", value=self.temperature)
        if not self.rewards[0] < self.rewards[1]:
            raise UserError("a right answer must earn more than a wrong one", value=self.rewards)

    def learning_rate(self, batch: int) -> float:
        """The learning rate of a batch of B rollouts: lr_at_1024 * sqrt(B / 1024) (arXiv 2603.12151)."""
        return learning_rate(batch, self.lr_at_1024)


def learning_rate(batch: int, at_1024: float) -> float:
    """lr(B) = lr(1024) * sqrt(B / 1024), the square-root law for Adam.

    Args:
        batch: B = B_p * n, rollouts of an optimizer step.
        at_1024: the rate at B = 1,024.
    """
    return at_1024 * math.sqrt(batch / 1024)


# arXiv 2603.12151 gives no coefficients for KL and entropy; these are small values in common use, and options.
_ISOCOMPUTE = {"loss": "grpo", "lr_at_1024": 1e-6, "warmup_steps": 10, "temperature": 0.6}

RECIPES: dict[str, Recipe] = {
    "easy": Recipe(name="easy", kl=1e-3, entropy=1e-3, **_ISOCOMPUTE),
    "hard": Recipe(name="hard", **_ISOCOMPUTE),
    "mixed": Recipe(name="mixed", **_ISOCOMPUTE),
    # arXiv 2510.13786: 48 prompts x 16 rollouts at 5e-7; 12,288 of 14,336 new tokens are for thinking.
    "scalerl": Recipe(
        name="scalerl",
        loss="cispo",
        clip_high=5.0,
        average="prompt",
        advantages="batch",
        drop_zero_variance=True,
        retire_at=0.9,
        fp32_head=True,
        thinking_share=12_288 / 14_336,
        staleness=8,
        lr_at_1024=5e-7 / math.sqrt(48 * 16 / 1024),
        warmup_steps=100,
        adam_epsilon=1e-15,
        weight_decay=0.01,
        temperature=1.0,
        rewards=(-1.0, 1.0),
    ),
}
