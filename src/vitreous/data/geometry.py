"""Geometry: where every pixel of a view comes from, so that what is known of places can go where the pixels went.

Whole numbers throughout: which pixel is nearest is the same on every device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitreous.batch import IGNORED
from vitreous.data.placement import Placement, Size
from vitreous.platforms import widest


@dataclass(frozen=True)
class Geometry:
    """For each of B pictures: the part `box` of it is resized to fill `placed` on a canvas, of which the part `seen`
    shows it; then the first `mirror` columns of the canvas are swapped left to right.

    Boxes are (B, 4) int64: top, left, height, width. `placed` may hang over the canvas. What is not seen is padding.
    """

    box: Tensor
    placed: Tensor
    seen: Tensor
    mirror: Tensor  # (B,) int64; 0: not mirrored
    canvas: Size

    @property
    def extent(self) -> Tensor:
        """(B, 2) int64: how many rows and columns of the canvas are picture, where it lies in the upper left corner."""
        return self.seen[:, :2] + self.seen[:, 2:]

    @property
    def device(self) -> torch.device:
        return self.box.device

    def packed(self) -> Tensor:
        """(B, 13) int64: all of it but the canvas, in one tensor."""
        return torch.cat([self.box, self.placed, self.seen, self.mirror[:, None]], dim=1)

    @classmethod
    def unpacked(cls, rows: Tensor, canvas: Size) -> "Geometry":
        return cls(rows[:, :4], rows[:, 4:8], rows[:, 8:12], rows[:, 12], canvas)

    def mirrored(self, flipped: Tensor, width: Tensor) -> "Geometry":
        """Also with the first `width` (B,) columns swapped, where `flipped` (B,)."""
        return replace(self, mirror=torch.where(flipped, width, 0))

    def labels(self, masks: Tensor, fill: int = IGNORED) -> Tensor:
        """Class numbers of the pictures' pixels (B, H, W) -> of the canvas (B, h, w): of the pixel whose area holds
        the middle of the new one; `fill` where there is none. Pixels may have several values each, (B, H, W, ...)."""
        rows, rows_seen = self._sources(0)
        columns, columns_seen = self._sources(1)
        (height, width), beside = masks.shape[1:3], masks.shape[3:]
        rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
        flat = (rows[:, :, None] * width + columns[:, None, :]).view(len(masks), -1, *[1] * len(beside))  # (B, h w)
        moved = masks.flatten(1, 2).gather(1, flat.expand(-1, -1, *beside)).view(len(masks), *self.canvas, *beside)
        is_seen = rows_seen[:, :, None] & columns_seen[:, None, :]
        return torch.where(is_seen.view(*is_seen.shape, *[1] * len(beside)), moved, fill)

    def points(self, xy: Tensor) -> Tensor:
        """Places in the pictures (B, M, 2) as (x, y) in px, pixel borders being whole numbers -> on the canvas."""
        (top, left, height, width), (to_y, to_x, tall, wide) = (
            side[:, :, None].to(xy.dtype).unbind(1) for side in (self.box, self.placed)
        )
        x = (xy[..., 0] - left) * wide / width + to_x
        y = (xy[..., 1] - top) * tall / height + to_y
        mirror = self.mirror[:, None].to(xy.dtype)
        return torch.stack([torch.where(mirror > 0, mirror - x, x), y], dim=-1)

    def points_back(self, xy: Tensor) -> Tensor:
        """The inverse of `points`."""
        (top, left, height, width), (to_y, to_x, tall, wide) = (
            side[:, :, None].to(xy.dtype).unbind(1) for side in (self.box, self.placed)
        )
        mirror = self.mirror[:, None].to(xy.dtype)
        x = torch.where(mirror > 0, mirror - xy[..., 0], xy[..., 0])
        return torch.stack([(x - to_x) * width / wide + left, (xy[..., 1] - to_y) * height / tall + top], dim=-1)

    def boxes(self, xyxy: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes in the pictures (B, M, 4) as (x0, y0, x1, y1) -> on the canvas, cut to what it shows of the picture;
        and the share of each one's area that is left (B, M)."""
        upright = replace(self, mirror=torch.zeros_like(self.mirror))
        first, last = (upright.points(corner) for corner in (xyxy[..., :2], xyxy[..., 2:]))
        begin, end = (side[:, None].flip(-1).to(xyxy.dtype) for side in (self.seen[:, :2], self.extent))
        low, high = (torch.minimum(torch.maximum(corner, begin), end) for corner in (first, last))
        share = (high - low).prod(dim=-1) / (last - first).prod(dim=-1).clamp(min=1e-12)
        (x0, y0), (x1, y1) = low.unbind(-1), high.unbind(-1)
        mirror = self.mirror[:, None].to(xyxy.dtype)
        x0, x1 = torch.where(mirror > 0, mirror - x1, x0), torch.where(mirror > 0, mirror - x0, x1)
        return torch.stack([x0, y0, x1, y1], dim=-1), share

    def boxes_back(self, xyxy: Tensor) -> Tensor:
        """Boxes on the canvas (B, M, 4) -> in the pictures; what reaches beyond them is not cut."""
        one, other = (self.points_back(corner) for corner in (xyxy[..., :2], xyxy[..., 2:]))
        return torch.cat([torch.minimum(one, other), torch.maximum(one, other)], dim=-1)

    def _sources(self, axis: int) -> tuple[Tensor, Tensor]:
        """From which row or column of the picture each of the canvas comes (B, n), and whether it comes from one."""
        at = torch.arange(self.canvas[axis], device=self.device)[None]
        if axis == 1:
            at = torch.where(at < self.mirror[:, None], self.mirror[:, None] - 1 - at, at)
        start, length = self.box[:, axis, None], self.box[:, axis + 2, None]
        to, out = self.placed[:, axis, None], self.placed[:, axis + 2, None]
        seen = (at >= self.seen[:, axis, None]) & (at < (self.seen[:, axis] + self.seen[:, axis + 2])[:, None])
        return start + ((2 * (at - to) + 1) * length).div(2 * out, rounding_mode="floor"), seen


