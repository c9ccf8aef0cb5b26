"""Where a picture goes on the model's input, in whole numbers. Knows no torch.

A picture of any size is resized to `tall` x `wide` and laid at (`top`, `left`) of a canvas. What hangs over is cut off
(a centre crop), what is left free is padding (a letterbox). The way back is the same numbers read the other way.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Size = tuple[int, int]  # (height, width)
Fit = Literal["centre", "squash", "squash-centre", "letterbox"]


class Placement(NamedTuple):
    source: Size  # of the picture
    top: int  # on the canvas; below 0 where rows are cut off
    left: int
    tall: int  # of the whole picture, resized
    wide: int
    canvas: Size

    @property
    def extent(self) -> Size:
        """How many rows and columns of the canvas are picture, from its upper left corner."""
        return min(self.canvas[0], self.top + self.tall), min(self.canvas[1], self.left + self.wide)

    def restored(self, maps: NDArray[np.float32], outside: float = 0.0) -> NDArray[np.float32]:
        """Values on the canvas (..., h, w) -> of every pixel of the picture (..., H, W), linear between them; pixels of
        the picture that the canvas does not show have `outside`."""
        found = maps
        for axis, start, length in ((-2, self.top, self.tall), (-1, self.left, self.wide)):
            side, source = self.canvas[axis], self.source[axis]
            place = start + (np.arange(source) + 0.5) * length / source - 0.5
            last = min(side, start + length) - 1  # beyond it there is padding
            low = np.clip(np.floor(place), max(start, 0), last).astype(np.int64)
            high = np.minimum(low + 1, last)
            share = np.clip(place - low, 0, 1).astype(np.float32)
            share = share if axis == -1 else share[:, None]
            between = found.take(low, axis) * (1 - share) + found.take(high, axis) * share
            shown = (place >= -0.5) & (place <= side - 0.5)
            found = np.where(shown if axis == -1 else shown[:, None], between, np.float32(outside))
        return found


def placed(size: Size, fit: Fit, fraction: float, source: Size, *, floor: bool = False) -> Placement:
    """`fraction`: what a centre crop keeps of the shorter side; `floor`: of an odd margin, the smaller half is cut off
    at the top."""
    if fit == "squash":
        return Placement(source, 0, 0, *size, size)
    if fit == "letterbox":
        return Placement(source, 0, 0, *contained(size, source), size)
    whole = enlarged(size, fraction) if fit == "squash-centre" else covering(enlarged(size, fraction), source)
    top, left = centre(size, whole, floor)
    return Placement(source, -top, -left, *whole, size)


def covering(size: Size, source: Size) -> Size:
    """The size of `source`, in its proportions, that just covers `size`."""
    (height, width), (target_h, target_w) = source, size
    if height * target_w <= width * target_h:
        return target_h, max(target_w, target_h * width // height)
    return max(target_h, target_w * height // width), target_w


def contained(size: Size, source: Size) -> Size:
    """The size of `source`, in its proportions, that just fits into `size`."""
    (height, width), (target_h, target_w) = source, size
    if height * target_w >= width * target_h:
        return target_h, max(1, round(target_h * width / height))
    return max(1, round(target_w * height / width)), target_w


def enlarged(size: Size, fraction: float) -> Size:
    """The size of which `size` is the fraction."""
    height, width = (int(side / fraction + 1e-6) for side in size)
    return height, width


def centre(size: Size, within: Size, floor: bool = False) -> Size:
    """The corner of the central box. Of an odd margin the half is rounded to even, as torchvision does, or down."""
    top, left = ((outer - inner) / 2 for inner, outer in zip(size, within, strict=True))
    return (int(top), int(left)) if floor else (round(top), round(left))
