"""A 1x1 convolution with everything around it in a bottleneck, for passes without gradients: one matrix product.

Most of a ResNet's maps are written and read again only to add an offset and a shortcut and to apply the ReLU. On a GPU
nn/kernels/pointwise.py does so while the products are still in registers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.nn import kernels

DTYPES = (torch.bfloat16, torch.float16)
MULTIPLE = 64  # of channels, in and out
TILE = 128  # rows of a program, and columns if there are as many
ENOUGH = 132  # programs: fewer do not fill a GPU of 132 processors, and torch's kernels split the sums instead


def pointwise(
    x: Tensor, weight: Tensor, bias: Tensor, before: Tensor | None = None, added: Tensor | None = None
) -> Tensor:
    """relu(conv(x) + added), of x (B, C, h, w), weight (N, C, 1, 1) and bias (N,), to (B, N, h, w).

    before: (C,), the offset of the previous layer, if it and its ReLU are still to be applied. added: (B, N, h, w)."""
    if _is_served(x, weight, added):
        rows = None if added is None else _rows(added)
        found: Tensor = multiplied(_rows(x), weight.flatten(1), bias, before, rows)
        return found.view(*x.permute(0, 2, 3, 1).shape[:3], -1).permute(0, 3, 1, 2)
    x = x if before is None else F.relu(x + before[:, None, None])
    y = F.conv2d(x, weight, bias)
    return F.relu(y if added is None else y + added)


def _is_served(x: Tensor, weight: Tensor, added: Tensor | None) -> bool:
    if not kernels.pays("pointwise", x) or x.dtype not in DTYPES or weight.dtype != x.dtype:
        return False
    maps = (x,) if added is None else (x, added)
    if not all(one.dtype == x.dtype and one.is_contiguous(memory_format=torch.channels_last) for one in maps):
        return False
    width, channels = weight.shape[:2]
    programs = -(-x.numel() // channels // TILE) * -(-width // TILE)
    return channels % MULTIPLE == 0 and width % MULTIPLE == 0 and programs >= ENOUGH


def _rows(x: Tensor) -> Tensor:
    """(B, C, h, w), its channels last in memory -> (B * h * w, C), the same memory."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


@torch.library.custom_op("vitreous::pointwise", mutates_args=())
def multiplied(x: Tensor, weight: Tensor, bias: Tensor, before: Tensor | None, added: Tensor | None) -> Tensor:
    """relu(relu(x + before) @ weight.T + bias + added), of x (M, C), weight (N, C) and added (M, N)."""
    from vitreous.nn.kernels.pointwise import product

    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        return product(x.contiguous(), weight.contiguous(), bias, before, None if added is None else added.contiguous())


@multiplied.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, before: Tensor | None, added: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])