def resized_boxes(boxes: Tensor, canvas: Size) -> Geometry:
    """Each picture's own box (B, 4), resized to the whole canvas."""
    whole = _filled((0, 0, *canvas), boxes)
    return Geometry(boxes, whole, whole, boxes.new_zeros(len(boxes)), canvas)


def of_placement(placement: Placement, like: Tensor) -> Geometry:
    """For as many pictures of one size as `like` (B, ...) int64 has rows, on its device."""
    top, left, tall, wide = placement[1:5]
    first = max(top, 0), max(left, 0)
    end = placement.extent
    rows = (0, 0, *placement.source), (top, left, tall, wide), (*first, end[0] - first[0], end[1] - first[1])
    box, placed, seen = (_filled(row, like) for row in rows)
    return Geometry(box, placed, seen, like.new_zeros(len(like)), placement.canvas)


def zoomed(draws: Tensor, zoom: tuple[float, float], source: Tensor, unzoomed: Tensor, canvas: Size) -> Geometry:
    """Pictures of sizes `source` (B, 2), resized by a factor uniform in `zoom`; 1 leads to the size `unzoomed` (B, 2).
    Of a side longer than the canvas a random part is seen; a shorter one leaves padding below or to the
    right. `draws`: (B, 3) uniform."""
    draws = draws.to(widest(draws.device))
    factor = zoom[0] + (zoom[1] - zoom[0]) * draws[:, :1]
    whole = (unzoomed * factor).round().clamp(min=1).to(torch.int64)  # (B, 2)
    sides = _filled(canvas, whole)
    cut = (draws[:, 1:] * ((whole - sides).clamp(min=0) + 1)).floor().to(torch.int64)
    corner = torch.zeros_like(whole)
    box, placed, seen = (
        torch.cat(pair, dim=1) for pair in ((corner, source), (-cut, whole), (corner, torch.minimum(whole, sides)))
    )
    return Geometry(box, placed, seen, corner[:, 0], canvas)


def shifted(geometry: Geometry, by: Tensor) -> Geometry:
    """What the canvas shows moved by (B, 2) rows and columns; what leaves it is gone, the rest is padding."""
    sides = _filled(geometry.canvas, by)
    first, last = geometry.seen[:, :2] + by, geometry.extent + by
    first, last = torch.minimum(first.clamp(min=0), sides), torch.minimum(last.clamp(min=0), sides)
    placed = torch.cat([geometry.placed[:, :2] + by, geometry.placed[:, 2:]], dim=1)
    return replace(geometry, placed=placed, seen=torch.cat([first, last - first], dim=1))


def together(parts: Sequence[Geometry]) -> Geometry:
    """In one, on the same canvas."""
    return Geometry.unpacked(torch.cat([part.packed() for part in parts]), parts[0].canvas)


def _filled(row: tuple[int, ...], like: Tensor) -> Tensor:
    """As many rows as `like` (B, ...) has, on its device."""
    # Filled on the device: a copy from the host would have no place in a CUDA graph.
    return torch.stack([torch.full_like(like.reshape(len(like), -1)[:, 0], value) for value in row], dim=1)
