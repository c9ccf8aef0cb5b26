"""Cropping, resizing, padding and flipping of uint8 pictures.

Two ways to resize, which agree to the level: one picture at a time on the CPU by torch's antialiased kernel, and
a whole batch on any device, each picture with its own box, as two products with small weight matrices.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous import keys as K
from vitreous.data import thin
from vitreous.data.placement import Size, enlarged, placed
from vitreous.data.thin import Cut
from vitreous.platforms import widest

Interpolation = Literal["bilinear", "bicubic", "nearest"]

ATTEMPTS = 10  # random boxes tried before the fallback, as torchvision does


# ---- One size for all


def cover(size: Size, fraction: float, height: int, width: int) -> tuple[Size, Size]:
    """The size to resize (height, width) to, and the corner to cut `size` from, so that `size` is the centre and
    takes `fraction` of the shorter side."""
    whole = placed(size, "centre", fraction, (height, width))
    return (whole.tall, whole.wide), (-whole.top, -whole.left)


def resize(images: Tensor, size: Size, interpolation: Interpolation) -> Tensor:
    """(B, 3, H, W) uint8 on the CPU -> (B, 3, h, w) uint8, antialiased."""
    if images.shape[-2:] == size:
        return images
    if interpolation == "nearest":
        return F.interpolate(images, size, mode="nearest")
    return F.interpolate(images, size, mode=interpolation, antialias=True)


# ---- Weight matrices: the same filters for a batch of boxes


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    # Keys 1981 with a = -1/2, which Pillow and torch's antialiased kernel use.
    x = x.abs()
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def resize_weights(
    start: Tensor,
    length: Tensor,
    source: int,
    out: int,
    interpolation: Interpolation,
    *,
    computed: slice | None = None,
    seen: slice | None = None,
) -> Tensor:
    """(B, out, source) float32: row i weighs the source pixels that make pixel i of [start, start + length) resized.

    Of the rows only those `computed`, for the source pixels `seen` only, where these are given."""
    computed = computed or slice(0, out)
    rows = torch.arange(computed.start, computed.stop, device=start.device)[None]
    return row_weights(rows, start, length, out, source, interpolation=interpolation, seen=seen)


def row_weights(
    rows: Tensor,
    start: Tensor,
    length: Tensor,
    out: int | Tensor,
    source: int,
    *,
    interpolation: Interpolation,
    seen: slice | None = None,
) -> Tensor:
    """(B, n, source) float32: of the rows (B or 1, n) int64 of [start, start + length) resized to `out`, one number or
    (B,)."""
    wide = widest(start.device)
    start, length = (x.to(wide)[:, None, None] for x in (start, length))
    seen = seen or slice(0, source)
    pixel = torch.arange(seen.start, seen.stop, dtype=wide, device=start.device) - start  # (B, 1, source)
    row = rows.to(wide)[:, :, None]
    scale = length / (out if isinstance(out, int) else out[:, None, None])
    if interpolation == "nearest":
        return (pixel == torch.minimum((row * scale).floor(), length - 1)).to(torch.float32)
    # When shrinking, the filter widens with the scale: that is the antialiasing.
    distance = (pixel + 0.5 - (row + 0.5) * scale) / scale.clamp(min=1)
    weights = _triangle(distance) if interpolation == "bilinear" else _cubic(distance)
    weights = torch.where((pixel >= 0) & (pixel < length), weights, 0.0)
    return _rounded_weights(weights / weights.sum(dim=-1, keepdim=True)).to(torch.float32)


def _rounded_weights(weights: Tensor) -> Tensor:
    """Weights of 16 bits, as in torch's uint8 kernel: the greatest of a matrix just fits, at most 22 bits deep."""
    greatest = weights.amax(dim=(1, 2), keepdim=True)
    one = (((2**15 - 0.5) / greatest).log2().ceil() - 1).clamp(max=22).exp2()
    return (weights * one + 0.5 * weights.sign()).trunc() / one


