"""From pictures to tokens: patches, prefix tokens and positions."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitreous.nn.relative import BiasTable
from vitreous.nn.resizing import Resizing, resize_table, resized_parameter


def lecun_normal_(weight: Tensor) -> Tensor:
    """Truncated normal of variance 1 / inputs, the released code's choice for patches and convolutions."""
    std = math.sqrt(1 / weight[0].numel()) / 0.8796256610342398  # the truncation at 2 sigma narrows it by this
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


class PatchEmbedding(nn.Module):
    """Cuts a map into patches and embeds each by one linear layer (paper, equation 1).

    The weight is laid out as a convolution's, flattened: (D, C * patch height * patch width). One matrix
    product is faster than the convolution it equals.
    """

    def __init__(self, channels: int, width: int, patch: tuple[int, int], bias: bool = True) -> None:
        super().__init__()
        self.patch = patch
        self.linear = nn.Linear(channels * patch[0] * patch[1], width, bias=bias)
        lecun_normal_(self.linear.weight)
        if bias:
            nn.init.zeros_(self.linear.bias)

    def forward(self, maps: Tensor) -> Tensor:
        B, C, H, W = maps.shape
        ph, pw = self.patch
        patches = maps.reshape(B, C, H // ph, ph, W // pw, pw).permute(0, 2, 4, 1, 3, 5)  # (B, h, w, C, ph, pw)
        tokens: Tensor = self.linear(patches.reshape(B, (H // ph) * (W // pw), C * ph * pw))
        return tokens  # (B, h*w, D)

    def filters(self) -> Tensor:
        """(D, C, ph, pw): the weight as that of a convolution."""
        return self.linear.weight.view(len(self.linear.weight), -1, *self.patch)


class Prefix(nn.Module):
    """Learned tokens before the patches: class and distillation tokens, then registers."""

    def __init__(self, num: int, width: int, num_registers: int = 0) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.zeros(num + num_registers, width))  # the class token starts at zero
        # Registers have no positions to tell them apart, so they must not start equal.
        nn.init.normal_(self.tokens.detach()[num:], std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        prefix = self.tokens.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        return torch.cat([prefix, tokens], dim=1)  # (B, P + n, D)


# ---- Absolute positions. Each returns a table (P + h*w, D), prefix first, the cells in reading order.


class Positions(nn.Module):
    """Vectors added to the tokens, one per place."""

    num_prefix: int
    grid: tuple[int, int]

    def forward(self) -> Tensor:
        raise NotImplementedError

    def resize(self, grid: tuple[int, int], mode: Resizing = "bilinear") -> None:
        """Interpolate to another grid, in place. Entries of prefix tokens stay as they are."""
        raise NotImplementedError


class LearnedPositions(Positions):
    """One learned vector per place: the paper's default (section 3.1)."""

    def __init__(self, num_prefix: int, grid: tuple[int, int], width: int) -> None:
        super().__init__()
        self.num_prefix, self.grid = num_prefix, grid
        self.table = nn.Parameter(torch.empty(num_prefix + grid[0] * grid[1], width))
        nn.init.normal_(self.table, std=0.02)

    def forward(self) -> Tensor:
        return self.table

    def resize(self, grid: tuple[int, int], mode: Resizing = "bilinear") -> None:
        self.table = resized_parameter(
            resize_table(self.table.detach(), self.num_prefix, self.grid, grid, mode), self.table
        )
        self.grid = grid


class LearnedPositions2d(Positions):
    """A learned half-vector per column and one per row, concatenated (paper, D.4). Prefix tokens have their own."""

    def __init__(self, num_prefix: int, grid: tuple[int, int], width: int) -> None:
        super().__init__()
        self.num_prefix, self.grid = num_prefix, grid
        self.columns = nn.Parameter(torch.empty(grid[1], width // 2))  # the paper's X
        self.rows = nn.Parameter(torch.empty(grid[0], width - width // 2))  # the paper's Y
        self.prefix = nn.Parameter(torch.empty(num_prefix, width)) if num_prefix else None
        for table in self.parameters():
            nn.init.normal_(table, std=0.02)

    def forward(self) -> Tensor:
        h, w = self.grid
        cells = torch.cat([self.columns.expand(h, w, -1), self.rows[:, None].expand(h, w, -1)], dim=-1).flatten(0, 1)
        return cells if self.prefix is None else torch.cat([self.prefix, cells])

    def resize(self, grid: tuple[int, int], mode: Resizing = "bilinear") -> None:
        (h, w), (new_h, new_w) = self.grid, grid
        self.rows = resized_parameter(resize_table(self.rows.detach(), 0, (h, 1), (new_h, 1), mode), self.rows)
        self.columns = resized_parameter(resize_table(self.columns.detach(), 0, (w, 1), (new_w, 1), mode), self.columns)
        self.grid = grid


class SineCosinePositions(Positions):
    """Fixed sines and cosines of the column, then of the row (Chen et al. 2021, MoCo v3). Zero for the prefix.

    The table is saved with the weights, since after a resize it differs from that of a new grid.
    """

    table: Tensor

    def __init__(self, num_prefix: int, grid: tuple[int, int], width: int) -> None:
        super().__init__()
        if width % 4:
            raise ValueError(f"sine-cosine positions need a width that is a multiple of 4, not {width}")
        self.num_prefix, self.grid = num_prefix, grid
        table = torch.empty(num_prefix + grid[0] * grid[1], width)
        if not table.is_meta:  # a meta model needs no sines, for which torch would import its compiler
            table[:num_prefix], table[num_prefix:] = 0, _sines(grid, width)
        self.register_buffer("table", table)

    def forward(self) -> Tensor:
        return self.table

    def resize(self, grid: tuple[int, int], mode: Resizing = "bilinear") -> None:
        self.table = resize_table(self.table, self.num_prefix, self.grid, grid, mode)
        self.grid = grid


def _sines(grid: tuple[int, int], width: int) -> Tensor:
    """(h*w, D) float64."""
    h, w = grid
    frequencies = 10000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    y, x = torch.meshgrid(torch.arange(h, dtype=torch.float64), torch.arange(w, dtype=torch.float64), indexing="ij")
    angles = [place.flatten()[:, None] * frequencies for place in (x, y)]  # (h*w, D/4) each
    return torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)


class Placement(nn.Module):
    """Where absolute positions are added: at the stem, or in every layer with its own table or a shared one (D.4).

    It also holds a table of relative biases that all layers share.
    """

    def __init__(
        self, tables: Sequence[Positions], every_layer: bool = False, bias_table: BiasTable | None = None
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(tables)  # none, one, or one per layer
        self.every_layer = every_layer
        self.bias_table = bias_table

    def at_depth(self, depth: int, grid: tuple[int, int] | None = None, mode: Resizing = "bilinear") -> Tensor | None:
        """The table to add before block `depth` (0 = the first), if any; interpolated if the grid differs."""
        table = self.table_at(depth)
        if table is None or (depth > 0 and not self.every_layer):
            return None
        return resize_table(table(), table.num_prefix, table.grid, grid or table.grid, mode)

    def table_at(self, depth: int) -> Positions | None:
        """The table that was added to the tokens of a block, before it or at the stem."""
        if not len(self.tables):
            return None
        table = self.tables[min(depth, len(self.tables) - 1)]
        assert isinstance(table, Positions)
        return table

    def resize(self, grid: tuple[int, int], mode: Resizing = "bilinear") -> None:
        for table in self.tables:
            assert isinstance(table, Positions)
            table.resize(grid, mode)


def position_rows(table: Tensor, num_prefix: int, num_registers: int, at: Tensor | None) -> Tensor:
    """Rows of a table for a sequence: prefix, registers (which have no position), and the cells `at`."""
    if not num_registers and at is None:
        return table
    prefix, cells = table[:num_prefix], table[num_prefix:]
    prefix = torch.cat([prefix, prefix.new_zeros(num_registers, table.shape[1])]) if num_registers else prefix
    if at is None:
        return torch.cat([prefix, cells])
    return torch.cat([prefix.expand(at.shape[0], -1, -1), cells[at]], dim=1)  # (B, P + n, D)
