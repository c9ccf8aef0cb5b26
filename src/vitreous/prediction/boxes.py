"""From a detector's raw outputs to boxes in px of the picture as it was given. Knows no torch."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.data.placement import Placement
from vitreous.weights.calibration import BoxCalibration

MOST = 100  # objects of a picture
LARGEST_LOGIT = 14.0  # of a score; beyond there is no difference to speak of

Array = NDArray[np.float32]


class Surest(NamedTuple):
    """What is said of one picture, the surest first."""

    scores: Array  # (n,)
    classes: NDArray[np.int64]  # (n,)
    queries: NDArray[np.int64]  # (n,): who says so


def scores_of(logits: Array, num_classes: int, calibration: BoxCalibration | None = None) -> Array:
    """(B, Q, K) or (B, Q, K + 1) -> (B, Q, K): the probability that a query has found an object of each class. With one
    logit more than classes these exclude each other, the last being for no object: all but the likeliest have 0."""
    calibration = calibration or BoxCalibration()
    scaled = logits.astype(np.float64) / calibration.temperature
    if scaled.shape[-1] == num_classes:
        return _calibrated(scaled, calibration)
    others = scaled - scaled.max(axis=-1, keepdims=True)
    shares = np.exp(others) / np.exp(others).sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        scores = _calibrated(np.log(shares[..., :-1]) - np.log1p(-shares[..., :-1]), calibration)
    is_best = np.arange(num_classes) == shares[..., :-1].argmax(axis=-1)[..., None]
    return np.where(is_best, scores, np.float32(0))


def _calibrated(logits: NDArray[np.float64], calibration: BoxCalibration) -> Array:
    limited = np.clip(logits, -LARGEST_LOGIT, LARGEST_LOGIT)
    return calibration.probabilities(limited).astype(np.float32)


def surest(scores: Array, most: int = MOST) -> Surest:
    """(Q, K) -> those of one picture; scores of 0 are left out."""
    flat = scores.ravel()
    order = np.argsort(-flat, kind="stable")[:most]
    order = order[flat[order] > 0]
    return Surest(flat[order], order % scores.shape[1], order // scores.shape[1])


def restored(boxes: Array, placement: Placement) -> Array:
    """(n, 4) centre and size in shares of the canvas' picture part -> x0 y0 x1 y1 in px of the picture, cut off at its
    borders."""
    middle, half = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64) / 2
    extent = np.array(placement.extent[::-1])  # width, height
    corner, sides = np.array([placement.left, placement.top]), np.array([placement.wide, placement.tall])
    source = np.array(placement.source[::-1])
    ends = [np.clip((end * extent - corner) * source / sides, 0, source) for end in (middle - half, middle + half)]
    return np.concatenate(ends, axis=1).astype(np.float32)
