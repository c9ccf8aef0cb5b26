"""InstanceOutcome: the objects of a picture, each with a class, a score and its exact shape. Knows no torch."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data import polygons
from vitreous.data.images import Picture
from vitreous.data.panoptic import Panoptic, merged
from vitreous.data.placement import Placement
from vitreous.data.runs import Runs
from vitreous.display.html import Html
from vitreous.display.palette import palette
from vitreous.display.thumbnails import picture as thumbnail
from vitreous.errors import UserError
from vitreous.prediction.box_outcomes import BoxOutcome, FoundIn, FoundObject
from vitreous.prediction.boxes import Surest, surest
from vitreous.prediction.drawn_shapes import DrawnShape, drawn_shapes
from vitreous.prediction.instances import instance_scores, shape_of
from vitreous.prediction.outcome import Outcome, Outputs, Sizes
from vitreous.prediction.painted import as_png
from vitreous.prediction.pixel_outcomes import whole
from vitreous.prediction.pixels import strips
from vitreous.prediction.reading import Reading
from vitreous.weights.calibration import BoxCalibration

LEAST_MERGED = 0.1  # score; the masks of what is less sure (most queries) would only take memory


class Masks(NamedTuple):
    """Before it is decided which pixels they contain."""

    logits: NDArray[np.float32]  # (n, h, w), the surest first, over the model's canvas
    placement: Placement  # of the picture on it


@dataclass(frozen=True)
class InstanceOutcome(BoxOutcome):
    """Its boxes are those around the shapes."""

    shapes: tuple[Runs, ...] = ()  # one per box
    masks: Masks | None = None  # of the objects that `panoptic` can merge

    def _listed(self, least: float) -> Iterator[FoundObject]:
        for one, shape in zip(super()._listed(least), self.shapes, strict=False):  # the surest come first
            yield one._replace(shape=shape)

    def outlines(self, most_px: int) -> Html:
        """The shapes alone, at their places."""
        ground = np.full((*self.size, 3), 255, np.uint8)
        return thumbnail(drawn_shapes(ground, self._drawn(None), words=False), self.words, most_px=most_px)

    def drawn(self, picture: Picture, least: float | None = None) -> Picture:
        return drawn_shapes(picture, self._drawn(least))

    def _drawn(self, least: float | None) -> list[DrawnShape]:
        """The surest last: they lie on top."""
        colours = palette(len(self.classes))
        shown = reversed(self.objects(least))
        return [
            DrawnShape(one.shape, colours[one.number], f"{one.label} {100 * one.score:.0f} %")
            for one in shown
            if one.shape is not None
        ]

    def panoptic(self, least: float | None = None, stuff: Collection[str] = ()) -> Panoptic:
        """One map of what `objects` lists: where they overlap, the masks decide. Objects below LEAST_MERGED, and below
        the threshold, are left out. `stuff`: classes whose objects are one segment together (sky, road)."""
        if unknown := set(stuff) - set(self.classes):
            raise UserError(f"no class is called {', '.join(sorted(unknown))}; there are {', '.join(self.classes)}")
        assert self.masks is not None
        logits, placement = self.masks
        shown = self.objects(least)[: len(logits)]
        return merged(
            [one.number for one in shown],
            [one.score for one in shown],
            strips(logits[: len(shown)], placement),
            self.size,
            {self.classes.index(name) for name in stuff},
        )

    # ---- as files

    def numbered(self, least: float | None = None) -> NDArray[np.uint16]:
        """(H, W): 0 where there is no object, else the number of the surest that has the pixel, from 1 on."""
        numbers = np.zeros(self.size, np.uint16)
        for number, one in reversed(list(enumerate(self.objects(least), 1))):
            assert one.shape is not None
            x0, y0, x1, y1 = one.shape.box
            numbers[y0:y1, x0:x1][one.shape.part()] = number
        return numbers

    def mask_png(self, least: float | None = None) -> bytes:
        """Numbers of objects, shown in a palette."""
        image = Image.fromarray(self.numbered(least).astype(np.uint8))  # 100 at most
        image.putpalette([level for colour in [(0, 0, 0), *palette(255)] for level in colour])
        return as_png(image)

    def polygons(self, least: float | None = None) -> dict[str, Any]:
        """The pieces of every object, the surest first."""
        return {
            "width": self.size[1],
            "height": self.size[0],
            "objects": [
                {"class": one.label, "score": round(one.score, 6), "polygons": pieces(one.shape)}
                for one in self.objects(least)
                if one.shape is not None
            ],
        }


def pieces(shape: Runs) -> list[dict[str, Any]]:
    """The largest first, each with its holes; exact to the pixel."""
    x0, y0, *_ = shape.box
    found = sorted(polygons.polygons(shape.part()), key=lambda one: -one.area)
    return [
        {
            "area": one.area,
            "outline": [(x + x0, y + y0) for x, y in one.outline],
            "holes": [[(x + x0, y + y0) for x, y in hole] for hole in one.holes],
        }
        for one in found
    ]


# ---- From raw outputs


def calibrated_instances(outputs: Outputs, reading: Reading) -> Outputs:
    """Scores in place of logits; masks stay as they are."""
    calibration = reading.calibration if isinstance(reading.calibration, BoxCalibration) else None
    return {
        "scores": instance_scores(outputs["logits"], outputs["masks"], calibration),
        "masks": outputs["masks"],
    }


def instance_outcomes(outputs: Outputs, reading: Reading, sizes: Sizes) -> list[Outcome]:
    threshold = reading.calibration.threshold if isinstance(reading.calibration, BoxCalibration) else 0.5
    found = []
    for size, one, masks in zip(sizes, found_shapes(outputs, reading, sizes), outputs["masks"], strict=True):
        scores, classes, queries = one.surest
        merging = queries[scores >= min(threshold, LEAST_MERGED)]
        found.append(
            InstanceOutcome(
                *(reading.classes, size, one.boxes, classes, scores, queries, threshold),
                shapes=one.shapes or (),
                masks=Masks(masks[merging], whole(size, reading)),
            )
        )
    return list[Outcome](found)


def found_shapes(outputs: Outputs, reading: Reading, sizes: Sizes) -> list[FoundIn]:
    """As `found_boxes`; what has no pixel in its picture is left out."""
    found = []
    for scores, masks, size in zip(outputs["scores"], outputs["masks"], sizes, strict=True):
        one, place = surest(scores), whole(size, reading)
        shapes = [shape_of(masks[query], place) for query in one.queries]
        seen = np.array([shape.area > 0 for shape in shapes], np.bool_)
        kept = tuple(shape for shape in shapes if shape.area > 0)
        boxes = np.array([shape.box for shape in kept], np.float32).reshape(-1, 4)
        found.append(FoundIn(Surest(one.scores[seen], one.classes[seen], one.queries[seen]), boxes, kept))
    return found
