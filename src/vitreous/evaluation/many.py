"""How well several labels per picture are predicted, and the threshold of each.

Average precision and its mean over the classes have percentile intervals of a bootstrap over pictures (fixed seed);
precision, recall and F1 are shares and have Wilson's, as for single labels. A class that no picture has is left out of
all means.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous import settings
from vitreous.display.html import together
from vitreous.display.tables import Table
from vitreous.display.words import counted
from vitreous.errors import UserError
from vitreous.evaluation.calibration import Calibration, calibration, fit_temperature
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.metrics import Estimate, cell, f1_share, log_losses, mean_estimate, mean_of_shares, wilson
from vitreous.tasks.class_metrics import Ranking
from vitreous.weights.calibration import ManyCalibration

RESAMPLES, SEED = 400, 0
MOST_WORK = 1_000_000_000  # pictures x classes x resamples; large sets need fewer resamples
LEAST = 0.5  # threshold of a class with too few validation pictures
ENOUGH_TO_CHOOSE = 5  # least validation pictures with a label to choose its threshold
NUM_PAIRS = 100  # of labels that are predicted together, the most frequent


@dataclass(frozen=True)
class LabelScores:
    name: str
    threshold: float  # the least probability at which it is predicted
    pictures: int  # that have it
    given: int  # pictures that it is predicted for
    right: int
    average_precision: Estimate | None  # None if no picture has it, as for recall
    precision: Estimate | None  # None if it is never predicted
    recall: Estimate | None
    f1: Estimate | None  # None if both are the case

    @property
    def shares(self) -> tuple[Estimate | None, ...]:
        return self.average_precision, self.precision, self.recall, self.f1


@dataclass(frozen=True)
class Pair:
    """Two labels that go together: in how many pictures, and in how many predictions."""

    one: str
    other: str
    pictures: int
    given: int


@dataclass(frozen=True)
class Swap:
    """A label that pictures have and is not predicted, and one that is predicted instead."""

    missed: str
    false: str
    pictures: int


@dataclass(frozen=True)
class ManyScores:
    pictures: int
    mean_average_precision: Estimate
    macro_f1: Estimate  # every class counts the same
    micro_f1: Estimate  # every label of every picture counts the same
    all_right: Estimate  # pictures for which exactly their labels are predicted
    log_loss: Estimate  # summed over the classes
    labels: float  # per picture, on average
    labels_given: float
    per_class: tuple[LabelScores, ...]
    pairs: tuple[Pair, ...]  # the most frequent ones, in pictures or predictions
    swaps: tuple[Swap, ...]  # the most frequent ones


@dataclass(frozen=True)
class ManyEvaluation:
    """Everything that can be measured from the predictions of a model of several labels per picture."""

    scores: ManyScores  # on test, like the other fields; with the model's temperature and thresholds
    temperature: float  # fitted on validation pictures, or as given
    thresholds: tuple[float, ...]  # one per class, likewise
    validation_pictures: int  # 0: nothing was fitted
    before: Calibration  # of the decisions on each label, at temperature 1
    after: Calibration  # at the temperature

    headline_name = "mAP"

    @property
    def headline(self) -> Estimate:
        return self.scores.mean_average_precision

    @property
    def calibration(self) -> ManyCalibration:
        """What `predict` needs to know, for the model's card."""
        return ManyCalibration(temperature=self.temperature, thresholds=self.thresholds)

    def to_json(self) -> Any:
        return {"kind": settings.kind(type(self)), **settings.to_json(self)}

    def tables(self) -> list[Table]:
        found = self.scores
        rows = [
            ("mean average precision (mAP)", found.mean_average_precision.percent()),
            ("F1, mean of the classes", found.macro_f1.percent()),
            ("F1, all labels together", found.micro_f1.percent()),
            ("all labels of a picture right", found.all_right.percent()),
            ("log-loss", found.log_loss.plain()),
            ("labels per picture", f"{found.labels:.2f}, given {found.labels_given:.2f}"),
        ]
        fitted = f"thresholds chosen on {self.validation_pictures:,} validation pictures"
        overall = Table((counted(found.pictures, "picture"), "measured (95 % interval)"), rows)
        return [overall, _class_table(found, fitted if self.validation_pictures else "")]

    def summary(self) -> str:
        """For the terminal."""
        return "\n\n".join(one.text() for one in self.tables())

    def _repr_html_(self) -> str:
        return together(one.html() for one in self.tables()).markup


