"""Exact shapes of objects as COCO writes them: polygons, or runs of pixels (RLE), plain or compressed."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.base import PathList
from vitreous.data.images import MAX_PIXELS, BadPicture, turned
from vitreous.data.objects import Flags, Numbers, Outlines
from vitreous.errors import first_line, shown

Points = NDArray[np.float64]  # (P, 2): x to the right, y down


class WrittenOutlines(Outlines):
    """As JSON, read when they are wanted: those of a large set would fill the memory as Python's lists."""

    def __init__(self, texts: Sequence[str], sizes: Numbers, orientations: Numbers) -> None:
        """`sizes` (T, 2): heights and widths of the pictures they were made for; `orientations` (T,): how these were
        turned to be upright."""
        self._texts, self._sizes, self._orientations = PathList(texts), sizes, orientations

    def are_known(self, numbers: Numbers) -> Flags:
        return self._texts.lengths[numbers] > 0

    def text(self, number: int) -> bytes:
        return self._texts[number].encode()

    def mask(self, number: int, height: int, width: int) -> Flags | None:
        text = self._texts[number]
        if not text:
            return None
        orientation = int(self._orientations[number])
        stored = (width, height) if orientation >= 5 else (height, width)
        try:
            return turned(outline_mask(json.loads(text), self._sizes[number], stored), orientation)
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            raise BadPicture(f"an outline of it cannot be read ({first_line(error)})") from None


def outline_mask(outline: Any, annotated: Sequence[float] | Numbers, size: tuple[int, int]) -> Flags:
    """Of an outline in coordinates of a picture of the height and width `annotated`, the pixels at `size`."""
    height, width = size
    if isinstance(outline, dict):
        return _nearest(run_mask(outline), size)
    factors = np.array([width / annotated[1], height / annotated[0]])
    mask = np.zeros(size, dtype=np.bool_)
    for ring in outline:
        mask |= polygon_mask(_points(ring) * factors, height, width)
    return mask


def _points(ring: Any) -> Points:
    """x and y in turn."""
    try:
        points = np.asarray(ring, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        points = np.array([math.nan])
    if points.size % 2 or not np.isfinite(points).all():
        raise ValueError(f"{shown(ring)} is no polygon, which has x and y in turn")
    return points.reshape(-1, 2)


def polygon_mask(points: Points, height: int, width: int) -> Flags:
    """(height, width): the pixels whose centres lie inside."""
    mask = np.zeros((height, width), dtype=np.bool_)
    if not len(points):
        return mask
    sides = (width, height)
    left, top = (max(0, math.floor(low)) for low in points.min(axis=0))
    right, bottom = (min(side, math.ceil(high)) for side, high in zip(sides, points.max(axis=0), strict=True))
    if left < right and top < bottom:
        mask[top:bottom, left:right] = _filled(points - (left, top), bottom - top, right - left)
    return mask


def _filled(points: Points, height: int, width: int) -> Flags:
    (x, y), (next_x, next_y) = points.T, np.roll(points, -1, axis=0).T
    middle = np.arange(height)[:, None] + 0.5
    rows, edges = np.nonzero((y <= middle) != (next_y <= middle))  # where edges meet the middle of rows
    slope = (next_x - x)[edges] / (next_y - y)[edges]
    crossing = x[edges] + (rows + 0.5 - y[edges]) * slope
    first = np.clip(np.ceil(crossing - 0.5), 0, width).astype(np.int64)  # the first pixel right of it
    turns = np.bincount(rows * (width + 1) + first, minlength=height * (width + 1)).reshape(height, width + 1)
    inside: Flags = np.cumsum(turns[:, :width], axis=1) % 2 == 1
    return inside


def run_mask(outline: dict[str, Any]) -> Flags:
    """Runs of pixels outside and inside in turn, column after column."""
    height, width = outline["size"]
    if not 0 < height * width <= MAX_PIXELS:
        raise ValueError(f"runs for a picture of {height} x {width} pixels")
    counts = outline["counts"]
    runs = np.asarray(uncompressed(counts) if isinstance(counts, str) else counts, dtype=np.int64)
    if runs.sum() != height * width:
        raise ValueError(f"runs of {runs.sum():,} pixels for a picture of {height * width:,}")
    inside = np.arange(len(runs)) % 2 == 1
    return np.repeat(inside, runs).reshape(width, height).T


def uncompressed(text: str) -> list[int]:
    """COCO's text: numbers of 5 bits a letter, the lowest first; from the fourth on, what is added to the last but
    one."""
    runs: list[int] = []
    at = 0
    while at < len(text):
        value, shift, more = 0, 0, True
        while more:
            letter = ord(text[at]) - 48
            value |= (letter & 31) << shift
            more, shift, at = bool(letter & 32), shift + 5, at + 1
        if letter & 16:  # the sign
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
    return runs


def bounds(outline: Any) -> tuple[float, float, float, float] | None:
    """x0 y0 x1 y1 of an outline; None where it holds nothing."""
    if isinstance(outline, dict):
        rows, columns = (np.flatnonzero(run_mask(outline).any(axis=axis)) for axis in (1, 0))
        return (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1) if len(rows) else None
    points = np.concatenate([_points(ring) for ring in outline] or [np.empty((0, 2))])
    return (*points.min(axis=0).tolist(), *points.max(axis=0).tolist()) if len(points) else None


def _nearest(mask: Flags, size: tuple[int, int]) -> Flags:
    if mask.shape == size:
        return mask
    rows, columns = ((2 * np.arange(out) + 1) * side // (2 * out) for side, out in zip(mask.shape, size, strict=True))
    found: Flags = mask[rows][:, columns]
    return found
