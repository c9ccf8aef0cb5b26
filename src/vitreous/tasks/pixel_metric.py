"""How well pixels are classified, from a K x K count, which is all that is kept for any number of pictures."""

from typing import ClassVar

import torch
from torch import Tensor

from vitreous.batch import IGNORED, Batch
from vitreous.errors import UserError
from vitreous.nn.bilinear import resized_maps
from vitreous.platforms import widest
from vitreous.tasks.predictions import PixelLogits, Prediction


def confusion(labels: Tensor, found: Tensor, num_classes: int) -> Tensor:
    """(K, K) int64: how many pixels of the row's class were predicted as the column's; ignored pixels do not count."""
    valid = labels != IGNORED
    pairs = labels[valid].long() * num_classes + found[valid].long()
    return torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes)


def class_iou(counts: Tensor) -> Tensor:
    """(..., K, K) counts -> (..., K) float64: pixels of both over pixels of either; NaN if a class has neither."""
    right = counts.diagonal(dim1=-2, dim2=-1).double()
    either = counts.sum(dim=-1) + counts.sum(dim=-2) - right
    return right / either


class PixelMetric:
    """mIoU (the mean over the classes that occur), accuracies of pixels and of classes, and the log-loss of pixels."""

    headline: ClassVar[str] = "mIoU"

    def __init__(self) -> None:
        self.pictures = 0
        self.counts: Tensor | None = None
        self.loss: Tensor | float = 0.0

    def update(self, prediction: Prediction, batch: Batch) -> None:
        assert isinstance(prediction, PixelLogits)
        num_classes, canvas = prediction.logits.shape[1], batch.images.shape[-2:]
        # One by one, each at its own size: a batch's masks are padded at the bottom and on the right.
        for logits, padded, size, extent in zip(
            prediction.logits, batch.targets["mask"], *sizes_of(batch), strict=True
        ):
            share = (extent[0] / canvas[0], extent[1] / canvas[1])
            enlarged, mask = resized_maps(logits[None], (size[0], size[1]), share)[0], padded[: size[0], : size[1]]
            counts = confusion(mask, enlarged.argmax(dim=0), num_classes)
            self.counts = counts if self.counts is None else self.counts + counts
            losses = enlarged.logsumexp(dim=0) - enlarged.gather(0, mask.clamp(min=0)[None])[0]
            self.loss += losses[mask != IGNORED].to(widest(losses.device)).sum()
        self.pictures += len(batch)

    def compute(self) -> dict[str, float]:
        if self.counts is None or not int(self.counts.sum()):
            raise UserError("there are no labelled pixels to score")
        counts = self.counts.cpu().double()
        right, labelled = counts.diagonal(), counts.sum(dim=1)
        return {
            "mIoU": float(class_iou(counts).nanmean()),
            "pixel_accuracy": float(right.sum() / labelled.sum()),
            "class_accuracy": float((right / labelled).nanmean()),
            "log_loss": float(self.loss) / float(labelled.sum()),
            "pictures": float(self.pictures),
        }


def sizes_of(batch: Batch) -> tuple[list[list[int]], list[list[int]]]:
    """The height and width of each picture, and how much of the model's input is picture."""
    whole, seen = (list(tensor.shape[-2:]) for tensor in (batch.targets["mask"], batch.images))
    sizes = [whole] * len(batch) if batch.size is None else batch.size.tolist()
    extents = [seen] * len(batch) if batch.extent is None else batch.extent.tolist()
    return sizes, extents
