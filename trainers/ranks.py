"""The processes of one run, as torchrun starts them: `torchrun --nproc-per-node 8 -m derivedata.trainers.pretrain ...`.

Every rank reads the same order of blocks and takes its rows of each batch, so that the number of ranks changes nothing
but the order of sums.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np

from derivedata.errors import UserError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """Number of this process, how many there are, and the device of this one."""

    rank: int
    world: int
    device: str

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of a batch that are this rank's, and their weights.

        A rank for which none is left gets the first row at weight 0: all take part in every exchange of gradients.
        """
        mine = blocks[self.rank :: self.world]
        if len(mine):
            return mine, np.ones(len(mine), np.float32)
        return blocks[:1], np.zeros(1, np.float32)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks."""
        if self.world > 1:
            import torch.distributed as dist

            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        """Until every rank is here."""
        if self.world > 1:
            import torch.distributed as dist

            dist.barrier()


def join(device: str | None = None) -> Ranks:
    """This process's place among the ranks; starts torch.distributed when torchrun says that there are several.

    Args:
        device: cpu, cuda or cuda:1; by default a GPU when there is one.

    Raises:
        UserError: the device is not there.
    """
    import torch

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind.startswith("cuda"):
        if not torch.cuda.is_available():
            raise UserError("torch finds no GPU", where="--device", value=device, remedy="use --device cpu")
        if kind == "cuda":
            kind = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
        torch.cuda.set_device(kind)
    elif kind != "cpu":
        raise UserError("no such device", where="--device", value=device, remedy="use cpu or cuda")
    if world > 1:
        import torch.distributed as dist

        if not dist.is_initialized():
            # The others wait while the first one tokenises.
            dist.init_process_group("nccl" if kind.startswith("cuda") else "gloo", timeout=timedelta(hours=12))
    return Ranks(rank=rank, world=world, device=kind)


def leave(ranks: Ranks) -> None:
    """End torch.distributed, if `join` started it."""
    if ranks.world > 1:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
