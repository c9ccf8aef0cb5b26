"""rendered:objects: shapes drawn from a seed that do not touch, with boxes and masks that are exact.

The shapes, textures and colours are those of rendered:segment. All lie within the picture; one in six shows none.
"""

import numpy as np
from numpy.typing import NDArray

from vitreous import keys as K
from vitreous.data.base import Source
from vitreous.data.images import Picture
from vitreous.data.objects import Flags, Outlines, checked
from vitreous.data.rendered_scenes import MOST, NUMBERS, SHAPES, SIDE, TEXTURES, Floats, Scenes, centres, turned
from vitreous.data.targets import Boxes

CLASSES = tuple(SHAPES)
SIZES = 0.1, 0.26  # from the centre of a shape to its farthest point, about, as a share of the picture
GAP = 0.02  # between the circles that hold two shapes
ATTEMPTS = 12  # places tried for a shape; where all are taken, it is left out
FINE = 96  # points of a circle, at most 0.1 % of its radius inside of it


def _outlines() -> list[Floats]:
    """For each shape of size 1, points (P, 2) of whose extents it has: corners, or a fine outline."""
    angles = 2 * np.pi * np.arange(FINE) / FINE
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    signs = np.array([(x, y) for x in (-1, 1) for y in (-1, 1)], dtype=np.float64)
    thirds = np.pi + 2 * np.pi * np.arange(3) / 3
    horns = 0.95 * circle[np.hypot(0.95 * circle[:, 0] - 0.5, 0.95 * circle[:, 1]) >= 0.75]
    return [
        0.85 * circle,
        0.95 * circle,
        0.7 * signs,
        np.concatenate([signs * (0.95, 0.28), signs * (0.28, 0.95)]),
        np.stack([np.cos(thirds), np.sin(thirds)], axis=1),
        np.concatenate([horns, _horn_tips()]),
    ]


def _horn_tips() -> Floats:
    """Where the two circles of a crescent meet: x by subtracting their equations."""
    x = (0.95**2 - 0.75**2 + 0.5**2) / (2 * 0.5)
    y = np.sqrt(0.95**2 - x**2)
    return np.array([(x, y), (x, -y)])


class ObjectScenes(Scenes):
    """Up to MOST shapes apart from each other."""

    def __init__(self, split: str) -> None:
        super().__init__(split, "objects")
        self.size = self.uniform("size", MOST, low=SIZES[0], high=SIZES[1])
        self.counts = K.integers(self.keys, "how many", 1, MOST + 1).numpy()[:, 0]
        margin = self.size[:, :, None, None]
        places = margin + (1 - 2 * margin) * self.uniform("centre", MOST, ATTEMPTS, 2)
        is_there = np.arange(MOST) < self.counts[:, None]  # (N, MOST)
        for number in range(MOST):
            tried = places[:, number]  # (N, ATTEMPTS, 2)
            apart = np.linalg.norm(tried[:, :, None] - self.centre[:, None, :number], axis=-1)
            needed = self.size[:, None, number, None] + self.size[:, None, :number] + GAP
            is_free = ((apart >= needed) | ~is_there[:, None, :number]).all(axis=-1)  # (N, ATTEMPTS)
            is_there[:, number] &= is_free.any(axis=1)
            self.centre[:, number] = tried[np.arange(len(tried)), is_free.argmax(axis=1)]
        self._close_ranks(is_there)

    def picture(self, index: int, side: int = SIDE) -> Picture:
        """(side, side, 3). A ground alone would be the same picture many times: it is crossed by another one."""
        if self.counts[index]:
            return super().picture(index, side)
        x, y = centres(side)
        both = [self._paint(index, layer, x, y, texture) for layer, texture in ((0, TEXTURES[-1]), (1, TEXTURES[-2]))]
        mixed: Picture = np.mean(both, axis=0).round().astype(np.uint8)
        return mixed

    def _close_ranks(self, is_there: NDArray[np.bool_]) -> None:
        """Shapes that found no place go behind the others, where `counts` ends."""
        order = np.argsort(~is_there, axis=1, kind="stable")
        self.counts = is_there.sum(axis=1)
        for name in ("shape", "centre", "size", "turn"):
            values = getattr(self, name)
            setattr(self, name, np.take_along_axis(values, order if values.ndim == 2 else order[..., None], axis=1))

    def boxes(self, side: int = SIDE) -> NDArray[np.float32]:
        """(N, MOST, 4): x0 y0 x1 y1 in px."""
        low, high = (np.zeros_like(self.centre) for _ in range(2))
        for number, outline in enumerate(_outlines()):
            chosen = self.shape == number
            # A scene is drawn by turning its pixels into the shape's own frame: outlines are turned the other way.
            x, y = turned(outline[:, 0], outline[:, 1], -self.turn[chosen][:, None])
            points = np.stack([x, y], axis=-1) * self.size[chosen][:, None, None]
            low[chosen], high[chosen] = points.min(axis=1), points.max(axis=1)
        found = np.concatenate([self.centre + low, self.centre + high], axis=-1) * side
        return found.astype(np.float32)

    def shape_mask(self, index: int, number: int, side: int = SIDE) -> Flags:
        """(side, side): the pixels whose centres a shape holds."""
        inside: Flags = self._outside(index, number, *centres(side)) < 0
        return inside


class SceneOutlines(Outlines):
    """By the number of an object among all that the scenes show."""

    def __init__(self, scenes: ObjectScenes) -> None:
        self.scenes = scenes
        self.places = np.argwhere(np.arange(MOST) < scenes.counts[:, None])  # (T, 2): picture, shape

    def mask(self, number: int, height: int, width: int) -> Flags:
        index, shape = self.places[number].tolist()
        return self.scenes.shape_mask(index, shape, height)


class RenderedObjects(Source):
    def __init__(self, split: str) -> None:
        self.name, self.classes = f"rendered:objects ({split})", CLASSES
        self.scenes = ObjectScenes(split)
        outlines = SceneOutlines(self.scenes)
        owner, number = outlines.places.T
        sizes = np.full((len(self.scenes), 2), SIDE)
        boxes, classes = (one[owner, number] for one in (self.scenes.boxes(), self.scenes.shape))
        objects = checked(owner, boxes, classes, np.zeros(len(owner), dtype=np.bool_), sizes)
        self.targets = Boxes(objects, sizes, outlines)

    def read(self, index: int) -> Picture:
        return self.scenes.picture(index)

    def where(self, index: int) -> str:
        return f"picture {index} of {self.name}"


def open_objects() -> dict[str, Source]:
    """train, val and test."""
    return {split: RenderedObjects(split) for split in NUMBERS}
