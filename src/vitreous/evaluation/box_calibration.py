"""Scores of detections turned into probabilities, and thresholds for a target precision, both fitted on validation
pictures.

A detection is right if it is the first to find an object of its class, with an overlap of at least one half.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitreous.tasks.box_precision import Floats, Numbers
from vitreous.weights.calibration import BoxCalibration

WISHED = (0.5, 0.7, 0.8, 0.9, 0.95)  # target precisions
SHOWN_FOR = 0.8  # the one that decides what is shown by default
LARGEST_LOGIT = 14.0  # of a score; beyond, differences do not matter
PIECES, RIGHT_PER_PIECE = 6, 30  # of the piecewise linear map: most pieces, and right detections that each needs
FLATTEST = 0.02  # least slope, so that the order of scores stays
CAUTION = 2.0  # in standard deviations
PRIOR = 1.0  # weight of the prior around the identity, in detections


def probabilities(scores: Floats, calibration: BoxCalibration, classes: Numbers) -> Floats:
    """The probabilities that `predict` gives for scores (D,) of these classes."""
    return calibration.probabilities(logits_of(scores), classes)


def calibration_of(
    scores: Floats, right: NDArray[np.bool_], num_objects: int, classes: Numbers, num_classes: int
) -> BoxCalibration:
    """For detections (D,) on pictures that have this many objects in all. Classes share the slopes, but each has its
    own offset: scores of a rare class are low, and still mostly right."""
    logits = logits_of(scores)
    num = int(np.clip(right.sum() // RIGHT_PER_PIECE, 1, PIECES))
    knots = np.unique(np.quantile(logits[right], np.arange(1, num) / num)) if num > 1 else np.zeros(0)
    of_class = classes[:, None] == np.arange(num_classes if num_classes > 1 else 0)
    slopes, shift, offsets = _regression(_pieces(logits, knots), of_class, right)
    curve = BoxCalibration(shift=shift, slopes=slopes, knots=tuple(knots.tolist()), offsets=offsets)
    calibrated = probabilities(scores, curve, classes)
    thresholds = [(wished, threshold_for(calibrated, right, wished)) for wished in WISHED]
    reached = {wished: least for wished, least in thresholds if least is not None}
    shown = reached.get(SHOWN_FOR, best_threshold(calibrated, right, num_objects))
    return replace(curve, threshold=shown, thresholds=tuple(reached.items()))


def logits_of(scores: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        logits: Floats = np.clip(np.log(scores) - np.log1p(-scores), -LARGEST_LOGIT, LARGEST_LOGIT)
    return logits


def threshold_for(scores: Floats, right: NDArray[np.bool_], wished: float, *, caution: float = CAUTION) -> float | None:
    """The lowest score above which at least this share of the detections is right; None if there is none. With caution,
    the share is the lower limit of Wilson's interval, since a few right detections may be luck."""
    order = np.argsort(-scores, kind="stable")
    num = np.arange(1, len(order) + 1)
    share, square = np.cumsum(right[order]) / num, caution**2
    least = share + square / (2 * num) - caution * np.sqrt(share * (1 - share) / num + square / (4 * num**2))
    last_of_equals = np.append(np.diff(scores[order]) != 0, True)
    enough = np.flatnonzero((least / (1 + square / num) >= wished) & last_of_equals)
    return float(scores[order[enough[-1]]]) if len(enough) else None


def best_threshold(scores: Floats, right: NDArray[np.bool_], num_objects: int) -> float:
    """The threshold with the highest F1."""
    if not right.any():
        return 0.5
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(right[order])
    f1 = 2 * hits / (np.arange(1, len(order) + 1) + num_objects)
    return float(scores[order[int(f1.argmax())]])


def _pieces(logits: Floats, knots: Floats) -> Floats:
    """(D, pieces): the part of each logit on each piece; the parts sum to the logit."""
    if not len(knots):
        return logits[:, None]
    first = np.minimum(logits, knots[0])
    between = np.clip(logits[:, None], knots[:-1], knots[1:]) - knots[:-1]
    last = np.maximum(logits - knots[-1], 0)
    return np.column_stack([first, between, last])


def _regression(
    pieces: Floats, of_class: NDArray[np.bool_], right: NDArray[np.bool_]
) -> tuple[tuple[float, ...], float, tuple[float, ...]]:
    """Slopes, shift and offsets with the least log-loss and no slope below FLATTEST, by projected Newton steps. A prior
    around the identity keeps them finite if scores separate right from wrong perfectly or detections are few, and keeps
    a class with little data near the others."""
    inputs = np.column_stack([pieces, np.ones(len(pieces)), of_class])
    num = pieces.shape[1]
    prior = np.append(np.ones(num), np.zeros(inputs.shape[1] - num))
    lowest = np.where(prior > 0, FLATTEST, -np.inf)

    def loss(found: Floats) -> float:
        values = inputs @ found
        return float((np.logaddexp(0, values) - right * values).sum() + PRIOR * ((found - prior) ** 2).sum() / 2)

    found = prior.copy()
    for _ in range(100):
        expected = _sigmoid(inputs @ found)
        slope = inputs.T @ (expected - right) + PRIOR * (found - prior)
        curvature = (inputs * (expected * (1 - expected))[:, None]).T @ inputs + PRIOR * np.eye(len(found))
        free = (found > lowest) | (slope < 0)
        step = np.zeros(len(found))
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], slope[free])
        share, before = 1.0, loss(found)
        while loss(np.maximum(found - share * step, lowest)) > before and share > 1e-6:
            share /= 2
        moved = np.maximum(found - share * step, lowest)
        change, found = float(np.abs(moved - found).max()), moved
        if change < 1e-10:
            break
    return tuple(found[:num].tolist()), float(found[num]), tuple(found[num + 1 :].tolist())


def _sigmoid(values: Floats) -> Floats:
    limited: Floats = 1 / (1 + np.exp(-np.clip(values, -700, 700)))  # exp(710) overflows
    return limited
