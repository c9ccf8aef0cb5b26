"""What Swin, PVT and ConvNeXt share: stages that each halve the sides of the map before it."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from vitreous.models.base import EncoderSettings, Output


def pyramid(widths: Sequence[int], patch: int, normed: Literal["all", "last", "none"] = "all") -> tuple[Output, ...]:
    """The maps of the stages. `normed`: which come out of a norm."""
    return tuple(
        Output(width, (patch * 2**i, patch * 2**i), normed == "all" or (normed == "last" and i == len(widths) - 1))
        for i, width in enumerate(widths)
    )


@dataclass(frozen=True, kw_only=True)
class PyramidSettings(EncoderSettings):
    patch: int = 4  # stride of the first patches, in pixels; 1 or 2 for small pictures
    depths: tuple[int, ...]  # blocks in each stage

    @property
    def strides(self) -> tuple[int, ...]:
        """Px of the picture from one place of each stage's map to the next."""
        return tuple(self.patch * 2**stage for stage in range(len(self.depths)))

    @property
    def coarsest_px(self) -> tuple[int, int]:
        return self.strides[-1], self.strides[-1]

    def for_side(self, side_px: int, places: int = 4) -> Self:
        """Finer where pictures are small."""
        patch = self.patch
        while patch > 1 and side_px < places * patch * 2 ** (len(self.depths) - 1):
            patch //= 2
        return EncoderSettings.for_side(dataclasses.replace(self, patch=patch), side_px)
