"""No network at all: the pixels of a small picture are its features. With a linear head, logistic regression on pixels
is a model like any other: the trivial one, which all others have to beat."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.models.base import Encoder, EncoderSettings, Features, FineTuning, Output


class Pixels(Encoder):
    """`maps` holds the picture, shrunk to a grid of cells by their means; `pooled` is the same in one row."""

    def __init__(self, settings: "PixelsSettings") -> None:
        super().__init__()
        self.grid, self.channels = settings.grid, settings.channels
        self.width = settings.channels * settings.grid[0] * settings.grid[1]
        self.picture_px = settings.picture_px

    @property
    def outputs(self) -> tuple[Output, ...]:  # type: ignore[override]
        """The grid stays as it is: the stride follows the picture."""
        down, right = (max(1, round(side / cells)) for side, cells in zip(self.picture_px, self.grid, strict=True))
        return (Output(self.channels, (down, right)),)

    def features(self, images: Tensor) -> Features:
        cells = images if tuple(images.shape[2:]) == self.grid else F.adaptive_avg_pool2d(images, self.grid)
        return Features(maps=(cells,), prefix=None, pooled=cells.flatten(1))

    def stages(self) -> list[nn.Module]:
        return []


@dataclass(frozen=True, kw_only=True)
class PixelsSettings(EncoderSettings):
    """The picture itself, as this many cells."""

    family: ClassVar[str] = "pixels"
    finetuning: ClassVar[FineTuning] = FineTuning("SGD", lr=0.003, enlarges=False)

    picture_px: tuple[int, int] = (32, 32)  # height and width of the pictures
    grid: tuple[int, int] = (32, 32)  # cells that a picture is reduced to

    @property
    def name(self) -> str:
        return f"linear model of {self.grid[0]} x {self.grid[1]} pixels"

    def describe(self) -> str:
        return self.name

    def build(self) -> Pixels:
        if min(*self.grid, *self.picture_px, self.channels) < 1:
            raise UserError(f"a grid of {self.grid}, pictures of {self.picture_px}: all sides must be 1 or more")
        return Pixels(self)
