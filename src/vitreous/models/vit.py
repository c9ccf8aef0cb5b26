"""The Vision Transformer (Dosovitskiy et al. 2021): a picture is cut into patches, each patch is a word."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from vitreous.errors import UserError, did_you_mean
from vitreous.models.base import Encoded, Features, Grid, TokenEncoder, run
from vitreous.models.resnet import Trunk
from vitreous.models.stems import ConvStem, ResNetStem
from vitreous.nn.attention import Attention, AttentionBias, RelativePositions
from vitreous.nn.blocks import Block, Gelu, Mlp, depth_rates
from vitreous.nn.tokens import (
    LearnedPositions,
    LearnedPositions2d,
    PatchEmbedding,
    Placement,
    Positions,
    Prefix,
    Resizing,
    SineCosinePositions,
    position_rows,
    resize_offsets,
)

PositionKind = Literal["none", "learned", "learned-2d", "sincos", "relative"]
PositionPlace = Literal["stem", "every-layer", "every-layer-shared"]
Pool = Literal["class", "mean"]

ABSOLUTE: dict[str, type[LearnedPositions] | type[LearnedPositions2d] | type[SineCosinePositions]] = {
    "learned": LearnedPositions,
    "learned-2d": LearnedPositions2d,
    "sincos": SineCosinePositions,
}


class Stem(nn.Module):
    """Pictures to tokens: patches of the picture, or of the map of a trunk that stands before them (a hybrid)."""

    def __init__(self, trunk: Trunk | None, patches: PatchEmbedding) -> None:
        super().__init__()
        self.trunk, self.patches = trunk, patches

    def grid(self, picture_px: tuple[int, int]) -> Grid:
        """The grid of a picture; an error when the patches do not fill it."""
        stride = 1 if self.trunk is None else self.trunk.stride
        (h, w), (ph, pw) = (math.ceil(size / stride) for size in picture_px), self.patches.patch
        if h % ph or w % pw or not h or not w:
            what = "a picture" if self.trunk is None else "the stem's map"
            raise UserError(
                f"{what} of {h} x {w} cannot be cut into patches of {ph} x {pw}: choose a picture size that is a "
                f"multiple of {ph * stride} x {pw * stride}"
            )
        return Grid(h // ph, w // pw)

    def forward(self, images: Tensor, checkpointing: bool = False) -> Tensor:
        tokens: Tensor = self.patches(images if self.trunk is None else self.trunk(images, checkpointing))
        return tokens

    def levels(self) -> list[nn.Module]:
        """What precedes the patches, shallow to deep."""
        return [] if self.trunk is None else list(self.trunk.levels)


class ViT(TokenEncoder):
    """A Vision Transformer from its parts. `num_registers` of the prefix tokens have no position."""

    def __init__(
        self,
        *,
        stem: Stem,
        prefix: Prefix | None,
        positions: Placement,
        blocks: Sequence[Block],
        norm: nn.LayerNorm,
        settings: "ViTSettings",
    ) -> None:
        super().__init__()
        self.stem, self.prefix, self.positions = stem, prefix, positions
        self.dropout = nn.Dropout(settings.dropout) if settings.dropout else nn.Identity()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.pool, self.width, self.channels = settings.pool, settings.width, settings.channels
        self.picture_px, self.grid = settings.picture_px, stem.grid(settings.picture_px)
        self.num_registers = settings.num_registers
        self.num_prefix = settings.num_prefix + settings.num_registers

    def forward(self, images: Tensor) -> Features:
        self.check(images)
        tokens, grid = self.embed(images)
        encoded = self.encode(tokens, grid)
        patches = encoded.patches
        return Features(
            maps=(patches.transpose(1, 2).view(-1, self.width, *grid),),  # (B, D, h, w)
            prefix=encoded.prefix if self.num_prefix else None,
            pooled=encoded.tokens[:, 0] if self.pool == "class" else patches.mean(dim=1),
        )

    def embed(self, images: Tensor) -> tuple[Tensor, Grid]:
        height, width = images.shape[-2:]
        return self.stem(images, self.checkpointing), self.stem.grid((height, width))

    def encode(self, tokens: Tensor, grid: Grid, at: Tensor | None = None, depths: Sequence[int] = ()) -> Encoded:
        self._check_sequence(tokens, grid, at, depths)
        x = tokens if self.prefix is None else self.prefix(tokens)  # (B, P + n, D)
        offsets = self._offsets(x, at)
        chosen = {}
        for depth, block in enumerate(self.blocks):
            table = self.positions.at_depth(depth)
            if table is not None:
                rows = position_rows(table, self.num_prefix - self.num_registers, self.num_registers, at)
                x = x + rows.to(x.dtype)  # under autocast the tokens stay in bfloat16 from end to end
            if depth == 0:
                x = self.dropout(x)
            x = run(block, x, offsets, checkpointing=self.checkpointing)
            if depth + 1 in depths:
                chosen[depth + 1] = x
        return Encoded(tokens=self.norm(x), num_prefix=self.num_prefix, depths=chosen)

    def _check_sequence(self, tokens: Tensor, grid: Grid, at: Tensor | None, depths: Sequence[int]) -> None:
        if grid != self.grid:
            raise UserError(
                f"tokens of a {grid.h} x {grid.w} grid for a model prepared for {self.grid.h} x {self.grid.w}: call "
                "encoder.resize((height, width)) first"
            )
        expected = grid.cells if at is None else at.shape[-1]
        if tokens.shape[1] != expected:
            raise UserError(f"{tokens.shape[1]} tokens where {expected} grid cells are named")
        wrong = [depth for depth in depths if not 1 <= depth <= len(self.blocks)]
        if wrong:
            raise UserError(f"no block {wrong[0]}: this model has blocks 1 to {len(self.blocks)}")

    def _offsets(self, x: Tensor, at: Tensor | None) -> Tensor | None:
        """Rows of the relative tables for each pair of tokens; None where the model has no such positions."""
        relative = self._relative()
        if not relative:
            return None
        places = torch.arange(self.num_prefix + self.grid.cells, device=x.device)
        if at is not None:
            prefix = places[: self.num_prefix].expand(at.shape[0], -1)
            places = torch.cat([prefix, at + self.num_prefix], dim=1)  # (B, P + n)
        return relative[0].offsets(places)

    def _relative(self) -> list[RelativePositions]:
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return [block.attention.relative for block in blocks if block.attention.relative is not None]

    def stages(self) -> list[nn.Module]:
        tables = list(self.positions.tables)
        own = tables if len(tables) > 1 else []  # a table a layer belongs to its layer
        first: list[nn.Module] = [self.stem.patches, *([] if self.prefix is None else [self.prefix])]
        first += [] if own else tables
        blocks = [nn.ModuleList([own[i], block]) if own else block for i, block in enumerate(self.blocks)]
        return [*self.stem.levels(), nn.ModuleList(first), *blocks]

    def resize(self, picture_px: tuple[int, int], mode: str = "bilinear") -> None:
        resizing = _resizing(mode)
        grid = self.stem.grid(picture_px)
        self.positions.resize(grid, resizing)
        for relative in self._relative():
            table = resize_offsets(relative.table.detach(), self.num_prefix + grid.cells, resizing)
            relative.table = nn.Parameter(table, requires_grad=relative.table.requires_grad)
        self.picture_px, self.grid = picture_px, grid


def _resizing(mode: str) -> Resizing:
    for known in get_args(Resizing):
        if known == mode:
            return known  # type: ignore[no-any-return]
    names = get_args(Resizing)
    raise UserError(f"no way of resizing positions is called {mode!r}: {', '.join(names)}.{did_you_mean(mode, names)}")


@dataclass(frozen=True, kw_only=True)
class ViTSettings:
    """A Vision Transformer or hybrid: ViT-B/16 by default."""

    picture_px: tuple[int, int] = (224, 224)  # height and width of the pictures
    channels: int = 3  # of the pictures
    patch: int | tuple[int, int] = 16  # patch size, in pixels; in places of the stem's map for a hybrid
    stem: ConvStem | ResNetStem | None = None  # layers before the patches (a hybrid); none: patches of the picture
    width: int = 768  # of a token
    depth: int = 12  # blocks
    heads: int = 12  # of the attention
    mlp_width: int | None = None  # of the hidden layer; none: four times the width
    pool: Pool = "class"  # the class token, or the mean of the patches; both after the last norm
    num_prefix: int = 1  # class and distillation tokens, with positions; 0 needs mean pooling
    num_registers: int = 0  # further prefix tokens, without positions
    positions: PositionKind = "learned"  # kind of position embedding (paper, D.4)
    positions_where: PositionPlace = "stem"  # where absolute positions are added (paper, D.4)
    dropout: float = 0.0  # after every dense layer but queries, keys, values, and after adding positions
    stochastic_depth: float = 0.0  # rate at the last block, growing linearly from 0
    layer_scale: float | None = None  # start of LayerScale's factors; none: no LayerScale
    attention_bias: AttentionBias = "all"  # which of queries, keys, values have a bias
    gelu: Gelu = "erf"  # exact, or the tanh approximation
    norm_epsilon: float = 1e-6  # of the layer norms

    def build(self) -> ViT:
        self._check()
        patch = (self.patch, self.patch) if isinstance(self.patch, int) else self.patch
        trunk = None if self.stem is None else self.stem.build(self.channels)
        channels = self.channels if trunk is None else trunk.width
        stem = Stem(trunk, PatchEmbedding(channels, self.width, patch))
        grid = stem.grid(self.picture_px)
        num_prefix = self.num_prefix + self.num_registers
        prefix = Prefix(self.num_prefix, self.width, self.num_registers) if num_prefix else None
        rates = depth_rates(self.stochastic_depth, self.depth)
        blocks = [self._block(rate, num_prefix + grid.cells) for rate in rates]
        norm = nn.LayerNorm(self.width, eps=self.norm_epsilon)
        return ViT(stem=stem, prefix=prefix, positions=self._placement(grid), blocks=blocks, norm=norm, settings=self)

    def _block(self, rate: float, length: int) -> Block:
        relative = RelativePositions(length, self.width // self.heads) if self.positions == "relative" else None
        attention = Attention(self.width, self.heads, self.attention_bias, self.dropout, relative)
        mlp = Mlp(self.width, self.mlp_width or 4 * self.width, self.gelu, self.dropout)
        return Block(attention, mlp, self.norm_epsilon, self.layer_scale, rate)

    def _placement(self, grid: Grid) -> Placement:
        tables: list[Positions] = []
        if self.positions in ABSOLUTE:
            num = self.depth if self.positions_where == "every-layer" else 1
            tables = [ABSOLUTE[self.positions](self.num_prefix, grid, self.width) for _ in range(num)]
        return Placement(tables, every_layer=self.positions_where != "stem")

    def _check(self) -> None:
        if min(self.width, self.depth, self.heads) < 1 or self.width % self.heads:
            raise UserError(
                f"width {self.width}, depth {self.depth}, heads {self.heads}: all must be at least 1, and the width a "
                "multiple of the heads"
            )
        if self.pool == "class" and self.num_prefix < 1:
            raise UserError("pooling by the class token needs num_prefix of at least 1, or set pool to mean")
        if self.positions == "sincos" and self.width % 4:
            raise UserError(f"sine-cosine positions need a width that is a multiple of 4, not {self.width}")
        if self.positions in ("none", "relative") and self.positions_where != "stem":
            raise UserError(f"positions_where is for absolute positions, and positions is {self.positions}")
