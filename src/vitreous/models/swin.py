"""Swin Transformer (Liu et al. 2021): attention inside windows that shift from block to block, over maps that halve
from stage to stage.

As the released code does: maps are padded to whole windows with zeros after the norm, and what is rolled around the
edge is masked. Libraries differ in what they do with a window that is no smaller than its map: see `SmallMaps`.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.models.base import EncoderSettings, Features, Grid, PatchEncoder, run
from vitreous.models.layout import AttentionLayer, Layout
from vitreous.models.names import SWIN_SIZES
from vitreous.models.pyramids import PyramidSettings, pyramid
from vitreous.nn import window_attention
from vitreous.nn.attend import attend
from vitreous.nn.attention import Attention
from vitreous.nn.blocks import Block, Mlp, depth_rates, small_weights
from vitreous.nn.relative import BiasTable
from vitreous.nn.tokens import PatchEmbedding

# If a side of a map is no larger than a window. shrink: the window shrinks to it, and does not shift along it (timm).
# square: it shrinks to the lesser side in both directions, and shifts in neither (the released code, transformers).
# pad: it keeps its size, and does not shift along it (torchvision). shift: it keeps its size, and shifts (segmenters).
SmallMaps = Literal["shrink", "square", "pad", "shift"]


class Windows:
    """How a map of (h, w) is cut: windows of `size`, rolled by `shift`, after padding to whole windows."""

    def __init__(self, grid: tuple[int, int], window: int, shifted: bool, small: SmallMaps = "shrink") -> None:
        self.grid, by = grid, window // 2 if shifted else 0
        if small == "square" and min(grid) <= window:
            self.size, self.shift = (min(grid), min(grid)), (0, 0)
        else:
            (h, w), (down, right) = grid, (by if small == "shift" or side > window else 0 for side in grid)
            self.size = (min(window, h), min(window, w)) if small == "shrink" else (window, window)
            self.shift = down, right
        self.count = math.ceil(grid[0] / self.size[0]), math.ceil(grid[1] / self.size[1])

    @property
    def padding(self) -> tuple[int, int]:
        down, right = (n * size - side for n, size, side in zip(self.count, self.size, self.grid, strict=True))
        return down, right

    def padded(self, x: Tensor) -> Tensor:
        """(B, h, w, D), to whole windows."""
        down, right = self.padding
        return F.pad(x, (0, 0, 0, right, 0, down)) if down or right else x

    def cropped(self, x: Tensor) -> Tensor:
        """The way back."""
        return x[:, : self.grid[0], : self.grid[1]] if any(self.padding) else x

    def rolled(self, x: Tensor) -> Tensor:
        """Padded and rolled."""
        x = self.padded(x)
        return torch.roll(x, (-self.shift[0], -self.shift[1]), (1, 2)) if any(self.shift) else x

    def unrolled(self, x: Tensor) -> Tensor:
        """The way back."""
        return self.cropped(torch.roll(x, self.shift, (1, 2)) if any(self.shift) else x)

    def cells(self) -> Tensor:
        """(windows, N): the cell of the map, in reading order, that each place of each window is; -1 is padding."""
        numbers = torch.arange(1, self.grid[0] * self.grid[1] + 1).view(1, *self.grid, 1)
        (rows, columns), (h, w) = self.count, self.size
        rolled = self.rolled(numbers).view(rows, h, columns, w) - 1
        return rolled.transpose(1, 2).reshape(rows * columns, h * w)

    def hidden(self, like: Tensor) -> Tensor | None:
        """(windows, 1, N, N) to add to the logits: -inf where two places of a window came together by rolling."""
        if not any(self.shift):
            return None
        (rows, columns), (h, w) = self.count, self.size
        down, right = (self._parts(axis, like.device) for axis in (0, 1))
        parts = down.view(rows, 1, h, 1) * 3 + right.view(1, columns, 1, w)  # (rows, columns, h, w)
        parts = parts.reshape(rows * columns, 1, h * w)
        apart = parts.unsqueeze(-1) != parts.unsqueeze(-2)
        return torch.zeros(apart.shape, dtype=like.dtype, device=like.device).masked_fill(apart, -math.inf)

    def _parts(self, axis: int, device: torch.device) -> Tensor:
        """The places along an axis after rolling: 0 before the last window, 1 in it, 2 what came around the edge."""
        length, shift = self.count[axis] * self.size[axis], self.shift[axis]
        places = torch.arange(length, device=device)
        if not shift:
            return torch.zeros_like(places)
        return (places >= length - self.size[axis]).long() + (places >= length - shift).long()


class WindowAttention(Attention):
    """Attention among the places of a window, with a learned bias for every offset."""

    bias_table: BiasTable

    def __init__(self, width: int, heads: int, window: int, shifted: bool, small: SmallMaps = "shrink") -> None:
        super().__init__(width, heads, bias_table=BiasTable((window, window), heads, has_prefix=False))
        self.shifted, self.small = shifted, small

    def forward(self, x: Tensor, pairs: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """(B, h, w, D) -> (B, h, w, D). Who calls has nothing to add: the windows follow from the map."""
        windows = self.windows((x.shape[1], x.shape[2]))
        is_fused = window_attention.serves(x, self.width // self.heads, windows.size)
        attended = self._fused(x, windows) if is_fused else self._plain(x, windows)
        out: Tensor = self.dropout(self.project_out(attended))
        return out

    def _fused(self, x: Tensor, windows: Windows) -> Tensor:
        """By one kernel that reads and writes shifted windows where they lie: the map is padded and never rolled."""
        cut = (*windows.size, *windows.shift, *self.bias_table.grid)
        projected = self.project_in(windows.padded(x))
        return windows.cropped(window_attention.attend(projected, self.bias_table.table.float(), cut))

    def _plain(self, x: Tensor, windows: Windows) -> Tensor:
        # Projected before cutting, so that windows and heads become one axis in the only copy: what is added to the
        # logits is then the same for every picture, and is never repeated for a batch.
        q, k, v = self._cut(self.project_in(windows.rolled(x)), windows)  # (B, windows * heads, N, d) each
        attended = attend(q, k, v, self._added_in(windows, q))
        return windows.unrolled(self._joined(attended, windows))

    def windows(self, grid: tuple[int, int]) -> Windows:
        return Windows(grid, self.bias_table.grid[0], self.shifted, self.small)

    def weights(
        self,
        x: Tensor,
        rows: Tensor | slice | None = None,
        pairs: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """(B, h, w, D) -> (B, windows * heads, r, N): rows are counted in each window. For inspection only."""
        windows = self.windows((x.shape[1], x.shape[2]))
        q, k, _ = self._cut(self.project_in(windows.rolled(x)), windows)
        rows = slice(None) if rows is None else rows
        logits = (q[:, :, rows] * q.shape[-1] ** -0.5) @ k.transpose(-2, -1) + self._added_in(windows, q)[:, :, rows]
        out: Tensor = logits.softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        return out

    def _cut(self, projected: Tensor, windows: Windows) -> tuple[Tensor, Tensor, Tensor]:
        (rows, columns), (h, w) = windows.count, windows.size
        parts = projected.view(-1, rows, h, columns, w, 3, self.heads, self.width // self.heads)
        parts = parts.permute(5, 0, 1, 3, 6, 2, 4, 7)  # (3, B, rows, columns, heads, h, w, d)
        q, k, v = parts.reshape(3, -1, rows * columns * self.heads, h * w, self.width // self.heads).unbind(0)
        return q, k, v

    def _joined(self, heads: Tensor, windows: Windows) -> Tensor:
        (rows, columns), (h, w) = windows.count, windows.size
        parts = heads.view(-1, rows, columns, self.heads, h, w, self.width // self.heads).permute(0, 1, 4, 2, 5, 3, 6)
        return parts.reshape(-1, rows * h, columns * w, self.width)

    def _added_in(self, windows: Windows, queries: Tensor) -> Tensor:
        """(1, windows * heads, N, N)."""
        (h, w), across = windows.size, self.bias_table.grid[1]
        down, right = torch.arange(h, device=queries.device), torch.arange(w, device=queries.device)
        cells = (down[:, None] * across + right).flatten()  # of a small window, among those of the whole one
        table: Tensor = self.bias_table(queries, self.bias_table.pairs(0, cells))  # (1, heads, N, N)
        hidden = windows.hidden(queries)
        number = windows.count[0] * windows.count[1]
        added = table.expand(number, -1, -1, -1) if hidden is None else table + hidden
        return added.reshape(1, number * self.heads, h * w, h * w)

    def described(self, name: str, place: Layout) -> AttentionLayer:
        windows = self.windows(place.grid)
        (rows, columns), (h, w) = windows.count, windows.size
        hidden = windows.hidden(torch.zeros(()))
        words = f"windows of {h} x {w}{', shifted' if any(windows.shift) else ''}" if rows * columns > 1 else ""
        return AttentionLayer(
            name=name,
            module=self,
            heads=self.heads,
            looking=place,
            seen=place,
            queries=windows.cells(),
            keys=windows.cells(),
            hidden=None if hidden is None else hidden[:, 0].isinf(),
            grouped=words,
            biases=self.bias_table,
        )


class PatchMerging(nn.Module):
    """Four neighbours become one place of twice the width. An odd side is padded with zeros."""

    def __init__(self, width: int, norm_epsilon: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width, eps=norm_epsilon)
        self.linear = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, D = x.shape
        x = F.pad(x, (0, 0, 0, W % 2, 0, H % 2)) if H % 2 or W % 2 else x
        fours = x.view(B, (H + 1) // 2, 2, (W + 1) // 2, 2, D).permute(0, 1, 3, 4, 2, 5)  # the rows of a column first
        out: Tensor = self.linear(self.norm(fours.flatten(3)))
        return out


class Stage(nn.Module):
    def __init__(self, merging: PatchMerging | None, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.merging = merging
        self.blocks = nn.ModuleList(blocks)


class Swin(PatchEncoder):
    """`maps` are the outputs of the stages; the last one is normed, and its mean is `pooled`."""

    def __init__(self, settings: "SwinSettings") -> None:
        super().__init__()
        widths = [settings.width * 2**i for i in range(len(settings.depths))]
        self.width, self.channels, self.picture_px = widths[-1], settings.channels, settings.picture_px
        self.token_width = settings.width
        self.outputs = pyramid(widths, settings.patch, normed="last")
        self.patches = PatchEmbedding(settings.channels, settings.width, (settings.patch, settings.patch))
        self.patch_norm = nn.LayerNorm(settings.width, eps=settings.norm_epsilon)
        rates = iter(depth_rates(settings.stochastic_depth, sum(settings.depths)))
        self.levels = nn.ModuleList(
            Stage(
                None if i == 0 else PatchMerging(widths[i - 1], settings.norm_epsilon),
                [settings.block(i, shifted=j % 2 == 1, rate=next(rates)) for j in range(depth)],
            )
            for i, depth in enumerate(settings.depths)
        )
        self.norm = nn.LayerNorm(self.width, eps=settings.norm_epsilon)
        small_weights(self)

    def embed(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Pictures are padded to whole patches with zeros."""
        patch, (H, W) = self.patches.patch[0], images.shape[-2:]
        images = F.pad(images, (0, -W % patch, 0, -H % patch)) if H % patch or W % patch else images
        return self.patch_norm(self.patches(images)), Grid(math.ceil(H / patch), math.ceil(W / patch))

    def features_of(self, tokens: Tensor, grid: Grid) -> Features:
        x, maps = tokens.view(-1, *grid, self.token_width), []  # (B, h, w, D)
        for level in self._stages():
            x = x if level.merging is None else run(level.merging, x, checkpointing=self.checkpointing)
            for block in level.blocks:
                x = run(block, x, checkpointing=self.checkpointing)
            maps.append(x)
        maps[-1] = self.norm(x)
        return Features(
            maps=tuple(each.permute(0, 3, 1, 2) for each in maps),  # (B, D, h, w)
            prefix=None,
            pooled=maps[-1].mean(dim=(1, 2)),
        )

    def _stages(self) -> list[Stage]:
        return [cast(Stage, level) for level in self.levels]

    def stages(self) -> list[nn.Module]:
        found: list[nn.Module] = [nn.ModuleList([self.patches, self.patch_norm])]
        for level in self._stages():
            first, *others = level.blocks
            found += [first if level.merging is None else nn.ModuleList([level.merging, first]), *others]
        return found

    def attention_layers(self) -> list[AttentionLayer]:
        grid = Grid(*(math.ceil(side / self.patches.patch[0]) for side in self.picture_px))
        found = []
        for number, (level, output) in enumerate(zip(self._stages(), self.outputs, strict=True), start=1):
            grid = grid if level.merging is None else Grid(math.ceil(grid.h / 2), math.ceil(grid.w / 2))
            place = Layout(grid=grid, num_prefix=0, picture_px=self.picture_px, pitch_px=output.stride, pool="mean")
            for block_number, block in enumerate(level.blocks, start=1):
                attention = cast(WindowAttention, cast(Block, block).attention)
                name = f"stage {number}, block {block_number}"
                found.append(attention.described(name, place))
        return found

    def first_filters(self) -> Tensor:
        return self.patches.filters()

    def resize_windows(self, window: int) -> None:
        """Prepare, in place, for windows of another size: the biases of offsets are interpolated, bicubically as the
        released code does."""
        for module in self.modules():
            if isinstance(module, WindowAttention):
                module.bias_table.resize(0, (window, window), "bicubic")

    def fit_to(self, settings: EncoderSettings) -> None:
        super().fit_to(settings)
        self.resize_windows(settings.value("window"))


