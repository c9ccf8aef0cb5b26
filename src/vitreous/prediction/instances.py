"""From masks by queries, raw, to shapes in px of the picture as it was given. Knows no torch."""

import numpy as np
from numpy.typing import NDArray

from vitreous.data.placement import Placement
from vitreous.data.runs import Runs
from vitreous.prediction.boxes import LARGEST_LOGIT
from vitreous.prediction.pixels import between, places
from vitreous.weights.calibration import BoxCalibration

Array = NDArray[np.float32]


def instance_scores(logits: Array, masks: Array, calibration: BoxCalibration | None = None) -> Array:
    """(B, Q, K + 1), (B, Q, h, w) -> (B, Q, K): the probability that a query has found an object of each class; all but
    the likeliest have 0. As trained, it is the probability of the class times how sure the query is of the cells that
    it takes (Cheng et al. 2022, section 4.1)."""
    calibration = calibration or BoxCalibration()
    others = logits.astype(np.float64) / calibration.temperature
    others -= others.max(axis=-1, keepdims=True)
    shares = (np.exp(others) / np.exp(others).sum(axis=-1, keepdims=True))[..., :-1]
    scores = shares * sureness(masks)[..., None]
    with np.errstate(divide="ignore"):
        odds = np.clip(np.log(scores) - np.log1p(-scores), -LARGEST_LOGIT, LARGEST_LOGIT)
    is_best = np.arange(shares.shape[-1]) == shares.argmax(axis=-1)[..., None]
    return np.where(is_best & (scores > 0), calibration.probabilities(odds), 0.0).astype(np.float32)


def sureness(masks: Array) -> NDArray[np.float64]:
    """(B, Q): the mean probability of the cells that a query takes; 0 where it takes none."""
    inside = masks > 0
    sure = np.where(inside, 1 / (1 + np.exp(-np.maximum(masks, 0).astype(np.float64))), 0.0)
    mean: NDArray[np.float64] = sure.sum(axis=(2, 3)) / np.maximum(inside.sum(axis=(2, 3)), 1)
    return mean


def shape_of(logits: Array, placement: Placement) -> Runs:
    """(h, w) over the model's canvas -> the pixels of the picture that belong to the object. Only the part around its
    cells is looked at: most objects are small."""
    lying = places(placement, logits.shape)  # the picture's rows and columns, among the cells
    taken = [np.flatnonzero((logits > 0).any(axis=axis)) for axis in (1, 0)]
    if not len(taken[0]):
        return Runs.of(np.zeros((0, 0), np.bool_), placement.source)
    rows, columns = (
        np.flatnonzero((at > cells[0] - 1) & (at < cells[-1] + 1)) for at, cells in zip(lying, taken, strict=True)
    )
    if not len(rows) or not len(columns):
        return Runs.of(np.zeros((0, 0), np.bool_), placement.source)
    wide = between(np.asarray(logits, np.float32), lying[1][columns], axis=1)
    part = between(wide, lying[0][rows], axis=0) > 0
    return Runs.of(part, placement.source, (int(rows[0]), int(columns[0])))