def _class_table(found: ManyScores, note: str, num: int = 20) -> Table:
    seen = [one for one in found.per_class if one.average_precision is not None]
    listed = sorted(seen, key=lambda one: one.average_precision.value if one.average_precision else 0.0)[:num]
    head = f"the lowest {num} of {len(seen)} labels"
    if len(seen) <= num:
        listed, head = seen, "label"
    rows = [(one.name, f"{one.pictures:,}", f"{one.threshold:.3f}", *(map(cell, one.shares))) for one in listed]
    return Table((head, "pictures", "threshold", "AP", "precision", "recall", "F1"), rows, note)


def evaluate_many(
    val: LabelledLogits | None,
    test: LabelledLogits,
    *,
    temperature: float | None = None,
    thresholds: tuple[float, ...] = (),
) -> ManyEvaluation:
    """Val fits the temperature and thresholds that are not given, and may be absent; test is measured."""
    if not len(test):
        raise UserError("there are no pictures to score")
    if temperature is None:
        temperature = 1.0 if val is None else fit_temperature(decisions(val))
    if not thresholds:
        thresholds = (LEAST,) * len(test.classes) if val is None else choose_thresholds(val, temperature)
    every = decisions(test)
    return ManyEvaluation(
        scores=many_scores(test, temperature, thresholds),
        temperature=temperature,
        thresholds=thresholds,
        validation_pictures=0 if val is None else len(val),
        before=calibration(every),
        after=calibration(every, temperature),
    )


def decisions(found: LabelledLogits) -> LabelledLogits:
    """Every decision on a label as a separate picture with two classes, for temperature and calibration."""
    logits = found.logits.flatten()
    both = torch.stack([torch.zeros_like(logits), logits], dim=1)
    return LabelledLogits(both, (found.labels > 0).long().flatten(), torch.arange(len(logits)), ("no", "yes"))


def label_probabilities(found: LabelledLogits, temperature: float) -> Tensor:
    """(N, K) float32, as `predict` has them."""
    return (found.logits.double() / temperature).sigmoid().float()


# ---- thresholds


def choose_thresholds(val: LabelledLogits, temperature: float = 1.0) -> tuple[float, ...]:
    """For each class the probability with the highest F1 on validation pictures, half-way to the next lower one; one
    half if there are too few pictures to choose."""
    probabilities, labels = label_probabilities(val, temperature), val.labels > 0
    return tuple(
        _best_threshold(probabilities[:, place], labels[:, place])
        if int(labels[:, place].sum()) >= ENOUGH_TO_CHOOSE
        else LEAST
        for place in range(len(val.classes))
    )


def _best_threshold(probabilities: Tensor, labels: Tensor) -> float:
    ordered, order = probabilities.double().sort(descending=True)
    right = labels[order].cumsum(dim=0).double()
    f1 = 2 * right / (torch.arange(1, len(right) + 1) + labels.sum())
    f1[:-1][ordered[:-1] == ordered[1:]] = -1.0  # no threshold can be between equal ones
    best = int(f1.argmax())  # the first: of equally good ones, the one with fewer labels
    lower = ordered[best + 1] if best + 1 < len(ordered) else 0.0
    return float((ordered[best] + lower) / 2)


# ---- scores


def many_scores(found: LabelledLogits, temperature: float, thresholds: tuple[float, ...]) -> ManyScores:
    labels = found.labels > 0  # (N, K)
    if not labels.any():
        raise UserError("none of the pictures has a label")
    given = label_probabilities(found, temperature) >= torch.tensor(thresholds)
    mean, precisions = _bootstrapped(Ranking.of(found.logits, labels))
    per_class = tuple(_per_class(found.classes, thresholds, labels, given, precisions))
    shares = [one.f1 for one in per_class if one.f1 is not None and one.pictures]
    either = int((labels | given).sum())
    return ManyScores(
        pictures=len(found),
        mean_average_precision=mean,
        macro_f1=mean_of_shares(shares),
        micro_f1=f1_share(int((labels & given).sum()), either) or Estimate(0.0, 0.0, 0.0),
        all_right=wilson(int((labels == given).all(dim=1).sum()), len(found)),
        log_loss=mean_estimate(log_losses(found, temperature)),
        labels=float(labels.double().sum(dim=1).mean()),
        labels_given=float(given.double().sum(dim=1).mean()),
        per_class=per_class,
        pairs=tuple(_pairs(found.classes, labels, given)),
        swaps=tuple(_swaps(found.classes, labels, given)),
    )


