"""Bilinear resizing of maps as two matrix products.

It equals `F.interpolate(mode="bilinear")`, whose backward pass on a GPU adds in an order of its own choosing: with
matrix products a run that is resumed has the same gradients to the last bit.
"""

import math

import torch
from torch import Tensor


def bilinear_matrix(num_in: int, num_out: int, share: float = 1.0, device: torch.device | None = None) -> Tensor:
    """(num_out, num_in) float32: what each new place is made of, the new ones lying on the first `share` of the old.
    Middles are half a place in."""
    span = share * num_in
    places = ((torch.arange(num_out, device=device) + 0.5) * (span / num_out) - 0.5).clamp(
        0, math.ceil(span - 1e-6) - 1
    )
    distances = (places[:, None] - torch.arange(num_in, device=device)).abs()
    return (1 - distances).clamp(min=0)


def resized_maps(maps: Tensor, size: tuple[int, int], share: tuple[float, float] = (1.0, 1.0)) -> Tensor:
    """(B, C, h, w) -> (B, C, *size) float32, under autocast too; of the upper left `share` of the maps."""
    rows, columns = (
        bilinear_matrix(old, new, part, maps.device)
        for old, new, part in zip(maps.shape[-2:], size, share, strict=True)
    )
    with torch.autocast(maps.device.type, enabled=False):
        return rows @ (maps.float() @ columns.T)
