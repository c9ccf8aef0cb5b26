"""Prediction: what a task says about a batch of pictures, as tensors under names; one class per kind of task."""

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
    """Of a classifier, raw: nothing is calibrated yet."""

    logits: Tensor  # (B, K)
    many: bool = False  # each class is decided for itself (sigmoid), since a picture may have several labels

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

    With one logit per class, each class is decided for itself (sigmoid). With one more, the classes exclude each other
    (softmax), and the last logit is for no object.
    """

    logits: Tensor  # (B, Q, K) or (B, Q, K + 1)
    boxes: Tensor  # (B, Q, 4): centre and size (cx, cy, w, h), 0 to 1 of the canvas' picture part


@dataclass(frozen=True)
class InstanceMasks(Prediction):
    """Objects by their exact shapes, at most one per query; the classes exclude each other (softmax)."""

    logits: Tensor  # (B, Q, K + 1): the last is for no object
    masks: Tensor  # (B, Q, h, w): logits of belonging to the object, over the whole canvas at a quarter of its size


@dataclass(frozen=True)
class Embeddings(Prediction):
    """Where pictures lie in the space that they share with texts."""

    embedding: Tensor  # (B, D) of length 1


def class_logits(prediction: Prediction) -> Tensor:
    """(B, K), for what is about classes of whole pictures alone."""
    if not isinstance(prediction, ClassLogits):
        raise UserError("this is for models that classify whole pictures, and this one does something else")
    return prediction.logits
