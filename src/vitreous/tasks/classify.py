"""Classification: one label a picture (softmax), or several (sigmoid)."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.batch import Batch
from vitreous.models.base import Encoder
from vitreous.tasks.base import Metric, Task


@dataclass(frozen=True, kw_only=True)
class ClassifySettings:
    head: Literal["linear", "tanh"] = "linear"  # tanh: one hidden layer, for pre-training (paper 3.1)
    loss: Literal["softmax", "sigmoid"] = "softmax"  # sigmoid: several labels a picture, as on ImageNet-21k and JFT
    label_smoothing: float = 0.0  # share of the target spread evenly over all classes (softmax only)

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "Classify":
        head = TanhHead(encoder.width, len(classes)) if self.head == "tanh" else LinearHead(encoder.width, len(classes))
        return Classify(encoder, head, self.loss, self.label_smoothing)


class LinearHead(nn.Linear):
    """Zeros at the start, so that fine-tuning begins from an even guess (paper 3.2)."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class TanhHead(nn.Module):
    """One hidden layer of the encoder's width, for pre-training (paper 3.1)."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.output = LinearHead(width, num_classes)
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)

    @property
    def bias(self) -> nn.Parameter:
        return self.output.bias

    def forward(self, pooled: Tensor) -> Tensor:
        logits: Tensor = self.output(torch.tanh(self.hidden(pooled)))
        return logits


class Classify(Task):
    def __init__(
        self, encoder: Encoder, head: LinearHead | TanhHead, loss: Literal["softmax", "sigmoid"], label_smoothing: float
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.loss = loss
        self.label_smoothing = label_smoothing
        if loss == "sigmoid":
            # Most labels are absent from most pictures: begin by saying so, or the first steps do nothing else.
            nn.init.constant_(head.bias, -10.0)

    def predict(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images).pooled)  # type: ignore[no-any-return]

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        # float32 from here on: a softmax over many classes loses too much in bfloat16
        logits = self.predict(batch.images).float()
        losses = (
            self.sigmoid_loss(logits, batch.targets)
            if self.loss == "sigmoid"
            else self.softmax_loss(logits, batch.targets)
        )
        return {"loss": losses.mean()}

    def softmax_loss(self, logits: Tensor, targets: dict[str, Tensor]) -> Tensor:
        """(B,) cross-entropies; of a mixed picture, the mean of both labels' by their shares."""
        losses = self._cross_entropy(logits, targets["label"])
        if "partner" not in targets:
            return losses
        return torch.lerp(self._cross_entropy(logits, targets["partner"]), losses, targets["weight"])

    def sigmoid_loss(self, logits: Tensor, targets: dict[str, Tensor]) -> Tensor:
        """(B,) sums over the classes of the binary cross-entropies."""
        wanted = targets["labels"] if "labels" in targets else mixed_one_hot(targets, logits.shape[1])
        return F.binary_cross_entropy_with_logits(logits, wanted.to(logits.dtype), reduction="none").sum(dim=1)

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.label_smoothing)

    def metric(self) -> Metric:
        return ClassificationMetric()


def mixed_one_hot(targets: dict[str, Tensor], num_classes: int) -> Tensor:
    """(B, K) float: the labels as vectors, mixed where pictures were mixed."""
    wanted = F.one_hot(targets["label"], num_classes).float()
    if "partner" not in targets:
        return wanted
    return torch.lerp(F.one_hot(targets["partner"], num_classes).float(), wanted, targets["weight"][:, None])


class ClassificationMetric:
    """Accuracy, top-5 accuracy and log-loss over everything it was shown. Sums stay on the device until asked for."""

    def __init__(self) -> None:
        self.count = 0
        self.sums: dict[str, Tensor] = {}

    def update(self, prediction: Tensor, batch: Batch) -> None:
        logits, labels = prediction.float(), batch.targets["label"]
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        hits = best == labels[:, None]
        self.count += len(labels)
        for name, values in (
            ("accuracy", hits[:, 0]),
            ("top5", hits.any(dim=1)),
            ("log_loss", F.cross_entropy(logits, labels, reduction="none")),
        ):
            self.sums[name] = (
                self.sums.get(name, torch.zeros((), dtype=torch.float64, device=logits.device)) + values.double().sum()
            )

    def compute(self) -> dict[str, float]:
        return {name: float(total) / self.count for name, total in self.sums.items()} | {"pictures": float(self.count)}
