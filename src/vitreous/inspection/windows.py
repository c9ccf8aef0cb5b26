"""What a model says of the places of a picture: every place by the windows that it lies in, each seen alone.

A patch at the end of a network has heard of all others, so where a word matches cannot be read off it. What the model
makes of a window's patches alone can have come from nowhere else.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.base import Encoder, Grid

SHARE = 3  # a window is this part of the picture's sides
MOST = 6  # windows a side; they overlap


def windows(grid: Grid) -> tuple[Tensor, Tensor]:
    """The cells (W, n) of every window; and of every cell the shares (cells, W) that the windows have in it: equal ones
    of those that it lies in. Fewer reach the edge: what a cell there lacks comes from all windows alike, or else it
    would be as sure of a thing as the one window that reaches both."""
    rows, columns = (_starts(side) for side in grid)
    high, wide = (_length(side) for side in grid)
    cells = torch.arange(grid.cells).view(*grid)
    at = torch.stack([cells[y : y + high, x : x + wide].flatten() for y in rows for x in columns])
    inside = torch.zeros(grid.cells, len(at)).scatter_(0, at.T, 1.0)
    times = inside.sum(dim=1, keepdim=True)
    return at, inside / times.max() + (1 - times / times.max()) / len(at)


def _length(side: int) -> int:
    return max(1, round(side / SHARE))


def _starts(side: int) -> list[int]:
    last = side - _length(side)
    return torch.linspace(0, last, min(MOST, last + 1)).round().long().tolist()


def embedded_places(encoder: Encoder, projection: nn.Module, images: Tensor) -> Tensor | None:
    """(B, h, w, D): the mean of what the windows around each place are embedded as, each of length 1. None of an
    encoder that cannot leave a part of a picture out."""
    grid = encoder.parts
    if grid is None:
        return None
    at, cover = (one.to(images.device) for one in windows(grid))
    found = F.normalize(projection(encoder.pooled_windows(images, at)).float(), dim=-1)  # (B, W, D)
    return (cover @ found).view(len(images), *grid, -1)
