"""BiT ResNet-v2 (Kolesnikov et al. 2020), the paper's rival, and the ResNet that stands before a hybrid's patches.

The two differ, as released: BiT's units are pre-activated; the hybrid's norm follows each convolution, its last
norm in a unit starts at zero, and it pads as JAX does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.models.base import Encoder, EncoderSettings, Features, FineTuning, Output, run
from vitreous.nn.blocks import Repeated, StochasticDepth, depth_rates
from vitreous.nn.convolution import Padding, Standardisation, StandardizedConv, group_norm, pad_same

RootKind = Literal["imagenet", "small"]


@dataclass(frozen=True, kw_only=True)
class ConvKind:
    """What all convolutions and norms of a network have in common."""

    padding: Padding
    norm_epsilon: float
    conv_epsilon: float
    standardisation: Standardisation = "variance"

    def conv(self, channels: int, width: int, kernel: int, stride: int = 1) -> StandardizedConv:
        return StandardizedConv(
            channels,
            width,
            kernel,
            stride,
            padding=self.padding,
            epsilon=self.conv_epsilon,
            standardisation=self.standardisation,
        )

    def norm(self, width: int) -> nn.GroupNorm:
        return group_norm(width, self.norm_epsilon)


class Root(nn.Module):
    """The first convolution: 7x7 of stride 2 and a 3x3 max-pool of stride 2, or one 3x3 for small pictures."""

    def __init__(self, channels: int, width: int, root: RootKind, norm: bool, kind: ConvKind) -> None:
        super().__init__()
        self.conv = kind.conv(channels, width, 7, 2) if root == "imagenet" else kind.conv(channels, width, 3)
        self.norm = kind.norm(width) if norm else None
        self.pool, self.same = root == "imagenet", kind.padding == "same"

    def forward(self, images: Tensor) -> Tensor:
        x: Tensor = self.conv(images)
        x = x if self.norm is None else F.relu(self.norm(x))
        if not self.pool:
            return x
        # BiT pads with zeros. For the hybrid too they change nothing: a ReLU comes before.
        x = pad_same(x, 3, 2) if self.same else F.pad(x, (1, 1, 1, 1))
        return F.max_pool2d(x, 3, 2)


class PreActivatedUnit(Repeated):
    """BiT's bottleneck: norm and ReLU before each convolution; the projection reads the pre-activated input."""

    def __init__(self, channels: int, width: int, stride: int, stochastic_depth: float, kind: ConvKind) -> None:
        super().__init__()
        out = 4 * width
        self.norm1, self.conv1 = kind.norm(channels), kind.conv(channels, width, 1)
        self.norm2, self.conv2 = kind.norm(width), kind.conv(width, width, 3, stride)
        self.norm3, self.conv3 = kind.norm(width), kind.conv(width, out, 1)
        self.project = kind.conv(channels, out, 1, stride) if stride > 1 or channels != out else None
        self.stochastic_depth = StochasticDepth(stochastic_depth)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(x))
        shortcut = x if self.project is None else self.project(y)
        y = self.conv1(y)
        y = self.conv2(F.relu(self.norm2(y)))
        y = self.conv3(F.relu(self.norm3(y)))
        out: Tensor = shortcut + self.stochastic_depth(y)
        return out


class PostActivatedUnit(Repeated):
    """The hybrid's bottleneck: norm after each convolution, ReLU after the sum."""

    def __init__(self, channels: int, width: int, stride: int, stochastic_depth: float, kind: ConvKind) -> None:
        super().__init__()
        out = 4 * width
        self.conv1, self.norm1 = kind.conv(channels, width, 1), kind.norm(width)
        self.conv2, self.norm2 = kind.conv(width, width, 3, stride), kind.norm(width)
        self.conv3, self.norm3 = kind.conv(width, out, 1), kind.norm(out)
        nn.init.zeros_(self.norm3.weight)  # a unit starts as the identity
        projects = stride > 1 or channels != out
        self.project = kind.conv(channels, out, 1, stride) if projects else None
        self.project_norm = kind.norm(out) if projects else None
        self.stochastic_depth = StochasticDepth(stochastic_depth)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.project is not None and self.project_norm is not None:
            shortcut = self.project_norm(self.project(x))
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return F.relu(shortcut + self.stochastic_depth(y))


