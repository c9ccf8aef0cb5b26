"""Shapes of objects laid over the picture they are about, in the colours of their classes. Knows no torch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.data.images import Picture
from vitreous.data.runs import Runs
from vitreous.display.thumbnails import enlarged
from vitreous.prediction.drawn_boxes import LEAST_PX, Colour, Label, labelled
from vitreous.prediction.painted import EDGE

OPACITY = 0.5


class DrawnShape(NamedTuple):
    shape: Runs
    colour: Colour
    words: str = ""  # at the shape's upper end; "": none


def drawn_shapes(picture: Picture, shapes: Sequence[DrawnShape], *, words: bool = True) -> Picture:
    """The last shapes lie on top, each with a line around it; the words above all of them."""
    large = enlarged(picture, LEAST_PX if words else min(picture.shape[:2]))
    factor = large.shape[0] // picture.shape[0]
    mixed = large.astype(np.float32)
    for one in shapes:
        x0, y0, x1, y1 = (factor * side for side in one.shape.box)
        inside = one.shape.part().repeat(factor, axis=0).repeat(factor, axis=1)
        area = mixed[y0:y1, x0:x1]
        area[inside] = area[inside] * (1 - OPACITY) + np.array(one.colour, np.float32) * OPACITY
        area[_edge(np.pad(inside, 1))] = EDGE
    found: Picture = mixed.round().astype(np.uint8)
    if not words:
        return found
    named = [one for one in shapes if one.words]
    corners = [(factor * one.shape.box[0], factor * one.shape.box[1]) for one in named]
    return labelled(found, [Label(at, one.colour, one.words) for at, one in zip(corners, named, strict=True)])


def _edge(padded: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Pixels of a mask, which comes with a pixel of padding around it, that have a neighbour outside."""
    part = padded[1:-1, 1:-1]
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    edge: NDArray[np.bool_] = part & ~inner
    return edge
