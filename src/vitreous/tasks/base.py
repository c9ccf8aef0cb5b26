"""Task: an objective that also answers questions about pictures."""

from typing import Protocol

from torch import Tensor

from vitreous.batch import Batch
from vitreous.objectives.base import Objective


class Metric(Protocol):
    """Collects predictions batch by batch and turns them into named numbers."""

    def update(self, prediction: Tensor, batch: Batch) -> None: ...

    def compute(self) -> dict[str, float]: ...


class Task(Objective):
    @property
    def task(self) -> "Task":
        return self

    def predict(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> the task's raw answer; for classification, (B, K) logits."""
        raise NotImplementedError

    def metric(self) -> Metric:
        """A fresh, empty metric."""
        raise NotImplementedError
