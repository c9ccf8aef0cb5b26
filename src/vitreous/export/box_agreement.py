"""How near the objects that an exported file finds are to those of the model, and what they are worth."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.objects import Objects
from vitreous.export.checks import Checks
from vitreous.prediction.box_outcomes import BoxOutcome
from vitreous.prediction.outcomes import Outputs, outcomes
from vitreous.prediction.predictor import sizes_of
from vitreous.prediction.reading import Reading
from vitreous.tasks import box_precision
from vitreous.tasks.box_precision import Found, Truth

COMPARED = 0.05  # objects with lower scores are not compared
NEAR_PX, NEAR_SCORE = 0.5, 0.02  # how far a side of a box, and a score, may be from the model's


def box_agreement(ours: list[Outputs], theirs: list[Outputs], reading: Reading, checks: Checks) -> dict[str, Any]:
    """How many objects both find, in px of the pictures; and average precision, where the objects are known."""
    expected, found = (_outcomes(some, reading, checks) for some in (ours, theirs))
    is_sure = any(one.scores.max(initial=0) >= COMPARED for one in expected)
    least = COMPARED if is_sure else 0.0  # a model that has learned little is compared by all that it says
    pairs = [_nearest(*pair, least) for pair in zip(expected, found, strict=True)]
    px, score = (np.concatenate([pair[place] for pair in pairs]) for place in (0, 1))
    same = (px <= NEAR_PX) & (score <= NEAR_SCORE)
    share = float(same.mean())
    facts: dict[str, Any] = {
        "objects": len(same),
        "object_agreement": share,
        # Queries may come in another order where their proposals are as good as equal: outputs are not compared by row.
        "largest_difference": float(score.max(initial=0)),
        "largest_box_difference_px": float(px.max(initial=0)),
        "summary": f"the same class and score, and a box within {NEAR_PX:g} px, for {share:.2%} of {len(same)} objects",
    }
    if checks.objects is not None and any((~one.crowd).any() for one in checks.objects):
        for name, some in (("AP_eager", expected), ("AP_exported", found)):
            facts[name] = _average_precision(some, checks.objects, len(reading.classes))
    return facts


def _outcomes(some: list[Outputs], reading: Reading, checks: Checks) -> list[BoxOutcome]:
    found = [outcomes(one, reading, [size])[0] for one, size in zip(some, sizes_of(checks.pictures), strict=True)]
    return [one for one in found if isinstance(one, BoxOutcome)]


def _nearest(ours: BoxOutcome, theirs: BoxOutcome, least: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each of our objects with at least this score, how far its sides and its score are from the nearest of theirs
    of the same class; from nothing, that is as far as the picture is large, and the whole score."""
    num = int((ours.scores >= least).sum())
    px, score = np.full(num, float(max(ours.size))), ours.scores[:num].astype(np.float64)
    for place in range(num):
        rows = np.flatnonzero(theirs.labels == ours.labels[place])
        if len(rows):
            sides = np.abs(theirs.boxes[rows] - ours.boxes[place]).max(axis=1)
            scores = np.abs(theirs.scores[rows] - ours.scores[place])
            best = np.argmin(sides / NEAR_PX + scores / NEAR_SCORE)  # several may lie one upon the other
            px[place], score[place] = sides[best], scores[best]
    return px, score


def _average_precision(found: list[BoxOutcome], objects: list[Objects], num_classes: int) -> float | None:
    counts, known = [len(one.scores) for one in found], [len(one) for one in objects]
    truth = Truth(
        np.repeat(np.arange(len(known)), known),
        *(np.concatenate([getattr(one, name) for one in objects]) for name in ("classes", "boxes", "crowd")),
    )
    said = Found(
        np.repeat(np.arange(len(counts)), counts),
        *(np.concatenate([getattr(one, name) for one in found]) for name in ("labels", "boxes", "scores")),
    )
    measured = box_precision.evaluator(truth, said, num_classes, len(found))
    return box_precision.mean(box_precision.precisions(measured)[..., 0])
