"""One process, or one of several that torchrun started: the same code runs in all of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Ranks:
    """Process ``rank`` of ``world``, on its ``device``."""

    rank: int
    world: int
    device: torch.device

    @classmethod
    @contextmanager
    def join(cls, device: str = "auto") -> Iterator[Ranks]:
        """The processes that torchrun started, or this one alone."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        where = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
        if where.type == "cuda":
            torch.cuda.set_device(where)
        if world == 1:
            yield cls(0, 1, where)
            return
        own = not dist.is_initialized()
        if own:
            dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
        try:
            yield cls(dist.get_rank(), world, where)
        finally:
            if own:
                dist.destroy_process_group()

    @property
    def main(self) -> bool:
        """Is this the one that writes?"""
        return self.rank == 0

    def wait(self) -> None:
        """For all to come here."""
        if self.world > 1:
            dist.barrier()

    def sum(self, x: Tensor) -> Tensor:
        """Over all ranks."""
        if self.world > 1:
            x = x.clone()
            dist.all_reduce(x)
        return x

    def agree(self, numbers: Sequence[float]) -> list[float]:
        """What rank 0 has."""
        if self.world == 1:
            return list(numbers)
        x = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.broadcast(x, 0)
        return x.tolist()

    def wrap(self, objective: nn.Module, blocks: Sequence[nn.Module], parallel: str) -> nn.Module:
        """So that gradients are averaged over the ranks: by DDP, or by FSDP2, which also shards ``blocks``."""
        if self.world == 1:
            return objective
        if parallel == "fsdp":
            from torch.distributed.fsdp import fully_shard

            for block in blocks:
                fully_shard(block)
            fully_shard(objective)
            return objective
        ids = [self.device.index] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(objective, device_ids=ids, gradient_as_bucket_view=True)


def accumulating(objective: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Around a forward and backward whose gradients need no averaging yet, unless it is the ``last`` of an update."""
    if hasattr(objective, "set_requires_gradient_sync"):
        objective.set_requires_gradient_sync(last)  # type: ignore[operator]
    elif not last and isinstance(objective, nn.parallel.DistributedDataParallel):
        quiet: AbstractContextManager[None] = objective.no_sync()
        return quiet
    return contextlib.nullcontext()


def whole(x: Tensor) -> Tensor:
    """All of a tensor that FSDP may have sharded; every rank must ask."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def shard_like(x: Tensor, like: Tensor) -> Tensor:
    """The opposite of ``whole``."""
    if not hasattr(like, "full_tensor"):
        return x.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x.to(like.device), like.device_mesh, like.placements)  # type: ignore[attr-defined]


def _device(name: str, local: int) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("device: cuda was asked for, but PyTorch sees no GPU; use --device cpu")
        return torch.device("cuda", local if device.index is None else device.index)
    return device
