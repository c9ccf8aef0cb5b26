"""What frozen features know: neighbours, a linear layer, and the paper's few-shot protocol.

A penalty is chosen on training features; test features are only scored, once.
"""

import math
import statistics
import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous import keys as K
from vitreous import settings
from vitreous.display.words import percent
from vitreous.errors import UserError
from vitreous.evaluation.baseline import NotConvergedError, Pixels, fit
from vitreous.evaluation.calibration import fit_temperature
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.metrics import Estimate, log_losses, wilson
from vitreous.evaluation.ridge import LeastSquares, Linear
from vitreous.terminal import track

# ---- Neighbours

TEMPERATURE = 0.07  # of similarities (Wu et al. 2018; DINO)


@dataclass(frozen=True)
class Neighbours:
    num: int
    accuracy: Estimate  # Wilson's interval


def knn(train: FeatureSet, test: FeatureSet, num: int = 20) -> Neighbours:
    """Votes of the nearest by cosine, each weighted by exp(similarity / TEMPERATURE)."""
    num_classes = _num_classes(train, test)
    num = min(num, len(train))
    votes = knn_votes(train, test.values, num_classes, num=num)
    return Neighbours(num, _accuracy(votes, test.labels))


def knn_votes(train: FeatureSet, values: Tensor, num_classes: int, *, num: int, chunk: int = 1024) -> Tensor:
    """(N, K): the summed votes for every class."""
    known = F.normalize(train.values, dim=1)
    votes = torch.zeros(len(values), num_classes, dtype=torch.float64, device=values.device)
    for start in track(range(0, len(values), chunk), "neighbours"):
        part = slice(start, start + chunk)
        near = (F.normalize(values[part], dim=1) @ known.T).topk(num, dim=1)
        # The nearest counts 1, so that no exponential overflows.
        worth = ((near.values - near.values[:, :1]).double() / TEMPERATURE).exp()
        votes[part].scatter_add_(1, train.labels[near.indices], worth)
    return votes


# ---- A linear layer

LINEAR_PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of the mean loss, on standardised features
HELD_OUT = 0.2  # share of train on which the penalty is chosen
LINEAR_TOLERANCE = 1e-4  # largest entry of the gradient; predictions stop changing long before


@dataclass(frozen=True)
class LinearProbe:
    accuracy: Estimate  # on test, fitted on all of train with the penalty below; Wilson's interval
    penalty: float
    held_out: tuple[tuple[float, float], ...]  # (penalty, accuracy) on a part of train that was held out for the choice
    at_the_edge: bool  # the best penalty is the first or last of the grid: a wider grid might do better

    def to_json(self) -> Any:
        return settings.to_json(self)


def linear_probe(
    train: FeatureSet,
    test: FeatureSet,
    penalties: tuple[float, ...] = LINEAR_PENALTIES,
) -> LinearProbe:
    """Logistic regression by L-BFGS, run until its gradient vanishes. The weaker the penalty, the longer that takes:
    the first that does not converge, and all weaker ones, are left out of the choice."""
    num_classes = _num_classes(train, test)
    chosen = _held_out(train)
    part, rest = train.only(~chosen), train.only(chosen)
    fits: dict[float, Tensor] = {}
    start = None
    fitted, judged = _standardised(part, rest)
    for penalty in track(sorted(penalties, reverse=True), "linear probe"):  # from strong to weak: each starts warm
        try:
            start = fits[penalty] = fit(fitted, penalty, start, LINEAR_TOLERANCE, num_classes)
        except NotConvergedError:
            if start is None:
                raise
            told = (
                f"linear probe: a penalty of {penalty:g} does not converge; this penalty and weaker ones are left out"
            )
            print(told, file=sys.stderr)
            break
    accuracies = {
        penalty: _accuracy(_logits(weights, judged.values), judged.labels).value for penalty, weights in fits.items()
    }
    best = max(accuracies, key=lambda penalty: accuracies[penalty])  # of equals, the strongest
    everything, unseen = _standardised(train, test)
    weights = fit(everything, best, fits[best], LINEAR_TOLERANCE, num_classes)
    return LinearProbe(
        accuracy=_accuracy(_logits(weights, unseen.values), unseen.labels),
        penalty=best,
        held_out=tuple(accuracies.items()),
        at_the_edge=len(accuracies) > 1 and best in (min(accuracies), max(accuracies)),
    )


def _logits(weights: Tensor, values: Tensor) -> Tensor:
    return values @ weights[:-1] + weights[-1]


def _standardised(train: FeatureSet, other: FeatureSet) -> tuple[Pixels, Pixels]:
    """Both, by the mean and deviation of train."""
    data, (centre, size) = standardised(train)
    return data, Pixels((other.values.double() - centre) / size, other.labels)


def standardised(train: FeatureSet) -> tuple[Pixels, tuple[Tensor, Tensor]]:
    """Mean 0 and deviation 1; a constant feature becomes 0. And (centre, size), to do the same to others."""
    values = train.values.double()
    centre, size = values.mean(dim=0), values.std(dim=0, correction=0)
    size = torch.where(size > 1e-6 * size.max(), size, torch.inf)
    return Pixels((values - centre) / size, train.labels), (centre, size)


