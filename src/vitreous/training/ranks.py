"""Gradients over ranks: torch's DistributedDataParallel around an objective.

It exchanges gradients in buckets while the backward pass still computes the others, so that every rank ends with their
mean. Alone, an objective stays as it is.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitreous.batch import Batch
from vitreous.training.devices import World

Losses = Callable[[Batch, Tensor], dict[str, Tensor]]  # an objective, as it is or compiled


def over_ranks(objective: Losses, world: World) -> Losses:
    """The objective, such that a backward pass through its loss leaves the mean gradient of all ranks.
    They must all call this together, and the parameters must stay the same objects from then on."""
    if world.size == 1:
        return objective
    # Said of kernels of one pixel, where strides mean nothing.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    engine = DistributedDataParallel(
        _OnlyTheLoss(objective).to(world.device),
        # Without it a parameter that the loss does not reach would be waited for. It also keeps the buckets as they
        # are, where they would be made anew after the first step: among four ranks or more the order of a sum goes by
        # the place in a bucket, and a run that resumes must add up as one that went through.
        find_unused_parameters=True,
        gradient_as_bucket_view=True,  # no second copy of all gradients
    )
    engine.broadcast_buffers = False  # an objective shares by itself what it has to (see nn/gather)
    return engine


def held_back(losses: Losses) -> AbstractContextManager[None]:
    """Inside, gradients only add up on their own rank; the next backward pass outside exchanges their sum."""
    return losses.no_sync() if isinstance(losses, DistributedDataParallel) else nullcontext()


class _OnlyTheLoss(nn.Module):
    """Cuts the other numbers off from the weights: what only they reach has no gradient, and must not be waited for."""

    def __init__(self, objective: Losses) -> None:
        super().__init__()
        self.objective = objective
        self.unused = nn.Parameter(torch.zeros(1))  # where none is, torch writes a warning past Python's filters

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        losses = self.objective(batch, progress)
        return {name: number if name == "loss" else number.detach() for name, number in losses.items()}
