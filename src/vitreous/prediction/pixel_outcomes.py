"""PixelOutcome: a class for every pixel of a picture, at the size that it was given in. Knows no torch."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data import polygons
from vitreous.data.images import Picture
from vitreous.data.placement import Placement, placed
from vitreous.display.html import Content, Html, tag, together
from vitreous.display.palette import palette
from vitreous.display.tables import html_table
from vitreous.display.thumbnails import picture as thumbnail
from vitreous.display.words import class_in_words, percent
from vitreous.prediction import painted
from vitreous.prediction.outcome import Outcome, Outputs, Sizes
from vitreous.prediction.pixels import Windows, classified, windows
from vitreous.prediction.reading import Reading

SHOWN_PX = 320
Array = NDArray[np.float32]


@dataclass(frozen=True)
class PixelOutcome(Outcome):
    classes: tuple[str, ...]
    labels: NDArray[np.uint8] | NDArray[np.uint16]  # (H, W) numbers of classes
    confidence: Array  # (H, W): the calibrated probability of that class

    @cached_property
    def shares(self) -> list[tuple[str, float]]:
        """Of the picture, the largest first; classes without a pixel are left out."""
        counts = np.bincount(self.labels.ravel(), minlength=len(self.classes))
        order = np.argsort(-counts, kind="stable")
        return [(self.classes[place], float(counts[place] / self.labels.size)) for place in order if counts[place]]

    @property
    def words(self) -> str:
        return ", ".join(f"{class_in_words(name)} {percent(share, 0)}" for name, share in self.shares[:3])

    def row(self) -> tuple[Content, ...]:
        sure = f"{100 * float(self.confidence.mean()):.1f} %"
        return tag.b(tag.bdi(self.words)), sure, thumbnail(self.coloured(), "classes by colour", most_px=SHOWN_PX // 2)

    def html(self, num: int = 5) -> Html:
        colours = dict(zip(self.classes, palette(len(self.classes)), strict=True))
        rows = [(_chip(colours[name]), tag.bdi(name), f"{100 * share:.1f} %") for name, share in self.shares[:num]]
        return together(
            thumbnail(self.coloured(), "classes by colour", most_px=SHOWN_PX),
            html_table(("", "class", "share of the picture"), rows),
        )

    # ---- as files

    def coloured(self) -> Picture:
        return painted.coloured(self.labels, len(self.classes))

    def mask_png(self) -> bytes:
        """Numbers of classes, shown in a palette."""
        return painted.mask_png(self.labels, len(self.classes))

    def overlay(self, picture: Picture, opacity: float = 0.5) -> Picture:
        return painted.overlay(picture, self.labels, len(self.classes), opacity)

    def polygons(self) -> dict[str, Any]:
        return polygons.as_json(self.labels, self.classes)


def _chip(colour: tuple[int, int, int]) -> Html:
    return tag.div(style=f"width: 1em; height: 1em; background: rgb{colour}")


# ---- From raw outputs


def scaled_logits(outputs: Outputs, reading: Reading) -> Outputs:
    """Divided by the temperature, so that their softmax is calibrated; enlarging comes first."""
    return {"scaled_logits": (outputs["logits"] / reading.temperature).astype(np.float32)}


def pixel_views(picture: Picture, reading: Reading) -> list[Picture]:
    """What the model is shown of a picture: all of it, or its windows."""
    plan = _windows((picture.shape[0], picture.shape[1]), reading)
    return [picture] if plan is None else list(plan.cut(picture))


def pixel_outcomes(outputs: Outputs, reading: Reading, sizes: Sizes) -> list[Outcome]:
    found = [classified(logits, placement) for logits, placement in pixel_logits(outputs, reading, sizes)]
    return [PixelOutcome(reading.classes, one.labels, one.confidence) for one in found]


def pixel_logits(outputs: Outputs, reading: Reading, sizes: Sizes) -> list[tuple[Array, Placement]]:
    """Of each picture (K, h, w), and where the picture lies on them. Several rows may be windows of one picture."""
    (rows,) = outputs.values()
    found, start = [], 0
    for size in sizes:
        plan = _windows(size, reading)
        if plan is None:
            found.append((rows[start], whole(size, reading)))
            start += 1
        else:
            num = len(plan.corners)
            found.append((plan.joined(list(rows[start : start + num])), plan.placement))
            start += num
    return found


def whole(size: tuple[int, int], reading: Reading) -> Placement:
    """Where a picture of this size lies on the model's input."""
    fitting = reading.fitting
    if size == fitting.size_px and fitting.skip_fitting:
        return Placement(size, 0, 0, *size, size)
    return placed(fitting.size_px, fitting.crop, fitting.crop_fraction, size, floor=fitting.odd_margin == "down")


def _windows(size: tuple[int, int], reading: Reading) -> Windows | None:
    if reading.windows is None:
        return None
    return windows(size, reading.fitting.size_px, reading.windows.cell_px, reading.windows.overlap)
