"""Batch: what data makes and objectives read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter

import torch
from torch import Tensor

from vitreous import platforms

IGNORED = -1  # in tensors of class numbers: no class, so predictions there do not count
UNLABELLED = "unlabelled"  # the class of pictures that come without labels


@dataclass(frozen=True)
class Batch:
    """Some samples, seen through one or more views.

    `targets` holds what is known about a sample, by name:

    - one class per picture: `label` (B,) int64; with Mixup and CutMix also `partner` (B,), the label of the picture
      mixed in, and `weight` (B,), the share of the first; if a model has labelled some of the pictures, also
      `probabilities` (B, K), mixed too
    - several labels per picture: `labels` (B, K)
    - one label per pixel: `mask` int64, -1 where none counts; in training for the view's pixels (B, h, w), in
      evaluation for the picture's own (B, H, W), with -1 in rows and columns beyond its `size`
    - objects: `boxes` (B, M, 4) as x0 y0 x1 y1 in pixels of the view, in training cut to what it shows; `classes`
      (B, M) int64, -1 for no object; `crowd` (B, M) bool, true for objects that are neither learned nor counted; with
      exact shapes also `masks` as bits, (B, h, w, bytes) uint8, in training for the view's pixels, in evaluation for
      the picture's own; object m is bit m % 8 of byte m // 8
    """

    views: tuple[Tensor, ...]  # (B, C, h, w) each, normalised; several for multi-crop, global crops first
    targets: dict[str, Tensor]
    ids: Tensor  # (B,) int64: indices of the samples in the source
    keys: Tensor  # (B,) int64: every random choice about a sample is drawn from its key (see keys.py)
    size: Tensor | None = None  # (B, 2) int64: height and width of the picture in its source, in px
    extent: Tensor | None = None  # (B, 2) int64: rows and columns of the view that show the picture; None: all

    @property
    def images(self) -> Tensor:
        """The only view of plain training and evaluation."""
        return self.views[0]

    def __len__(self) -> int:
        return len(self.ids)

    def parts(self, num: int) -> list["Batch"]:
        """The batch cut into `num` equal parts, for gradient accumulation."""
        if num == 1:
            return [self]
        size = len(self) // num
        return [self._map(itemgetter(slice(at, at + size))) for at in range(0, size * num, size)]

    def to(self, device: torch.device | str) -> "Batch":
        return self._map(lambda tensor: platforms.moved(tensor, torch.device(device)))

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return replace(
            self,
            views=tuple(map(change, self.views)),
            targets={name: change(target) for name, target in self.targets.items()},
            ids=change(self.ids),
            keys=change(self.keys),
            size=None if self.size is None else change(self.size),
            extent=None if self.extent is None else change(self.extent),
        )
