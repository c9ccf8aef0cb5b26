"""Accuracy against the share of pictures predicted, if a model may abstain when it is not sure.

(El-Yaniv and Wiener 2010; Geifman and El-Yaniv 2017.) The most confident predictions come first.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous import settings
from vitreous.errors import UserError
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.metrics import Estimate, Z, wilson

RESAMPLES, SEED = 200, 0


@dataclass(frozen=True)
class Point:
    share: float  # of the pictures that are predicted
    threshold: float  # the least confidence of these
    accuracy: Estimate  # of these; Wilson's interval


@dataclass(frozen=True)
class Abstention:
    points: tuple[Point, ...]  # from few predictions to all
    area: Estimate  # mean accuracy over all shares; a bootstrap's standard error (200 resamples, fixed seed)

    def to_json(self) -> Any:
        return settings.to_json(self)


@dataclass(frozen=True)
class Silence:
    """The effect on test pictures of a threshold chosen on validation pictures for a target accuracy."""

    wished: float
    threshold: float | None  # None: not even the most confident predictions reliably reach the target
    answered: Estimate | None  # share of the pictures; Wilson's interval, as for the next
    accuracy: Estimate | None  # None if nothing is predicted

    def to_json(self) -> Any:
        return settings.to_json(self)


def abstention(found: LabelledLogits, temperature: float = 1.0, num_points: int = 100) -> Abstention:
    confidences, right = _surest_first(found, temperature)
    num = len(right)
    ends = _last_of_equals(confidences)
    counts = right.cumsum(dim=0)
    wanted = torch.linspace(num / num_points, num, num_points, dtype=torch.float64).round().long().clamp(1, num) - 1
    places = torch.unique(ends[torch.searchsorted(ends, wanted)]).tolist()
    points = tuple(
        Point((place + 1) / num, float(confidences[place]), wilson(int(counts[place]), place + 1)) for place in places
    )
    return Abstention(points, _area(right))


def threshold_for(found: LabelledLogits, accuracy: float, temperature: float = 1.0) -> float | None:
    """The least confidence to predict at, so that the lower end of the accuracy's interval reaches the target.

    Choose on validation data. None if no threshold does.
    """
    if not 0 < accuracy < 1:
        raise UserError(f"the target accuracy is {accuracy}: it must be between 0 and 1, such as 0.99")
    confidences, right = _surest_first(found, temperature)
    ends = _last_of_equals(confidences)
    num = ends.double() + 1
    share = right.cumsum(dim=0)[ends].double() / num
    low = share + Z * Z / (2 * num) - Z * (share * (1 - share) / num + Z * Z / (4 * num * num)).sqrt()
    good = ends[low / (1 + Z * Z / num) >= accuracy]
    return float(confidences[good[-1]]) if len(good) else None


def silence(val: LabelledLogits, test: LabelledLogits, accuracy: float, temperature: float = 1.0) -> Silence:
    threshold = threshold_for(val, accuracy, temperature)
    if threshold is None:
        return Silence(accuracy, None, None, None)
    confidences, right = _surest_first(test, temperature)
    kept = right[confidences >= threshold]
    measured = wilson(int(kept.sum()), len(kept)) if len(kept) else None
    return Silence(accuracy, threshold, wilson(len(kept), len(right)), measured)


def _surest_first(found: LabelledLogits, temperature: float) -> tuple[Tensor, Tensor]:
    """(N,) confidences, falling, and whether each prediction is right."""
    if not len(found):
        raise UserError("there are no pictures to score")
    found.one_label()
    confidences, order = found.probabilities(temperature).amax(dim=1).sort(descending=True, stable=True)
    return confidences, found.right()[order]


def _last_of_equals(confidences: Tensor) -> Tensor:
    """The places where a threshold can be: pictures of equal confidence stay together."""
    differs = torch.ones(len(confidences), dtype=torch.bool)
    differs[:-1] = confidences[1:] != confidences[:-1]
    return differs.nonzero()[:, 0]


def _area(right: Tensor) -> Estimate:
    hits = right.double()
    value = float((hits.cumsum(dim=0) / torch.arange(1, len(hits) + 1)).mean())
    generator = torch.Generator().manual_seed(SEED)
    areas = []
    for _ in range(RESAMPLES):
        # A resample keeps the order of confidence, so it is the same pictures with different counts.
        drawn = torch.randint(len(hits), (len(hits),), generator=generator).bincount(minlength=len(hits))
        again = hits.repeat_interleave(drawn)
        areas.append(float((again.cumsum(dim=0) / torch.arange(1, len(hits) + 1)).mean()))
    half = Z * float(torch.tensor(areas, dtype=torch.float64).std())
    return Estimate(value, max(value - half, 0.0), min(value + half, 1.0))
