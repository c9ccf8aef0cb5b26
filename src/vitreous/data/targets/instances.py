"""Exact shapes of objects: boxes with a mask each.

The masks of a picture are read with it as bits, (H, W, bytes): object number m is bit m % 8 of byte m // 8 of every
pixel that it covers. So they go where the pixels go, all at once, and take a byte per pixel for eight objects: as much
as a quarter of their places would in half precision, and every pixel of the view is exact.
"""

from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitreous.batch import IGNORED
from vitreous.data.geometry import Geometry
from vitreous.data.kinds import TaskKind
from vitreous.data.objects import BoxArray, Flags, Numbers
from vitreous.data.targets.base import Digest, Indices, Large
from vitreous.data.targets.boxes import Boxes

Bits = NDArray[np.uint8]  # (H, W, bytes)


class Instances(Boxes):
    """Objects of N pictures, each with its shape; of what only a box is known, that is the shape."""

    task: ClassVar[TaskKind] = "instances"
    large = ("masks",)
    beyond: ClassVar[int] = 0
    _held: Sequence[Bits] | None = None  # in memory, by picture
    _block: Bits | None = None  # (N, H, W, bytes), where these are of one size

    @classmethod
    def from_boxes(cls, boxes: Boxes) -> Self:
        """The same objects, with what else is known of them."""
        return cls(boxes.objects, boxes.sizes, boxes.outlines, ids=boxes.ids.tolist(), category_ids=boxes.category_ids)

    @property
    def num_bytes(self) -> int:
        """Of a pixel, where a batch has room for all objects."""
        return -(-self.most // 8)

    def shapes(self, index: int) -> list[Flags]:
        """(H, W) each: which pixels belong to the objects of a picture that are used; raises BadPicture."""
        if self._held is not None:
            return unpacked(self._held[index], len(self.of(index)))
        height, width = self.sizes[index].tolist()
        objects = self.of(index).boxes
        return [
            box_shape(box, height, width) if mask is None else mask
            for box, mask in zip(objects, self.masks(index), strict=True)
        ]

    # ---- of fewer pictures, in other words, at other sizes

    def take(self, indices: Indices) -> Self:
        chosen = super().take(indices)
        return chosen if self._held is None else chosen._holding([self._held[int(index)] for index in indices])

    def relabelled(self, numbers: Indices, num_classes: int) -> Self:
        called = super().relabelled(numbers, num_classes)
        return called if self._held is None else called._holding(self._held)

    def rescaled(self, sizes: Indices) -> Self:
        resized = super().rescaled(sizes)
        return resized if self._held is None else resized._holding(self._held)

    def update(self, digest: Digest) -> None:
        super().update(digest)
        digest.update(b"shapes")
        if self.outlines is not None:
            for number in self.objects.outline.tolist():
                digest.update(self.outlines.text(number))

    # ---- read, kept, moved

    def read(self, index: int) -> Large:
        if self._held is not None:
            return {"masks": self._held[index]}
        return {"masks": packed(self.shapes(index), self.sizes[index])}

    def held(self, large: Sequence[Large]) -> Self:
        kept = self._like(self.objects, self.sizes, self.ids)
        counts = np.bincount(self.objects.owner[self.objects.are_used], minlength=len(self))
        return kept._holding(
            [one["masks"][..., : max(1, -(-num // 8))] for one, num in zip(large, counts.tolist(), strict=True)]
        )

    def _holding(self, bits: Sequence[Bits]) -> Self:
        self._held = bits
        if bits and len({one.shape[:2] for one in bits}) == 1:
            self._block = np.stack([_widened(one, self.num_bytes) for one in bits])
            self._held = list(self._block)
        return self

    def stacked(self) -> dict[str, Tensor] | None:
        return None if self._block is None else {"masks": torch.from_numpy(self._block)}

    def moved(self, targets: dict[str, Tensor], geometry: Geometry) -> dict[str, Tensor]:
        small = {name: target for name, target in targets.items() if name != "masks"}
        found = super().moved(small, geometry)
        if "masks" not in targets:
            return found
        moved = geometry.labels(targets["masks"], fill=0)
        return found | {"masks": F.pad(moved, (0, self.num_bytes - moved.shape[-1]))}

    def learned(self, small: dict[str, Tensor], large: dict[str, Tensor]) -> dict[str, Tensor]:
        """An object of whose shape the view shows nothing is none."""
        is_seen = shown(large["masks"])[:, : self.most]
        return small | {
            "masks": large["masks"],
            "classes": torch.where(is_seen, small["classes"], IGNORED),
            "boxes": torch.where(is_seen[..., None], small["boxes"], 0.0),
            "crowd": small["crowd"] & is_seen,
        }

    def judged(self, small: dict[str, Tensor], large: dict[str, Tensor]) -> dict[str, Tensor]:
        return small | large


def packed(shapes: Sequence[Flags], size: Sequence[int] | Numbers) -> Bits:
    """Of pictures of this height and width; a byte at least."""
    bits = np.zeros((*map(int, size), max(1, -(-len(shapes) // 8))), dtype=np.uint8)
    for number, shape in enumerate(shapes):
        bits[..., number // 8] |= shape.astype(np.uint8) << np.uint8(number % 8)
    return bits


def unpacked(bits: Bits, num: int) -> list[Flags]:
    """(H, W) each: of the first `num` objects."""
    return [(bits[..., number // 8] >> np.uint8(number % 8) & 1).astype(np.bool_) for number in range(num)]


def shown(bits: Tensor) -> Tensor:
    """(B, h, w, bytes) -> (B, 8 bytes) bool: which objects have a pixel."""
    each = [(bits & (1 << place)).amax(dim=(1, 2)) for place in range(8)]  # (B, bytes)
    return torch.stack(each, dim=-1).flatten(1) > 0


def box_shape(box: BoxArray | Sequence[float], height: int, width: int) -> Flags:
    """(height, width): the pixels whose centres lie inside; the nearest one where there are none."""
    shape = np.zeros((height, width), dtype=np.bool_)
    sides: list[slice] = []
    for low, high, size in ((box[1], box[3], height), (box[0], box[2], width)):
        first = min(max(int(np.ceil(low - 0.5)), 0), size - 1)
        sides.append(slice(first, max(first + 1, min(int(np.ceil(high - 0.5)), size))))
    shape[sides[0], sides[1]] = True
    return shape


def _widened(bits: Bits, num_bytes: int) -> Bits:
    found: Bits = np.pad(bits[..., :num_bytes], ((0, 0), (0, 0), (0, max(0, num_bytes - bits.shape[-1]))))
    return found
