"""Models for passes without gradients: a norm whose statistics are fixed is a part of the convolution before it."""

import copy
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from vitreous.nn.convolution import FrozenBatchNorm

M = TypeVar("M", bound=nn.Module)


@runtime_checkable
class Foldable(Protocol):
    """A part that has a shorter form without gradients."""

    def folded(self, dtype: torch.dtype) -> nn.Module: ...


def folded(module: M, dtype: torch.dtype) -> M:
    """A copy with the short form, its weights in this type, of every part that has one; all other weights are the same
    tensors. The module itself where no part has any."""
    if not any(isinstance(part, Foldable) for part in module.modules()):
        return module
    known: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    known |= {id(part): part.folded(dtype) for part in module.modules() if isinstance(part, Foldable)}
    return copy.deepcopy(module, known)


@torch.no_grad()
def fold(conv: nn.Conv2d, norm: FrozenBatchNorm, dtype: torch.dtype) -> tuple[nn.Parameter, nn.Parameter]:
    """Weight and offset of norm(conv(x)), their product taken before it is rounded."""
    factor, offset = norm.line()
    weight = (conv.weight * factor[:, None, None, None]).to(dtype, memory_format=torch.channels_last)
    return _fixed(weight), _fixed(offset.to(dtype))


def _fixed(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value, requires_grad=False)
