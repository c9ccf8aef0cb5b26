"""Pictures of several labels each: squares of three colours, which may overlap, or none."""

import numpy as np

from vitreous.data.base import Source
from vitreous.data.splits import Splits
from vitreous.data.targets import ManyLabels

COLOURS = ("red", "green", "blue")


def squares(num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(N, 24, 24, 3) uint8 and (N, 3) bool."""
    rng = np.random.default_rng(seed)
    labels = rng.random((num, 3)) < (0.6, 0.4, 0.3)
    pictures = rng.integers(0, 60, (num, 24, 24, 3), dtype=np.uint8)
    for picture, has in zip(pictures, labels, strict=True):
        for channel in np.flatnonzero(has):
            y, x = rng.integers(0, 16, 2)
            picture[y : y + 8, x : x + 8, channel] += 150
    return pictures, labels ^ (rng.random((num, 3)) < 0.08)  # nobody is always right


class Squares(Source):
    classes = COLOURS

    def __init__(self, num: int, seed: int, name: str) -> None:
        self.name = name
        self._all, labels = squares(num, seed)
        self.targets = ManyLabels(labels)

    def read(self, index):
        return self._all[index]

    def where(self, index):
        return f"{self.name}/{index}.png"


def splits(*_) -> Splits:
    return Splits(Squares(160, 0, "train"), Squares(80, 1, "val"), Squares(90, 2, "test"))
