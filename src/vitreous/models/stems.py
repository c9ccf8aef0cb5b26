"""From pictures to tokens: the patches, and what may stand before them in a hybrid, the paper's ResNets or a small stem
of ours."""

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.models.base import Grid, Output
from vitreous.models.resnet import ConvKind, PostActivatedUnit, RootKind, Trunk, resnet_trunk
from vitreous.nn.convolution import Standardisation
from vitreous.nn.tokens import PatchEmbedding


@dataclass(frozen=True, kw_only=True)
class ResNetStem:
    """The hybrids' ResNet (paper, section 4.1): R50 to stage 4, or (3, 4, 9) without it."""

    depths: tuple[int, ...] = (3, 4, 9)  # units in each stage; empty: the root alone
    base_width: int = 64  # of the root and the first stage's 3x3 convolutions
    root: RootKind = "imagenet"  # 7x7 of stride 2 and a max-pool, or one 3x3 for small pictures
    stochastic_depth: float = 0.0  # rate at the last unit, growing linearly from 0
    norm_epsilon: float = 1e-6  # of the group norms
    conv_epsilon: float = 1e-10  # of the weight standardisation; the published hybrids have 1e-5 on the deviation
    standardisation: Standardisation = "variance"  # what conv_epsilon is added to

    @property
    def stride(self) -> int:
        """Px of the picture from one place of its map to the next."""
        return (4 if self.root == "imagenet" else 1) << max(len(self.depths) - 1, 0)

    def build(self, channels: int) -> Trunk:
        kind = ConvKind(
            padding="same",
            norm_epsilon=self.norm_epsilon,
            conv_epsilon=self.conv_epsilon,
            standardisation=self.standardisation,
        )
        return resnet_trunk(
            channels,
            base_width=self.base_width,
            depths=self.depths,
            root=self.root,
            unit=PostActivatedUnit,
            stochastic_depth=self.stochastic_depth,
            kind=kind,
        )


class ConvLayer(nn.Module):
    """Convolution, norm, ReLU."""

    def __init__(self, channels: int, width: int, stride: int, kind: ConvKind) -> None:
        super().__init__()
        self.conv, self.norm = kind.conv(channels, width, 3, stride), kind.norm(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class ResidualLayer(nn.Module):
    """Two 3x3 convolutions around which the input passes. The last norm starts at zero: at first, nothing is added."""

    def __init__(self, width: int, kind: ConvKind) -> None:
        super().__init__()
        self.conv1, self.norm1 = kind.conv(width, width, 3), kind.norm(width)
        self.conv2, self.norm2 = kind.conv(width, width, 3), kind.norm(width)
        nn.init.zeros_(self.norm2.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


@dataclass(frozen=True, kw_only=True)
class ConvStem:
    """A small convolutional stem. The default turns 32 px into an 8 x 8 map of 256 channels with 1.9 M parameters."""

    widths: tuple[int, ...] = (64, 128, 256)  # of each level
    strides: tuple[int, ...] = (1, 2, 2)  # of each level's first convolution
    residuals: tuple[int, ...] = (1, 1, 1)  # residual layers of two 3x3 convolutions after it
    norm_epsilon: float = 1e-5  # of the group norms
    conv_epsilon: float = 1e-10  # of the weight standardisation

    @property
    def stride(self) -> int:
        """Px of the picture from one place of its map to the next."""
        return math.prod(self.strides)

    def build(self, channels: int) -> Trunk:
        if not len(self.widths) == len(self.strides) == len(self.residuals) > 0:
            raise UserError("a convolutional stem needs as many strides and residuals as widths, and at least one")
        kind = ConvKind(padding="centred", norm_epsilon=self.norm_epsilon, conv_epsilon=self.conv_epsilon)
        levels, outputs, total = [], [], 1
        for width, stride, num in zip(self.widths, self.strides, self.residuals, strict=True):
            levels.append(
                nn.Sequential(
                    ConvLayer(channels, width, stride, kind), *(ResidualLayer(width, kind) for _ in range(num))
                )
            )
            channels, total = width, total * stride
            outputs.append(Output(width, (total, total)))
        return Trunk(levels, outputs)


class Stem(nn.Module):
    """Pictures to tokens: patches of the picture, or of the map of a trunk that stands before them (a hybrid)."""

    def __init__(self, trunk: Trunk | None, patches: PatchEmbedding) -> None:
        super().__init__()
        self.trunk, self.patches = trunk, patches

    @property
    def trunk_stride(self) -> int:
        return 1 if self.trunk is None else self.trunk.stride

    @property
    def cell_px(self) -> tuple[int, int]:
        """Height and width of what becomes one token."""
        return self.patches.patch[0] * self.trunk_stride, self.patches.patch[1] * self.trunk_stride

    def grid(self, picture_px: tuple[int, int]) -> Grid:
        """The grid of a picture; an error when the patches do not fill it."""
        stride = self.trunk_stride
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
