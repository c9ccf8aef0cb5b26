"""Boxes of objects: any number per picture, each with a class.

When a view cuts an object, what is left of it may show nothing that its class could be told by. A box stays where at
least a quarter of its area is seen, or where what is seen fills a tenth of the view or more; and in any case no side of
it is below one pixel. The others get the class IGNORED, as the padding has.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.batch import IGNORED
from vitreous.data.geometry import Geometry
from vitreous.data.kinds import TaskKind
from vitreous.data.objects import Objects, Outlines
from vitreous.data.targets.base import Digest, Indices, Targets
from vitreous.data.targets.labels import ManyLabels

SEEN_SHARE = 0.25  # of a box's area
LARGE_SHARE = 0.1  # of the view's picture
LEAST_PX = 1.0


class Boxes(Targets):
    """Objects of N pictures."""

    task: ClassVar[TaskKind] = "detect"
    least_classes: ClassVar[int] = 1
    may_miss_classes: ClassVar[bool] = True
    has_places = True

    def __init__(
        self,
        objects: Objects,
        sizes: Indices,
        outlines: Outlines | None = None,
        *,
        ids: Sequence[int | str] | None = None,
        category_ids: Sequence[int] | None = None,
    ) -> None:
        """`sizes` (N, 2): height and width of every picture. `ids`, `category_ids`: what the data set calls its
        pictures and classes, where it has numbers of its own."""
        self.objects, self.sizes, self.outlines = objects, np.asarray(sizes, dtype=np.int64).reshape(-1, 2), outlines
        self.ids = np.empty(len(self), dtype=object)  # numbers, texts, or both
        self.ids[:] = range(1, len(self) + 1) if ids is None else list(ids)
        self.category_ids = None if category_ids is None else tuple(category_ids)
        self._starts = np.searchsorted(objects.owner, np.arange(len(self) + 1))

    def __len__(self) -> int:
        return len(self.sizes)

    def of(self, index: int) -> Objects:
        """The objects of one picture that are used."""
        found = self.objects.chosen(np.arange(self._starts[index], self._starts[index + 1]))
        return found.chosen(found.are_used)

    def masks(self, index: int) -> list[NDArray[np.bool_] | None]:
        """(H, W) each: the exact shapes of these objects; None where only the box is known."""
        height, width = self.sizes[index].tolist()
        if self.outlines is None:
            return [None] * len(self.of(index))
        return [self.outlines.mask(int(number), height, width) for number in self.of(index).outline]

    @cached_property
    def most(self) -> int:
        """Objects that a picture has, and at least 1: how many a batch has room for."""
        used = self.objects.owner[self.objects.are_used]
        return max(1, int(np.bincount(used).max(initial=0)))

    def take(self, indices: Indices) -> Self:
        indices = np.asarray(indices, dtype=np.int64)
        first, counts = self._starts[indices], np.diff(self._starts)[indices]
        rows = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        objects = replace(self.objects.chosen(rows), owner=np.repeat(np.arange(len(indices)), counts))
        return self._like(objects, self.sizes[indices], self.ids[indices])

    def relabelled(self, numbers: Indices, num_classes: int) -> Self:
        ids = self.category_ids
        if ids is not None:
            known = {int(number): ids[place] for place, number in enumerate(numbers) if number >= 0}
            ids = tuple(known.get(number, -1) for number in range(num_classes))
            ids = None if -1 in ids else ids  # a class that this part has no number for
        called = self._like(replace(self.objects, classes=numbers[self.objects.classes]), self.sizes, self.ids)
        called.category_ids = ids
        return called

    def rescaled(self, sizes: Indices) -> Self:
        factors = np.tile((sizes / self.sizes)[:, ::-1], 2)[self.objects.owner]  # (T, 4)
        boxes = (self.objects.boxes * factors).astype(np.float32)
        return self._like(replace(self.objects, boxes=boxes), sizes, self.ids)

    def _like(self, objects: Objects, sizes: Indices, ids: NDArray[np.object_]) -> Self:
        return type(self)(objects, sizes, self.outlines, ids=ids.tolist(), category_ids=self.category_ids)

    def update(self, digest: Digest) -> None:
        for part in (self.sizes, self.objects.owner, self.objects.boxes, self.objects.classes, self.objects.crowd):
            digest.update(np.ascontiguousarray(part).data)

    def present(self, num_classes: int) -> NDArray[np.bool_]:
        """(N, K): which classes each picture has."""
        found = np.zeros((len(self), num_classes), dtype=np.bool_)
        used = self.objects.chosen(self.objects.are_used)
        found[used.owner, used.classes] = True
        return found

    @property
    def strata(self) -> Indices:
        """The rarest class of each picture; those without objects are a group of their own."""
        num_classes = int(self.objects.classes.max(initial=0)) + 1
        return ManyLabels(self.present(num_classes)).strata

    def described(self, index: int, classes: Sequence[str]) -> str:
        found = Counter(classes[int(number)] for number in self.of(index).classes)
        return ", ".join(f"{num} {name}" for name, num in sorted(found.items())) or "no objects"

    def counts(self, num_classes: int) -> Indices:
        counts: Indices = self.present(num_classes).sum(axis=0, dtype=np.int64)
        return counts

    def small(self) -> dict[str, Tensor]:
        """boxes (N, M, 4) float32, classes (N, M) int64, IGNORED beyond the objects of a picture, crowd (N, M) bool; M
        being `most`."""
        used = self.objects.chosen(self.objects.are_used)
        counts = np.bincount(used.owner, minlength=len(self))
        shape = len(self), self.most
        at = used.owner, np.arange(len(used)) - np.repeat(np.cumsum(counts) - counts, counts)
        boxes, classes = np.zeros((*shape, 4), dtype=np.float32), np.full(shape, IGNORED, dtype=np.int64)
        crowd = np.zeros(shape, dtype=np.bool_)
        boxes[at], classes[at], crowd[at] = used.boxes, used.classes, used.crowd
        return {"boxes": torch.tensor(boxes), "classes": torch.tensor(classes), "crowd": torch.tensor(crowd)}

    def shown(self, targets: dict[str, Tensor], geometry: Geometry) -> dict[str, Tensor]:
        is_object = targets["classes"][..., None] != IGNORED
        return targets | {"boxes": torch.where(is_object, geometry.boxes(targets["boxes"])[0], 0.0)}

    def moved(self, targets: dict[str, Tensor], geometry: Geometry) -> dict[str, Tensor]:
        if not targets:
            return targets
        boxes, share = geometry.boxes(targets["boxes"])
        sides = boxes[..., 2:] - boxes[..., :2]
        shown = geometry.seen[:, 2:].prod(dim=1).to(boxes.dtype)[:, None]
        is_large = sides.prod(dim=-1) >= LARGE_SHARE * shown
        stays = (targets["classes"] != IGNORED) & (sides >= LEAST_PX).all(dim=-1) & ((share >= SEEN_SHARE) | is_large)
        return {
            "boxes": torch.where(stays[..., None], boxes, 0.0),
            "classes": torch.where(stays, targets["classes"], IGNORED),
            "crowd": stays & targets["crowd"],
        }
