"""How well a model does, every number with its 95 % interval.

Shares (accuracy, precision, recall) have Wilson's interval (1927). F1 is a share in disguise: it grows with J = right /
(labelled or predicted as the class), so its interval is Wilson's for J, transformed. Balanced accuracy, a mean of
independent shares, combines their Wilson limits by the method of variance estimates recovery (Zou and Donner 2008),
which stays sound if a class is never or always right. Log-loss is a plain mean: normal approximation.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous import settings
from vitreous.display.tables import Table
from vitreous.display.words import counted
from vitreous.errors import UserError
from vitreous.evaluation.logits import LabelledLogits

Z = 1.959963984540054  # 95 % of a standard normal is within plus and minus this


@dataclass(frozen=True)
class Estimate:
    """A measured number and its 95 % interval."""

    value: float
    low: float
    high: float

    def percent(self) -> str:
        return f"{100 * self.value:.2f} % ({100 * self.low:.2f} to {100 * self.high:.2f})"

    def plain(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"


@dataclass(frozen=True)
class ClassScores:
    name: str
    pictures: int  # labelled as the class
    predicted: int  # predicted as the class
    right: int
    precision: Estimate | None  # None if the model never predicts this class
    recall: Estimate | None  # None if no picture is of this class
    f1: Estimate | None  # None if both are the case


@dataclass(frozen=True)
class Scores:
    pictures: int
    top1: Estimate
    top5: Estimate
    balanced: Estimate  # mean recall of the classes that have pictures
    log_loss: Estimate
    per_class: tuple[ClassScores, ...]
    confusion: tuple[tuple[int, int, int], ...]  # (label, predicted, pictures), zeros left out

    def to_json(self) -> Any:
        return settings.to_json(self)

    def confusion_matrix(self) -> Tensor:
        """(K, K) int64: how many pictures of the row's class were predicted as the column's."""
        matrix = torch.zeros(len(self.per_class), len(self.per_class), dtype=torch.int64)
        for label, predicted, count in self.confusion:
            matrix[label, predicted] = count
        return matrix

    def tables(self, num_classes: int = 20) -> tuple[Table, Table]:
        """All pictures, and by class; if there are many classes, those with the lowest F1."""
        rows = [("top-1", self.top1.percent())]
        rows += [("top-5", self.top5.percent())] if len(self.per_class) > 5 else []
        rows += [("balanced accuracy", self.balanced.percent()), ("log-loss", self.log_loss.plain())]
        overall = Table((counted(self.pictures, "picture"), "measured (95 % interval)"), rows)
        seen = [one for one in self.per_class if one.f1 is not None]
        listed = sorted(seen, key=lambda one: one.f1.value if one.f1 else 0.0)[:num_classes]
        if len(seen) <= num_classes:
            listed = seen
        head = ("class" if len(seen) <= num_classes else f"the lowest {num_classes} of {len(seen)} classes",)
        lines = [(one.name, f"{one.pictures:,}", cell(one.precision), cell(one.recall), cell(one.f1)) for one in listed]
        return overall, Table((*head, "pictures", "precision", "recall", "F1"), lines)


def cell(share: Estimate | None) -> str:
    """A share in a table of many, without the space that `percent` takes."""
    return "-" if share is None else f"{100 * share.value:.1f} ({100 * share.low:.1f} to {100 * share.high:.1f})"


# ---- Intervals


def wilson(right: int, num: int) -> Estimate:
    """A share with Wilson's interval, which is sound even for small numbers and at 0 and 1."""
    share = right / num
    centre = (share + Z * Z / (2 * num)) / (1 + Z * Z / num)
    half = Z / (1 + Z * Z / num) * math.sqrt(share * (1 - share) / num + Z * Z / (4 * num * num))
    # At 0 and 1 the limits are exact, which rounding would just miss.
    return Estimate(share, 0.0 if right == 0 else centre - half, 1.0 if right == num else centre + half)


def mean_estimate(values: Tensor, highest: float = math.inf) -> Estimate:
    """The mean of independent values, by the normal approximation, within the possible range,
    from 0 up."""
    values = values.double()
    mean = float(values.mean())
    half = Z * float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Estimate(mean, max(mean - half, 0.0), min(mean + half, highest))


def mean_of_shares(shares: list[Estimate]) -> Estimate:
    """Zou and Donner 2008: distances to the limits add up like standard deviations."""
    value = sum(share.value for share in shares) / len(shares)
    below = math.sqrt(sum((share.value - share.low) ** 2 for share in shares)) / len(shares)
    above = math.sqrt(sum((share.high - share.value) ** 2 for share in shares)) / len(shares)
    return Estimate(value, value - below, value + above)


# ---- Scores


def scores(found: LabelledLogits, temperature: float = 1.0) -> Scores:
    """For one label per picture."""
    if not len(found):
        raise UserError("there are no pictures to score")
    best = found.logits.topk(min(5, found.logits.shape[1]), dim=1).indices  # (N, 5)
    hits = best == found.one_label()[:, None]
    per_class = _per_class(found)
    recalls = [one.recall for one in per_class if one.recall is not None]
    if not recalls:
        raise UserError("none of the pictures has a label")
    return Scores(
        pictures=len(found),
        top1=wilson(int(found.right().sum()), len(found)),
        top5=wilson(int(hits.any(dim=1).sum()), len(found)),
        balanced=mean_of_shares(recalls),
        log_loss=mean_estimate(log_losses(found, temperature)),
        per_class=per_class,
        confusion=_confusion(found),
    )


def log_losses(found: LabelledLogits, temperature: float = 1.0) -> Tensor:
    """(N,) float64: cross-entropies; for several labels, binary ones summed over the classes."""
    logits = found.logits.double() / temperature
    if found.has_many_labels:
        wanted = (found.labels > 0).double()
        return F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(dim=1)
    return F.cross_entropy(logits, found.one_label(), reduction="none")


def _per_class(found: LabelledLogits) -> tuple[ClassScores, ...]:
    return tuple(
        ClassScores(
            name=name,
            pictures=pictures,
            predicted=predicted,
            right=right,
            precision=wilson(right, predicted) if predicted else None,
            recall=wilson(right, pictures) if pictures else None,
            f1=f1_share(right, pictures + predicted - right),
        )
        for name, pictures, predicted, right in zip(found.classes, *_counts(found), strict=True)
    )


def _counts(found: LabelledLogits) -> tuple[list[int], list[int], list[int]]:
    """By class: pictures labelled as it, predicted as it, and both."""
    labels, best = found.one_label(), found.best()
    parts = (one.bincount(minlength=len(found.classes)) for one in (labels, best, labels[labels == best]))
    labelled_num, predicted_num, right_num = (part.tolist() for part in parts)
    return labelled_num, predicted_num, right_num


def f1_share(right: int, either: int) -> Estimate | None:
    """2 J / (1 + J), J being the share of right ones among those labelled or predicted as the class."""
    if not either:
        return None
    j = wilson(right, either)
    return Estimate(*(2 * x / (1 + x) for x in (j.value, j.low, j.high)))


def _confusion(found: LabelledLogits) -> tuple[tuple[int, int, int], ...]:
    num_classes = found.logits.shape[1]
    pairs, counts = torch.unique(found.one_label() * num_classes + found.best(), return_counts=True)
    return tuple((p // num_classes, p % num_classes, c) for p, c in zip(pairs.tolist(), counts.tolist(), strict=True))
