"""Average precision as COCO defines it (Lin et al. 2014), by hotcoco: the only file that uses the library.

Its numbers equal those of pycocotools, bit for bit, many times as fast; docs/DETECTION.md says why it was chosen.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import UserError

THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).round(2).tolist())  # of intersection over union
SIZES = ("all", "small", "medium", "large")  # of objects: below 32 x 32 px, below 96 x 96 px, above
MOST = 100  # detections per picture that count
Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
Rle = Mapping[str, Any]  # a shape as COCO writes it: size, and counts of pixels, alternately outside and inside


@dataclass(frozen=True)
class Truth:
    """The objects of some pictures, one per row."""

    picture: Numbers  # (T,) from 0
    classes: Numbers  # (T,)
    boxes: Floats  # (T, 4) x0 y0 x1 y1 in px of the picture
    crowd: NDArray[np.bool_]  # (T,): a box around many objects, which may be found any number of times or not at all
    masks: Sequence[Rle] | None = None  # (T): the exact shapes, if these are compared

    @cached_property
    def areas(self) -> Floats:
        """(T,) in px."""
        return _areas(self.boxes, self.masks)


@dataclass(frozen=True)
class Found:
    """Detections, one per row."""

    picture: Numbers  # (D,)
    classes: Numbers  # (D,)
    boxes: Floats  # (D, 4)
    scores: Floats  # (D,)
    masks: Sequence[Rle] | None = None  # (D)


def evaluator(truth: Truth, found: Found, num_classes: int, num_pictures: int) -> Any:
    """A hotcoco.COCOeval that has matched and accumulated. It counts pictures, classes and rows from 1."""
    if not len(truth.picture):
        raise UserError("there are no objects to score")
    hotcoco = _library()
    pictures = [{"id": number + 1, "width": 1, "height": 1} for number in range(num_pictures)]
    classes = [{"id": number + 1, "name": str(number)} for number in range(num_classes)]
    known = hotcoco.COCO.from_arrays(
        *(pictures, classes, truth.picture + 1, truth.classes + 1, _with_sides(truth.boxes)),
        area=truth.areas,
        iscrowd=truth.crowd.astype(np.int64),
        segmentation=truth.masks,
    )
    rows = np.column_stack([found.picture + 1, _with_sides(found.boxes), found.scores, found.classes + 1])
    said = known.load_res(rows.astype(np.float64), segmentation=found.masks)
    if found.masks is not None:
        said.update_anns(ids=np.arange(1, len(rows) + 1), area=_areas(found.boxes, found.masks))
    measured = hotcoco.COCOeval(known, said, "bbox" if truth.masks is None else "segm")
    measured.evaluate()
    measured.accumulate()
    return measured


def precisions(measured: Any) -> Floats:
    """(10 thresholds, K, 4 sizes): the mean precision over 101 recalls; NaN if a class has no such object."""
    values = measured.eval["precision"][:, :, :, :, -1]  # (T, R, K, A)
    return np.where((values > -1).all(axis=1), values.mean(axis=1), np.nan)


def recalls(measured: Any) -> Floats:
    """(10 thresholds, K, 4 sizes), with at most 100 detections per picture."""
    values = measured.eval["recall"][:, :, :, -1]
    return np.where(values > -1, values, np.nan)


@contextmanager
def matched(measured: Any) -> Iterator[list[dict[str, Any]]]:
    """The matches, one entry per picture, class and size with any objects or detections: millions of small lists, which
    Python would search for reference cycles again and again."""
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield [entry for entry in measured.eval_imgs if entry is not None]
    finally:
        if was_collecting:
            gc.enable()


def mean(values: Floats) -> float | None:
    """Over the defined values; None if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def overlaps(found: Found, rows: Numbers, truth: Truth, objects: Numbers) -> Floats:
    """(n, m): intersection over union of some detections and some objects."""
    if truth.masks is None or found.masks is None:
        return box_overlaps(found.boxes[rows], truth.boxes[objects])
    one, other = [found.masks[row] for row in rows], [truth.masks[row] for row in objects]
    shares: Floats = _library().mask.iou(one, other, [0] * len(other))
    return shares


def box_overlaps(a: Floats, b: Floats) -> Floats:
    """(n, 4), (m, 4) -> (n, m): intersection over union."""
    first, last = np.maximum(a[:, None, :2], b[:, :2]), np.minimum(a[:, None, 2:], b[:, 2:])
    shared = np.prod(np.clip(last - first, 0, None), axis=2)
    areas = [np.prod(np.clip(one[:, 2:] - one[:, :2], 0, None), axis=1) for one in (a, b)]
    union = areas[0][:, None] + areas[1] - shared
    share: Floats = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return share


def encoded(masks: NDArray[np.bool_]) -> list[Rle]:
    """(n, H, W) -> each as COCO writes it."""
    found: list[Rle] = [_library().mask.encode(mask) for mask in masks]
    return found


def bounds(masks: Sequence[Rle]) -> Floats:
    """(n, 4): x0 y0 x1 y1 of the smallest boxes around them."""
    sides: Floats = np.asarray(_library().mask.to_bbox(list(masks)), np.float64).reshape(-1, 4)
    return np.concatenate([sides[:, :2], sides[:, :2] + sides[:, 2:]], axis=1)


def _areas(boxes: Floats, masks: Sequence[Rle] | None) -> Floats:
    if masks is not None:
        return np.asarray(_library().mask.area(list(masks)), np.float64).reshape(-1)
    sides = boxes[:, 2:] - boxes[:, :2]
    areas: Floats = sides[:, 0] * sides[:, 1]
    return areas


def _library() -> ModuleType:
    try:
        import hotcoco
    except ImportError:
        raise UserError(
            "detections are scored by the package hotcoco, which is not installed: pip install hotcoco"
        ) from None
    return hotcoco


def _with_sides(boxes: Floats) -> Floats:
    """x0 y0 x1 y1 -> x0 y0 and sides."""
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
