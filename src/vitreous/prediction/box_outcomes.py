"""BoxOutcome: the objects of a picture, each with a class, a score and a box. Knows no torch."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.data.images import Picture
from vitreous.data.placement import Placement, Size
from vitreous.data.runs import Runs
from vitreous.display.html import Content, Html, element, tag, together
from vitreous.display.palette import palette
from vitreous.display.tables import html_table
from vitreous.prediction.boxes import Surest, restored, scores_of, surest
from vitreous.prediction.drawn_boxes import Drawn, drawn
from vitreous.prediction.outcome import Outcome, Outputs, Sizes
from vitreous.prediction.pixel_outcomes import whole
from vitreous.prediction.reading import Reading
from vitreous.weights.calibration import BoxCalibration

SHOWN_PX = 320
Array = NDArray[np.float32]


class FoundObject(NamedTuple):
    label: str
    score: float
    box: tuple[float, float, float, float]  # x0 y0 x1 y1 in px of the picture as it was given
    number: int  # of the class
    query: int  # that says so
    shape: Runs | None = None  # its pixels, where these are known


class QueryLooks(NamedTuple):
    """Where each query looked, for a model that can be looked into."""

    maps: NDArray[np.uint8]  # (Q, rows, columns): 255 is the most of each
    box: tuple[float, float, float, float]  # where the maps lie, x0 y0 x1 y1 in px of the picture: perhaps beyond it


@dataclass(frozen=True)
class BoxOutcome(Outcome):
    classes: tuple[str, ...]
    size: Size  # height and width of the picture
    boxes: Array  # (n, 4), the surest first, as all that follow
    labels: NDArray[np.int64]  # (n,) numbers of classes
    scores: Array  # (n,): calibrated, the probability that this is right
    queries: NDArray[np.int64]  # (n,)
    threshold: float = 0.5  # from this score on, an object is shown
    looks: QueryLooks | None = None

    def objects(self, least: float | None = None) -> list[FoundObject]:
        """Those with at least this score; None: the threshold that was chosen on validation pictures."""
        return list(self._listed(self.threshold if least is None else least))

    def _listed(self, least: float) -> Iterator[FoundObject]:
        for box, label, score, query in zip(self.boxes, self.labels, self.scores, self.queries, strict=True):
            if score >= least:
                x0, y0, x1, y1 = box.tolist()
                yield FoundObject(self.classes[label], float(score), (x0, y0, x1, y1), int(label), int(query))

    @property
    def words(self) -> str:
        counts = Counter(one.label for one in self.objects())
        return ", ".join(f"{number} {name}" for name, number in counts.most_common()) or "nothing found"

    def row(self) -> tuple[Content, ...]:
        shown = self.objects()
        sure = ", ".join(f"{100 * one.score:.0f} %" for one in shown[:5])
        return tag.b(tag.bdi(self.words)), sure, self.outlines(SHOWN_PX // 2)

    def html(self, num: int = 5) -> Html:
        colours = palette(len(self.classes))
        rows = [
            (
                tag.div(style=f"width: 1em; height: 1em; background: rgb{colours[one.number]}"),
                tag.bdi(one.label),
                f"{100 * one.score:.1f} %",
                ", ".join(f"{side:.0f}" for side in one.box),
            )
            for one in self.objects()[: max(num, 1)]
        ]
        return together(self.outlines(SHOWN_PX), html_table(("", "class", "score", "box (x0, y0, x1, y1 in px)"), rows))

    def outlines(self, most_px: int) -> Html:
        """The boxes alone, at their places."""
        (height, width), colours = self.size, palette(len(self.classes))
        factor, line = most_px / max(self.size), max(self.size) / most_px * 1.5
        shapes = [
            element(
                "rect",
                element("title", f"{one.label} {100 * one.score:.1f} %"),
                x=one.box[0],
                y=one.box[1],
                width=one.box[2] - one.box[0],
                height=one.box[3] - one.box[1],
                fill="none",
                stroke=f"rgb{colours[one.number]}",
                stroke_width=f"{line:.3g}",
            )
            for one in reversed(self.objects())
        ]
        return element(
            "svg",
            *shapes,
            viewBox=f"0 0 {width} {height}",
            width=round(width * factor),
            height=round(height * factor),
            style="border: 1px solid #bbb",
            role="img",
            aria_label=self.words,
        )

    def drawn(self, picture: Picture, least: float | None = None) -> Picture:
        """On the picture, which is enlarged where it is small; the surest on top."""
        colours = palette(len(self.classes))
        shown = reversed(self.objects(least))
        return drawn(
            picture,
            [Drawn(one.box, colours[one.number], f"{one.label} {100 * one.score:.0f} %") for one in shown],
        )


# ---- From raw outputs


def calibrated_boxes(outputs: Outputs, reading: Reading) -> Outputs:
    """Scores in place of logits; boxes stay as they are."""
    calibration = reading.calibration if isinstance(reading.calibration, BoxCalibration) else None
    return {"scores": scores_of(outputs["logits"], len(reading.classes), calibration), "boxes": outputs["boxes"]}


def box_outcomes(outputs: Outputs, reading: Reading, sizes: Sizes) -> list[Outcome]:
    threshold = reading.calibration.threshold if isinstance(reading.calibration, BoxCalibration) else 0.5
    return [
        BoxOutcome(reading.classes, size, boxes, found.classes, found.scores, found.queries, threshold)
        for size, (found, boxes, _) in zip(sizes, found_boxes(outputs, reading, sizes), strict=True)
    ]


def canvas_on_picture(size: Size, reading: Reading) -> tuple[float, float, float, float]:
    """Where the model's input lies on a picture of this size: x0 y0 x1 y1 in its px."""
    place = whole(size, reading)
    across, down = size[1] / place.wide, size[0] / place.tall
    x0, y0 = -place.left * across, -place.top * down
    return x0, y0, x0 + place.canvas[1] * across, y0 + place.canvas[0] * down


class FoundIn(NamedTuple):
    """What was found in one picture, the surest first."""

    surest: Surest
    boxes: Array  # (n, 4) in px of the picture
    shapes: tuple[Runs, ...] | None = None  # of a model that finds shapes; the boxes are those around them


def found_boxes(outputs: Outputs, reading: Reading, sizes: Sizes) -> list[FoundIn]:
    """Of outputs that are calibrated, or scores as trained."""
    places: list[Placement] = [whole(size, reading) for size in sizes]
    found = [surest(scores) for scores in outputs["scores"]]
    return [
        FoundIn(one, restored(boxes[one.queries], place))
        for one, boxes, place in zip(found, outputs["boxes"], places, strict=True)
    ]
