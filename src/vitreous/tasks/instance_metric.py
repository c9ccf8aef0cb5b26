"""How well shapes of objects are found: COCO's average precision of masks, at the pictures' original sizes."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous import platforms
from vitreous.batch import IGNORED, Batch
from vitreous.tasks import box_precision
from vitreous.tasks.box_metric import named_precisions, shown_sizes
from vitreous.tasks.box_precision import MOST, Found, Rle, Truth
from vitreous.tasks.predictions import InstanceMasks, Prediction

Rows = list[tuple[NDArray[Any], ...]]


class InstanceMetric:
    """The numbers of `BoxMetric` with the overlap of masks, and with their numbers of pixels as sizes."""

    headline: ClassVar[str] = "AP"

    def __init__(self, num_classes: int) -> None:
        self.num_classes, self.pictures = num_classes, 0
        self.truth: Rows = []  # picture, class, crowd
        self.found: Rows = []  # picture, class, score
        self.true_masks: list[Rle] = []
        self.found_masks: list[Rle] = []

    def update(self, prediction: Prediction, batch: Batch) -> None:
        assert isinstance(prediction, InstanceMasks)
        for at, one in enumerate(_best(prediction, batch)):
            classes = batch.targets["classes"][at].cpu().numpy()
            known = np.flatnonzero(classes != IGNORED)
            crowd = batch.targets["crowd"][at].cpu().numpy()[known]
            bits = batch.targets["masks"][at].cpu().numpy()[: one.size[0], : one.size[1]]
            self.true_masks += [rle for number in known.tolist() for rle in box_precision.encoded(_shape(bits, number))]
            self.found_masks += box_precision.encoded(one.masks.cpu().numpy())
            self.truth.append((np.full(len(known), self.pictures), classes[known], crowd))
            scores = one.scores.cpu().numpy().astype(np.float64)
            self.found.append((np.full(len(scores), self.pictures), one.classes.cpu().numpy(), scores))
            self.pictures += 1

    def compute(self) -> dict[str, float]:
        truth, found = (
            [np.concatenate(column) for column in zip(*rows, strict=True)] for rows in (self.truth, self.found)
        )
        boxes = [box_precision.bounds(masks) for masks in (self.true_masks, self.found_masks)]
        return named_precisions(
            Truth(truth[0], truth[1], boxes[0], truth[2], self.true_masks),
            Found(found[0], found[1], boxes[1], found[2], self.found_masks),
            *(self.num_classes, self.pictures),
        )


class _Best(NamedTuple):
    """The most confident objects of one picture."""

    size: tuple[int, int]  # height and width of the picture
    scores: Tensor  # (n,)
    classes: Tensor  # (n,)
    masks: Tensor  # (n, H, W) bool


def instance_scores(prediction: InstanceMasks) -> tuple[Tensor, Tensor]:
    """Scores and classes (B, Q) each: the probability of the most likely class, times the mean confidence in the cells
    of the mask (Cheng et al. 2022, section 4.1)."""
    shares, classes = prediction.logits.float().softmax(dim=-1)[..., :-1].max(dim=-1)
    masks = prediction.masks.float()
    inside = (masks > 0).float()
    sure = (masks.sigmoid() * inside).sum(dim=(2, 3)) / inside.sum(dim=(2, 3)).clamp(min=1)
    return shares * sure, classes


def _best(prediction: InstanceMasks, batch: Batch) -> Iterator[_Best]:
    every, labels = instance_scores(prediction)
    best = every.topk(min(MOST, every.shape[1]), dim=1)
    sizes, extents = (one.flip(1).long().tolist() for one in shown_sizes(batch))
    canvas = batch.images.shape[-2:]
    for at, (scores, queries) in enumerate(zip(*best, strict=True)):
        shares = [extents[at][axis] / canvas[axis] for axis in (0, 1)]
        shapes = enlarged(prediction.masks[at, queries].float(), sizes[at], shares) > 0
        seen = shapes.flatten(1).any(dim=1)
        yield _Best(tuple(sizes[at]), scores[seen], labels[at, queries][seen], shapes[seen])


def enlarged(maps: Tensor, size: Sequence[int], shares: Sequence[float]) -> Tensor:
    """(n, h, w) -> (n, H, W): the first shares of the rows and columns, at the size of a picture."""
    down, across = (_between_cells(maps.shape[1 + axis], size[axis], shares[axis], maps.device) for axis in (0, 1))
    with platforms.full_precision(maps.device):
        return down @ maps @ across.T


def _between_cells(num: int, size: int, share: float, device: torch.device) -> Tensor:
    """(size, num): the weights that make `size` values along an axis of the first `share` of its cells: linear between
    the centres of cells, constant beyond the outermost. Like `prediction.pixels.places`."""
    cells = share * num
    at = (torch.arange(size, dtype=torch.float64, device=device) + 0.5) * (cells / size) - 0.5
    at = at.clamp(0, max(0, int(np.ceil(cells - 1e-6)) - 1))
    return (1 - (at[:, None] - torch.arange(num, device=device)).abs()).clamp(min=0).float()


def _shape(bits: np.ndarray, number: int) -> np.ndarray:
    """(1, H, W): one object's pixels."""
    return (bits[None, ..., number // 8] >> np.uint8(number % 8) & 1).astype(np.bool_)
