"""Task: an objective that also makes predictions about pictures."""

from typing import ClassVar, Protocol

from torch import Tensor

from vitreous.batch import Batch
from vitreous.objectives.base import Objective
from vitreous.tasks.predictions import Prediction


class Metric(Protocol):
    """Collects predictions batch by batch and turns them into named numbers."""

    headline: ClassVar[str]  # the number that models are compared by; higher is better

    def update(self, prediction: Prediction, batch: Batch) -> None: ...

    def compute(self) -> dict[str, float]: ...


class Task(Objective):
    looks_at_extent: ClassVar[bool] = False  # whether `predict` depends on how much of an image is padding

    @property
    def task(self) -> "Task":
        return self

    def predict(self, images: Tensor, extent: Tensor | None = None) -> Prediction:
        """(B, C, H, W) -> the raw prediction for each picture.

        extent: (B, 2), how many rows and columns of the images are picture, the rest being padding; None: all. A task
        that predicts no places may ignore it."""
        raise NotImplementedError

    def metric(self) -> Metric:
        """A new, empty metric."""
        raise NotImplementedError
