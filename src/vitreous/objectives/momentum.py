"""A copy of a module that follows it slowly: the teacher of DINO, MoCo and BYOL."""

import copy
import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from vitreous.nn import shards


def ramp(start: float, end: float, progress: Tensor) -> Tensor:
    """From `start` to `end` along half a cosine over the run."""
    return end + (start - end) * (1 + torch.cos(math.pi * progress)) / 2


class Momentum(nn.Module):
    """Starts equal to `module`. It is called without gradients, and without dropout or stochastic depth."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = copy.deepcopy(module).requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        """Does nothing: it is never in training mode."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, *inputs: Tensor) -> Any:
        return self.module(*inputs)

    @torch.no_grad()
    def follow(self, module: nn.Module, keep: Tensor | float) -> None:
        """Keep the share `keep` of every weight, and take the rest from `module`. Buffers are copied."""
        own, new = ([shards.local(p.detach()) for p in one.parameters()] for one in (self.module, module))
        change = torch._foreach_sub(new, own)
        torch._foreach_mul_(change, 1 - keep)
        torch._foreach_add_(own, change)
        for mine, theirs in zip(self.module.buffers(), module.buffers(), strict=True):
            mine.copy_(theirs)