def _held_out(train: FeatureSet) -> Tensor:
    """(N,) bool: HELD_OUT of every class, drawn by the pictures' keys; a class of one picture keeps it."""
    chosen = torch.zeros(len(train), dtype=torch.bool, device=train.ids.device)
    for places in by_class(train, seed=0):
        chosen[places[: round(HELD_OUT * len(places))]] = True
    if not chosen.any() or chosen.all():
        held_out = percent(HELD_OUT, 0)
        raise UserError(f"{len(train)} pictures are too few to hold out {held_out} of them and choose a penalty")
    return chosen


def by_class(features: FeatureSet, seed: int) -> list[Tensor]:
    """The indices of every class, in an order drawn by the pictures' keys: the same however they were loaded."""
    order = K.sample_keys(seed, 0, features.ids).argsort()
    labels = features.labels[order]
    return [order[labels == label] for label in range(int(labels.max()) + 1)]


# ---- Few shots

SHOTS = (1, 5, 10, 25)
# As shares of the features' mean squared length
RIDGE_PENALTIES = tuple(10.0 ** (exponent / 2) for exponent in range(-10, 5))


@dataclass(frozen=True)
class FewShot:
    shots: int  # training pictures per class
    mean: float  # accuracy over the seeds
    spread: float  # standard deviation over the seeds, of the draw of pictures
    accuracies: tuple[float, ...]  # by seed
    penalties: tuple[float, ...]  # by seed, as shares of the features' mean squared length
    short_classes: int  # classes with fewer pictures than that, of which all were used

    def to_json(self) -> Any:
        return settings.to_json(self)


def few_shot(
    train: FeatureSet, test: FeatureSet, shots: tuple[int, ...] = SHOTS, seeds: int = 5
) -> tuple[FewShot, ...]:
    """The paper's protocol (section 4.1): least squares from frozen features of a few pictures per class onto
    {-1, 1}^K.

    A seed's smaller samples are contained in its larger ones. Numbers of shots that no class has are left out.
    """
    num_classes = _num_classes(train, test)
    drawn = [by_class(train, seed) for seed in range(seeds)]
    sizes = [len(places) for places in drawn[0]]
    found = []
    for num in track([num for num in shots if num <= max(sizes)], "few-shot"):
        results = []
        for places in drawn:
            few = train.only(torch.cat([part[:num] for part in places]))
            classify, penalty = few_shot_fit(few, num_classes)
            results.append((_accuracy(classify(test.values), test.labels).value, penalty))
        accuracies, penalties = zip(*results, strict=True)
        spread = statistics.stdev(accuracies) if seeds > 1 else 0.0
        short = sum(0 < size < num for size in sizes)
        found.append(FewShot(num, statistics.fmean(accuracies), spread, accuracies, penalties, short))
    return tuple(found)


def few_shot_fit(
    few: FeatureSet, num_classes: int, penalties: tuple[float, ...] = RIDGE_PENALTIES
) -> tuple[Linear, float]:
    """The least squares fit and its penalty, chosen by leaving out each training picture once, exactly.

    The criterion is the log-loss of the predictions for the pictures left out, at the best temperature: squared error
    would favour small weights if features are weak, and the accuracy of a few pictures is too coarse.
    """
    problem = _least_squares(few, num_classes)
    scale = problem.scale or 1.0
    if int(few.labels.bincount().max()) == 1:  # leaving out a class's only picture says nothing about the others
        penalties = (1.0,)
    losses = {penalty: _left_out_loss(problem, penalty * scale, few) for penalty in penalties}
    best = min(losses, key=lambda penalty: losses[penalty])
    return problem.fit(best * scale), best


def few_shot_left_out(few: FeatureSet, num_classes: int, penalty: float) -> Tensor:
    """(N, K): the prediction for each picture by the fit to all others."""
    problem = _least_squares(few, num_classes)
    return problem.left_out(penalty * (problem.scale or 1.0))


def _least_squares(few: FeatureSet, num_classes: int) -> LeastSquares:
    return LeastSquares(few.values, 2 * F.one_hot(few.labels, num_classes).double() - 1)


def _left_out_loss(problem: LeastSquares, penalty: float, few: FeatureSet) -> float:
    said = problem.left_out(penalty)
    logits = said / said.std().clamp(min=1e-12)
    found = LabelledLogits(logits, few.labels, few.ids, tuple(map(str, range(logits.shape[1]))))
    loss = float(log_losses(found, fit_temperature(found)).mean())
    return loss if math.isfinite(loss) else math.inf


def _num_classes(train: FeatureSet, test: FeatureSet) -> int:
    for part in (train, test):
        if part.labels.ndim != 1:
            raise UserError("these pictures have several labels each; probes are for one label per picture")
        if not len(part):
            raise UserError("a probe needs training and test pictures")
    return int(max(train.labels.max(), test.labels.max())) + 1


def _accuracy(logits: Tensor, labels: Tensor) -> Estimate:
    return wilson(int((logits.argmax(dim=1) == labels).sum()), len(labels))
