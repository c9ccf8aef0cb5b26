"""How well classes are predicted, measured batch by batch: for the loop, and to choose between models."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.platforms import widest
from vitreous.tasks.predictions import Prediction, class_logits

Loss = Callable[[Tensor, dict[str, Tensor]], Tensor]  # logits and targets in, (B,) losses out


class ClassificationMetric:
    """Accuracy, top-5 accuracy (of more than five classes) and log-loss over all batches.

    Sums stay on the device until they are needed.
    """

    headline: ClassVar[str] = "accuracy"

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.count = 0
        self.sums: dict[str, Tensor] = {}

    def update(self, prediction: Prediction, batch: Batch) -> None:
        logits, targets = class_logits(prediction).float(), batch.targets
        self.count += len(batch)
        found = {**hits(logits, targets), "log_loss": self.loss(logits, targets)}
        for name, values in found.items():
            self.sums[name] = self.sums.get(name, 0.0) + values.to(widest(values.device)).sum()

    def compute(self) -> dict[str, float]:
        if not self.count:
            raise UserError("there are no pictures to score")
        return {name: float(total) / self.count for name, total in self.sums.items()} | {"pictures": float(self.count)}


def hits(logits: Tensor, targets: dict[str, Tensor]) -> dict[str, Tensor]:
    """(B,) whether the most likely class is the label, or one of the labels; of more than five, whether any
    of the first five is."""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices  # (B, 5)
    right = best == targets["label"][:, None] if "label" in targets else targets["labels"].gather(1, best) > 0
    first = {"accuracy": right[:, 0]}
    return {**first, "top5": right.any(dim=1)} if logits.shape[1] > 5 else first


class ManyLabelsMetric(ClassificationMetric):
    """For several labels per picture: mean average precision over the classes, besides the numbers above.

    A class without pictures has no average precision and is left out of the mean.
    """

    headline: ClassVar[str] = "mAP"

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss)
        self.logits: list[Tensor] = []  # on the CPU, since ranks are known only at the end
        self.labels: list[Tensor] = []

    def update(self, prediction: Prediction, batch: Batch) -> None:
        super().update(prediction, batch)
        logits, targets = class_logits(prediction), batch.targets
        labels = targets["labels"] > 0 if "labels" in targets else F.one_hot(targets["label"], logits.shape[1]).bool()
        self.logits.append(logits.float().cpu())
        self.labels.append(labels.cpu())

    def compute(self) -> dict[str, float]:
        found = super().compute()
        return {"mAP": mean_average_precision(torch.cat(self.logits), torch.cat(self.labels)), **found}


def mean_average_precision(scores: Tensor, labels: Tensor) -> float:
    """(N, K) each. A class without pictures is left out; 0 if no picture has a label."""
    precisions = Ranking.of(scores, labels > 0).average_precisions()
    return float(precisions.nanmean().nan_to_num())


@dataclass(frozen=True)
class Ranking:
    """Pictures in the order of their scores, class by class."""

    order: Tensor  # (N, K): the pictures, highest score first
    labels: Tensor  # (N, K) bool, in that order
    last: Tensor  # (N, K): the last place with the same score

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor) -> "Ranking":
        """(N, K) scores and (N, K) bool."""
        ordered, order = scores.sort(dim=0, descending=True)
        is_last = torch.ones_like(ordered, dtype=torch.bool)
        is_last[:-1] = ordered[1:] != ordered[:-1]
        places = torch.arange(len(scores), device=scores.device)[:, None].expand_as(order)
        last = torch.where(is_last, places, len(scores)).flip(0).cummin(dim=0).values.flip(0)
        return cls(order, labels.gather(0, order), last)

    def average_precisions(self, counts: Tensor | None = None) -> Tensor:
        """(K,) float64: the precision among all pictures with at least this score, averaged over those of a class.

        Pictures of equal score are one step, so that their order does not matter. `counts` (N,): how often each picture
        counts. NaN for a class without pictures.
        """
        num = torch.ones_like(self.order, dtype=torch.float64) if counts is None else counts.double()[self.order]
        right = num * self.labels
        precision = right.cumsum(dim=0).gather(0, self.last) / num.cumsum(dim=0).gather(0, self.last)
        # Before the first picture that counts, precision is 0 / 0, which must not count either.
        return (right * precision.nan_to_num()).sum(dim=0) / right.sum(dim=0)
