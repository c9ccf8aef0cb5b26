"""ResNet (He et al. 2016) as torchvision has it, with batch norms whose statistics are fixed: the encoder that DETR and
Deformable DETR were published with.

From weights that others trained, it is a plain network: nothing of a picture depends on the others of its batch.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.models.base import Encoder, EncoderSettings, Features, FineTuning, Output
from vitreous.models.names import RESNET_V1_SIZES
from vitreous.models.resnet import Trunk
from vitreous.nn.blocks import Repeated
from vitreous.nn.convolution import FrozenBatchNorm
from vitreous.nn.folded import fold
from vitreous.nn.pointwise import pointwise

Unit = Literal["bottleneck", "basic"]


def conv(channels: int, width: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    made = nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    return made


class Root(nn.Module):
    """A 7x7 convolution and a 3x3 max-pool, both of stride 2."""

    def __init__(self, channels: int, width: int, learned: bool) -> None:
        super().__init__()
        self.conv, self.norm = conv(channels, width, 7, 2), FrozenBatchNorm(width, learned=learned)

    def forward(self, images: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.norm(self.conv(images))), 3, 2, padding=1)

    def folded(self, dtype: torch.dtype) -> "FoldedRoot":
        return FoldedRoot(self, dtype)


class FoldedRoot(nn.Module):
    """Neither offset nor ReLU changes which number of nine is the largest: both wait until a quarter is left."""

    def __init__(self, root: Root, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.offset = fold(root.conv, root.norm, dtype)

    def forward(self, images: Tensor) -> Tensor:
        largest = F.max_pool2d(F.conv2d(images, self.weight, None, 2, padding=3), 3, 2, padding=1)
        return F.relu(largest + self.offset[:, None, None])


class BasicUnit(Repeated):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, learned: bool) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv(channels, width, 3, stride), FrozenBatchNorm(width, learned=learned)
        self.conv2, self.norm2 = conv(width, width, 3), FrozenBatchNorm(width, learned=learned)
        self.shortcut = Shortcut(channels, width, stride, learned)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class BottleneckUnit(Repeated):
    """1x1, 3x3 (of the stride: torchvision's "v1.5") and 1x1 convolutions beside a shortcut."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int, learned: bool) -> None:
        super().__init__()
        out = self.expansion * width
        self.conv1, self.norm1 = conv(channels, width, 1), FrozenBatchNorm(width, learned=learned)
        self.conv2, self.norm2 = conv(width, width, 3, stride), FrozenBatchNorm(width, learned=learned)
        self.conv3, self.norm3 = conv(width, out, 1), FrozenBatchNorm(out, learned=learned)
        self.shortcut = Shortcut(channels, out, stride, learned)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))

    def folded(self, dtype: torch.dtype) -> "FoldedBottleneckUnit":
        return FoldedBottleneckUnit(self, dtype)


