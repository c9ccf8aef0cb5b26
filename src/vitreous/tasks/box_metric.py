"""How well objects are found: COCO's average precision, from detections collected batch by batch."""

from typing import ClassVar

import torch
from torch import Tensor

from vitreous.batch import IGNORED, Batch
from vitreous.tasks import box_precision
from vitreous.tasks.box_precision import MOST, SIZES, THRESHOLDS, Found, Truth
from vitreous.tasks.predictions import Detections, Prediction


class BoxMetric:
    """AP (the mean over classes and ten thresholds of overlap), AP50 and AP75 (at one of them), AP by size of object,
    and AR, the share of the objects that are found at all. Sizes are those in the original picture."""

    headline: ClassVar[str] = "AP"

    def __init__(self, num_classes: int) -> None:
        self.num_classes, self.pictures = num_classes, 0
        self.truth: list[tuple[Tensor, ...]] = []  # picture, class, box, crowd
        self.found: list[tuple[Tensor, ...]] = []  # picture, class, box, score

    def update(self, prediction: Prediction, batch: Batch) -> None:
        assert isinstance(prediction, Detections)
        size, extent = shown_sizes(batch)
        numbers = torch.arange(self.pictures, self.pictures + len(batch), device=batch.ids.device)
        self.pictures += len(batch)
        scores, classes, boxes = best_detections(prediction, self.num_classes)
        middle, half = boxes[..., :2], boxes[..., 2:] / 2
        whole = size.repeat(1, 2)[:, None]  # (B, 1, 4)
        corners = torch.cat([middle - half, middle + half], dim=-1).clamp(0, 1) * whole
        owner = numbers[:, None].expand_as(scores)
        self.found.append((owner.flatten(), classes.flatten(), corners.flatten(0, 1), scores.flatten()))
        known = batch.targets["classes"] != IGNORED
        place = numbers[:, None].expand_as(known)[known]
        objects = (batch.targets["boxes"] * (size / extent).repeat(1, 2)[:, None])[known]
        self.truth.append((place, batch.targets["classes"][known], objects, batch.targets["crowd"][known]))

    def compute(self) -> dict[str, float]:
        truth, found = (
            [torch.cat(column).cpu().numpy() for column in zip(*rows, strict=True)] for rows in (self.truth, self.found)
        )
        return named_precisions(
            Truth(truth[0], truth[1], truth[2].astype("float64"), truth[3]),
            Found(found[0], found[1], found[2].astype("float64"), found[3].astype("float64")),
            *(self.num_classes, self.pictures),
        )


def named_precisions(truth: Truth, found: Found, num_classes: int, pictures: int) -> dict[str, float]:
    measured = box_precision.evaluator(truth, found, num_classes, pictures)
    precisions = box_precision.precisions(measured)  # (T, K, A)
    numbers = {
        "AP": precisions[..., 0],
        "AP50": precisions[0, :, 0],
        "AP75": precisions[THRESHOLDS.index(0.75), :, 0],
        **{f"AP_{size}": precisions[..., place] for place, size in enumerate(SIZES) if place},
        "AR": box_precision.recalls(measured)[..., 0],
    }
    known = {name: box_precision.mean(values) for name, values in numbers.items()}
    return {name: value for name, value in known.items() if value is not None} | {"pictures": float(pictures)}


def best_detections(prediction: Detections, num_classes: int, most: int = MOST) -> tuple[Tensor, Tensor, Tensor]:
    """The most confident of each picture: scores (B, n), classes (B, n) and boxes (B, n, 4).

    A query whose classes exclude each other stands for one object (Carion et al. 2020), otherwise for one per class
    (Zhu et al. 2021).
    """
    logits = prediction.logits.float()
    if logits.shape[-1] > num_classes:
        scores, classes = logits.softmax(dim=-1)[..., :-1].max(dim=-1)
        best = scores.topk(min(most, scores.shape[1]), dim=1)
        queries, classes = best.indices, classes.gather(1, best.indices)
    else:
        best = logits.sigmoid().flatten(1).topk(min(most, logits[0].numel()), dim=1)
        queries, classes = best.indices // num_classes, best.indices % num_classes
    return best.values, classes, prediction.boxes.float().gather(1, queries[..., None].expand(-1, -1, 4))


def shown_sizes(batch: Batch) -> tuple[Tensor, Tensor]:
    """(B, 2) as (width, height) each: of the pictures in their source, and of their part of the canvas."""
    canvas = batch.ids.new_tensor(batch.images.shape[-2:]).expand(len(batch), 2)
    extent = canvas if batch.extent is None else batch.extent
    size = extent if batch.size is None else batch.size
    return size.flip(1).float(), extent.flip(1).float()
