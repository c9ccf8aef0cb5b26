"""Panoptic maps: masks merged so that every pixel belongs to one segment at most. Knows no torch.

Classes are things, of which every object is a separate segment, or stuff (sky, road), which is one segment.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.runs import Runs

NOTHING = 0  # in a map: no segment
LEAST_LEFT = 0.8  # share of a mask that the others must leave


@dataclass(frozen=True)
class Segment:
    number: int  # in the map; from 1
    category: int
    score: float = 1.0


@dataclass(frozen=True)
class Panoptic:
    """The segments of one picture."""

    numbers: NDArray[np.int32]  # (H, W): the segment of every pixel, or NOTHING
    segments: tuple[Segment, ...]

    def rgb(self) -> NDArray[np.uint8]:
        """(H, W, 3): the numbers as COCO has them in a picture, R + 256 G + 256^2 B."""
        return np.stack([self.numbers >> shift & 255 for shift in (0, 8, 16)], axis=2).astype(np.uint8)

    def as_coco(self) -> list[dict[str, Any]]:
        """COCO's segments_info, with scores. Categories are numbered from 1."""
        found = []
        for one in self.segments:
            shape = Runs.of(self.numbers == one.number, (self.numbers.shape[0], self.numbers.shape[1]))
            x0, y0, x1, y1 = shape.box
            found.append(
                {
                    "id": one.number,
                    "category_id": one.category + 1,
                    "area": shape.area,
                    "bbox": [x0, y0, x1 - x0, y1 - y0],
                    "iscrowd": 0,
                    "score": round(one.score, 6),
                }
            )
        return found


def merged(
    categories: Sequence[int],
    scores: Sequence[float],
    strips: Iterable[NDArray[np.floating]],
    size: tuple[int, int],
    stuff: Collection[int] = (),
    *,
    least_left: float = LEAST_LEFT,
) -> Panoptic:
    """strips: (n, rows, W) logits of n masks, from the top of the picture to the bottom.

    Each pixel goes to the mask with the highest score times probability (Cheng et al. 2021, MaskFormer, section 3.4). A
    mask of which the others leave too little is dropped."""
    num = len(scores)
    if not num:
        return Panoptic(np.zeros(size, np.int32), ())
    weights = np.asarray(scores, np.float32)[:, None, None]
    takers = np.empty(size, np.int32)  # the mask that takes a pixel; num: none
    inside, owned = np.zeros(num, np.int64), np.zeros(num, np.int64)
    top = 0
    for strip in strips:
        logits = strip.astype(np.float32)
        owners = (weights / (1 + np.exp(-np.maximum(logits, -80)))).argmax(axis=0)  # exp(89) overflows
        is_inside = logits > 0
        inside += is_inside.sum(axis=(1, 2))
        owned += np.bincount(owners.ravel(), minlength=num)
        takes = np.take_along_axis(is_inside, owners[None], axis=0)[0]
        takers[top : top + len(owners)] = np.where(takes, owners, num)
        top += len(owners)
    taken = np.bincount(takers.ravel(), minlength=num + 1)
    numbers, segments = np.zeros(num + 1, np.int32), list[Segment]()  # numbers: of each mask's segment
    surfaces: dict[int, int] = {}  # of stuff: the segment
    for place, category in enumerate(categories):
        if not taken[place] or owned[place] / inside[place] < least_left:
            continue
        number = surfaces.get(category, len(segments) + 1)
        if number > len(segments):
            segments.append(Segment(number, category, float(scores[place])))
        if category in stuff:
            surfaces[category] = number
        numbers[place] = number
    return Panoptic(numbers[takers], tuple(segments))
