"""ConvNeXt (Liu et al. 2022): a convolutional network that takes over, one by one, what made Swin good.

As released: where a side is no multiple of what is merged, the rest at the right and bottom edge is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.models.base import Features, Grid, PatchEncoder, run
from vitreous.models.names import CONVNEXT_SIZES
from vitreous.models.pyramids import PyramidSettings, pyramid
from vitreous.nn.blocks import LayerScale, Mlp, Repeated, StochasticDepth, depth_rates, small_weights
from vitreous.nn.channels_last import depthwise, patchwise

KERNEL = 7  # of the depthwise convolutions


class ConvNeXtBlock(Repeated):
    """A depthwise convolution mixes places, then an MLP mixes channels; the sum is added. Maps are (B, h, w, D)."""

    def __init__(self, width: int, norm_epsilon: float, layer_scale: float | None, stochastic_depth: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, KERNEL, padding=KERNEL // 2, groups=width)
        self.norm = nn.LayerNorm(width, eps=norm_epsilon)
        self.mlp = Mlp(width, 4 * width)
        self.scale = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.stochastic_depth = StochasticDepth(stochastic_depth)

    def forward(self, x: Tensor) -> Tensor:
        mixed = depthwise(x, self.conv)  # channels lie last in memory throughout
        out: Tensor = x + self.stochastic_depth(self.scale(self.mlp(self.norm(mixed))))
        return out


class Downsampling(nn.Module):
    """A norm, then a convolution whose steps are as wide as its kernel. The first one has the norm behind it."""

    def __init__(self, channels: int, width: int, stride: int, norm_epsilon: float, norm_first: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels if norm_first else width, eps=norm_epsilon)
        self.conv = nn.Conv2d(channels, width, stride, stride=stride)
        self.norm_first = norm_first

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, C) -> (B, h / stride, w / stride, D)."""
        x = self.norm(x) if self.norm_first else x
        x = patchwise(x, self.conv)
        return x if self.norm_first else self.norm(x)


class Stage(nn.Module):
    def __init__(self, downsampling: Downsampling, blocks: Sequence[ConvNeXtBlock]) -> None:
        super().__init__()
        self.downsampling = downsampling
        self.blocks = nn.ModuleList(blocks)


class ConvNeXt(PatchEncoder):
    """`maps` are the outputs of the stages; `pooled` is the normed mean of the last."""

    def __init__(self, settings: "ConvNeXtSettings") -> None:
        super().__init__()
        self.width, self.channels, self.picture_px = settings.widths[-1], settings.channels, settings.picture_px
        self.token_width = settings.widths[0]
        self.outputs = pyramid(settings.widths, settings.patch, normed="none")
        rates = iter(depth_rates(settings.stochastic_depth, sum(settings.depths)))
        self.levels = nn.ModuleList(
            Stage(settings.downsampling(i), [settings.block(i, next(rates)) for _ in range(depth)])
            for i, depth in enumerate(settings.depths)
        )
        self.norm = nn.LayerNorm(self.width, eps=settings.pool_norm_epsilon)
        small_weights(self)

    def embed(self, images: Tensor) -> tuple[Tensor, Grid]:
        self._check_size((images.shape[-2], images.shape[-1]))  # small crops come here too
        first = self._stages()[0].downsampling
        x = run(first, images.permute(0, 2, 3, 1), checkpointing=self.checkpointing)
        return x.flatten(1, 2), Grid(x.shape[1], x.shape[2])

    def features_of(self, tokens: Tensor, grid: Grid) -> Features:
        x, maps = tokens.view(-1, *grid, self.token_width), []  # (B, h, w, D)
        for i, level in enumerate(self._stages()):
            x = x if i == 0 else run(level.downsampling, x, checkpointing=self.checkpointing)
            for block in level.blocks:
                x = run(block, x, checkpointing=self.checkpointing)
            maps.append(x.permute(0, 3, 1, 2))  # (B, D, h, w)
        return Features(maps=tuple(maps), prefix=None, pooled=self.norm(x.mean(dim=(1, 2))))

    def _stages(self) -> list[Stage]:
        return [cast(Stage, level) for level in self.levels]

    def stages(self) -> list[nn.Module]:
        found: list[nn.Module] = []
        for level in self._stages():
            first, *others = level.blocks
            found += [nn.ModuleList([level.downsampling, first]), *others]
        return found

    def first_filters(self) -> Tensor:
        return self._stages()[0].downsampling.conv.weight

    def resize(self, picture_px: tuple[int, int], mode: str = "bilinear") -> None:
        self._check_size(picture_px)
        super().resize(picture_px, mode)

    def _check_size(self, picture_px: tuple[int, int]) -> None:
        least = self.outputs[-1].stride[0]
        if min(picture_px) < least:
            raise UserError(
                f"a picture of {picture_px[0]} x {picture_px[1]} is too small: each side needs at least {least} px; "
                "choose larger pictures or a smaller patch"
            )


@dataclass(frozen=True, kw_only=True)
class ConvNeXtSettings(PyramidSettings):
    """A ConvNeXt: ConvNeXt-T by default."""

    family: ClassVar[str] = "ConvNeXt"

    widths: tuple[int, ...] = (96, 192, 384, 768)  # of the stages
    depths: tuple[int, ...] = (3, 3, 9, 3)  # blocks in each stage
    layer_scale: float | None = 1e-6  # start of LayerScale's factors; none: no LayerScale
    stochastic_depth: float = 0.0  # rate at the last block, growing linearly from 0
    norm_epsilon: float = 1e-6  # of the layer norms
    pool_norm_epsilon: float = 1e-6  # of the last one, after pooling

    @property
    def name(self) -> str:
        for name, sizes in CONVNEXT_SIZES.items():
            if all(self.value(field) == value for field, value in sizes.items()):
                return f"ConvNeXt-{name.removeprefix('convnext_').capitalize()}"
        return f"ConvNeXt of widths {'+'.join(map(str, self.widths))}, depths {'+'.join(map(str, self.depths))}"

    def describe(self) -> str:
        widths, depths = ("+".join(map(str, each)) for each in (self.widths, self.depths))
        return f"ConvNeXt, widths {widths}, blocks {depths}, first step {self.patch} px"

    def block(self, stage: int, rate: float) -> ConvNeXtBlock:
        return ConvNeXtBlock(self.widths[stage], self.norm_epsilon, self.layer_scale, rate)

    def downsampling(self, stage: int) -> Downsampling:
        if stage == 0:
            return Downsampling(self.channels, self.widths[0], self.patch, self.norm_epsilon, norm_first=False)
        return Downsampling(self.widths[stage - 1], self.widths[stage], 2, self.norm_epsilon, norm_first=True)

    def build(self) -> ConvNeXt:
        if not self.depths or len(self.depths) != len(self.widths) or min(*self.depths, *self.widths) < 1:
            raise UserError(f"depths {self.depths} and widths {self.widths}: one of each per stage, all at least 1")
        if min(self.patch, self.channels) < 1:
            raise UserError("patch and channels must be at least 1")
        made = ConvNeXt(self)
        made.resize(self.picture_px)
        return made