@dataclass(frozen=True, kw_only=True)
class SwinSettings(PyramidSettings):
    """A Swin Transformer: Swin-T by default."""

    family: ClassVar[str] = "Swin"

    width: int = 96  # of the first stage; each later one has twice as much
    depths: tuple[int, ...] = (2, 2, 6, 2)  # blocks in each stage
    heads: tuple[int, ...] = (3, 6, 12, 24)  # of the attention in each stage
    window: int = 7  # side of a window, in places of the map
    small_maps: SmallMaps = "shrink"  # on a map no larger than a window: as timm, original, torchvision, segmenters
    mlp_factor: int = 4  # hidden width of the MLPs, as a multiple of the stage's width
    stochastic_depth: float = 0.0  # rate at the last block, growing linearly from 0
    norm_epsilon: float = 1e-5  # of the layer norms

    @property
    def name(self) -> str:
        for name, sizes in SWIN_SIZES.items():
            if all(self.value(field) == value for field, value in sizes.items()):
                return f"Swin-{name.removeprefix('swin_').upper()} with windows of {self.window}"
        depths = "+".join(map(str, self.depths))
        return f"Swin of width {self.width}, depths {depths}, windows of {self.window}"

    def describe(self) -> str:
        return (
            f"Swin, width {self.width}, blocks {'+'.join(map(str, self.depths))}, windows of {self.window}, "
            f"patches of {self.patch} px"
        )

    @property
    def maps(self) -> tuple[Grid, ...]:
        """The size of each stage's map, the last of which is the smallest."""
        return tuple(Grid(*(math.ceil(side / px) for side in self.picture_px)) for px in self.strides)

    def for_side(self, side_px: int, places: int = 4) -> Self:
        """With windows that fill its maps, where some of about their size do: padding costs as much as pixels."""
        made = super().for_side(side_px, places)
        near = range(math.ceil(made.window / 2), made.window + 2)
        fill = [window for window in near if all(grid.h <= window or grid.h % window == 0 for grid in made.maps)]
        window = min(fill, key=lambda window: abs(window - made.window), default=made.window)
        return dataclasses.replace(made, window=window)

    def as_trained(self, trained: EncoderSettings) -> Self:
        window = trained.value("window") if "window" in trained.field_names() else self.window
        return dataclasses.replace(super().as_trained(trained), window=window)

    def block(self, stage: int, shifted: bool, rate: float) -> Block:
        width = self.width * 2**stage
        attention = WindowAttention(width, self.heads[stage], self.window, shifted, self.small_maps)
        mlp = Mlp(width, self.mlp_factor * width)
        return Block(attention, mlp, self.norm_epsilon, stochastic_depth=rate)

    def build(self) -> Swin:
        if not self.depths or len(self.depths) != len(self.heads) or min(*self.depths, *self.heads) < 1:
            raise UserError(f"depths {self.depths} and heads {self.heads}: one of each per stage, all at least 1")
        if min(self.window, self.patch, self.width, self.mlp_factor, self.channels) < 1:
            raise UserError("window, patch, width, mlp_factor and channels must be at least 1")
        if self.small_maps not in get_args(SmallMaps):
            raise UserError(f"small_maps is {self.small_maps!r}: one of {', '.join(get_args(SmallMaps))}")
        if any(self.width * 2**i % heads for i, heads in enumerate(self.heads)):
            raise UserError(f"width {self.width}: a stage's width must be a multiple of its heads, {self.heads}")
        return Swin(self)
