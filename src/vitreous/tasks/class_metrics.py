"""How well classes are told apart, measured batch by batch: for the loop, and for whoever chooses between models."""

from collections.abc import Callable
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
    """Accuracy, top-5 accuracy and log-loss over everything it was shown. Sums stay on the device until asked for."""

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
            raise UserError("there is not one picture to score")
        return {name: float(total) / self.count for name, total in self.sums.items()} | {"pictures": float(self.count)}


def hits(logits: Tensor, targets: dict[str, Tensor]) -> dict[str, Tensor]:
    """(B,) whether the likeliest class is the label, or one of the labels, and whether one of the likeliest five is."""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices  # (B, 5)
    right = best == targets["label"][:, None] if "label" in targets else targets["labels"].gather(1, best) > 0
    return {"accuracy": right[:, 0], "top5": right.any(dim=1)}


class ManyLabelsMetric(ClassificationMetric):
    """Of several labels per picture: mean average precision over the classes, beside the same for the likeliest one.

    A class without one picture has no average precision and is left out of the mean.
    """

    headline: ClassVar[str] = "mAP"

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss)
        self.logits: list[Tensor] = []  # on the CPU: ranks are known once all are there
        self.labels: list[Tensor] = []

    def update(self, prediction: Prediction, batch: Batch) -> None:
        super().update(prediction, batch)
        logits, targets = class_logits(prediction), batch.targets
        labels = targets["labels"] > 0 if "labels" in targets else F.one_hot(targets["label"], logits.shape[1]).bool()
        self.logits.append(logits.float().cpu())
        self.labels.append(labels.cpu())

    def compute(self) -> dict[str, float]:
        found = super().compute()
        labels = torch.cat(self.labels)
        present = labels.any(dim=0)
        precisions = average_precisions(torch.cat(self.logits)[:, present], labels[:, present])
        return {"mAP": float(precisions.mean()) if len(precisions) else 0.0, **found}


def average_precisions(scores: Tensor, labels: Tensor) -> Tensor:
    """(N, K) scores and (N, K) bool -> (K,) float64: the area under precision over recall, in steps, class by class.

    Pictures of equal score are one step, so that their order does not matter. NaN for a class without one picture.
    """
    order = scores.argsort(dim=0, descending=True)
    ranked, sorted_scores = labels.gather(0, order), scores.gather(0, order)
    found = ranked.cumsum(dim=0).double()  # right ones among the first
    precision = found / torch.arange(1, len(scores) + 1, dtype=torch.float64, device=scores.device)[:, None]
    # Only where a run of equal scores ends is there a threshold; what comes before it counts with its precision.
    ends = torch.ones_like(ranked)
    ends[:-1] = sorted_scores[1:] != sorted_scores[:-1]
    result = []
    for column in range(scores.shape[1]):
        at = ends[:, column]
        steps = torch.diff(found[at, column], prepend=found.new_zeros(1))
        result.append((steps * precision[at, column]).sum() / found[-1, column])
    return torch.stack(result) if result else found.new_zeros(0)
