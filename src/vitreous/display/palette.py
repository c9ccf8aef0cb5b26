"""Colours of classes, the same wherever they are shown."""

import colorsys
from functools import cache

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]

# From Okabe and Ito (2008), distinguishable with colour blindness, highest contrast first.
FIRST_COLOURS: tuple[Colour, ...] = (
    (0, 114, 178),
    (230, 159, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (213, 94, 0),
    (240, 228, 66),
)
HUES, LIGHTS, SATURATIONS = 36, (0.32, 0.45, 0.6, 0.75), (0.4, 0.6, 0.85)  # of further colours


def palette(num: int) -> list[Colour]:
    """A colour for each of `num` classes, always the same for the same class number. After some hundreds they
    repeat."""
    colours = _colours()
    return [colours[number % len(colours)] for number in range(num)]


@cache
def _colours() -> tuple[Colour, ...]:
    """Each further colour differs as much as possible from all before it."""
    others = [
        colorsys.hls_to_rgb(at / HUES, light, much) for light in LIGHTS for much in SATURATIONS for at in range(HUES)
    ]
    places, taken = _seen(np.array(others)), _seen(np.array(FIRST_COLOURS) / 255)
    nearest = np.linalg.norm(places[:, None] - taken, axis=2).min(axis=1)
    found = list(FIRST_COLOURS)
    for _ in others:
        best = int(nearest.argmax())
        red, green, blue = others[best]
        found.append((round(255 * red), round(255 * green), round(255 * blue)))
        nearest = np.minimum(nearest, np.linalg.norm(places - places[best], axis=1))
    return tuple(found)


def _seen(colours: NDArray[np.float64]) -> NDArray[np.float64]:
    """sRGB (N, 3) -> Oklab (Ottosson 2020), where distances correspond to perception."""
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    cones = [
        [0.41222147, 0.53633254, 0.05144599],
        [0.2119035, 0.68069955, 0.10739696],
        [0.08830246, 0.28171884, 0.6299787],
    ]
    lab = [
        [0.21045426, 0.79361779, -0.00407205],
        [1.9779985, -2.4285922, 0.4505937],
        [0.02590404, 0.78277177, -0.80867577],
    ]
    found: NDArray[np.float64] = np.cbrt(linear @ np.array(cones).T) @ np.array(lab).T
    return found
