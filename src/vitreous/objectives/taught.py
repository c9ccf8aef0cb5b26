"""The settings of objectives that learn from a trained model, their teacher."""

from typing import ClassVar

from torch import Tensor


class TaughtSettings:
    """`build` of such settings takes the teacher as its third argument: the student's views in, predictions out."""

    same_classes: ClassVar[bool] = False  # whether the teacher must know the student's classes
    stored: str | None = None  # folder of the teacher's stored predictions to learn from; none: run the teacher

    @property
    def keeps(self) -> str | None:
        """The name of what is stored of the teacher's predictions; None: they cannot be stored."""
        return None

    def kept(self, predictions: Tensor) -> Tensor:
        """The part of the teacher's predictions (B, K) that is learned from, and so has to be stored."""
        return predictions
