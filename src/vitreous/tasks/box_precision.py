"""Average precision as COCO defines it (Lin et al. 2014), by hotcoco: the one place that knows the library.

Its numbers are those of pycocotools, bit for bit, many times as fast; docs/DETECTION.md says why it was chosen.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import UserError

THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).round(2).tolist())  # of intersection over union
SIZES = ("all", "small", "medium", "large")  # of objects: below 32 x 32 px, below 96 x 96 px, above
MOST = 100  # detections of a picture that count
Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """The objects of some pictures, one per row."""

    picture: Numbers  # (T,) from 0
    classes: Numbers  # (T,)
    boxes: Floats  # (T, 4) x0 y0 x1 y1 in px of the picture
    crowd: NDArray[np.bool_]  # (T,): a box around many, which may be found any number of times or not at all


@dataclass(frozen=True)
class Found:
    """What was detected, one per row."""

    picture: Numbers  # (D,)
    classes: Numbers  # (D,)
    boxes: Floats  # (D, 4)
    scores: Floats  # (D,)


def evaluator(truth: Truth, found: Found, num_classes: int, num_pictures: int) -> Any:
    """A hotcoco.COCOeval that has matched and accumulated. Numbers of pictures, classes and rows count from 1 there."""
    if not len(truth.picture):
        raise UserError("there is not one object to score")
    try:
        from hotcoco import COCO, COCOeval
    except ImportError:
        raise UserError(
            "detections are scored by the package hotcoco, which is not installed: pip install hotcoco"
        ) from None
    pictures = [{"id": number + 1, "width": 1, "height": 1} for number in range(num_pictures)]
    classes = [{"id": number + 1, "name": str(number)} for number in range(num_classes)]
    boxes = _with_sides(truth.boxes)
    known = COCO.from_arrays(
        *(pictures, classes, truth.picture + 1, truth.classes + 1, boxes),
        area=boxes[:, 2] * boxes[:, 3],
        iscrowd=truth.crowd.astype(np.int64),
    )
    rows = np.column_stack([found.picture + 1, _with_sides(found.boxes), found.scores, found.classes + 1])
    measured = COCOeval(known, known.load_res(rows.astype(np.float64)), "bbox")
    measured.evaluate()
    measured.accumulate()
    return measured


def precisions(measured: Any) -> Floats:
    """(10 thresholds, K, 4 sizes): the mean precision over 101 recalls; NaN where a class has no such object."""
    values = measured.eval["precision"][:, :, :, :, -1]  # (T, R, K, A)
    return np.where((values > -1).all(axis=1), values.mean(axis=1), np.nan)


def recalls(measured: Any) -> Floats:
    """(10 thresholds, K, 4 sizes), of at most 100 detections per picture."""
    values = measured.eval["recall"][:, :, :, -1]
    return np.where(values > -1, values, np.nan)


@contextmanager
def matched(measured: Any) -> Iterator[list[dict[str, Any]]]:
    """What was matched, one entry per picture, class and size that has something: millions of small lists, among which
    Python would look for cycles again and again."""
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield [entry for entry in measured.eval_imgs if entry is not None]
    finally:
        if was_collecting:
            gc.enable()


def mean(values: Floats) -> float | None:
    """Of those that are defined; None where none is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _with_sides(boxes: Floats) -> Floats:
    """x0 y0 x1 y1 -> x0 y0 and sides."""
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
