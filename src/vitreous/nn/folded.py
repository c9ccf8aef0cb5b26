"""Models for passes without gradients: norms with fixed statistics are folded into the convolutions before them."""

import copy
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from vitreous.nn.convolution import FrozenBatchNorm

M = TypeVar("M", bound=nn.Module)


@runtime_checkable
class Foldable(Protocol):
    """A part with a shorter form for passes without gradients."""

    def folded(self, dtype: torch.dtype) -> nn.Module: ...


def folded(module: M, dtype: torch.dtype) -> M:
    """A copy with the short form, of this type, of every part that has one; all other weights are the same tensors. The
    module itself if no part has one."""
    if not any(isinstance(part, Foldable) for part in module.modules()):
        return module
    known: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    known |= {id(part): part.folded(dtype) for part in module.modules() if isinstance(part, Foldable)}
    return copy.deepcopy(module, known)


@torch.no_grad()
def fold(conv: nn.Conv2d, norm: FrozenBatchNorm, dtype: torch.dtype) -> tuple[nn.Parameter, nn.Parameter]:
    """Weight and offset of norm(conv(x)), multiplied before rounding."""
    factor, offset = norm.line()
    weight = (conv.weight * factor[:, None, None, None]).to(dtype, memory_format=torch.channels_last)
    return _fixed(weight), _fixed(offset.to(dtype))


def _fixed(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value, requires_grad=False)
