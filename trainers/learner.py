"""A model that learns: forward, backward, clipping and AdamW over the blocks of one step.

The loop is our own and not transformers' `Trainer`: `python -m tests.bench trainer` measures both beside a bare loop.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from derivedata.trainers.ranks import Ranks

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How the weights are changed, besides the learning rate.

    weight_decay: of matrices; norms and the input embedding have none. betas, eps: of AdamW. clip: greatest norm of the
    gradient. z_loss: weight of the squared logarithm of the softmax's denominator. precision: float32, or bf16 (matrix
    products in bfloat16, weights and sums in float32). micro_batch: blocks at once on a device; gradients of the others
    of a step are accumulated.
    """

    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    clip: float = 1.0
    z_loss: float = 1e-5
    precision: str = "float32"
    micro_batch: int = 8


class Learner:
    """A model, its optimiser and their state.

    Args:
        model: a causal language model of transformers, on no device in particular.
        recipe: how it learns.
        ranks: which process this is.
        compile: let torch compile the model (worth it on GPUs).
    """

    def __init__(self, model: torch.nn.Module, recipe: Recipe, ranks: Ranks, *, compile: bool = False):
        import torch

        self.recipe, self.ranks = recipe, ranks
        self.model = model.to(ranks.device)
        self.run = torch.compile(self.model) if compile else self.model
        if ranks.world > 1:
            ids = [torch.device(ranks.device)] if ranks.device != "cpu" else None
            self.run = torch.nn.parallel.DistributedDataParallel(self.run, device_ids=ids)
        self.optimizer = _adamw(self.model, recipe)
        # A mask of its own is made on every call where none is given; blocks that fit the window need none.
        window = getattr(model.config, "sliding_window", None)
        kinds = set(getattr(model.config, "layer_types", None) or ())
        self._masks = dict.fromkeys(kinds) if kinds and (window or 0) >= model.config.max_position_embeddings else None

    def step(self, blocks: np.ndarray, rate: float) -> tuple[float, float]:
        """Change the weights by the blocks of one step, of all ranks together.

        Args:
            blocks: ids of shape (blocks, length).
            rate: the learning rate.

        Returns:
            Mean cross-entropy in nats a predicted token, and the norm of the gradient before clipping. When either is
            not finite, the weights are as they were.
        """
        import torch

        rows, weights = self.ranks.share(blocks)
        predicted = blocks.shape[0] * (blocks.shape[1] - 1)
        # DistributedDataParallel takes the mean over ranks, and what is wanted is the sum.
        scale = self.ranks.world / predicted
        pieces = range(0, len(rows), self.recipe.micro_batch)
        # Ranks may hold a different number of pieces only if all exchange once: on the last.
        total = torch.zeros((), device=self.ranks.device)
        for at in pieces:
            ids = self.put(rows[at : at + self.recipe.micro_batch])
            weight = torch.from_numpy(weights[at : at + self.recipe.micro_batch]).to(self.ranks.device)
            last = at == pieces[-1]
            with contextlib.nullcontext() if last or self.ranks.world == 1 else self.run.no_sync():
                nll, denominator = self.token_losses(ids, self.run)
                objective = nll + self.recipe.z_loss * denominator.square() if self.recipe.z_loss else nll
                (objective.sum(1) @ weight * scale).backward()
            total += nll.detach().sum(1) @ weight
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        loss = float(self.ranks.sum(total)) / predicted
        if np.isfinite(loss) and bool(torch.isfinite(norm)):
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, float(norm)

    def put(self, rows: np.ndarray) -> torch.Tensor:
        """Ids on the device."""
        import torch

        ids = torch.from_numpy(np.ascontiguousarray(rows))
        return ids if self.ranks.device == "cpu" else ids.pin_memory().to(self.ranks.device, non_blocking=True)

    def token_losses(self, ids: torch.Tensor, run: torch.nn.Module | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross-entropy of each predicted token, nats, and the logarithm of its softmax's denominator.

        Both float32 of shape (blocks, length - 1): a block's first token is predicted by nothing.
        """
        import torch

        kind = self.ranks.device.split(":")[0]
        half = self.recipe.precision == "bf16"
        with torch.autocast(kind, torch.bfloat16) if half else contextlib.nullcontext():
            masks = None if self._masks is None else dict(self._masks)
            logits = (run or self.model)(input_ids=ids, attention_mask=masks, use_cache=False).logits
        logits = logits[:, :-1].float()
        denominator = logits.logsumexp(-1)
        return denominator - logits.gather(-1, ids[:, 1:, None]).squeeze(-1), denominator

    def state(self) -> dict:
        """Weights, optimiser and random state, for `restore`."""
        import torch

        found = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }
        if self.ranks.device != "cpu":
            found["random_cuda"] = torch.cuda.get_rng_state(self.ranks.device)
        return found

    def restore(self, state: dict) -> None:
        """Go on from a state that `state` gave."""
        import torch

        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"].cpu())
        if "random_cuda" in state and self.ranks.device != "cpu":
            torch.cuda.set_rng_state(state["random_cuda"].cpu(), self.ranks.device)


def _adamw(model: torch.nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    import torch

    embedding = model.get_input_embeddings().weight
    matrices = [p for p in model.parameters() if p.ndim >= 2 and p is not embedding]
    others = [p for p in model.parameters() if p.ndim < 2 or p is embedding]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1.0, betas=recipe.betas, eps=recipe.eps, fused=True)