def _to_level(x: Tensor) -> Tensor:
    return (x + 0.5).floor().clamp(0, 255)  # halves go up, as in torch's uint8 kernel


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(B, 3, H, W) uint8 -> (B, 3, h, w) uint8; rows (B or 1, h, H) and columns (B or 1, w, W) are weights."""
    # Whole levels between the two passes, as torch's uint8 kernel keeps them.
    wide = _to_level(images.to(torch.float32) @ columns[:, None].mT)  # (B, 3, H, w)
    return _to_level(rows[:, None] @ wide).to(torch.uint8)


def resized_crop(images: Tensor, boxes: Tensor, size: Size, interpolation: Interpolation) -> Tensor:
    """Each picture's own box (B, 4) int64 (top, left, height, width), resized: (B, 3, H, W) -> (B, 3, h, w)."""
    top, left, height, width = boxes.unbind(1)
    rows = resize_weights(top, height, images.shape[-2], size[0], interpolation)
    columns = resize_weights(left, width, images.shape[-1], size[1], interpolation)
    return resample(images, rows, columns)


def on_canvas(images: Tensor, placed: Tensor, size: Size, interpolation: Interpolation) -> Tensor:
    """Whole pictures, each resized to its own place (B, 4) on a canvas, over which it may hang; (B, 3, H, W) -> (B, 3,
    h, w). What is not covered repeats the edge."""
    top, left, tall, wide = placed.unbind(1)
    weights, none = [], torch.zeros_like(top)
    for start, length, source, side in (
        (top, tall, images.shape[-2], size[0]),
        (left, wide, images.shape[-1], size[1]),
    ):
        rows = (torch.arange(side, device=placed.device) - start[:, None]).clamp(min=0)
        rows = torch.minimum(rows, length[:, None] - 1)
        weights.append(row_weights(rows, none, none + source, length, source, interpolation=interpolation))
    return resample(images, *weights)


def cover_crop(images: Tensor, size: Size, fraction: float | None, interpolation: Interpolation) -> Tensor:
    """A batch of one size: the centre after `cover`, or squashed to `size` where `fraction` is None."""
    if images.shape[-2:] == size:
        return images
    if fraction is None:
        return windowed(squashable(images), Cut(size, (0, 0), size, thin.most(size)), interpolation)
    resized, corner = cover(size, fraction, *images.shape[-2:])
    return windowed(images, Cut(resized, corner, size, thin.most(enlarged(size, fraction))), interpolation)


def squashable(images: Tensor) -> Tensor:
    """Without some of the lines where a side has more than can be weighed."""
    height, width = images.shape[-2:]
    return images[..., :: thin.step(height), :: thin.step(width)]


def windowed(images: Tensor, cut: Cut, interpolation: Interpolation) -> Tensor:
    """(B, 3, H, W) uint8 -> (B, 3, h, w) uint8: resized and cut, and of a very long side nothing else computed."""
    windows, weights = cut.windows(images.shape[-2:]), []
    nothing = torch.zeros(1, device=images.device)
    for source, out, kept, computed, seen in windows:
        whole = nothing, nothing + source
        rows = resize_weights(*whole, source, out, interpolation, computed=computed, seen=seen)
        weights.append(rows[:, kept.start - computed.start : kept.stop - computed.start])
    rows_seen, columns_seen = (window.seen for window in windows)
    return resample(images[..., rows_seen, columns_seen], *weights)


# ---- Random boxes


