"""The Vision Transformer (Dosovitskiy et al. 2021): a picture is cut into patches, each patch is a word."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor, nn

from vitreous.display.words import counted
from vitreous.errors import UserError, did_you_mean
from vitreous.models.base import Before, Encoded, EncoderSettings, Features, Grid, Output, TokenEncoder, run
from vitreous.models.layout import AttentionLayer, Layout, one_group
from vitreous.models.names import VIT_SIZES
from vitreous.models.stems import ConvStem, ResNetStem, Stem
from vitreous.nn.attention import Attention, AttentionBias
from vitreous.nn.blocks import Block, Gelu, Mlp, SwiGlu, depth_rates, shared_projection
from vitreous.nn.pooling import AttentionPool
from vitreous.nn.relative import BiasTable, PairPositions, RelativePositions
from vitreous.nn.resizing import Resizing
from vitreous.nn.tokens import (
    LearnedPositions,
    LearnedPositions2d,
    PatchEmbedding,
    Placement,
    Positions,
    Prefix,
    SineCosinePositions,
    position_rows,
)

PositionKind = Literal["none", "learned", "learned-2d", "sincos", "relative", "bias", "bias-shared"]
PositionPlace = Literal["stem", "every-layer", "every-layer-shared"]
Pool = Literal["class", "mean", "attention"]
PoolNorm = Literal["before", "after"]
MlpKind = Literal["gelu", "swiglu"]

ABSOLUTE: dict[str, type[LearnedPositions] | type[LearnedPositions2d] | type[SineCosinePositions]] = {
    "learned": LearnedPositions,
    "learned-2d": LearnedPositions2d,
    "sincos": SineCosinePositions,
}


class ViT(TokenEncoder):
    """A Vision Transformer from its parts. `num_registers` of the prefix tokens have no position."""

    def __init__(
        self,
        *,
        stem: Stem,
        prefix: Prefix | None,
        positions: Placement,
        blocks: Sequence[Block],
        pre_norm: nn.Module,
        norm: nn.LayerNorm,
        projection: nn.Module,
        settings: "ViTSettings",
        pooling: AttentionPool | None = None,
    ) -> None:
        super().__init__()
        self.stem, self.prefix, self.positions = stem, prefix, positions
        self.dropout = nn.Dropout(settings.dropout) if settings.dropout else nn.Identity()
        self.pre_norm = pre_norm
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.pooling, self.projection = norm, pooling, projection
        self.pool, self.pool_norm = settings.pool, settings.ends.pool_norm
        self.token_width, self.width = settings.width, settings.ends.projection or settings.width
        self.channels, self.tokens_overlap = settings.channels, stem.trunk is not None
        self.outputs = (Output(settings.width, stem.cell_px),)
        self.picture_px, self.grid = settings.picture_px, stem.grid(settings.picture_px)
        self.num_registers, self.resizing = settings.num_registers, settings.ends.resizing
        self.num_prefix = settings.num_prefix + settings.num_registers

    def embed(self, images: Tensor) -> tuple[Tensor, Grid]:
        height, width = images.shape[-2:]
        grid = self.stem.grid((height, width))  # first: it says what is wrong where patches do not fill the picture
        return self.stem(images, self.checkpointing), grid

    def features_of(self, tokens: Tensor, grid: Grid) -> Features:
        encoded = self.encode(tokens, grid)
        patches = encoded.patches
        return Features(
            maps=(patches.transpose(1, 2).view(-1, self.token_width, *grid),),  # (B, D, h, w)
            prefix=encoded.prefix if self.num_prefix else None,
            pooled=self.pooled(encoded),
        )

    def pooled(self, encoded: Encoded) -> Tensor:
        gathered = encoded.tokens[:, 0] if self.pool == "class" else encoded.patches.mean(dim=1)
        found = gathered if self.pooling is None else self.pooling(encoded.tokens)
        return self.projection(found if self.pool_norm == "before" else self.norm(found))  # type: ignore[no-any-return]

    def encode(
        self,
        tokens: Tensor,
        grid: Grid,
        at: Tensor | None = None,
        depths: Sequence[int] = (),
        before: Before | None = None,
    ) -> Encoded:
        self._check_sequence(tokens, grid, at, depths)
        if before is not None and (self.positions.every_layer or self._pair_positions() or self.positions.bias_table):
            raise UserError("tokens cannot join others that have relative positions, or get positions in every layer")
        x = tokens if self.prefix is None else self.prefix(tokens)  # (B, P + n, D)
        pairs, bias = self._pairs(x, at)
        chosen = {}
        for depth, block in enumerate(self.blocks):
            table = self.positions.at_depth(depth, grid, self.resizing)
            if table is not None:
                rows = position_rows(table, self.num_prefix - self.num_registers, self.num_registers, at)
                x = x + rows.to(x.dtype)  # under autocast the tokens stay in bfloat16 from end to end
            if depth == 0:
                x = self.pre_norm(self.dropout(x))
            if before is not None:
                x, bias = before(depth, x)
            x = run(block, x, pairs, bias, checkpointing=self.checkpointing)
            if depth + 1 in depths:
                chosen[depth + 1] = x
        x = self.norm(x) if self.pool_norm == "before" else x
        return Encoded(tokens=x, num_prefix=self.num_prefix, depths=chosen)

    def normed(self, tokens: Tensor) -> Tensor:
        return self.norm(tokens)  # type: ignore[no-any-return]

    def _check_sequence(self, tokens: Tensor, grid: Grid, at: Tensor | None, depths: Sequence[int]) -> None:
        if grid != self.grid and (self._pair_positions() or self.positions.bias_table is not None):
            raise UserError(
                f"tokens of a {grid.h} x {grid.w} grid for relative positions of {self.grid.h} x {self.grid.w}: call "
                "encoder.resize((height, width)) first, or choose absolute positions for small crops"
            )
        expected = grid.cells if at is None else at.shape[-1]
        if tokens.shape[1] != expected:
            raise UserError(f"{tokens.shape[1]} tokens where {expected} grid cells are named")
        wrong = [depth for depth in depths if not 1 <= depth <= len(self.blocks)]
        if wrong:
            raise UserError(f"no block {wrong[0]}: this model has blocks 1 to {len(self.blocks)}")

    def _pairs(self, x: Tensor, at: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """What each pair of tokens is to the layers' own relative positions, and what the shared ones add."""
        own, shared = self._pair_positions(), self.positions.bias_table
        if shared is None and not own:
            return None, None
        cells = torch.arange(self.grid.cells, device=x.device) if at is None else at
        if shared is None:
            return own[0].pairs(self.num_prefix, cells), None
        return None, shared(x, shared.pairs(self.num_prefix, cells))

    def _pair_positions(self) -> list[PairPositions]:
        """The layers' own."""
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return [block.attention.pair_positions for block in blocks if block.attention.pair_positions is not None]

    # ---- for those who look inside

    def attention_layers(self) -> list[AttentionLayer]:
        place = Layout(
            grid=self.grid,
            num_prefix=self.num_prefix,
            picture_px=self.picture_px,
            pitch_px=self.stem.cell_px,
            pool="class" if self.pool == "class" else "mean",
        )
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return [
            AttentionLayer(
                name=f"layer {number}",
                module=block.attention,
                heads=block.attention.heads,
                looking=place,
                seen=place,
                queries=one_group(place),
                keys=one_group(place),
                positions=self.positions.table_at(number - 1),
                biases=self.positions.bias_table or block.attention.bias_table,
                relative=block.attention.relative,
            )
            for number, block in enumerate(blocks, start=1)
        ]

    def depth_maps(self, images: Tensor) -> dict[str, Tensor]:
        """After each quarter of the blocks."""
        self.check(images)
        depths = sorted({-(-len(self.blocks) * quarter // 4) for quarter in (1, 2, 3, 4)})
        tokens, grid = self.embed(images)
        found = self.encode(tokens, grid, depths=depths).depths
        patches = {depth: x[:, self.num_prefix :].transpose(1, 2) for depth, x in found.items()}
        return {f"layer {depth}": x.reshape(*x.shape[:2], *grid) for depth, x in patches.items()}

    def first_filters(self) -> Tensor:
        if self.stem.trunk is not None:
            raise UserError(
                f"a hybrid's patches are cut from a map of {self.stem.trunk.width} channels, not from the picture: its "
                "patch filters are not pictures"
            )
        return self.stem.patches.filters()

    def stages(self) -> list[nn.Module]:
        tables = list(self.positions.tables)
        own = tables if len(tables) > 1 else []  # a table a layer belongs to its layer
        first: list[nn.Module] = [self.stem.patches, *([] if self.prefix is None else [self.prefix]), self.pre_norm]
        first += [] if own else tables
        first += [] if self.positions.bias_table is None else [self.positions.bias_table]
        blocks = [nn.ModuleList([own[i], block]) if own else block for i, block in enumerate(self.blocks)]
        return [*self.stem.levels(), nn.ModuleList(first), *blocks]

    def resize(self, picture_px: tuple[int, int], mode: str | None = None) -> None:
        resizing = _resizing(mode or self.resizing)
        grid = self.stem.grid(picture_px)
        self.positions.resize(grid, resizing)
        shared = [] if self.positions.bias_table is None else [self.positions.bias_table]
        for table in (*self._pair_positions(), *shared):
            table.resize(self.num_prefix, grid, resizing)
        self.picture_px, self.grid = picture_px, grid


def _resizing(mode: str) -> Resizing:
    for known in get_args(Resizing):
        if known == mode:
            return known  # type: ignore[no-any-return]
    names = get_args(Resizing)
    raise UserError(f"unknown resizing of positions {mode!r}: {', '.join(names)}.{did_you_mean(mode, names)}")


@dataclass(frozen=True, kw_only=True)
class BlockSettings:
    """What a block is made of."""

    mlp: MlpKind = "gelu"  # two dense layers around a GELU, or a gated unit (DINOv2's largest)
    mlp_width: int | None = None  # of the hidden layer; none: four times the width
    gelu: Gelu = "erf"  # exact, the tanh approximation, or the sigmoid one (CLIP)
    attention_bias: AttentionBias = "all"  # which of queries, keys, values have a bias
    layer_scale: float | None = None  # start of LayerScale's factors; none: no LayerScale
    norm_epsilon: float = 1e-6  # of the layer norms, the last one included


@dataclass(frozen=True, kw_only=True)
class EndSettings:
    """What stands before the first block and after the last: where published models differ most."""

    patch_bias: bool = True  # whether the patch embedding has a bias (CLIP has none)
    positions_where: PositionPlace = "stem"  # where absolute positions are added (paper, D.4)
    resizing: Resizing = "bilinear"  # how positions are resized for another picture size
    pre_norm: bool = False  # a norm after positions, before the first block (CLIP)
    pool_norm: PoolNorm = "before"  # the last norm comes before pooling, on all tokens, or after it (BEiT)
    projection: int | None = None  # width that the pooled token is projected to (CLIP); none: no projection


@dataclass(frozen=True, kw_only=True)
class ViTSettings(EncoderSettings):
    """A Vision Transformer or hybrid: ViT-B/16 by default."""

    patch: int | tuple[int, int] = 16  # patch size, in pixels; in places of the stem's map for a hybrid
    stem: ConvStem | ResNetStem | None = None  # layers before the patches (a hybrid); none: patches of the picture
    width: int = 768  # of a token
    depth: int = 12  # blocks
    heads: int = 12  # of the attention
    pool: Pool = "class"  # the first prefix token, the mean of the patches, or what a learned query finds (SigLIP)
    num_prefix: int = 1  # class and distillation tokens, with positions
    num_registers: int = 0  # further prefix tokens, without positions; in DeiT III the class token is one, too
    positions: PositionKind = "learned"  # kind of position embedding (paper, D.4); bias, bias-shared: BEiT
    dropout: float = 0.0  # after every dense layer but queries, keys, values, and after adding positions
    stochastic_depth: float = 0.0  # rate at the last block, growing linearly from 0
    block: BlockSettings = dataclasses.field(default_factory=BlockSettings)
    ends: EndSettings = dataclasses.field(default_factory=EndSettings)

    PARTS: ClassVar[dict[str, type[BlockSettings] | type[EndSettings]]] = {"block": BlockSettings, "ends": EndSettings}

    # ---- fields by their own names, whichever part they are in: other formats know no parts

    @classmethod
    def of(cls, **values: Any) -> Self:
        return cls().changed(**values)

    def changed(self, **values: Any) -> Self:
        own = {name: value for name, value in values.items() if self.part_of(name) is None}
        for part in self.PARTS:
            inner = {name: value for name, value in values.items() if self.part_of(name) == part}
            if inner:
                own[part] = dataclasses.replace(own.get(part, getattr(self, part)), **inner)
        return dataclasses.replace(self, **own)

    def value(self, name: str) -> Any:
        part = self.part_of(name)
        return getattr(self if part is None else getattr(self, part), name)

    @classmethod
    def part_of(cls, name: str) -> str | None:
        """The part that a field is in; None for the model's own."""
        return next((part for part, its in cls.PARTS.items() if name in its.__dataclass_fields__), None)

    @classmethod
    def field_names(cls) -> list[str]:
        own = [field.name for field in dataclasses.fields(cls)]
        return [name for one in own for name in (cls.PARTS[one].__dataclass_fields__ if one in cls.PARTS else [one])]

    # ---- what it says of itself

    @property
    def family(self) -> str:  # type: ignore[override]
        return "ViT" if self.stem is None else "hybrid"

    @property
    def cell_px(self) -> tuple[int, int]:
        """Height and width of what becomes one token."""
        down, right = (self.patch, self.patch) if isinstance(self.patch, int) else self.patch
        stride = 1 if self.stem is None else self.stem.stride
        return down * stride, right * stride

    @property
    def name(self) -> str:
        down, right = self.cell_px
        patch = str(down) if down == right else f"{down}x{right}"
        for name, known in VIT_SIZES.items():
            if (known.width, known.depth, known.heads) == (self.width, self.depth, self.heads):
                return f"{'hybrid ' if self.stem else ''}ViT-{name.capitalize()}/{patch}"
        kind = "hybrid" if self.stem else "ViT"
        return f"{kind} of width {self.width}, depth {self.depth}, {counted(self.heads, 'head')}, patch {patch}"

    def describe(self) -> str:
        size = f"width {self.width}, {counted(self.depth, 'block')}, {counted(self.heads, 'head')}"
        return f"ViT, {size}, patches of {self.patch} px"

    def build(self) -> ViT:
        self._check()
        patch = (self.patch, self.patch) if isinstance(self.patch, int) else self.patch
        trunk = None if self.stem is None else self.stem.build(self.channels)
        channels = self.channels if trunk is None else trunk.width
        stem = Stem(trunk, PatchEmbedding(channels, self.width, patch, self.ends.patch_bias))
        grid = stem.grid(self.picture_px)
        num_prefix = self.num_prefix + self.num_registers
        prefix = Prefix(self.num_prefix, self.width, self.num_registers) if num_prefix else None
        rates, projection = depth_rates(self.stochastic_depth, self.depth), self.ends.projection
        return ViT(
            stem=stem,
            prefix=prefix,
            positions=self._placement(grid),
            blocks=[self._block(rate, num_prefix, grid) for rate in rates],
            pre_norm=self._norm() if self.ends.pre_norm else nn.Identity(),
            norm=self._norm(),
            projection=nn.Identity() if projection is None else shared_projection(self.width, projection),
            settings=self,
            pooling=self._pooling() if self.pool == "attention" else None,
        )

    def _pooling(self) -> AttentionPool:
        mlp = Mlp(self.width, self.block.mlp_width or 4 * self.width, self.block.gelu)
        return AttentionPool(self.width, self.heads, mlp, self.block.norm_epsilon)

    def _norm(self) -> nn.LayerNorm:
        return nn.LayerNorm(self.width, eps=self.block.norm_epsilon)

    def _block(self, rate: float, num_prefix: int, grid: Grid) -> Block:
        kind, relative, bias_table = self.block, None, None
        if self.positions == "relative":
            relative = RelativePositions(num_prefix + grid.cells, self.width // self.heads)
        elif self.positions == "bias":
            bias_table = BiasTable(grid, self.heads)
        attention = Attention(
            self.width, self.heads, kind.attention_bias, self.dropout, relative=relative, bias_table=bias_table
        )
        mlp_width = kind.mlp_width or 4 * self.width
        mlp: Mlp | SwiGlu
        if kind.mlp == "swiglu":
            mlp = SwiGlu(self.width, mlp_width, self.dropout)
        else:
            mlp = Mlp(self.width, mlp_width, kind.gelu, self.dropout)
        return Block(attention, mlp, kind.norm_epsilon, kind.layer_scale, rate)

    def _placement(self, grid: Grid) -> Placement:
        tables: list[Positions] = []
        if self.positions in ABSOLUTE:
            num = self.depth if self.ends.positions_where == "every-layer" else 1
            tables = [ABSOLUTE[self.positions](self.num_prefix, grid, self.width) for _ in range(num)]
        shared = BiasTable(grid, self.heads) if self.positions == "bias-shared" else None
        return Placement(tables, every_layer=self.ends.positions_where != "stem", bias_table=shared)

    def _check(self) -> None:
        if min(self.width, self.depth, self.heads) < 1 or self.width % self.heads:
            raise UserError(
                f"width {self.width}, depth {self.depth}, heads {self.heads}: all must be at least 1, and the width a "
                "multiple of the heads"
            )
        patch = self.patch if isinstance(self.patch, tuple) else (self.patch,)
        if min(self.channels, *patch, self.block.mlp_width or 1, self.ends.projection or 1) < 1:
            raise UserError("channels, patch, mlp_width and projection must be at least 1")
        if min(self.num_prefix, self.num_registers) < 0 or not self.block.norm_epsilon > 0:
            raise UserError("num_prefix and num_registers must not be negative, and norm_epsilon must be above 0")
        if self.pool == "class" and self.num_prefix + self.num_registers < 1:
            raise UserError("pooling by the class token needs num_prefix of at least 1, or set pool to mean")
        if self.positions == "sincos" and self.width % 4:
            raise UserError(f"sine-cosine positions need a width that is a multiple of 4, not {self.width}")
        if self.positions not in ABSOLUTE and self.ends.positions_where != "stem":
            raise UserError(f"positions_where is for absolute positions, and positions is {self.positions}")


def as_vit(settings: EncoderSettings, wrong: str) -> ViTSettings:
    """The settings of a ViT or hybrid; an error, `wrong`, for any other family."""
    if not isinstance(settings, ViTSettings):
        raise UserError(wrong)
    return settings


def as_plain_vit(settings: EncoderSettings, wrong: str) -> ViTSettings:
    """The same where there are patches of the picture itself, with no stem before them."""
    found = as_vit(settings, wrong)
    if found.stem is not None:
        raise UserError(wrong)
    return found
