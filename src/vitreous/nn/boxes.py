"""Boxes (..., 4): as centre and size (cx, cy, w, h), which models predict, or as corners (x0, y0, x1, y1)."""

import torch
from torch import Tensor


def corners(boxes: Tensor) -> Tensor:
    """(cx, cy, w, h) -> (x0, y0, x1, y1)"""
    middle, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([middle - half, middle + half], dim=-1)


def centred(boxes: Tensor) -> Tensor:
    """(x0, y0, x1, y1) -> (cx, cy, w, h)"""
    first, last = boxes[..., :2], boxes[..., 2:]
    return torch.cat([(first + last) / 2, last - first], dim=-1)


def iou(a: Tensor, b: Tensor) -> Tensor:
    """(...) from 0 to 1, for boxes as corners; shapes are broadcast."""
    shared, union = _shared_and_union(a, b)
    return shared / union


def generalised_iou(a: Tensor, b: Tensor) -> Tensor:
    """(...) from -1 to 1, for boxes as corners; shapes are broadcast (Rezatofighi et al. 2019)."""
    shared, union = _shared_and_union(a, b)
    hull = _area(torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:]))
    hull = hull.clamp(min=torch.finfo(hull.dtype).tiny)
    return shared / union - (hull - union) / hull


def _shared_and_union(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Areas. The union is never 0, even if both boxes are empty."""
    shared = _area(torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:]))
    union = _area(a[..., :2], a[..., 2:]) + _area(b[..., :2], b[..., 2:]) - shared
    return shared, union.clamp(min=torch.finfo(union.dtype).tiny)


def _area(first: Tensor, last: Tensor) -> Tensor:
    sides = (last - first).clamp(min=0)
    return sides[..., 0] * sides[..., 1]