def _per_class(
    classes: tuple[str, ...],
    thresholds: tuple[float, ...],
    labels: Tensor,
    given: Tensor,
    precisions: list[Estimate | None],
) -> Iterator[LabelScores]:
    counts = (one.sum(dim=0).tolist() for one in (labels, given, labels & given))
    for name, threshold, precision, num, num_given, right in zip(classes, thresholds, precisions, *counts, strict=True):
        yield LabelScores(
            name=name,
            threshold=threshold,
            pictures=num,
            given=num_given,
            right=right,
            average_precision=precision,
            precision=wilson(right, num_given) if num_given else None,
            recall=wilson(right, num) if num else None,
            f1=f1_share(right, num + num_given - right),
        )


def _bootstrapped(ranking: Ranking) -> tuple[Estimate, list[Estimate | None]]:
    """The mean over the classes, and each class, with intervals from pictures resampled with replacement."""
    num, num_classes = ranking.labels.shape
    values = ranking.average_precisions()
    times = max(50, min(RESAMPLES, MOST_WORK // (num * num_classes)))
    generator = torch.Generator().manual_seed(SEED)
    drawn = []
    for _ in range(times):
        picks = torch.randint(num, (num,), generator=generator)
        drawn.append(ranking.average_precisions(picks.bincount(minlength=num).double()))
    resampled = torch.stack(drawn)  # (R, K); NaN if a class was not drawn
    mean = _interval(values.nanmean(), resampled.nanmean(dim=1))
    each = [
        None if value.isnan() else _interval(value, column) for value, column in zip(values, resampled.T, strict=True)
    ]
    return mean, each


def _interval(value: Tensor, drawn: Tensor) -> Estimate:
    low, high = drawn[~drawn.isnan()].quantile(torch.tensor([0.025, 0.975], dtype=drawn.dtype)).tolist()
    return Estimate(float(value), min(low, float(value)), max(high, float(value)))


def _pairs(classes: tuple[str, ...], labels: Tensor, given: Tensor) -> Iterator[Pair]:
    """Labels that pictures have together, and how often the model predicts them together."""
    there, told = (some.double().T @ some.double() for some in (labels, given))
    for one, other in _most_frequent(torch.maximum(there, told).triu(diagonal=1)):
        yield Pair(classes[one], classes[other], int(there[one, other]), int(told[one, other]))


def _swaps(classes: tuple[str, ...], labels: Tensor, given: Tensor) -> Iterator[Swap]:
    missed, false = (labels & ~given).double(), (given & ~labels).double()
    counts = missed.T @ false  # (K, K)
    for one, other in _most_frequent(counts):
        yield Swap(classes[one], classes[other], int(counts[one, other]))


def _most_frequent(counts: Tensor) -> list[tuple[int, int]]:
    values, places = counts.flatten().topk(min(NUM_PAIRS, counts.numel()))
    return [
        divmod(place, counts.shape[1]) for place, value in zip(places.tolist(), values.tolist(), strict=True) if value
    ]


# ---- single pictures


@dataclass(frozen=True)
class LabelMistake:
    id: int  # of the picture in its source
    label: str  # that was missed, or wrongly predicted
    probability: float
    labels: tuple[str, ...]  # of the picture


def missed_labels(found: LabelledLogits, evaluation: ManyEvaluation, num: int = 12) -> list[LabelMistake]:
    """Missed labels with the lowest probabilities, one per picture."""
    return _mistakes(found, evaluation, num, missed=True)


def false_labels(found: LabelledLogits, evaluation: ManyEvaluation, num: int = 12) -> list[LabelMistake]:
    """Wrongly predicted labels, most confident first, one per picture."""
    return _mistakes(found, evaluation, num, missed=False)


def _mistakes(found: LabelledLogits, evaluation: ManyEvaluation, num: int, *, missed: bool) -> list[LabelMistake]:
    labels, probabilities = found.labels > 0, label_probabilities(found, evaluation.temperature)
    given = probabilities >= torch.tensor(evaluation.thresholds)
    wrong = labels & ~given if missed else given & ~labels
    surprise = torch.where(wrong, 1 - probabilities if missed else probabilities, -1.0)
    worst, place = surprise.max(dim=1)
    order = [at for at in worst.argsort(descending=True, stable=True).tolist() if worst[at] >= 0][:num]
    return [
        LabelMistake(
            id=int(found.ids[at]),
            label=found.classes[int(place[at])],
            probability=float(probabilities[at, place[at]]),
            labels=tuple(found.classes[one] for one in labels[at].nonzero()[:, 0].tolist()),
        )
        for at in order
    ]
