"""Tensors of all ranks, with gradients: for losses that compare the samples of the whole batch.

Training averages the gradients of all ranks (training/ranks). If a rank's loss is the mean over its own samples, the
gradients of these functions sum over the losses of all ranks, so the averaged gradient is that of the global mean. In a
single process, both functions do nothing.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _Others:
    """Whether this process takes part with the other ranks, if there are any."""

    count = True


def be_alone(is_alone: bool = True) -> None:
    """From now on this process ignores all others; or takes part with them again."""
    _Others.count = not is_alone


def is_alone() -> bool:
    return not _Others.count


def world() -> tuple[int, int]:
    """(rank, number of ranks)"""
    if is_alone() or not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def gather(x: Tensor) -> Tensor:
    """(B, ...) of every rank -> (ranks x B, ...), in the order of the ranks."""
    return x if world()[1] == 1 else _Gather.apply(x)  # type: ignore[no-untyped-call]


def mean_over_ranks(x: Tensor) -> Tensor:
    return x if world()[1] == 1 else _Mean.apply(x)  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(world()[1])]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        rank, size = world()
        total = grad.contiguous().clone()
        dist.all_reduce(total)
        return total.chunk(size)[rank]


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _mean(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _mean(grad)


def _mean(x: Tensor) -> Tensor:
    total = x.contiguous().clone()
    dist.all_reduce(total)
    return total / world()[1]
