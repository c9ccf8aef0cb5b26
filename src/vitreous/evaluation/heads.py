"""Linear heads on frozen features, fitted in seconds: least squares in closed form, and logistic regression.

Penalties are chosen, and heads compared, on pictures that a head has not seen: the validation part if it is large
enough, otherwise training pictures that are left out in turn.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitreous.evaluation.baseline import NotConvergedError, Pixels, fit
from vitreous.evaluation.calibration import fit_temperature
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.metrics import log_losses
from vitreous.evaluation.probes import LINEAR_TOLERANCE, by_class, few_shot_fit, few_shot_left_out, standardised
from vitreous.evaluation.ridge import Linear

PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)  # of the mean loss on standardised features, strong to weak
ENOUGH_TO_JUDGE = 100  # validation pictures
FOLDS = 5
MOST_FEATURES = 20_000  # pictures to fit a head to: more hardly help
WORSE = 1.02  # times the least loss, above which weaker penalties are not tried


@dataclass(frozen=True)
class FittedHead:
    kind: Literal["least squares", "logistic regression"]
    penalty: float
    linear: Linear  # features -> logits
    score: float  # the headline on pictures it has not seen
    log_loss: float


def least_squares_head(train: FeatureSet, val: FeatureSet | None, num_classes: int) -> FittedHead:
    """In closed form, with a penalty chosen by leaving out each training picture once, and logits scaled so that their
    softmax is meaningful."""
    linear, penalty = few_shot_fit(train, num_classes)
    left_out = few_shot_left_out(train, num_classes, penalty)
    spread = left_out.std().clamp(min=1e-12)  # a temperature is searched for near 1
    temperature = spread * fit_temperature(_labelled(left_out / spread, train.labels))
    sized = Linear(linear.weights / temperature, linear.bias / temperature)
    said, labels = (left_out / temperature, train.labels) if val is None else (sized(val.values), val.labels)
    return FittedHead("least squares", penalty, sized, *_judged(said, labels))


def logistic_head(
    train: FeatureSet,
    val: FeatureSet | None,
    num_classes: int,
    class_weights: Tensor | None = None,
    *,
    penalties: tuple[float, ...] = PENALTIES,  # from strong to weak
    standardise: bool = True,  # False: a penalty depends on the scale of the features
    tolerance: float = LINEAR_TOLERANCE,
) -> FittedHead | None:
    """By L-BFGS, from the strongest penalty to weaker ones while that helps. `train` may contain several views of a
    picture, with the same id. None if not even the strongest converges, or if there is nothing to choose it by."""
    parts = [(train, val)] if val is not None else [(train.only(~out), train.only(out)) for out in _folds(train)]
    if not parts:
        return None
    starts: list[Tensor | None] = [None] * len(parts)
    found: dict[float, tuple[float, float]] = {}
    way = _Logistic(num_classes, class_weights, standardise, tolerance)
    for penalty in penalties:
        try:
            heads = [way.fit(part, penalty, start) for (part, _), start in zip(parts, starts, strict=True)]
        except NotConvergedError:
            break
        starts = [start for _, start in heads]
        said = torch.cat([head(unseen.values) for (head, _), (_, unseen) in zip(heads, parts, strict=True)])
        found[penalty] = _judged(said, torch.cat([unseen.labels for _, unseen in parts]))
        if found[penalty][1] > WORSE * min(loss for _, loss in found.values()):
            break
    if not found:
        return None
    best = min(found, key=lambda penalty: found[penalty][1])
    linear, _ = way.fit(train, best, None)
    return FittedHead("logistic regression", best, linear, *found[best])


@dataclass(frozen=True)
class _Logistic:
    num_classes: int
    class_weights: Tensor | None
    standardise: bool
    tolerance: float

    def fit(self, train: FeatureSet, penalty: float, start: Tensor | None) -> tuple[Linear, Tensor]:
        """For features as they are, with the weights for standardised ones, to start the next fit from."""
        data, centre, size = Pixels(train.values.double(), train.labels), torch.zeros(()), torch.ones(1)
        if self.standardise:
            data, (centre, size) = standardised(train)
        weights = fit(data, penalty, start, self.tolerance, self.num_classes, class_weights=self.class_weights)
        plain = weights[:-1] / size[:, None]
        return Linear(plain, weights[-1] - (centre * plain.T).sum(dim=1)), weights


def judges(val: FeatureSet | None) -> FeatureSet | None:
    """The validation part, if it has enough pictures for choices."""
    return val if val is not None and len(val) >= ENOUGH_TO_JUDGE else None


def limited(train: FeatureSet, most: int = MOST_FEATURES) -> FeatureSet:
    """At most `most` of them, evenly spread."""
    if len(train) <= most:
        return train
    return train.only(torch.linspace(0, len(train) - 1, most, dtype=torch.float64).round().long())


def _folds(train: FeatureSet) -> list[Tensor]:
    """(N,) masks of what to leave out in turn: all views of a picture together, all classes in proportion. None are
    left out of one picture alone."""
    ids, first = _first_places(train.ids)
    fold_of = torch.zeros(len(ids), dtype=torch.int64)
    groups = by_class(train.only(first), seed=0) if train.labels.ndim == 1 else [torch.arange(len(ids))]
    for places in groups:
        fold_of[places] = torch.arange(len(places)) % FOLDS
    if not fold_of.any():  # one picture per class
        fold_of = torch.arange(len(ids)) % FOLDS
    fold = fold_of[torch.searchsorted(ids, train.ids)]
    masks = [fold == number for number in range(FOLDS)]
    return [mask for mask in masks if mask.any() and not mask.all()]


def _first_places(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct ids, ascending, and the first index of each."""
    unique, inverse = torch.unique(ids, return_inverse=True)
    first = torch.full((len(unique),), len(ids), dtype=torch.int64)
    return unique, first.scatter_reduce(0, inverse, torch.arange(len(ids)), "amin")


def _judged(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """The headline and log-loss."""
    found = _labelled(logits, labels)
    return found.score(), float(log_losses(found).mean())


def _labelled(logits: Tensor, labels: Tensor) -> LabelledLogits:
    return LabelledLogits(logits, labels, torch.arange(len(labels)), tuple(map(str, range(logits.shape[1]))))
