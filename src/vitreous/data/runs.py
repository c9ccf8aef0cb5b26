"""Shapes as runs of pixels, outside and inside in turn, column after column: as COCO has them. Knows no torch.

A mask of a large picture takes a byte per pixel; its runs take a few numbers per column that it crosses.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]
DIGITS = 13  # of 5 bits, in a number of 64


@dataclass(frozen=True, eq=False)
class Runs:
    """Of one shape in a picture."""

    size: tuple[int, int]  # height and width of the picture
    starts: Numbers  # (n,) of the runs inside, as places in all pixels, column after column
    ends: Numbers  # (n,): the places after their last ones

    @classmethod
    def of(cls, part: Flags, size: tuple[int, int], corner: tuple[int, int] = (0, 0)) -> "Runs":
        """Of a mask, or of a part of one, outside of which there is nothing, with its top and left."""
        height, (top, left) = size[0], corner
        steps = np.diff(np.pad(part.T.astype(np.int8), ((0, 0), (1, 1))), axis=1)  # a row per column
        starts, ends = ((at[0] + left) * height + at[1] + top for at in (np.nonzero(steps > 0), np.nonzero(steps < 0)))
        goes_on = np.flatnonzero(starts[1:] == ends[:-1])  # from the bottom of a column to the top of the next
        return cls(size, np.delete(starts, goes_on + 1), np.delete(ends, goes_on))

    @cached_property
    def area(self) -> int:
        """In pixels."""
        return int((self.ends - self.starts).sum())

    @cached_property
    def box(self) -> tuple[int, int, int, int]:
        """x0 y0 x1 y1 of the smallest box around it; zeros where there is nothing."""
        if not len(self.starts):
            return 0, 0, 0, 0
        height, last = self.size[0], self.ends - 1
        first_column, last_column = self.starts // height, last // height
        across = bool((first_column != last_column).any())  # a run over two columns has the bottom of one, and the top
        top = 0 if across else int((self.starts % height).min())
        bottom = height if across else int((last % height).max()) + 1
        return int(first_column[0]), top, int(last_column[-1]) + 1, bottom

    def overlap(self, other: "Runs") -> float:
        """Intersection over union; 0 where both are empty."""
        shared = int((self._before(other.ends) - self._before(other.starts)).sum())
        return shared / max(self.area + other.area - shared, 1)

    def _before(self, places: Numbers) -> Numbers:
        """How many of its pixels come before these places."""
        num = np.searchsorted(self.starts, places, side="right")  # runs that have begun
        begun = np.concatenate([[0], np.cumsum(self.ends - self.starts)])[num]
        last_ends = np.concatenate([[0], self.ends])[num]
        found: Numbers = begun - np.maximum(last_ends - places, 0)
        return found

    def mask(self) -> Flags:
        """(H, W)"""
        height, width = self.size
        return np.repeat(np.arange(len(self.counts)) % 2 == 1, self.counts).reshape(width, height).T

    def part(self) -> Flags:
        """The mask inside of its box."""
        x0, y0, x1, y1 = self.box
        height = self.size[0]
        first, last = x0 * height, x1 * height
        counts = np.diff(np.concatenate([[first], self._borders(), [last]]))
        inside = np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(x1 - x0, height).T
        found: Flags = inside[y0:y1]
        return found

    @property
    def counts(self) -> Numbers:
        """The lengths of all runs, the first being outside, perhaps of none."""
        return np.diff(np.concatenate([[0], self._borders(), [self.size[0] * self.size[1]]]))

    def _borders(self) -> Numbers:
        return np.stack([self.starts, self.ends], axis=1).reshape(-1)

    def as_coco(self) -> dict[str, Any]:
        """With its counts as text."""
        counts = self.counts
        if counts[-1] == 0:
            counts = counts[:-1]
        return {"size": list(self.size), "counts": compressed(counts)}


def compressed(counts: Numbers) -> str:
    """COCO's text: numbers of 5 bits a letter, the lowest first; from the fourth on, what is added to the last but
    one."""
    values = counts.astype(np.int64).copy()
    values[3:] -= counts[1:-2]
    rest = values[:, None] >> (5 * np.arange(DIGITS + 1))  # (n, digits): what is left before each
    letters, is_last = rest & 31, np.zeros(rest.shape, np.bool_)
    ends_here = rest >> 5 == np.where(letters & 16, -1, 0)  # the sign is told by the last letter's highest bit
    is_last[np.arange(len(rest)), ends_here.argmax(axis=1)] = True
    is_there = np.arange(DIGITS + 1) <= ends_here.argmax(axis=1)[:, None]
    codes = (np.where(is_last, letters, letters | 32) + 48)[is_there]
    return bytes(codes.astype(np.uint8)).decode()
