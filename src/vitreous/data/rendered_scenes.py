"""rendered:segment: scenes of overlapping shapes drawn from a seed, with a mask that is exact.

A scene is a function of (split, index) alone, and can be drawn at any size: shapes are signed distances. A pixel
belongs to the topmost shape that holds its centre. Colours and textures say nothing about the class, only the outline.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous import keys as K
from vitreous.data.base import Source
from vitreous.data.images import Picture
from vitreous.data.targets import Masks, PixelLabels
from vitreous.data.targets.base import Digest

SIDE = 64  # of a picture, in pixels; lengths below are shares of it
NUMBERS = {"train": 2000, "val": 250, "test": 500}  # pictures per split
FEWEST, MOST = 2, 5  # shapes in a scene
SIZES = 0.14, 0.3  # from the centre of a shape to its farthest point, about
CONTRAST = 28.0  # levels by which a texture goes up and down

Floats = NDArray[np.float64]


# ---- Shapes: how far (x, y) lies outside of one of size 1, below 0 inside of it


def _disc(x: Floats, y: Floats) -> Floats:
    return np.hypot(x, y) - 0.85


def _ring(x: Floats, y: Floats) -> Floats:
    return np.abs(np.hypot(x, y) - 0.7) - 0.25


def _box(x: Floats, y: Floats, wide: float, tall: float) -> Floats:
    across, down = np.abs(x) - wide, np.abs(y) - tall
    return np.hypot(np.maximum(across, 0), np.maximum(down, 0)) + np.minimum(np.maximum(across, down), 0)


def _square(x: Floats, y: Floats) -> Floats:
    return _box(x, y, 0.7, 0.7)


def _cross(x: Floats, y: Floats) -> Floats:
    return np.minimum(_box(x, y, 0.95, 0.28), _box(x, y, 0.28, 0.95))


def _triangle(x: Floats, y: Floats) -> Floats:
    sides = [np.cos(turn) * x + np.sin(turn) * y for turn in 2 * np.pi * np.arange(3) / 3]
    farthest: Floats = np.max(sides, axis=0)
    return farthest - 0.5


def _crescent(x: Floats, y: Floats) -> Floats:
    return np.maximum(np.hypot(x, y) - 0.95, 0.75 - np.hypot(x - 0.5, y))


SHAPES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "disc": _disc,
    "ring": _ring,
    "square": _square,
    "cross": _cross,
    "triangle": _triangle,
    "crescent": _crescent,
}
CLASSES = ("background", *SHAPES)


# ---- Textures: -1 to 1 at (x, y), in shares of the picture


def _plain(x: Floats, y: Floats) -> Floats:
    return np.zeros_like(x)


def _gradient(x: Floats, y: Floats) -> Floats:
    return np.clip(2 * x - 1, -1, 1)


def _stripes(x: Floats, y: Floats) -> Floats:
    return np.sin(12 * np.pi * x)


def _checks(x: Floats, y: Floats) -> Floats:
    waves: Floats = np.sin(10 * np.pi * x) * np.sin(10 * np.pi * y)
    return np.clip(3 * waves, -1, 1)


Texture = Callable[[Floats, Floats], Floats]
TEXTURES: tuple[Texture, ...] = (_plain, _gradient, _stripes, _checks)


class Scenes:
    """What the pictures of a split show: a ground, and up to MOST shapes on it, later ones on top."""

    def __init__(self, split: str, task: str = "segment") -> None:
        # Seeds keep tasks and splits apart: no picture of test is one of train.
        self.keys = K.sample_keys(K.purpose_code(f"rendered {task} {split}"), 0, torch.arange(NUMBERS[split]))
        uniform = self.uniform
        self.counts = FEWEST + K.integers(self.keys, "how many", 1, MOST - FEWEST + 1).numpy()[:, 0]  # (N,)
        self.shape = K.integers(self.keys, "shape", MOST, len(SHAPES)).numpy()  # (N, MOST)
        self.centre = uniform("centre", MOST, 2, low=0.08, high=0.92)  # x to the right, y down
        self.size = uniform("size", MOST, low=SIZES[0], high=SIZES[1])
        self.turn = uniform("turn", MOST, high=2 * np.pi)
        # The ground first, then the shapes. It is darker on the whole, but no colour is for shapes alone.
        self.colour = uniform("colour", MOST + 1, 3, low=80, high=225)
        self.colour[:, 0] = uniform("ground", 3, low=30, high=130)
        self.texture = K.integers(self.keys, "texture", MOST + 1, len(TEXTURES)).numpy()
        self.grain = uniform("grain", MOST + 1, high=2 * np.pi)  # the direction of a texture

    def uniform(self, purpose: str, *shape: int, low: float = 0.0, high: float = 1.0) -> Floats:
        """(N, *shape)"""
        drawn = K.uniform(self.keys, purpose, int(np.prod(shape))).numpy().astype(np.float64)
        return low + (high - low) * drawn.reshape(len(self.keys), *shape)

    def __len__(self) -> int:
        return len(self.counts)

    def picture(self, index: int, side: int = SIDE) -> Picture:
        """(side, side, 3)"""
        x, y = centres(side)
        picture = self._paint(index, 0, x, y)
        for number in range(int(self.counts[index])):
            rows, columns = self._around(index, number, side)
            outside = self._outside(index, number, x[:, columns], y[rows]) * side  # in pixels
            cover = np.clip(0.5 - outside, 0.0, 1.0)[..., None]  # soft over one pixel, half at the outline itself
            below = picture[rows, columns]
            below += cover * (self._paint(index, 1 + number, x[:, columns], y[rows]) - below)
        return picture.round().astype(np.uint8)

    def mask(self, index: int, side: int = SIDE) -> NDArray[np.int16]:
        """(side, side)"""
        x, y = centres(side)
        mask = np.zeros((side, side), dtype=np.int16)
        for number in range(int(self.counts[index])):
            rows, columns = self._around(index, number, side)
            is_inside = self._outside(index, number, x[:, columns], y[rows]) < 0
            mask[rows, columns][is_inside] = 1 + self.shape[index, number]
        return mask

    def _around(self, index: int, number: int, side: int) -> tuple[slice, slice]:
        """The rows and columns that a shape reaches; no outline goes farther than 1 from its centre."""
        reach, (x, y) = self.size[index, number], self.centre[index, number]
        rows, columns = (
            slice(max(0, math.floor((middle - reach) * side) - 1), math.ceil((middle + reach) * side) + 1)
            for middle in (y, x)
        )
        return rows, columns

    def _outside(self, index: int, number: int, x: Floats, y: Floats) -> Floats:
        """How far every place lies outside of a shape."""
        size, turn = float(self.size[index, number]), float(self.turn[index, number])
        right, down = x - self.centre[index, number, 0], y - self.centre[index, number, 1]
        along, across = turned(right / size, down / size, turn)
        distance: Floats = list(SHAPES.values())[self.shape[index, number]](along, across)
        return size * distance

    def _paint(self, index: int, layer: int, x: Floats, y: Floats, texture: Texture | None = None) -> Floats:
        """(side, side, 3) the ground or a shape, as if it filled the picture; in its own texture, or in another."""
        along, across = turned(x, y, self.grain[index, layer])
        waves = (texture or TEXTURES[self.texture[index, layer]])(along, across)
        painted: Floats = self.colour[index, layer] + CONTRAST * waves[..., None]
        return painted


def centres(side: int) -> tuple[Floats, Floats]:
    """x (1, side) and y (side, 1) of the pixels."""
    middle = (np.arange(side) + 0.5) / side
    return middle[None, :], middle[:, None]


def turned(x: Floats, y: Floats, angle: float | Floats) -> tuple[Floats, Floats]:
    cos, sin = np.cos(angle), np.sin(angle)
    return cos * x + sin * y, cos * y - sin * x


# ---- The source


class RenderedScenes(Source):
    def __init__(self, split: str) -> None:
        self.name, self.classes = f"rendered:segment ({split})", CLASSES
        self.scenes = Scenes(split)
        self.targets = PixelLabels(SceneMasks(self.scenes))

    def read(self, index: int) -> Picture:
        return self.scenes.picture(index)

    def where(self, index: int) -> str:
        return f"picture {index} of {self.name}"


class SceneMasks(Masks):
    def __init__(self, scenes: Scenes) -> None:
        self.scenes = scenes

    def __len__(self) -> int:
        return len(self.scenes)

    def read(self, index: int) -> NDArray[np.int16]:
        return self.scenes.mask(index)

    def update(self, index: int, digest: Digest) -> None:
        """Nothing: scenes are told apart by the pictures' names."""


def open_scenes() -> dict[str, Source]:
    """train, val and test."""
    return {split: RenderedScenes(split) for split in NUMBERS}
