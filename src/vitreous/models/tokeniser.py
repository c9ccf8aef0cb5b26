"""A discrete visual tokeniser: each cell of a grid over the picture gets one word of a learned vocabulary.

The encoder of a discrete VAE (van den Oord et al. 2017; Ramesh et al. 2021, section 2.1 and appendix A), made small:
residual layers of two 3x3 convolutions, not four, and convolutions of stride 2 where Ramesh et al. have max-pools. As
theirs, it has no norm that sees the whole picture, so a code depends on what is near its cell.
"""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.models.base import Encoder, EncoderSettings, Features, FineTuning, Output
from vitreous.models.resnet import Trunk
from vitreous.nn.tokens import lecun_normal_


def convolution(channels: int, width: int, stride: int = 1, kernel: int = 3) -> nn.Conv2d:
    made = nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2)
    lecun_normal_(made.weight)
    nn.init.zeros_(made.bias)  # type: ignore[arg-type]
    return made


class ResidualLayer(nn.Module):
    """ReLU and a 3x3 convolution, twice, around which the input passes. The last one starts at zero: at first nothing
    is added. Ramesh et al. multiply by a small constant for the same end."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = convolution(width, width), convolution(width, width)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.conv2(F.relu(self.conv1(F.relu(x))))
        return out


class Tokeniser(Encoder):
    """`maps` holds one map, the logits of the words in every cell; the code of a cell is their argmax.

    `pooled` is the mean over the cells of their softmax: which words a picture is made of, and how much of each.
    """

    def __init__(self, settings: "TokeniserSettings") -> None:
        super().__init__()
        self.stride, self.vocabulary = settings.stride, settings.vocabulary
        self.channels, self.width = settings.channels, settings.vocabulary
        self.outputs = (Output(settings.vocabulary, settings.cell_px),)
        widths = settings.widths()
        levels = [nn.Sequential(convolution(settings.channels, widths[0]), *_residuals(settings, widths[0]))]
        for before, width in itertools.pairwise(widths):
            levels.append(nn.Sequential(convolution(before, width, stride=2), *_residuals(settings, width)))
        self.trunk = Trunk(levels, [Output(width, (2**i, 2**i)) for i, width in enumerate(widths)])
        self.norm = nn.LayerNorm(settings.width, eps=1e-6)  # of each cell alone
        self.words = nn.Linear(settings.width, settings.vocabulary)  # the 1x1 convolution at the end
        lecun_normal_(self.words.weight)
        nn.init.zeros_(self.words.bias)
        self.resize(settings.picture_px)

    def features(self, images: Tensor) -> Features:
        cells = self.trunk(images, self.checkpointing).permute(0, 2, 3, 1)  # (B, h, w, D)
        logits: Tensor = self.words(self.norm(F.relu(cells)))
        shares = logits.float().softmax(dim=3).mean(dim=(1, 2))
        return Features(maps=(logits.permute(0, 3, 1, 2),), prefix=None, pooled=shares.to(logits.dtype))

    def stages(self) -> list[nn.Module]:
        return [*self.trunk.levels, self.words]

    def resize(self, picture_px: tuple[int, int], mode: str = "bilinear") -> None:
        height, width = picture_px
        if height % self.stride or width % self.stride or not height or not width:
            raise UserError(
                f"a picture of {height} x {width} has no grid of cells of {self.stride} px: choose a picture size that "
                f"is a multiple of {self.stride}"
            )
        self.picture_px = picture_px


def _residuals(settings: "TokeniserSettings", width: int) -> list[nn.Module]:
    return [ResidualLayer(width) for _ in range(settings.blocks)]


@dataclass(frozen=True, kw_only=True)
class TokeniserSettings(EncoderSettings):
    """A discrete visual tokeniser: by default cells of 8 px and 8192 words, as Ramesh et al. 2021."""

    family: ClassVar[str] = "tokeniser"
    finetuning: ClassVar[FineTuning] = FineTuning("SGD", lr=0.003)

    picture_px: tuple[int, int] = (112, 112)  # height and width of the pictures
    stride: int = 8  # side of a cell in pixels; a power of 2
    width: int = 256  # of the map with one position per cell; half of it on each map twice as fine
    vocabulary: int = 8192  # words
    blocks: int = 2  # residual layers at each size of the map

    @property
    def cell_px(self) -> tuple[int, int]:
        return self.stride, self.stride

    @property
    def name(self) -> str:
        return f"tokeniser of {self.vocabulary:,} codes, one for {self.stride} x {self.stride} px"

    def describe(self) -> str:
        return f"{self.name}, width {self.width}, {self.blocks} residual layers at each size"

    def widths(self) -> list[int]:
        """From the picture's own size down to the grid's."""
        factor, found = self.stride, []
        while factor:
            found.append(self.width // factor)
            factor //= 2
        return found

    def build(self) -> Tokeniser:
        if self.stride < 1 or self.stride & (self.stride - 1):
            raise UserError(f"stride is {self.stride}: it must be a power of 2, such as 4 or 8")
        if self.width < self.stride or self.width % self.stride:
            raise UserError(f"width is {self.width}: it must be a multiple of the stride, {self.stride}")
        if self.vocabulary < 2 or self.blocks < 0:
            raise UserError(
                f"vocabulary {self.vocabulary}, blocks {self.blocks}: at least two words, and no fewer than 0 blocks"
            )
        return Tokeniser(self)
