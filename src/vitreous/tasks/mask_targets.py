"""The masks that queries should predict, one per class of a picture, or per object; read at points, not every pixel."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.batch import IGNORED, Batch
from vitreous.errors import UserError


@dataclass(frozen=True)
class MaskTargets:
    """The masks of a batch: up to M per picture."""

    classes: Tensor  # (B, M) int64; if not valid, any
    valid: Tensor  # (B, M) bool

    def at(self, points: Tensor) -> Tensor:
        """(B, P, 2) as (x, y), 0 to 1 of the canvas -> (B, M, P) float: whether a point is part of each mask."""
        raise NotImplementedError

    def known(self, points: Tensor) -> Tensor:
        """(B, P, 2) -> (B, P) bool: whether the label of a point is known; predictions elsewhere do not count."""
        return torch.ones_like(points[..., 0], dtype=torch.bool)


@dataclass(frozen=True)
class ClassMasks(MaskTargets):
    """One mask per class that a picture shows, from the class of every pixel."""

    labels: Tensor  # (B, H, W) int64, IGNORED where unknown

    def at(self, points: Tensor) -> Tensor:
        return (self._labels(points)[:, None] == self.classes[..., None]).float()

    def known(self, points: Tensor) -> Tensor:
        return self._labels(points) != IGNORED

    def _labels(self, points: Tensor) -> Tensor:
        """(B, P): the label of the pixel that each point is in."""
        return self.labels.flatten(1).gather(1, _pixels(points, self.labels.shape[-2:]))


@dataclass(frozen=True)
class PackedMasks(MaskTargets):
    """One mask per object, as bits of every pixel: as exact as the picture, at one byte per pixel for eight objects."""

    bits: Tensor  # (B, H, W, bytes) uint8: object m is bit m % 8 of byte m // 8

    def at(self, points: Tensor) -> Tensor:
        place = _pixels(points, self.bits.shape[1:3])[..., None].expand(-1, -1, self.bits.shape[-1])
        found = self.bits.flatten(1, 2).gather(1, place)  # (B, P, bytes)
        flags = (found[..., None] >> torch.arange(8, dtype=torch.uint8, device=found.device)) & 1
        return flags.flatten(2)[..., : self.classes.shape[1]].mT.to(points.dtype)


def _pixels(points: Tensor, size: Sequence[int]) -> Tensor:
    """(B, P, 2) -> (B, P) int64: the pixel that each point is in, counted row by row."""
    height, width = size
    x = (points[..., 0] * width).long().clamp(0, width - 1)
    y = (points[..., 1] * height).long().clamp(0, height - 1)
    return y * width + x


def mask_of(batch: Batch) -> Tensor:
    """(B, H, W) int64: the class of every pixel, or IGNORED."""
    if "mask" not in batch.targets:
        raise UserError("these pictures have no masks, and segmentation learns from nothing else")
    return batch.targets["mask"]


def class_masks(batch: Batch, num_classes: int) -> ClassMasks:
    """The masks of pictures with a class per pixel."""
    labels = mask_of(batch)
    # An additional place, before the first, is for ignored pixels. Only True is written, so the order does not matter.
    shown = torch.zeros(len(labels), num_classes + 1, dtype=torch.bool, device=labels.device)
    shown = shown.scatter(1, labels.flatten(1) - IGNORED, True)
    classes = torch.arange(num_classes, device=labels.device).expand(len(labels), -1)
    return ClassMasks(classes, shown[:, 1:], labels)


def object_masks(batch: Batch) -> PackedMasks:
    """The masks of pictures with objects. Crowds are not learned."""
    if "masks" not in batch.targets:
        raise UserError("these pictures have no masks of objects, and instances are learned from nothing else")
    classes = batch.targets["classes"]
    valid = classes != IGNORED
    if "crowd" in batch.targets:
        valid = valid & ~batch.targets["crowd"]
    return PackedMasks(torch.where(valid, classes, 0), valid, batch.targets["masks"])
