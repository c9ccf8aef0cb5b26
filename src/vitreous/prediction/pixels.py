"""From a model's raw logits to a class for every pixel of the picture as it was given. Knows no torch.

One implementation for models in torch, exported and served. Where a model sees a picture through windows, each window
is a picture of the model's size; what it says of them is averaged on one grid that covers the whole picture.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.images import Picture
from vitreous.data.placement import Placement

Array = NDArray[np.float32]
STRIP_VALUES = 8_000_000  # logits that are held at the picture's size at once
LONGEST = 16  # windows side by side, without overlap; longer pictures are squashed


# ---- From logits to labels


@dataclass(frozen=True)
class Pixels:
    labels: NDArray[np.uint8] | NDArray[np.uint16]  # (H, W) numbers of classes
    confidence: Array  # (H, W): the probability of that class, calibrated


def classified(logits: Array, placement: Placement, temperature: float = 1.0) -> Pixels:
    """(K, h, w) logits over the model's canvas -> the likeliest class of every pixel of the picture that lies on it."""
    num_classes, (height, width) = len(logits), placement.source
    labels = np.empty((height, width), np.uint8 if num_classes <= 256 else np.uint16)
    confidence = np.empty((height, width), np.float32)
    start = 0
    for strip in strips(logits, placement):
        part = slice(start, start + strip.shape[1])
        best = strip.argmax(axis=0)
        top = np.take_along_axis(strip, best[None], axis=0)
        labels[part] = best
        confidence[part] = 1 / np.exp((strip - top) / temperature).sum(axis=0)
        start = part.stop
    return Pixels(labels, confidence)


def strips(logits: Array, placement: Placement) -> Iterator[Array]:
    """(K, h, w) over the model's canvas -> (K, rows, W) of the picture that lies on it, from the top: all logits of a
    large picture would not fit into memory."""
    height, width = placement.source
    rows, columns = places(placement, logits.shape[1:])
    wide = between(np.asarray(logits, np.float32), columns, axis=2)  # (K, h, W)
    step = max(1, STRIP_VALUES // (max(1, len(logits)) * width))
    for start in range(0, height, step):
        yield between(wide, rows[start : start + step], axis=1)


def places(placement: Placement, grid: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where the rows and the columns of a picture lie on the grid of logits, the middle of its first cell being 0.
    Pixels beyond the middle of the last cell that shows the picture are taken for it."""
    found = []
    for axis, (first, length) in enumerate(((placement.top, placement.tall), (placement.left, placement.wide))):
        cells = grid[axis] / placement.canvas[axis]  # per px
        at = (first + (np.arange(placement.source[axis]) + 0.5) * length / placement.source[axis]) * cells - 0.5
        low, high = math.floor(max(first, 0) * cells), min(first + length, placement.canvas[axis]) * cells
        found.append(np.clip(at, low, max(low, math.ceil(high - 1e-6) - 1)))
    return found[0], found[1]


def at_pixels(logits: Array, placement: Placement, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Array:
    """(n, K): the logits of some pixels of the picture."""
    down, right = places(placement, logits.shape[1:])
    y, x = down[rows], right[columns]
    (top, below), (left, beside) = ((at.astype(np.int64), np.ceil(at).astype(np.int64)) for at in (y, x))
    low, aside = (y - top).astype(np.float32), (x - left).astype(np.float32)
    upper = logits[:, top, left] * (1 - aside) + logits[:, top, beside] * aside  # (K, n)
    lower = logits[:, below, left] * (1 - aside) + logits[:, below, beside] * aside
    return np.ascontiguousarray((upper * (1 - low) + lower * low).T)


def between(values: Array, at: NDArray[np.float64], axis: int) -> Array:
    """Linear between the values along one axis, at places that need not be whole."""
    low = np.minimum(at.astype(np.int64), max(values.shape[axis] - 2, 0))
    share = (at - low).astype(np.float32).reshape([-1 if one == axis else 1 for one in range(values.ndim)])
    near = values.take(low, axis)
    if values.shape[axis] == 1:
        return near
    return near + share * (values.take(low + 1, axis) - near)


# ---- Windows


@dataclass(frozen=True)
class Windows:
    """Where a model of one size looks in a picture of another: the picture is resized so that its shorter side just
    fits (Strudel et al. 2021, section 4.1), and windows go over it in whole cells, the model's places of logits."""

    picture_px: tuple[int, int]  # height and width of the picture
    canvas: tuple[int, int]  # of the resized picture
    size: tuple[int, int]  # of a window, in px
    cell: tuple[int, int]  # px that one place of the logits covers
    corners: tuple[tuple[int, int], ...]  # top and left of every window, in cells

    def cut(self, picture: Picture) -> Iterator[Picture]:
        """Every window, as a picture of the model's size."""
        resized = np.asarray(Image.fromarray(picture).resize(self.canvas[::-1], Image.Resampling.BILINEAR))
        for row, column in self.corners:
            top, left = row * self.cell[0], column * self.cell[1]
            yield np.ascontiguousarray(resized[top : top + self.size[0], left : left + self.size[1]])

    @property
    def placement(self) -> Placement:
        """Of the picture on the grid that `joined` returns."""
        return Placement(self.picture_px, 0, 0, *self.canvas, self.canvas)

    def joined(self, logits: Sequence[Array]) -> Array:
        """(K, h, w) of every window -> those of the whole picture, the mean where windows overlap."""
        num_classes, h, w = logits[0].shape
        grid = self.canvas[0] // self.cell[0], self.canvas[1] // self.cell[1]
        total, times = np.zeros((num_classes, *grid), np.float32), np.zeros(grid, np.float32)
        for (row, column), one in zip(self.corners, logits, strict=True):
            total[:, row : row + h, column : column + w] += one
            times[row : row + h, column : column + w] += 1
        return np.asarray(total / times, np.float32)


def windows(picture_px: tuple[int, int], size: tuple[int, int], cell: tuple[int, int], overlap: float) -> Windows:
    """As few as cover a picture with at least that overlap."""
    scale = max(model / given for model, given in zip(size, picture_px, strict=True))
    canvas = [
        min(max(model, round(given * scale / px) * px), LONGEST * model)
        for given, model, px in zip(picture_px, size, cell, strict=True)
    ]
    starts = [_starts(canvas[axis] // cell[axis], size[axis] // cell[axis], overlap) for axis in (0, 1)]
    corners = tuple((row, column) for row in starts[0] for column in starts[1])
    return Windows(picture_px, (canvas[0], canvas[1]), size, cell, corners)


def _starts(length: int, window: int, overlap: float) -> list[int]:
    """Even steps from the first place to the last, in cells."""
    step = max(1.0, window * (1 - overlap))
    num = 1 + math.ceil((length - window) / step)
    return [round(place * (length - window) / max(num - 1, 1)) for place in range(num)]
