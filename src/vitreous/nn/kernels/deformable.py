"""The inner part of deformable attention: weighted sums of values read between the places of maps."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Shapes = Sequence[tuple[int, int]]  # (h, w) of each level's map, known before a value is


def weighted_samples(values: Tensor, shapes: Shapes, places: Tensor, weights: Tensor) -> Tensor:
    """(B, Q, heads * d): of each query and head, the values at `places`, summed by `weights`.

    values: (B, N, heads, d), the maps of all levels in reading order, one behind the other: N is the sum of h * w.
    places: (B, Q, heads, levels, points, 2) as (x, y), 0 to 1 from border to border of a level's map. Between the
    middles of a map's places values are interpolated linearly; outside of it they are 0.
    weights: (B, Q, heads, levels, points).
    """
    return weighted_samples_torch(values, shapes, places, weights)


def weighted_samples_torch(values: Tensor, shapes: Shapes, places: Tensor, weights: Tensor) -> Tensor:
    """The same by grid_sample, level by level."""
    B, _, heads, d = values.shape
    maps = values.permute(0, 2, 3, 1).flatten(0, 1)  # (B heads, d, N)
    grids = (2 * places - 1).transpose(1, 2).flatten(0, 1)  # (B heads, Q, levels, points, 2)
    factors = weights.transpose(1, 2).flatten(0, 1)  # (B heads, Q, levels, points)
    total = None
    for level, one in enumerate(torch.split(maps, [h * w for h, w in shapes], dim=2)):
        grid = grids[:, :, level]
        dtype = torch.promote_types(one.dtype, grid.dtype)
        found = F.grid_sample(one.reshape(B * heads, d, *shapes[level]).to(dtype), grid.to(dtype), align_corners=False)
        summed = (found * factors[:, None, :, level]).sum(dim=3)  # (B heads, d, Q)
        total = summed if total is None else total + summed
    assert total is not None
    return total.view(B, heads * d, places.shape[1]).transpose(1, 2).to(values.dtype)
