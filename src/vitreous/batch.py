"""Batch: what data makes and objectives read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter

import torch
from torch import Tensor

from vitreous import platforms

IGNORED = -1  # in tensors of class numbers: there is none, and what is predicted there does not count
UNLABELLED = "unlabelled"  # the class of pictures that come without labels


@dataclass(frozen=True)
class Batch:
    """Some samples, seen through one or more views.

    `targets` holds what is known of a sample, by name. Plain classification has `label` (B,) int64; Mixup and CutMix
    add `partner` (B,), the label of the picture mixed in, and `weight` (B,), the share of the first; where a model has
    labelled some of the pictures, `probabilities` (B, K) stand beside `label`, mixed too. A source of
    several labels per picture has `labels` (B, K) in place of `label`. One of labels per pixel has `mask` int64, with
    -1 where none counts: in training of the view's pixels (B, h, w), in evaluation of the picture's own (B, H, W), the
    rows and columns beyond its `size` being -1 too. One of objects has `boxes` (B, M, 4) as x0 y0 x1 y1, `classes` (B,
    M) int64, -1 where there is no object, and `crowd` (B, M) bool, true of what is neither learned nor counted; in
    pixels of the view, in training cut to what it shows. One of their exact shapes has `masks` too, as bits:
    in training of the view's pixels (B, h, w, bytes) uint8, in evaluation of the picture's own; object m is bit m % 8
    of byte m // 8.
    """

    views: tuple[Tensor, ...]  # (B, C, h, w) each, normalised; several for multi-crop, global crops first
    targets: dict[str, Tensor]
    ids: Tensor  # (B,) int64: which samples of the source these are
    keys: Tensor  # (B,) int64: every random choice about a sample is drawn from its key (see keys.py)
    size: Tensor | None = None  # (B, 2) int64: height and width of the picture in its source, in px
    extent: Tensor | None = None  # (B, 2) int64: rows and columns of the view that are picture; none: all of them

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
