"""Bilinear resizing of maps as two matrix products.

It equals `F.interpolate(mode="bilinear")`, whose backward pass on a GPU sums in no fixed order: with matrix products a
resumed run has the same gradients to the last bit.
"""

import math

import torch
from torch import Tensor

from vitreous import platforms


def bilinear_matrix(
    num_in: int,
    num_out: int,
    share: float = 1.0,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """(num_out, num_in): the weights of the old places in each new one; the new places cover the first `share` of the
    old. Centres of places are at half-integers."""
    span = share * num_in
    new, old = (torch.arange(num, device=device, dtype=dtype) for num in (num_out, num_in))
    places = ((new + 0.5) * (span / num_out) - 0.5).clamp(0, math.ceil(span - 1e-6) - 1)
    return (1 - (places[:, None] - old).abs()).clamp(min=0)


def resized_maps(maps: Tensor, size: tuple[int, int], share: tuple[float, float] = (1.0, 1.0)) -> Tensor:
    """(B, C, h, w) -> (B, C, *size), at least in float32, even under autocast; of the upper left `share` of the
    maps."""
    dtype = torch.promote_types(maps.dtype, torch.float32)
    rows, columns = (
        bilinear_matrix(old, new, part, maps.device, dtype)
        for old, new, part in zip(maps.shape[-2:], size, share, strict=True)
    )
    with platforms.full_precision(maps.device):
        return rows @ (maps.to(dtype) @ columns.T)
