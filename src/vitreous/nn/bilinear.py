"""Bilinear resizing of maps as two matrix products.

It equals `F.interpolate(mode="bilinear")`, whose backward pass on a GPU adds in an order of its own choosing: with
matrix products a run that is resumed has the same gradients to the last bit.
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
    """(num_out, num_in): what each new place is made of, the new ones lying on the first `share` of the old. Middles
    are half a place in."""
    span = share * num_in
    new, old = (torch.arange(num, device=device, dtype=dtype) for num in (num_out, num_in))
    places = ((new + 0.5) * (span / num_out) - 0.5).clamp(0, math.ceil(span - 1e-6) - 1)
    return (1 - (places[:, None] - old).abs()).clamp(min=0)


def resized_maps(maps: Tensor, size: tuple[int, int], share: tuple[float, float] = (1.0, 1.0)) -> Tensor:
    """(B, C, h, w) -> (B, C, *size) in float32 at least, under autocast too; of the upper left `share` of the maps."""
    dtype = torch.promote_types(maps.dtype, torch.float32)
    rows, columns = (
        bilinear_matrix(old, new, part, maps.device, dtype)
        for old, new, part in zip(maps.shape[-2:], size, share, strict=True)
    )
    with platforms.full_precision(maps.device):
        return rows @ (maps.to(dtype) @ columns.T)
