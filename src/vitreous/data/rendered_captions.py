"""rendered:captions: two shapes drawn from a seed, and sentences that say what they are and how they lie.

A thing has a size, a colour and a shape; one lies left of the other, or above it. Every colour has one shape that it
never comes with in training: rendered:captions-unseen has these alone, in all its pictures. No two pictures of a test
set show the same, so that every sentence is about one of them.
"""

import numpy as np
import torch

from vitreous import keys as K
from vitreous.data.base import Source
from vitreous.data.images import Picture
from vitreous.data.rendered_scenes import SHAPES, Floats, centres, turned
from vitreous.data.targets import Captions

SIDE = 64  # of a picture, in pixels; lengths below are shares of it
NUMBERS = {"train": 20_000, "val": 500, "test": 1_000, "unseen": 500}  # pictures per split
RADII = {"small": 0.11, "large": 0.2}
COLOURS = {
    "red": (225, 45, 40),
    "green": (55, 190, 65),
    "blue": (50, 85, 230),
    "yellow": (240, 220, 50),
    "orange": (250, 145, 30),
    "purple": (155, 60, 205),
    "white": (245, 245, 245),
    "grey": (150, 150, 150),
}
SIZE_NAMES, COLOUR_NAMES, SHAPE_NAMES = tuple(RADII), tuple(COLOURS), tuple(SHAPES)
SHAPE_OF = tuple(SHAPES.values())
# Of the first thing to the second, and of the second to the first.
RELATIONS = (("left of", "right of"), ("above", "below"))
SENTENCES = (
    "a {first} {relation} a {second}",
    "a {second} {inverse} a {first}",
    "a picture of a {first} that is {relation} a {second}",
    "there is a {second} {inverse} a {first}",
)


class Pairs:
    """What the pictures of a split show: (N, 2) sizes, colours and shapes, and (N,) relations."""

    def __init__(self, split: str) -> None:
        self.num = NUMBERS[split]
        drawn = K.sample_keys(K.purpose_code(f"rendered captions {split}"), 0, torch.arange(2 * self.num))
        size, colour, shape = (
            K.integers(drawn, what, 2, len(names)).numpy()
            for what, names in (("size", SIZE_NAMES), ("colour", COLOUR_NAMES), ("shape", SHAPE_NAMES))
        )
        relation = K.integers(drawn, "relation", 1, len(RELATIONS)).numpy()[:, 0]
        if split == "unseen":
            shape[:, 0] = _never_with(colour[:, 0])
        differ = (size[:, 0] != size[:, 1]) | (colour[:, 0] != colour[:, 1]) | (shape[:, 0] != shape[:, 1])
        is_seen = (shape != _never_with(colour)).all(axis=1)
        fits = differ & (~is_seen if split == "unseen" else is_seen)
        shown = np.stack([*size.T, *colour.T, *shape.T, relation], axis=1)[fits]
        first = np.sort(np.unique(shown, axis=0, return_index=True)[1])  # of those that show the same
        kept = np.flatnonzero(fits)[: self.num] if split == "train" else np.flatnonzero(fits)[first][: self.num]
        assert len(kept) == self.num  # of twice as many that were drawn
        self.keys = drawn[torch.from_numpy(kept)]
        self.size, self.colour, self.shape, self.relation = size[kept], colour[kept], shape[kept], relation[kept]
        self.ground = 20 + 40 * K.uniform(self.keys, "ground", 3).numpy().astype(np.float64)
        self.turn = 2 * np.pi * K.uniform(self.keys, "turn", 2).numpy().astype(np.float64)
        self.centre = self._centres()

    def _centres(self) -> Floats:
        """(N, 2, 2): x to the right, y down. Along the relation each has its half; across it they lie where they like,
        not far apart."""
        drawn = K.uniform(self.keys, "place", 4).numpy().astype(np.float64)
        along = np.stack([0.23 + 0.04 * drawn[:, 0], 0.73 + 0.04 * drawn[:, 1]], axis=1)
        middle = 0.35 + 0.3 * drawn[:, 2]
        across = middle[:, None] + np.array([-0.1, 0.1]) * (2 * drawn[:, 3:] - 1)
        horizontal = (self.relation == 0)[:, None]
        x, y = np.where(horizontal, along, across), np.where(horizontal, across, along)
        return np.stack([x, y], axis=-1)

    def thing(self, index: int, place: int) -> str:
        size, colour, shape = (int(one[index, place]) for one in (self.size, self.colour, self.shape))
        return f"{SIZE_NAMES[size]} {COLOUR_NAMES[colour]} {SHAPE_NAMES[shape]}"

    def captions(self, index: int) -> list[str]:
        relation, inverse = RELATIONS[int(self.relation[index])]
        words = {"first": self.thing(index, 0), "second": self.thing(index, 1)}
        return [sentence.format(**words, relation=relation, inverse=inverse) for sentence in SENTENCES]

    def picture(self, index: int, side: int = SIDE) -> Picture:
        """(side, side, 3)"""
        x, y = centres(side)
        picture = np.broadcast_to(self.ground[index], (side, side, 3))
        for place in range(2):
            radius = RADII[SIZE_NAMES[int(self.size[index, place])]]
            right, down = (one - middle for one, middle in zip((x, y), self.centre[index, place], strict=True))
            along, across = turned(right / radius, down / radius, float(self.turn[index, place]))
            outside = radius * SHAPE_OF[int(self.shape[index, place])](along, across) * side  # in pixels
            cover = np.clip(0.5 - outside, 0.0, 1.0)[..., None]
            colour = np.array(COLOURS[COLOUR_NAMES[int(self.colour[index, place])]], dtype=np.float64)
            picture = picture + cover * (colour - picture)
        return picture.round().astype(np.uint8)


def _never_with(colour: np.ndarray) -> np.ndarray:
    """The shape that a colour is never seen with in training."""
    return colour % len(SHAPE_NAMES)


class RenderedCaptions(Source):
    def __init__(self, split: str) -> None:
        self.name, self.classes = f"rendered:captions ({split})", ()
        self.pairs = Pairs(split)
        self.targets = Captions.of([self.pairs.captions(index) for index in range(self.pairs.num)])

    def read(self, index: int) -> Picture:
        return self.pairs.picture(index)

    def where(self, index: int) -> str:
        return f"picture {index} of {self.name}"


def open_captions() -> dict[str, Source]:
    """train, val and test, of what is seen in training."""
    return {split: RenderedCaptions(split) for split in ("train", "val", "test")}


def open_unseen_captions() -> dict[str, Source]:
    return {"test": RenderedCaptions("unseen")}
