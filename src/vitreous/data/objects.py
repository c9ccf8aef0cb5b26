"""Objects as a data set has them: a flat table of boxes, and what is wrong with some of them. Knows no torch.

Boxes are x0 y0 x1 y1 in px of the upright picture, pixel borders being whole numbers: the box of one pixel has a width
of 1. What can be repaired is repaired, and counted; what cannot is left out, and counted too.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
BoxArray = NDArray[np.float32]  # (T, 4)

FAR_PX = 1e9  # beyond any picture; what is farther off is taken as this
TOLERANCE_PX = 1.0  # by which a box may leave its picture without a word: annotation tools round


class Fault(IntEnum):
    """What is wrong with a box. The first two are repaired; boxes with the others are left out."""

    NONE = 0
    SWAPPED = 1  # corners: put in order
    CUT = 2  # reached beyond the picture: cut off there
    OUTSIDE = 3  # of the picture altogether
    EMPTY = 4  # without an area
    REPEATED = 5  # the same box of the same class again


FIRST_LEFT_OUT = Fault.OUTSIDE


class Outlines(ABC):
    """The exact shapes of objects, where a data set has them. Reading is safe in threads and in forked workers."""

    @abstractmethod
    def mask(self, number: int, height: int, width: int) -> Flags | None:
        """(height, width): which pixels of the picture as it was annotated belong to an object; None where only its box
        is known. Raises BadPicture."""

    def are_known(self, numbers: Numbers) -> Flags:
        """Of which of these objects there is more than a box."""
        return np.ones(len(numbers), dtype=np.bool_)

    def text(self, number: int) -> bytes:
        """What tells this shape from others, beside the box of its object."""
        return b""


@dataclass(frozen=True)
class Objects:
    """T objects of some pictures, by picture."""

    owner: Numbers  # (T,): the picture, ascending
    boxes: BoxArray
    classes: Numbers  # (T,)
    crowd: Flags  # (T,): a group, or too hard to see: neither learned nor counted
    faults: Numbers  # (T,): a Fault each
    outline: Numbers  # (T,): its number among the Outlines

    def __len__(self) -> int:
        return len(self.owner)

    def chosen(self, which: Numbers | Flags) -> "Objects":
        return Objects(**{part.name: getattr(self, part.name)[which] for part in fields(self)})

    @property
    def are_used(self) -> Flags:
        """(T,)"""
        return self.faults < FIRST_LEFT_OUT


@dataclass
class Annotated:
    """The pictures of one split as they were annotated, and their objects: what a reader of a format fills."""

    pictures: list[str] = field(default_factory=list)  # paths, or whatever else finds them
    ids: list[int | str] = field(default_factory=list)  # what the data set calls them
    sizes: list[tuple[int, int]] = field(default_factory=list)  # height and width; what the boxes refer to
    owner: list[int] = field(default_factory=list)
    boxes: list[Sequence[float]] = field(default_factory=list)
    classes: list[int] = field(default_factory=list)
    crowd: list[bool] = field(default_factory=list)
    outlines: list[str] = field(default_factory=list)  # as JSON; "" where there is none
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.pictures)

    def chosen(self, places: Sequence[int]) -> "Annotated":
        """Some of the pictures, with their objects."""
        now = {place: at for at, place in enumerate(places)}
        rows = [row for row, owner in enumerate(self.owner) if owner in now]
        found = Annotated(notes=list(self.notes), owner=[now[self.owner[row]] for row in rows])
        for name in ("pictures", "ids", "sizes"):
            setattr(found, name, [getattr(self, name)[place] for place in places])
        for name in ("boxes", "classes", "crowd", "outlines"):
            setattr(found, name, [getattr(self, name)[row] for row in rows])
        return found

    def add(self, owner: int, box: Sequence[float], number: int, *, crowd: bool = False, outline: str = "") -> None:
        self.owner.append(owner)
        self.boxes.append(box)
        self.classes.append(number)
        self.crowd.append(crowd)
        self.outlines.append(outline)


def checked(owner: Any, boxes: NDArray[np.floating], classes: Any, crowd: Any, sizes: Numbers) -> Objects:
    """The table of objects in any order, as they were annotated; `sizes` (N, 2): heights and widths of the pictures."""
    order = np.argsort(np.asarray(owner, dtype=np.int64), kind="stable")
    owners, numbers = (np.asarray(one, dtype=np.int64)[order] for one in (owner, classes))
    fixed, faults = repaired(boxes[order], sizes[owners])
    rows = np.column_stack([owners, numbers, fixed.view(np.int32)])
    first = np.unique(rows, axis=0, return_index=True)[1] if len(rows) else np.arange(0)
    again = np.ones(len(rows), dtype=np.bool_)
    again[first] = False
    faults[np.logical_and(again, faults < FIRST_LEFT_OUT)] = Fault.REPEATED
    return Objects(owners, fixed, numbers, np.asarray(crowd, dtype=np.bool_)[order], faults, order.astype(np.int64))


def repaired(boxes: NDArray[np.floating], sizes: Numbers) -> tuple[BoxArray, Numbers]:
    """Boxes inside of their pictures, whose heights and widths are `sizes` (T, 2); and what was wrong with each."""
    known: Flags = np.all(np.isfinite(boxes), axis=1)
    found = np.clip(np.where(known[:, None], boxes, 0), -FAR_PX, FAR_PX)
    low, high = np.minimum(found[:, :2], found[:, 2:]), np.maximum(found[:, :2], found[:, 2:])
    edge = sizes[:, ::-1].astype(np.float64)
    whole = np.concatenate([low, high], axis=1).astype(np.float32)
    inside = np.concatenate([np.clip(low, 0, edge), np.clip(high, 0, edge)], axis=1).astype(np.float32)
    area, area_inside = (_sides(one).prod(axis=1) for one in (whole, inside))
    faults = np.zeros(len(boxes), dtype=np.int64)
    for fault, is_so in (
        (Fault.CUT, (low < -TOLERANCE_PX).any(axis=1) | (high > edge + TOLERANCE_PX).any(axis=1)),
        (Fault.SWAPPED, (found[:, :2] > found[:, 2:]).any(axis=1)),
        (Fault.OUTSIDE, area_inside <= 0),
        (Fault.EMPTY, (area <= 0) | ~known),
    ):
        faults[is_so] = fault
    return inside, faults


def overlaps(boxes: BoxArray) -> NDArray[np.float32]:
    """(T, T): intersection over union of every two."""
    low, high = np.maximum(boxes[:, None, :2], boxes[:, :2]), np.minimum(boxes[:, None, 2:], boxes[:, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=-1)
    area = _sides(boxes).prod(axis=1)
    share: NDArray[np.float32] = shared / np.maximum(area[:, None] + area - shared, np.finfo(np.float32).tiny)
    return share


def _sides(boxes: NDArray[np.floating]) -> NDArray[np.floating]:
    """(T, 2): widths and heights."""
    return boxes[:, 2:] - boxes[:, :2]