class Trunk(nn.Module):
    """Layers before a hybrid's patches, or most of a ResNet: levels, each a sequence of blocks."""

    def __init__(self, levels: Sequence[nn.Sequential], outputs: Sequence[Output]) -> None:
        super().__init__()
        self.levels = nn.ModuleList(levels)
        self.outputs = tuple(outputs)  # of every level; a map has ceil(picture / stride) places along each side
        self.width, self.stride = self.outputs[-1].width, self.outputs[-1].stride[0]

    def maps(self, images: Tensor, checkpointing: bool = False) -> list[Tensor]:
        """The output of every level."""
        found, x = [], images
        for level in self.levels:
            assert isinstance(level, nn.Sequential)
            for block in level:
                x = run(block, x, checkpointing=checkpointing)
            found.append(x)
        return found

    def forward(self, images: Tensor, checkpointing: bool = False) -> Tensor:
        return self.maps(images, checkpointing)[-1]


def resnet_trunk(
    channels: int,
    *,
    base_width: int,
    depths: tuple[int, ...],
    root: RootKind,
    unit: type[PreActivatedUnit] | type[PostActivatedUnit],
    stochastic_depth: float,
    kind: ConvKind,
) -> Trunk:
    """Root, then stages of `depths` units; from the second stage on, each doubles the width and halves the map."""
    levels = [nn.Sequential(Root(channels, base_width, root, unit is PostActivatedUnit, kind))]
    rates = iter(depth_rates(stochastic_depth, sum(depths)))
    channels, stride = base_width, 4 if root == "imagenet" else 1
    outputs = [Output(channels, (stride, stride))]
    for i, depth in enumerate(depths):
        units, width = [], base_width * 2**i
        for j in range(depth):
            units.append(unit(channels, width, 2 if i > 0 and j == 0 else 1, next(rates), kind))
            channels = 4 * width
        levels.append(nn.Sequential(*units))
        stride *= 2 if i > 0 else 1
        outputs.append(Output(channels, (stride, stride)))
    return Trunk(levels, outputs)


class ResNet(Encoder):
    """BiT: a trunk of pre-activated units, a last norm, and the mean over the map.

    `maps` are the outputs of the stages; the last one is normed and rectified.
    """

    def __init__(self, trunk: Trunk, norm: nn.GroupNorm, channels: int, picture_px: tuple[int, int]) -> None:
        super().__init__()
        self.trunk, self.norm = trunk, norm
        self.width, self.channels, self.picture_px = trunk.width, channels, picture_px
        self.outputs = trunk.outputs[1:]  # the root's map does not belong to a stage

    def features(self, images: Tensor) -> Features:
        _, *maps, last = self.trunk.maps(images, self.checkpointing)
        last = F.relu(self.norm(last))
        return Features(maps=(*maps, last), prefix=None, pooled=last.mean(dim=(2, 3)))

    def stages(self) -> list[nn.Module]:
        return list(self.trunk.levels)

    def first_filters(self) -> Tensor:
        (root,) = self.trunk.levels[0].children()
        assert isinstance(root, Root)
        return root.conv.filters()


@dataclass(frozen=True, kw_only=True)
class ResNetSettings(EncoderSettings):
    """A BiT ResNet-v2: R50x1 by default."""

    family: ClassVar[str] = "ResNet"
    finetuning: ClassVar[FineTuning] = FineTuning("SGD", lr=0.003)  # as BiT's

    depths: tuple[int, ...] = (3, 4, 6, 3)  # units in each stage
    base_width: int = 64  # of the root and the first stage's 3x3 convolutions; R50x3 has 192
    root: RootKind = "imagenet"  # 7x7 of stride 2 and a max-pool, or one 3x3 for small pictures
    stochastic_depth: float = 0.0  # rate at the last unit, growing linearly from 0
    norm_epsilon: float = 1e-5  # of the group norms
    conv_epsilon: float = 1e-10  # of the weight standardisation
    standardisation: Standardisation = "variance"  # what conv_epsilon is added to

    @property
    def name(self) -> str:
        return f"BiT R{3 * sum(self.depths) + 2}x{self.base_width / 64:g}"

    def describe(self) -> str:
        return f"ResNet, blocks {'+'.join(map(str, self.depths))}, width {self.base_width}"

    def build(self) -> ResNet:
        if not self.depths or min(self.depths) < 1 or self.base_width < 1:
            raise UserError(f"a ResNet needs stages of at least one unit, not depths {self.depths}")
        kind = ConvKind(
            padding="centred",
            norm_epsilon=self.norm_epsilon,
            conv_epsilon=self.conv_epsilon,
            standardisation=self.standardisation,
        )
        trunk = resnet_trunk(
            self.channels,
            base_width=self.base_width,
            depths=self.depths,
            root=self.root,
            unit=PreActivatedUnit,
            stochastic_depth=self.stochastic_depth,
            kind=kind,
        )
        return ResNet(trunk, kind.norm(trunk.width), self.channels, self.picture_px)
