"""What the settings of an objective that learns from a trained model, its teacher, say about it."""

from typing import ClassVar

from torch import Tensor


class TaughtSettings:
    """`build` of such settings takes the teacher as its third argument: the student's views in, predictions out."""

    same_classes: ClassVar[bool] = False  # whether the teacher must tell the student's classes apart, in their order
    stored: str | None = None  # folder of the teacher's stored predictions to learn from; none: run the teacher

    @property
    def keeps(self) -> str | None:
        """What is kept of the teacher's predictions when they are stored, by name; None: they cannot be stored."""
        return None

    def kept(self, predictions: Tensor) -> Tensor:
        """What is learned from the teacher's predictions (B, K), and so all that has to be stored of them."""
        return predictions
