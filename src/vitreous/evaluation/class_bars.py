"""A bar per class with its interval, in the class's colour."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from vitreous.display.figures import INK, figure
from vitreous.display.palette import palette
from vitreous.evaluation.metrics import Estimate

MOST_BARS = 40


class ClassBar(NamedTuple):
    name: str
    found: Estimate | None  # None: not measured, and not drawn
    weight: float  # if there are many classes, those with the highest are drawn


def class_bars(bars: Sequence[ClassBar], mean: float, what: str) -> Figure:
    measured = [
        (one.found, one, colour) for one, colour in zip(bars, palette(len(bars)), strict=True) if one.found is not None
    ]
    measured = sorted(measured, key=lambda row: -row[1].weight)[:MOST_BARS]
    drawn = figure(5.4, 0.8 + 0.26 * len(measured))
    axes = drawn.subplots()
    values = np.array([(found.value, found.low, found.high) for found, _, _ in measured])
    errors = np.abs(values[:, 1:] - values[:, :1]).T
    paints = [painted(colour) for _, _, colour in measured]
    places = range(len(measured))
    axes.barh(places, values[:, 0], xerr=errors, color=paints, error_kw={"ecolor": INK, "elinewidth": 0.9})
    axes.set_yticks(places, [one.name for _, one, _ in measured])
    axes.invert_yaxis()
    axes.axvline(mean, color=INK, linewidth=0.8, linestyle="--")
    axes.set_xlim(0, 1)
    axes.set_xlabel(f"{what} (95 % interval); dashed: their mean")
    return drawn


def painted(colour: tuple[int, int, int]) -> tuple[float, float, float]:
    red, green, blue = (level / 255 for level in colour)
    return red, green, blue
