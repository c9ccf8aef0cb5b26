"""Resizing tables of positions: once, when the picture size changes; inside the graph only for small crops."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Resizing = Literal["bilinear", "bicubic", "zoom", "bicubic-antialiased"]


def resize_table(
    table: Tensor, num_prefix: int, grid: tuple[int, int], new_grid: tuple[int, int], mode: Resizing = "bilinear"
) -> Tensor:
    """(P + h*w, D) -> (P + h'*w', D), interpolated in 2-D (paper, section 3.2); the prefix rows are copied.

    "zoom" is linear with aligned corners, as in the released code.
    """
    if tuple(grid) == tuple(new_grid):
        return table
    prefix, cells = table[:num_prefix], table[num_prefix:]
    maps = cells.reshape(1, *grid, -1).permute(0, 3, 1, 2)  # (1, D, h, w)
    # Half precision is widened: a table is resized once, and some devices lack the kernel.
    maps = maps.float() if maps.dtype in (torch.bfloat16, torch.float16) else maps
    kind, antialias = "bicubic" if mode.startswith("bicubic") else "bilinear", mode == "bicubic-antialiased"
    maps = F.interpolate(maps, size=new_grid, mode=kind, align_corners=mode == "zoom", antialias=antialias)
    return torch.cat([prefix, maps.flatten(2)[0].T.to(table.dtype)])


def resize_offsets(table: Tensor, length: int, mode: Resizing = "bilinear") -> Tensor:
    """(2N-1, d) embeddings of 1-D offsets -> (2N'-1, d), stretched in 1-D about offset 0, which stays the centre.

    The offsets are those of the reading order, so this is exact along the sequence and approximate in the picture: the
    paper does not say how to fine-tune relative positions at another size.
    """
    return resize_table(table, 0, (len(table), 1), (2 * length - 1, 1), mode)


def resized_parameter(data: Tensor, old: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(data.contiguous(), requires_grad=old.requires_grad)
