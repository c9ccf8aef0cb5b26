"""The regions of a mask as polygons along the edges of its pixels: exact, whatever their shape. Knows no torch.

Points are corners of pixels, (x, y) from the top left. Every edge between a pixel of the class and one that is not is
walked once, with the class to its right: outlines then turn clockwise (as one sees them), holes the other way.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.runs import Runs

Point = tuple[int, int]
RIGHT, DOWN, LEFT, UP = range(4)
STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))


@dataclass(frozen=True)
class Polygon:
    outline: list[Point]
    holes: list[list[Point]] = field(default_factory=list)

    @property
    def area(self) -> int:
        """In pixels."""
        return signed_area(self.outline) + sum(signed_area(hole) for hole in self.holes)


def polygons(mask: NDArray[np.bool_]) -> list[Polygon]:
    """Of the regions where a mask (H, W) is true: pixels belong together where they share an edge."""
    edges = _edges(mask)
    rings: list[list[Point]] = []
    ring_of_left_edge: dict[Point, int] = {}  # by the pixel to the right of an edge that goes up
    while edges:
        rings.append(_walk(edges, len(rings), ring_of_left_edge))
    found = {place: Polygon(ring) for place, ring in enumerate(rings) if signed_area(ring) > 0}
    owners = {place: place for place in found}
    holes = [place for place in range(len(rings)) if place not in found]
    # From left to right: what is met when going left from a hole has found its owner already.
    for place in sorted(holes, key=lambda one: min(rings[one])):
        x, y = min(rings[place])  # the class is to the left of a hole's leftmost edge
        column = x - 1
        while column > 0 and mask[y, column - 1]:
            column -= 1
        owners[place] = owners[ring_of_left_edge[column, y]]
        found[owners[place]].holes.append(rings[place])
    return list(found.values())


def _edges(mask: NDArray[np.bool_]) -> dict[Point, list[int]]:
    """The directions in which edges leave each corner."""
    padded = np.pad(mask, 1)
    inside = padded[1:-1, 1:-1]
    edges: dict[Point, list[int]] = {}
    for direction, other, (dx, dy) in (
        (RIGHT, padded[:-2, 1:-1], (0, 0)),
        (DOWN, padded[1:-1, 2:], (1, 0)),
        (LEFT, padded[2:, 1:-1], (1, 1)),
        (UP, padded[1:-1, :-2], (0, 1)),
    ):
        rows, columns = np.nonzero(inside & ~other)
        for x, y in zip((columns + dx).tolist(), (rows + dy).tolist(), strict=True):
            edges.setdefault((x, y), []).append(direction)
    return edges


def _walk(edges: dict[Point, list[int]], number: int, ring_of_left_edge: dict[Point, int]) -> list[Point]:
    """One ring, taken out of the edges; only its corners.

    Where two pixels meet at a corner alone, two edges leave it, and each ring turns right, around its own pixel.
    """
    start = point = next(iter(edges))
    first, meets_itself = edges[start][0], len(edges[start]) > 1
    ring: list[Point] = []
    direction = first
    while True:
        previous = direction
        leaving = edges[point]
        if ring:
            direction = leaving[0] if len(leaving) == 1 else (previous + 1) % 4
        leaving.remove(direction)
        if not leaving:
            del edges[point]
        if direction != previous or not ring:
            ring.append(point)
        if direction == UP:
            ring_of_left_edge[point[0], point[1] - 1] = number
        point = (point[0] + STEPS[direction][0], point[1] + STEPS[direction][1])
        if point == start and (not meets_itself or (direction + 1) % 4 == first):
            break
    return ring[1:] if direction == first else ring  # it may have begun in the middle of a straight line


def signed_area(ring: list[Point]) -> int:
    """Positive for an outline, negative for a hole."""
    following = ring[1:] + ring[:1]
    return sum(x * next_y - next_x * y for (x, y), (next_x, next_y) in zip(ring, following, strict=True)) // 2


def one_ring(shape: Runs) -> list[Point]:
    """All pieces of a shape and their holes in one ring, for what knows no more: it goes to each of them and back the
    same way, so that even-odd filling, and most others, give the shape again."""
    x0, y0, *_ = shape.box
    found = sorted(polygons(shape.part()), key=lambda one: -one.area)
    rings = [ring for one in found for ring in (one.outline, *one.holes)]
    path = list(rings[0]) if rings else []
    for ring in rings[1:]:
        path += [path[0], *ring, ring[0]]
    return [(x + x0, y + y0) for x, y in path]


def as_json(labels: NDArray[np.integer], classes: tuple[str, ...]) -> dict[str, Any]:
    """Every region of every class, the largest first."""
    height, width = labels.shape
    found = []
    for number in np.unique(labels).tolist():
        for one in polygons(labels == number):
            found.append({"class": classes[number], "area": one.area, "outline": one.outline, "holes": one.holes})
    found.sort(key=lambda one: -one["area"])
    return {"width": width, "height": height, "polygons": found}
