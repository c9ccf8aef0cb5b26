"""Is a model that says 80 % right four times out of five? And the temperature, which fixes most of the difference.

Confidence is the probability of the most likely class. ECE is the mean distance between confidence and accuracy over
bins of equal width (Guo et al. 2017), or of equal numbers of pictures ("adaptive", Nguyen and O'Connor 2015).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous import settings
from vitreous.errors import UserError
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.metrics import Estimate, log_losses, mean_estimate, wilson

COOLEST, HOTTEST = 0.05, 20.0  # limits of a fitted temperature


@dataclass(frozen=True)
class Bin:
    low: float  # of the confidences
    high: float
    pictures: int
    confidence: float | None  # mean; None if the bin is empty
    accuracy: Estimate | None  # Wilson's interval


@dataclass(frozen=True)
class Calibration:
    temperature: float
    ece: Estimate  # bins of equal width
    adaptive_ece: Estimate  # bins of equal numbers
    brier: Estimate  # summed over the classes, so between 0 and 2; normal approximation
    log_loss: Estimate  # normal approximation
    confidence: float  # mean
    accuracy: Estimate
    bins: tuple[Bin, ...]  # of equal width: the reliability diagram

    def to_json(self) -> Any:
        return settings.to_json(self)


def calibration(found: LabelledLogits, temperature: float = 1.0, num_bins: int = 15) -> Calibration:
    labels = found.one_label()
    if not len(found):
        raise UserError("there are no pictures to score")
    probabilities = found.probabilities(temperature)  # (N, K)
    confidences, right = probabilities.amax(dim=1), found.right()
    # |p - onehot|^2, without the one-hot: 0.1 billion numbers on ImageNet
    squares = probabilities.square().sum(dim=1) + 1 - 2 * probabilities.gather(1, labels[:, None])[:, 0]
    equal = torch.linspace(0, 1, num_bins + 1, dtype=torch.float64)
    return Calibration(
        temperature=temperature,
        ece=expected_error(confidences, right, equal),
        adaptive_ece=expected_error(confidences, right, _adaptive_edges(confidences, num_bins)),
        brier=mean_estimate(squares, highest=2.0),
        log_loss=mean_estimate(log_losses(found, temperature)),
        confidence=float(confidences.mean()),
        accuracy=wilson(int(right.sum()), len(found)),
        bins=_bins(confidences, right, equal),
    )


def expected_error(confidences: Tensor, right: Tensor, edges: Tensor) -> Estimate:
    """ECE: a mean over the pictures of (confidence - right), each with the sign of its bin's sum.

    The interval is the normal approximation of that mean, with fixed signs. As a sum of distances, ECE is above 0 even
    for a perfectly calibrated model, by about one standard error per bin.
    """
    place = _places(confidences, edges)
    gaps = confidences - right.double()
    sums = torch.zeros(len(edges) - 1, dtype=torch.float64).index_add_(0, place, gaps)
    return mean_estimate(gaps * sums.sign()[place], highest=1.0)


def _places(confidences: Tensor, edges: Tensor) -> Tensor:
    """(N,) the bin of every confidence: above its low edge, up to and including its high one."""
    return (torch.bucketize(confidences, edges) - 1).clamp(0, len(edges) - 2)


def _adaptive_edges(confidences: Tensor, num_bins: int) -> Tensor:
    """Quantiles. Equal confidences stay together, so there may be fewer bins."""
    ordered = confidences.sort().values
    ends = [math.ceil(len(ordered) * number / num_bins) - 1 for number in range(1, num_bins)]
    inner = ordered[torch.tensor(ends, dtype=torch.int64).clamp(min=0)]
    edges = torch.cat([torch.zeros(1, dtype=torch.float64), inner, torch.ones(1, dtype=torch.float64)])
    distinct: Tensor = torch.unique_consecutive(edges)
    return distinct


def _bins(confidences: Tensor, right: Tensor, edges: Tensor) -> tuple[Bin, ...]:
    place, num = _places(confidences, edges), len(edges) - 1
    counts = place.bincount(minlength=num).tolist()
    hits = place[right].bincount(minlength=num).tolist()
    sums = torch.zeros(num, dtype=torch.float64).index_add_(0, place, confidences).tolist()
    limits: Sequence[float] = edges.tolist()
    return tuple(
        Bin(
            limits[i],
            limits[i + 1],
            count,
            sums[i] / count if count else None,
            wilson(hits[i], count) if count else None,
        )
        for i, count in enumerate(counts)
    )


# ---- Temperature (Guo et al. 2017)


def fit_temperature(found: LabelledLogits) -> float:
    """The temperature, from 0.05 to 20, that minimises log-loss. Fit it on validation data.

    Labels count (n + 1) / (n + 2), and the other classes share the rest, as in Platt's scaling (1999): n pictures
    without a mistake do not make a model infallible. Otherwise a perfect validation set would give temperature 0; for
    other sets the difference is far below what n pictures can resolve.
    """
    labels, num_classes = found.one_label(), found.logits.shape[1]
    if not len(found):
        raise UserError("a temperature is fitted on validation pictures, and there are none")
    if num_classes == 1:
        return 1.0
    logits = found.logits.double()
    logits = logits - logits.mean(dim=1, keepdim=True)
    spared = 1 / (len(found) + 2) / (num_classes - 1)  # of a label, to each other class
    wanted = logits.gather(1, labels[:, None])[:, 0].mean() * (1 - num_classes * spared)  # mean logit of the targets
    # The loss is convex in 1 / temperature: its slope, E[logit] - target logit, only grows. Newton, within a bracket.
    low, high = 1 / HOTTEST, 1 / COOLEST
    inverse = 1.0
    for _ in range(100):
        probabilities = (logits * inverse).softmax(dim=1)
        means = (probabilities * logits).sum(dim=1)
        slope = float(means.mean() - wanted)
        curvature = float(((probabilities * logits.square()).sum(dim=1) - means.square()).mean())
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = inverse - slope / max(curvature, 1e-300)
        following = step if low < step < high else math.sqrt(low * high)
        if abs(following - inverse) < 1e-9 * inverse or high - low < 1e-9 * low:
            return 1 / following
        inverse = following
    return 1 / inverse
