"""LabelledLogits: a task's logits for every picture of a set, collected once. Every metric is a function of them."""

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.nn.graphed import Graphed
from vitreous.tasks.base import Task
from vitreous.tasks.class_metrics import mean_average_precision
from vitreous.tasks.predictions import class_logits
from vitreous.terminal import track


@dataclass(frozen=True)
class LabelledLogits:
    logits: Tensor  # (N, K) float32, on the CPU
    labels: Tensor  # (N,) int64; with several labels per picture (N, K), above 0 for those that it has
    ids: Tensor  # (N,) int64: indices of the pictures in the source
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def has_many_labels(self) -> bool:
        return self.labels.ndim == 2

    def probabilities(self, temperature: float = 1.0) -> Tensor:
        """(N, K) float64: the softmax of logits / temperature, as `predict` returns it."""
        return (self.logits.double() / temperature).softmax(dim=1)

    def best(self) -> Tensor:
        """(N,) the most likely class of every picture; the first of equals."""
        return self.logits.argmax(dim=1)

    def right(self) -> Tensor:
        """(N,) bool: whether the most likely class is the label, or one of the labels."""
        best = self.best()
        return self.labels.gather(1, best[:, None])[:, 0] > 0 if self.has_many_labels else best == self.labels

    def score(self) -> float:
        """The headline: accuracy, or the mean average precision of several labels."""
        if not self.has_many_labels:
            return float(self.right().double().mean())
        return mean_average_precision(self.logits, self.labels)

    def place(self, index: int) -> int:
        """The place of a picture of the source."""
        return int(torch.nonzero(self.ids == index)[0])

    def only(self, chosen: Tensor) -> "LabelledLogits":
        """Those at some places, or where a mask is true."""
        return replace(self, logits=self.logits[chosen], labels=self.labels[chosen], ids=self.ids[chosen])

    def one_label(self) -> Tensor:
        """(N,) labels, checked: one per picture, each the number of a class."""
        if self.has_many_labels:
            raise UserError("these pictures have several labels each; this measure is for one label per picture")
        if len(self) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < self.logits.shape[1]:
            raise UserError(
                f"labels run from {int(self.labels.min())} to {int(self.labels.max())}, but the model knows "
                f"{self.logits.shape[1]} classes: relabel the pictures by the model's classes, or give a class mapping"
            )
        return self.labels


@torch.no_grad()
def collect_logits(task: Task, batches: Iterable[Batch], classes: tuple[str, ...]) -> LabelledLogits:
    """The logits for every picture, in evaluation mode, on the task's own device."""
    logits: list[Tensor] = []
    labels: list[Tensor] = []
    ids: list[Tensor] = []
    device, was_training = device_of(task), task.training
    predict = Graphed(task, lambda task, images: class_logits(task.predict(images)))
    task.eval()
    try:
        for batch in shown(batches, "predicting"):
            logits.append(predict(batch.images.to(device)).float().cpu())
            labels.append(labels_of(batch).cpu())
            ids.append(batch.ids.cpu())
    finally:
        task.train(was_training)
    if not logits:
        raise UserError("there are no pictures to predict")
    found = LabelledLogits(torch.cat(logits), torch.cat(labels), torch.cat(ids), tuple(classes))
    if found.logits.ndim != 2 or found.logits.shape[1] != len(classes):
        raise UserError(
            f"the model gives {found.logits.shape[-1]} logits per picture, but there are {len(classes)} class names"
        )
    return found


def device_of(module: torch.nn.Module) -> torch.device:
    first = next(module.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def labels_of(batch: Batch) -> Tensor:
    """(B,) labels, or (B, K) if pictures have several."""
    return batch.targets["label"] if "label" in batch.targets else batch.targets["labels"]


def shown(batches: Iterable[Batch], what: str) -> Iterator[Batch]:
    """With a progress bar if the number of batches is known."""
    return track(batches, what, len(batches)) if isinstance(batches, Sized) else iter(batches)


@dataclass(frozen=True)
class Mistake:
    id: int  # of the picture in its source
    label: str
    predicted: str
    confidence: float  # in the wrong class


def confident_mistakes(found: LabelledLogits, num: int = 12, temperature: float = 1.0) -> list[Mistake]:
    """The wrong predictions that the model is most confident of, most confident first."""
    labels = found.one_label()
    confidences, best = found.probabilities(temperature).max(dim=1)
    wrong = (best != labels).nonzero()[:, 0]
    order = wrong[confidences[wrong].argsort(descending=True, stable=True)][:num]
    return [
        Mistake(int(found.ids[i]), found.classes[labels[i]], found.classes[best[i]], float(confidences[i]))
        for i in order.tolist()
    ]
