"""How near the objects that an exported file finds are to those of the model, and what they are worth."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.display.words import counted, percent
from vitreous.export.checks import Checks
from vitreous.prediction.box_outcomes import BoxOutcome, FoundIn
from vitreous.prediction.boxes import Surest
from vitreous.prediction.instance_outcomes import InstanceOutcome
from vitreous.prediction.outcomes import Outputs, outcomes
from vitreous.prediction.predictor import sizes_of
from vitreous.prediction.reading import Reading
from vitreous.prediction.scored import Known, found_of, truth_of
from vitreous.tasks import box_precision

COMPARED = 0.05  # objects with lower scores are not compared
FOUND_AGAIN = 0.5  # overlap from which on an object is the same one, if less exactly placed
NEAR_PX, NEAR_SHARE, NEAR_SCORE = 0.5, 0.02, 0.02  # how far boxes, shapes and scores may be from the model's

Floats = NDArray[np.float64]


class Compared(NamedTuple):
    """How places of objects are held against each other."""

    apart: Callable[[Any, int, Any, NDArray[np.int64]], Floats]  # one of ours from some of theirs
    overlaps: Callable[[Any, int, Any, NDArray[np.int64]], Floats]
    near: float
    far: float | None  # from nothing; None: as far as the picture is large
    name: str  # of the largest difference
    words: str


def box_agreement(ours: list[Outputs], theirs: list[Outputs], reading: Reading, checks: Checks) -> dict[str, Any]:
    """How many objects both find, in px of the pictures; and average precision, where the objects are known."""
    by = SHAPES if reading.kind == "instances" else BOXES
    expected, found = (_outcomes(some, reading, checks) for some in (ours, theirs))
    is_sure = any(one.scores.max(initial=0) >= COMPARED for one in expected)
    least = COMPARED if is_sure else 0.0  # a model that has learned little is compared by all that it says
    pairs = [_nearest(*pair, least, by) for pair in zip(expected, found, strict=True)]
    apart, score, overlap = (np.concatenate([pair[place] for pair in pairs]) for place in range(3))
    same = (apart <= by.near) & (score <= NEAR_SCORE)
    share, again = (float(some.mean()) if len(some) else 1.0 for some in (same, overlap >= FOUND_AGAIN))
    facts: dict[str, Any] = {
        "objects": len(same),
        "objects_found_again": again,
        "object_agreement": share,
        "compared": "scores",
        # Queries may come in another order where their proposals are as good as equal: outputs are not compared by row.
        "largest_difference": float(score.max(initial=0)),
        by.name: float(apart.max(initial=0)),
        "summary": f"{percent(again, 2)} of {counted(len(same), 'object')} found again (the same class, an overlap of "
        f"{percent(FOUND_AGAIN, 0)} or more), {percent(share, 2)} with {by.words} and a score within {NEAR_SCORE:g}",
    }
    if checks.objects is not None and any((~one.objects.crowd).any() for one in checks.objects):
        for name, some in (("AP_eager", expected), ("AP_exported", found)):
            facts[name] = _average_precision(some, checks.objects, len(reading.classes))
    return facts


def _outcomes(some: list[Outputs], reading: Reading, checks: Checks) -> list[BoxOutcome]:
    found = [outcomes(one, reading, [size])[0] for one, size in zip(some, sizes_of(checks.pictures), strict=True)]
    return [one for one in found if isinstance(one, BoxOutcome)]


def _nearest(ours: BoxOutcome, theirs: BoxOutcome, least: float, by: Compared) -> tuple[Floats, Floats, Floats]:
    """Of each of our objects with at least this score, how far its place and its score are from the nearest of theirs
    of the same class; from nothing, that is as far as can be, and the whole score. And the largest overlap with any of
    that class."""
    num = int((ours.scores >= least).sum())
    apart = np.full(num, float(max(ours.size)) if by.far is None else by.far)
    score, overlap = ours.scores[:num].astype(np.float64), np.zeros(num)
    for place in range(num):
        rows = np.flatnonzero(theirs.labels == ours.labels[place])
        if len(rows):
            far, scores = by.apart(ours, place, theirs, rows), np.abs(theirs.scores[rows] - ours.scores[place])
            best = np.argmin(far / by.near + scores / NEAR_SCORE)  # several may lie one upon the other
            apart[place], score[place] = far[best], scores[best]
            overlap[place] = by.overlaps(ours, place, theirs, rows).max()
    return apart, score, overlap


def _sides_apart(ours: BoxOutcome, place: int, theirs: BoxOutcome, rows: NDArray[np.int64]) -> Floats:
    sides: Floats = np.abs(theirs.boxes[rows] - ours.boxes[place]).max(axis=1).astype(np.float64)
    return sides


def _box_overlaps(ours: BoxOutcome, place: int, theirs: BoxOutcome, rows: NDArray[np.int64]) -> Floats:
    one, some = ours.boxes[place : place + 1].astype(np.float64), theirs.boxes[rows].astype(np.float64)
    overlaps: Floats = box_precision.box_overlaps(one, some)[0]
    return overlaps


def _shape_overlaps(ours: InstanceOutcome, place: int, theirs: InstanceOutcome, rows: NDArray[np.int64]) -> Floats:
    return np.array([ours.shapes[place].overlap(theirs.shapes[row]) for row in rows])


def _shapes_apart(ours: InstanceOutcome, place: int, theirs: InstanceOutcome, rows: NDArray[np.int64]) -> Floats:
    return 1 - _shape_overlaps(ours, place, theirs, rows)


BOXES = Compared(
    _sides_apart, _box_overlaps, NEAR_PX, None, "largest_box_difference_px", f"a box within {NEAR_PX:g} px"
)
SHAPES = Compared(
    _shapes_apart,
    _shape_overlaps,
    NEAR_SHARE,
    1.0,
    "largest_mask_difference",
    f"a mask that overlaps by {percent(1 - NEAR_SHARE, 0)} or more",
)


def _average_precision(found: list[BoxOutcome], objects: list[Known], num_classes: int) -> float | None:
    by_shapes = all(isinstance(one, InstanceOutcome) for one in found) and all(
        one.shapes is not None for one in objects
    )
    said = [
        FoundIn(Surest(one.scores, one.labels, one.queries), one.boxes, getattr(one, "shapes", None)) for one in found
    ]
    measured = box_precision.evaluator(truth_of(objects, by_shapes), found_of(said, by_shapes), num_classes, len(found))
    return box_precision.mean(box_precision.precisions(measured)[..., 0])