class FoldedBottleneckUnit(nn.Module):
    """Two products with the 3x3 convolution between: what else there was to do, they do in passing."""

    def __init__(self, unit: BottleneckUnit, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight1, self.offset1 = fold(unit.conv1, unit.norm1, dtype)
        self.weight2, self.offset2 = fold(unit.conv2, unit.norm2, dtype)
        self.weight3, self.offset3 = fold(unit.conv3, unit.norm3, dtype)
        self.stride, self.projected, conv, norm = unit.conv2.stride, None, unit.shortcut.conv, unit.shortcut.norm
        if conv is not None and norm is not None:
            self.projected, offset = fold(conv, norm, dtype)
            self.offset3.add_(offset)  # of both, which are added

    def forward(self, x: Tensor) -> Tensor:
        y = pointwise(x, self.weight1, self.offset1)
        y = F.conv2d(y, self.weight2, None, self.stride, padding=1)
        shortcut = x if self.projected is None else F.conv2d(x, self.projected, None, self.stride)
        return pointwise(y, self.weight3, self.offset3, before=self.offset2, added=shortcut)


class Shortcut(nn.Module):
    """The identity, or a 1x1 convolution where width or size changes."""

    def __init__(self, channels: int, out: int, stride: int, learned: bool) -> None:
        super().__init__()
        changes = stride > 1 or channels != out
        self.conv = conv(channels, out, 1, stride) if changes else None
        self.norm = FrozenBatchNorm(out, learned=learned) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        if self.conv is None or self.norm is None:
            return x
        out: Tensor = self.norm(self.conv(x))
        return out


UNITS: dict[Unit, type[BasicUnit] | type[BottleneckUnit]] = {"basic": BasicUnit, "bottleneck": BottleneckUnit}


class ResNetV1(Encoder):
    """`maps` are the outputs of the stages, `pooled` the mean of the last."""

    def __init__(self, trunk: Trunk, settings: "ResNetV1Settings") -> None:
        super().__init__()
        self.trunk = trunk
        self.width, self.channels, self.picture_px = trunk.width, settings.channels, settings.picture_px
        self.outputs = trunk.outputs[1:]  # the root's map does not belong to a stage
        for level in trunk.levels[: settings.frozen_levels]:
            level.requires_grad_(False)

    def features(self, images: Tensor) -> Features:
        # Convolutions are fastest, on a GPU above all, where the channels of a pixel lie side by side.
        _, *maps = self.trunk.maps(images.contiguous(memory_format=torch.channels_last), self.checkpointing)
        return Features(maps=tuple(maps), prefix=None, pooled=maps[-1].mean(dim=(2, 3)))

    def stages(self) -> list[nn.Module]:
        return list(self.trunk.levels)

    def first_filters(self) -> Tensor:
        (root,) = self.trunk.levels[0].children()
        assert isinstance(root, Root)
        return root.conv.weight


@dataclass(frozen=True, kw_only=True)
class ResNetV1Settings(EncoderSettings):
    """A ResNet of torchvision: ResNet-50 by default."""

    family: ClassVar[str] = "ResNet"
    finetuning: ClassVar[FineTuning] = FineTuning("SGD", lr=0.003)

    unit: Unit = "bottleneck"  # three convolutions, or two
    depths: tuple[int, ...] = (3, 4, 6, 3)  # units in each stage
    base_width: int = 64  # of the root and the first stage's 3x3 convolutions
    learned_norms: bool = True  # whether the batch norms' scales and offsets learn; their statistics are always fixed
    frozen_levels: int = 0  # how many of root and stages are frozen, from the first on (DETR: 2)

    @property
    def name(self) -> str:
        for name, sizes in RESNET_V1_SIZES.items():
            if self.base_width == 64 and all(self.value(field) == value for field, value in sizes.items()):
                return f"ResNet-{name.removeprefix('resnet')}"
        return f"ResNet of {self.unit} units {'+'.join(map(str, self.depths))}, width {self.base_width}"

    def describe(self) -> str:
        return f"ResNet, {self.unit} units {'+'.join(map(str, self.depths))}, width {self.base_width}"

    def build(self) -> ResNetV1:
        if not self.depths or min(self.depths) < 1 or self.base_width < 1:
            raise UserError(f"a ResNet needs stages of at least one unit, not depths {self.depths}")
        if not 0 <= self.frozen_levels <= len(self.depths) + 1:
            raise UserError(f"frozen_levels is {self.frozen_levels}: root and stages are {len(self.depths) + 1} levels")
        unit, learned = UNITS[self.unit], self.learned_norms
        levels = [nn.Sequential(Root(self.channels, self.base_width, learned))]
        channels, stride, outputs = self.base_width, 4, [Output(self.base_width, (4, 4))]
        for i, depth in enumerate(self.depths):
            units, width = [], self.base_width * 2**i
            for j in range(depth):
                units.append(unit(channels, width, 2 if i > 0 and j == 0 else 1, learned))
                channels = unit.expansion * width
            levels.append(nn.Sequential(*units))
            stride *= 2 if i > 0 else 1
            outputs.append(Output(channels, (stride, stride)))
        return ResNetV1(Trunk(levels, outputs), self)
