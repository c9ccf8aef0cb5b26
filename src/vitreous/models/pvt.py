"""Pyramid Vision Transformers: v1 (Wang et al. 2021) and v2 (Wang et al. 2022).

Every place looks at all others, of which keys and values are made fewer by a convolution (spatial reduction). v1 cuts
patches, adds learned positions in each stage and pools a class token that comes in at the last. v2 lets patches
overlap, has a depthwise convolution in its MLPs in place of positions, and pools the mean; its linear variant reduces
to 7 x 7 places by averaging, whatever the picture's size.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.models.base import Features, Grid, PatchEncoder, run
from vitreous.models.layout import AttentionLayer, Layout, one_group
from vitreous.models.names import PVT_SIZES
from vitreous.models.pyramids import PyramidSettings, pyramid
from vitreous.nn.attend import attend
from vitreous.nn.blocks import Mlp, Repeated, StochasticDepth, depth_rates, small_weights
from vitreous.nn.channels_last import depthwise, patchwise
from vitreous.nn.resizing import Resizing, resize_table
from vitreous.nn.tokens import LearnedPositions, Prefix

Generation = Literal["v1", "v2", "v2-linear"]
POOLED = 7  # places a side that the linear variant's keys and values are averaged to


class KeysValues(nn.Linear):
    num_fused = 2  # matrices in its rows, for an optimizer that treats matrices one by one


class ReducedAttention(nn.Module):
    """Queries from all tokens; keys and values from a coarser map of them."""

    def __init__(self, width: int, heads: int, reduction: int, linear: bool, norm_epsilon: float) -> None:
        super().__init__()
        self.width, self.heads, self.reduction, self.linear = width, heads, reduction, linear
        self.queries, self.keys_values = nn.Linear(width, width), KeysValues(width, 2 * width)
        self.project_out = nn.Linear(width, width)
        reduces, kernel = linear or reduction > 1, 1 if linear else reduction
        self.reduce = nn.Conv2d(width, width, kernel, stride=kernel) if reduces else None
        self.reduce_norm = nn.LayerNorm(width, eps=norm_epsilon) if reduces else None

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, P + h*w, D) -> (B, P + h*w, D)."""
        q = self._heads_apart(self.queries(x))
        k, v = (self._heads_apart(part) for part in self.keys_values(self._reduced(x, grid)).chunk(2, dim=-1))
        attended = attend(q, k, v)
        out: Tensor = self.project_out(attended.transpose(1, 2).flatten(2))
        return out

    def weights(self, x: Tensor, rows: Tensor | slice | None, grid: Grid) -> Tensor:
        """(B, heads, r, n): the softmax rows of the queries asked for (all by default). For inspection only."""
        q = self._heads_apart(self.queries(x[:, slice(None) if rows is None else rows]))
        k = self._heads_apart(self.keys_values(self._reduced(x, grid)).chunk(2, dim=-1)[0])
        logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        out: Tensor = logits.softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        return out

    def keys_of(self, place: Layout) -> Layout:
        """Where keys lie, of tokens that lie there."""
        if self.reduce is None:
            return place
        down, right = place.pitch_px
        if self.linear:
            grid, pitch = Grid(POOLED, POOLED), (down * place.grid.h / POOLED, right * place.grid.w / POOLED)
        else:
            grid = Grid(*(side // self.reduction for side in place.grid))
            pitch = down * self.reduction, right * self.reduction
        return dataclasses.replace(place, grid=grid, num_prefix=0, pool="mean", pitch_px=pitch)

    def _reduced(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, n, D)."""
        if self.reduce is None or self.reduce_norm is None:
            return x
        maps = as_map(x, grid)
        maps = F.adaptive_avg_pool2d(maps, POOLED) if self.linear else maps
        tokens: Tensor = self.reduce_norm(patchwise(maps.permute(0, 2, 3, 1), self.reduce).flatten(1, 2))
        return F.gelu(tokens) if self.linear else tokens

    def _heads_apart(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, heads, N, d)."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class ConvMlp(nn.Module):
    """v2's MLP: a depthwise convolution between its layers tells places apart."""

    def __init__(self, width: int, mlp_width: int, linear: bool) -> None:
        super().__init__()
        self.expand, self.contract = nn.Linear(width, mlp_width), nn.Linear(mlp_width, width)
        self.conv = nn.Conv2d(mlp_width, mlp_width, 3, padding=1, groups=mlp_width)
        self.linear = linear  # the linear variant has a ReLU before the convolution, too

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        hidden = self.expand(x)
        maps = (F.relu(hidden) if self.linear else hidden).unflatten(1, grid)  # (B, h, w, mlp width)
        out: Tensor = self.contract(depthwise(maps, self.conv, gelu=True).flatten(1, 2))
        return out


class PlainMlp(Mlp):
    """v1's: the same for every token."""

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        return super().forward(x)


class PVTBlock(Repeated):
    def __init__(self, attention: ReducedAttention, mlp: ConvMlp | PlainMlp, norm_epsilon: float, rate: float) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(attention.width, eps=norm_epsilon), attention
        self.mlp_norm, self.mlp = nn.LayerNorm(attention.width, eps=norm_epsilon), mlp
        self.attention_depth, self.mlp_depth = StochasticDepth(rate), StochasticDepth(rate)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        x = x + self.attention_depth(self.attention(self.attention_norm(x), grid))
        out: Tensor = x + self.mlp_depth(self.mlp(self.mlp_norm(x), grid))
        return out


class Stage(nn.Module):
    """Patches of the map before, positions and a class token where there are some, blocks; v2 norms what leaves."""

    def __init__(
        self,
        *,
        patches: nn.Conv2d,
        patch_norm: nn.LayerNorm,
        prefix: Prefix | None,
        positions: LearnedPositions | None,
        blocks: Sequence[PVTBlock],
        norm: nn.LayerNorm | None,
    ) -> None:
        super().__init__()
        self.patches, self.patch_norm, self.prefix, self.positions = patches, patch_norm, prefix, positions
        self.blocks, self.norm = nn.ModuleList(blocks), norm

    @property
    def least(self) -> int:
        """Places a side that its map must have."""
        attention = cast(PVTBlock, self.blocks[0]).attention
        return 1 if attention.linear else attention.reduction

    def grid(self, before: tuple[int, int]) -> Grid:
        """Of its map, from that of the map before."""
        kernel, stride = self.patches.kernel_size[0], self.patches.stride[0]
        padding = kernel // 2 if kernel > stride else 0  # where patches overlap
        h, w = ((side + 2 * padding - kernel) // stride + 1 for side in before)
        return Grid(h, w)

    def embed(self, maps: Tensor) -> tuple[Tensor, Grid]:
        """(B, C, h, w) -> (B, h'*w', D)."""
        maps = self.patches(maps)
        return self.patch_norm(as_tokens(maps)), Grid(*maps.shape[-2:])

    def forward(self, tokens: Tensor, grid: Grid, checkpointing: bool) -> Tensor:
        """(B, h*w, D) -> (B, P + h*w, D)."""
        x = tokens if self.prefix is None else self.prefix(tokens)
        if self.positions is not None:
            table = resize_table(self.positions(), self.positions.num_prefix, self.positions.grid, grid)
            x = x + table.to(x.dtype)
        for block in self.blocks:
            x = run(block, x, grid, checkpointing=checkpointing)
        return x if self.norm is None else self.norm(x)


def as_map(tokens: Tensor, grid: Grid) -> Tensor:
    """(B, P + h*w, D) -> (B, D, h, w), without the prefix."""
    cells = tokens[:, tokens.shape[1] - grid.cells :]
    return cells.transpose(1, 2).reshape(tokens.shape[0], -1, *grid)


def as_tokens(maps: Tensor) -> Tensor:
    """(B, D, h, w) -> (B, h*w, D)."""
    return maps.flatten(2).transpose(1, 2)


class PVT(PatchEncoder):
    """`maps` are the outputs of the stages. v1's last one and its class token are normed, v2's all are."""

    def __init__(self, settings: "PVTSettings") -> None:
        super().__init__()
        self.width, self.channels, self.picture_px = settings.widths[-1], settings.channels, settings.picture_px
        self.token_width = settings.widths[0]
        self.outputs = pyramid(settings.widths, settings.patch, normed="last" if settings.generation == "v1" else "all")
        self.num_prefix = 1 if settings.generation == "v1" else 0
        rates = iter(depth_rates(settings.stochastic_depth, sum(settings.depths)))
        self.levels = nn.ModuleList(
            settings.stage(i, [next(rates) for _ in range(depth)]) for i, depth in enumerate(settings.depths)
        )
        self.norm = nn.LayerNorm(self.width, eps=settings.norm_epsilon) if settings.generation == "v1" else None
        small_weights(self)
        self.resize(settings.picture_px)

    def embed(self, images: Tensor) -> tuple[Tensor, Grid]:
        self._grids((images.shape[-2], images.shape[-1]))  # small crops come here too
        return self._stages()[0].embed(images)

    def features_of(self, tokens: Tensor, grid: Grid) -> Features:
        maps: list[Tensor] = []
        for level in self._stages():
            if maps:
                tokens, grid = level.embed(maps[-1])
            tokens = level(tokens, grid, self.checkpointing)
            if level is self.levels[-1] and self.norm is not None:
                tokens = self.norm(tokens)
            maps.append(as_map(tokens, grid))
        prefix = tokens[:, : self.num_prefix] if self.num_prefix else None
        pooled = tokens.mean(dim=1) if prefix is None else prefix[:, 0]
        return Features(maps=tuple(maps), prefix=prefix, pooled=pooled)

    def _stages(self) -> list[Stage]:
        return [cast(Stage, level) for level in self.levels]

    def stages(self) -> list[nn.Module]:
        found: list[nn.Module] = []
        for level in self._stages():
            first, *others = level.blocks
            embedding = [part for part in (level.patches, level.patch_norm, level.prefix, level.positions) if part]
            found += [nn.ModuleList([*embedding, first]), *others]
            if level.norm is not None:
                found[-1] = nn.ModuleList([found[-1], level.norm])
        return found

    def attention_layers(self) -> list[AttentionLayer]:
        found, places = [], zip(self._stages(), self.outputs, self._grids(self.picture_px), strict=True)
        for number, (level, output, grid) in enumerate(places, start=1):
            place = Layout(
                grid=grid,
                num_prefix=0 if level.prefix is None else 1,
                picture_px=self.picture_px,
                pitch_px=output.stride,
                pool="mean" if level.prefix is None else "class",
            )
            for block_number, block in enumerate(level.blocks, start=1):
                attention = cast(PVTBlock, block).attention
                seen = attention.keys_of(place)
                layer = AttentionLayer(
                    name=f"stage {number}, block {block_number}",
                    module=attention,
                    heads=attention.heads,
                    looking=place,
                    seen=seen,
                    queries=one_group(place),
                    keys=one_group(seen),
                    positions=level.positions,
                )
                found.append(layer)
        return found

    def first_filters(self) -> Tensor:
        return self._stages()[0].patches.weight

    def resize(self, picture_px: tuple[int, int], mode: str = "bilinear") -> None:
        if mode not in get_args(Resizing):
            raise UserError(f"unknown resizing of positions {mode!r}: {', '.join(get_args(Resizing))}")
        for level, grid in zip(self._stages(), self._grids(picture_px), strict=True):
            if level.positions is not None:
                level.positions.resize(grid, cast(Resizing, mode))
        self.picture_px = picture_px

    def _grids(self, picture_px: tuple[int, int]) -> list[Grid]:
        """Of the stages' maps, for pictures of a size that all of them can reduce."""
        found: list[Grid] = []
        for level in self._stages():
            found.append(level.grid(found[-1] if found else picture_px))
            if min(found[-1]) < level.least:
                raise UserError(
                    f"a picture of {picture_px[0]} x {picture_px[1]} is too small: a stage's map of {found[-1].h} x "
                    f"{found[-1].w} is reduced by {level.least}; choose larger pictures or a smaller patch"
                )
        return found


@dataclass(frozen=True, kw_only=True)
class PVTSettings(PyramidSettings):
    """A Pyramid Vision Transformer: PVT v2 B2 by default."""

    family: ClassVar[str] = "PVT"

    generation: Generation = "v2"  # v1, v2, or v2 with linear attention
    widths: tuple[int, ...] = (64, 128, 320, 512)  # of the stages
    depths: tuple[int, ...] = (3, 4, 6, 3)  # blocks in each stage
    heads: tuple[int, ...] = (1, 2, 5, 8)  # of the attention in each stage
    mlp_factors: tuple[int, ...] = (8, 8, 4, 4)  # hidden width of each stage's MLPs, as a multiple of its width
    reductions: tuple[int, ...] = (8, 4, 2, 1)  # side of the square that becomes one key, in positions of the map
    stochastic_depth: float = 0.0  # rate at the last block, growing linearly from 0
    norm_epsilon: float = 1e-6  # of the layer norms
    conv_norm_epsilon: float = 1e-5  # of those that follow a convolution, in patches and reductions

    @property
    def name(self) -> str:
        for name, sizes in PVT_SIZES.items():
            if all(self.value(field) == value for field, value in sizes.items()):
                return name.upper().replace("_", "-").replace("LINEAR", "linear").replace("TI", "Ti")
        widths, depths = ("+".join(map(str, each)) for each in (self.widths, self.depths))
        return f"PVT {self.generation} of widths {widths}, depths {depths}"

    def describe(self) -> str:
        widths, depths = ("+".join(map(str, each)) for each in (self.widths, self.depths))
        return f"PVT {self.generation}, widths {widths}, blocks {depths}, first step {self.patch} px"

    def stage(self, number: int, rates: Sequence[float]) -> Stage:
        width, is_last = self.widths[number], number == len(self.widths) - 1
        before, stride = (self.channels, self.patch) if number == 0 else (self.widths[number - 1], 2)
        first = self.generation == "v1"
        kernel = stride if first else 2 * stride - 1  # v2: 7 px for steps of 4, 3 for steps of 2
        num_prefix = 1 if first and is_last else 0
        return Stage(
            patches=nn.Conv2d(before, width, kernel, stride=stride, padding=0 if first else kernel // 2),
            patch_norm=nn.LayerNorm(width, eps=self.conv_norm_epsilon),
            prefix=Prefix(num_prefix, width) if num_prefix else None,
            positions=LearnedPositions(num_prefix, self.grid(number), width) if first else None,
            blocks=[self._block(number, rate) for rate in rates],
            norm=None if first else nn.LayerNorm(width, eps=self.norm_epsilon),
        )

    def grid(self, number: int) -> tuple[int, int]:
        """Of a stage of v1, whose patches do not overlap."""
        stride = self.strides[number]
        return max(1, self.picture_px[0] // stride), max(1, self.picture_px[1] // stride)

    def _block(self, number: int, rate: float) -> PVTBlock:
        width, linear = self.widths[number], self.generation == "v2-linear"
        attention = ReducedAttention(width, self.heads[number], self.reductions[number], linear, self.conv_norm_epsilon)
        hidden = self.mlp_factors[number] * width
        mlp = PlainMlp(width, hidden) if self.generation == "v1" else ConvMlp(width, hidden, linear)
        return PVTBlock(attention, mlp, self.norm_epsilon, rate)

    def build(self) -> PVT:
        each = (self.widths, self.depths, self.heads, self.mlp_factors, self.reductions)
        if not self.depths or len({len(one) for one in each}) > 1 or min(min(one) for one in each) < 1:
            raise UserError("widths, depths, heads, mlp_factors and reductions: one of each per stage, all at least 1")
        if min(self.patch, self.channels) < 1:
            raise UserError("patch and channels must be at least 1")
        if any(width % heads for width, heads in zip(self.widths, self.heads, strict=True)):
            raise UserError(f"widths {self.widths}: each must be a multiple of its heads, {self.heads}")
        return PVT(self)