def draw_boxes(
    draws: Tensor, height: Tensor, width: Tensor, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """(B, 4) int64 boxes (top, left, height, width) in pictures of sides height and width (B,).

    A share of the area uniform in `scale`, a width-to-height ratio log-uniform in `ratio`; the first of ten tries
    that fits, else the largest centred box of an allowed ratio. `draws`: (B, 22) uniform.
    """
    # In float64, then rounded to whole pixels: so exp and sqrt, which differ by devices in the last bit, do not matter.
    wide = widest(draws.device)
    draws, height, width = draws.to(wide), height.to(wide)[:, None], width.to(wide)[:, None]
    area = height * width * _between(draws[:, :ATTEMPTS], *scale)
    low, high = (torch.full((), side, dtype=wide, device=draws.device).log() for side in ratio)
    aspect = (low + (high - low) * draws[:, ATTEMPTS : 2 * ATTEMPTS]).exp()
    widths, heights = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    fallback_h = torch.minimum(height, (width / ratio[0]).round()).clamp(min=1)
    fallback_w = torch.minimum(width, (height * ratio[1]).round()).clamp(min=1)
    first = (fits.cumsum(1) == 0).sum(1, keepdim=True)  # (B, 1): ATTEMPTS where none fits
    box_h = torch.cat([heights, fallback_h], dim=1).gather(1, first)
    box_w = torch.cat([widths, fallback_w], dim=1).gather(1, first)
    failed = first == ATTEMPTS
    corner_h = torch.where(failed, ((height - box_h) / 2).floor(), (draws[:, -2:-1] * (height - box_h + 1)).floor())
    corner_w = torch.where(failed, ((width - box_w) / 2).floor(), (draws[:, -1:] * (width - box_w + 1)).floor())
    return torch.cat([corner_h, corner_w, box_h, box_w], dim=1).to(torch.int64)


def _between(draws: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * draws


def draw_crops(keys: Tensor, purpose: str) -> Tensor:
    """What `draw_boxes` needs; apart from it because the pictures' sizes are known only once they are read."""
    return K.uniform(keys, purpose, 2 * ATTEMPTS + 2)


# ---- Shifts and flips


def draw_shifts(keys: Tensor, purpose: str, pad_px: int) -> Tensor:
    """(B, 2) int64 in [0, 2 pad_px]: the corner of the crop in the padded picture."""
    return K.integers(keys, purpose, 2, 2 * pad_px + 1)


def pad_crop(images: Tensor, shifts: Tensor, pad_px: int, padding: Literal["zero", "reflect"]) -> Tensor:
    """Pads all sides by `pad_px` and cuts the old size out at `shifts` (B, 2)."""
    height, width = images.shape[-2:]
    rows = torch.arange(height, device=images.device) + shifts[:, :1] - pad_px  # (B, H)
    columns = torch.arange(width, device=images.device) + shifts[:, 1:] - pad_px  # (B, W)
    seen = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    rows, columns = (_reflected(index, side) for index, side in ((rows, height), (columns, width)))
    flat = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)  # (B, H W)
    shifted = images.flatten(2).gather(2, flat[:, None].expand(-1, images.shape[1], -1)).view_as(images)
    return shifted if padding == "reflect" else shifted * seen[:, None]


def _reflected(index: Tensor, side: int) -> Tensor:
    # The edge pixel is not repeated: -1 is 1, side is side - 2. Clamped, for padding beyond a whole picture.
    return ((side - 1) - ((side - 1) - index.abs()).abs()).clamp(min=0)


def draw_chances(keys: Tensor, purpose: str, probability: float) -> Tensor:
    """(B,) bool, true with `probability`."""
    return K.uniform(keys, purpose, 1)[:, 0] < probability


def flip(images: Tensor, flipped: Tensor, columns: Tensor | None = None) -> Tensor:
    """Left to right, where `flipped` (B,); of a picture only the first `columns` (B,), where these are given."""
    if columns is None:
        # torch.where takes bytes one by one on a CPU, which is slow; and new memory costs more than what is done in it.
        every_bit = (255 * flipped).to(torch.uint8)[:, None, None, None]
        return images.flip(-1).bitwise_xor_(images).bitwise_and_(every_bit).bitwise_xor_(images)
    at = torch.arange(images.shape[-1], device=images.device)[None]
    width = torch.where(flipped, columns, 0)[:, None]
    source = torch.where(at < width, width - 1 - at, at)  # (B, w)
    return images.gather(-1, source[:, None, None, :].expand_as(images))
