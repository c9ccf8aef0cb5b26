"""Relative positions: what is added to attention's logits for each pair of tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.nn.resizing import Resizing, resize_offsets, resize_table, resized_parameter


class PairPositions(nn.Module):
    """A table with a row for every relation between two tokens."""

    table: nn.Parameter

    def pairs(self, num_prefix: int, cells: Tensor) -> Tensor:
        """(..., n) grid cells of the tokens after the prefix -> (..., P + n, P + n) rows, query first."""
        raise NotImplementedError

    def forward(self, queries: Tensor, pairs: Tensor) -> Tensor:
        """(B, heads, r, d) queries, (r, n) or (B, r, n) rows -> what is added to the logits, (B or 1, heads, r, n)."""
        raise NotImplementedError

    def resize(self, num_prefix: int, grid: tuple[int, int], mode: Resizing = "bilinear") -> None:
        """Interpolate to another grid, in place."""
        raise NotImplementedError


class RelativePositions(PairPositions):
    """Embeddings of 1-D offsets that meet the query; the products are added to the logits (paper, D.4).

    One table per layer, shared by the heads. A token's place in the sequence counts the prefix tokens first, then the
    grid cells in reading order, so a token keeps its offsets when others are dropped.
    """

    def __init__(self, length: int, head_width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(2 * length - 1, head_width))
        nn.init.normal_(self.table, std=0.02)

    @property
    def length(self) -> int:
        """The number of places in the sequence."""
        return (len(self.table) + 1) // 2

    def offsets(self, places: Tensor) -> Tensor:
        """(..., n) places in the sequence -> (..., n, n) rows of the table, query first."""
        return places[..., :, None] - places[..., None, :] + (self.length - 1)

    def pairs(self, num_prefix: int, cells: Tensor) -> Tensor:
        prefix = torch.arange(num_prefix, device=cells.device).expand(*cells.shape[:-1], -1)
        return self.offsets(torch.cat([prefix, cells + num_prefix], dim=-1))

    def forward(self, queries: Tensor, pairs: Tensor) -> Tensor:
        products = (queries * queries.shape[-1] ** -0.5) @ self.table.to(queries.dtype).T  # (B, heads, r, 2N-1)
        index = pairs.unsqueeze(-3).expand(*queries.shape[:3], pairs.shape[-1])
        bias: Tensor = products.gather(-1, index)
        return bias

    def resize(self, num_prefix: int, grid: tuple[int, int], mode: Resizing = "bilinear") -> None:
        table = resize_offsets(self.table.detach(), num_prefix + grid[0] * grid[1], mode)
        self.table = resized_parameter(table, self.table)


class BiasTable(PairPositions):
    """One learned bias per head for every 2-D offset between two cells (Bao et al. 2022, BEiT; Liu et al. 2021, Swin).

    The rows: (2h-1) * (2w-1) offsets, row by row; then, for models with a prefix, prefix to cell, cell to prefix,
    prefix to prefix.
    """

    def __init__(self, grid: tuple[int, int], heads: int, has_prefix: bool = True) -> None:
        super().__init__()
        self.grid = grid
        special = 3 if has_prefix else 0
        self.table = nn.Parameter(torch.zeros((2 * grid[0] - 1) * (2 * grid[1] - 1) + special, heads))

    @property
    def num_offsets(self) -> int:
        """Rows of offsets between cells."""
        return (2 * self.grid[0] - 1) * (2 * self.grid[1] - 1)

    def pairs(self, num_prefix: int, cells: Tensor) -> Tensor:
        (h, w), num = self.grid, len(self.table)
        y, x = cells // w, cells % w
        down = y[..., :, None] - y[..., None, :] + (h - 1)
        right = x[..., :, None] - x[..., None, :] + (w - 1)
        if not num_prefix:
            return down * (2 * w - 1) + right
        index = F.pad(down * (2 * w - 1) + right, (num_prefix, 0), value=num - 2)
        index = F.pad(index, (0, 0, num_prefix, 0), value=num - 3)
        index[..., :num_prefix, :num_prefix] = num - 1
        return index

    def forward(self, queries: Tensor, pairs: Tensor) -> Tensor:
        # Picked from the transposed table, so that the last axis is contiguous, as the fused kernels need it.
        bias = self.table.to(queries.dtype).T.contiguous()[:, pairs]  # (heads, n, n) or (heads, B, n, n)
        return bias.unsqueeze(0) if bias.ndim == 3 else bias.transpose(0, 1)

    def resize(self, num_prefix: int, grid: tuple[int, int], mode: Resizing = "bilinear") -> None:
        """Offsets are interpolated in 2-D, evenly spaced; BEiT's own code spaces them geometrically, which keeps near
        offsets sharper. The rows of the prefix are copied."""
        old, new = ((2 * h - 1, 2 * w - 1) for h, w in (self.grid, grid))
        table = self.table.detach()
        offsets, special = table[: self.num_offsets], table[self.num_offsets :]
        self.table = resized_parameter(torch.cat([resize_table(offsets, 0, old, new, mode), special]), self.table)
        self.grid = grid
