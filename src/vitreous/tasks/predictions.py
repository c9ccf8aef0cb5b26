"""Prediction: what a task predicts for a batch of pictures, as named tensors; one class per kind of task."""

from dataclasses import dataclass, fields

from torch import Tensor

from vitreous.errors import UserError


@dataclass(frozen=True)
class Prediction:
    def outputs(self) -> dict[str, Tensor]:
        """Every tensor by its name: the outputs of an exported model, and what certificates compare."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class ClassLogits(Prediction):
    """A classifier's logits, not calibrated yet."""

    logits: Tensor  # (B, K)
    many: bool = False  # classes are independent (sigmoid), since a picture may have several labels

    def probabilities(self) -> Tensor:
        """(B, K) float32"""
        logits = self.logits.float()
        return logits.sigmoid() if self.many else logits.softmax(dim=1)


@dataclass(frozen=True)
class PixelLogits(Prediction):
    """A class for every place of a map, which may be coarser than the picture."""

    logits: Tensor  # (B, K, h, w)


@dataclass(frozen=True)
class Detections(Prediction):
    """Objects, at most one per query.

    With one logit per class, the classes are independent (sigmoid). With one more, they exclude each other (softmax),
    and the last logit is for no object.
    """

    logits: Tensor  # (B, Q, K) or (B, Q, K + 1)
    boxes: Tensor  # (B, Q, 4): centre and size (cx, cy, w, h), 0 to 1 of the part of the canvas that is picture


@dataclass(frozen=True)
class InstanceMasks(Prediction):
    """Objects by their exact shapes, at most one per query; the classes exclude each other (softmax)."""

    logits: Tensor  # (B, Q, K + 1): the last is for no object
    masks: Tensor  # (B, Q, h, w): logits of belonging to the object, over the whole canvas at a quarter of its size


@dataclass(frozen=True)
class Embeddings(Prediction):
    """The positions of pictures in the space that they share with texts."""

    embedding: Tensor  # (B, D) of length 1


def class_logits(prediction: Prediction) -> Tensor:
    """(B, K): the logits, for functions that need classes of whole pictures."""
    if not isinstance(prediction, ClassLogits):
        raise UserError("this is for models that classify whole pictures, which this model does not")
    return prediction.logits
