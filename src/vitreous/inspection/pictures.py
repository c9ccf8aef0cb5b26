"""Maps laid on the picture they belong to (paper, Figure 6)."""

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Pixels = NDArray[np.uint8]  # (H, W, 3)
Values = TypeVar("Values", NDArray[np.uint8], NDArray[np.floating[Any]])
Covered = tuple[float, float]  # the share of a picture's height and width that a map covers: over 1 where it is padded
WHOLE: Covered = (1.0, 1.0)


def upsampled(maps: Tensor, picture_px: tuple[int, int], covered: Covered = WHOLE) -> Tensor:
    """(..., h, w) -> (..., H, W), bilinear between the centres of patches; 0 where the map does not reach."""
    found = maps.float()
    for axis, side, share in zip((-2, -1), picture_px, covered, strict=True):
        found = _along(found, axis, side, share, smooth=True)
    return found


def in_squares(maps: Tensor, picture_px: tuple[int, int], covered: Covered = WHOLE) -> Tensor:
    """The same with every patch a square of one value."""
    found = maps.float()
    for axis, side, share in zip((-2, -1), picture_px, covered, strict=True):
        found = _along(found, axis, side, share, smooth=False)
    return found


def _along(maps: Tensor, axis: int, side: int, share: float, *, smooth: bool) -> Tensor:
    num = maps.shape[axis]
    places = (torch.arange(side, device=maps.device) + 0.5) * num / (side * share)  # in patches, from the edge
    inside = (places <= num).to(maps.dtype).view(-1, *[1] * (-1 - axis))
    if not smooth:
        return maps.index_select(axis, places.long().clamp(max=num - 1)) * inside
    between = (places - 0.5).clamp(0, num - 1)
    before = between.long().clamp(max=max(num - 2, 0))
    weight = (between - before).view(-1, *[1] * (-1 - axis))
    first, second = (maps.index_select(axis, each) for each in (before, (before + 1).clamp(max=num - 1)))
    return torch.lerp(first, second, weight) * inside


def enlarged(picture: Values, box: tuple[float, float, float, float], size: tuple[int, int] | None = None) -> Values:
    """A part of a picture (top, left, bottom, right in px), as large as fits into the whole or of that size, each pixel
    a square."""
    top, left, bottom, right = box
    times = min(picture.shape[0] / (bottom - top), picture.shape[1] / (right - left))
    height, width = size or (max(1, round(times * (bottom - top))), max(1, round(times * (right - left))))
    rows = (top + (np.arange(height) + 0.5) * (bottom - top) / height).astype(int)
    columns = (left + (np.arange(width) + 0.5) * (right - left) / width).astype(int)
    found: Values = picture[rows[:, None], columns]
    return found


def brightness(maps: Tensor, *, stretch: bool = False) -> Tensor:
    """(..., h, w) scaled so that the highest place of each is 1. Zero stays zero; with `stretch` the lowest place
    becomes zero, which shows differences that are small beside the mean."""
    lowest, highest = (pick(maps, dim=(-2, -1), keepdim=True) for pick in (torch.amin, torch.amax))
    maps, highest = (maps - lowest, highest - lowest) if stretch else (maps, highest)
    return maps / highest.masked_fill(highest == 0, 1)


def overlay(picture: Pixels, attention_map: Tensor, *, covered: Covered = WHOLE, stretch: bool = False) -> Pixels:
    """The picture, as bright in each place as the attention that falls on it: (H, W, 3) times (h, w)."""
    height, width = picture.shape[:2]
    share = brightness(upsampled(attention_map, (height, width), covered), stretch=stretch).cpu().numpy()
    shaded: Pixels = np.rint(picture * share[:, :, None]).astype(np.uint8)
    return shaded


def lit(picture: Pixels, attention_map: Tensor, *, covered: Covered = WHOLE) -> Pixels:
    """The picture half as bright where attention is even, and fully where twice as much falls or more: what is nearly
    even looks even, and pictures can be compared."""
    height, width = picture.shape[:2]
    large = upsampled(attention_map, (height, width), covered)
    share = (large / (2 * attention_map.float().mean())).clamp(max=1).cpu().numpy()
    shaded: Pixels = np.rint(picture * share[:, :, None]).astype(np.uint8)
    return shaded


def scale(attention_map: Tensor) -> str:
    """A bright place need not be a decisive one: an even look at n patches gives each the same."""
    highest, even = float(attention_map.max()), float(attention_map.mean())
    return f"at most {100 * highest:.1f} % on a patch, evenly {100 * even:.1f} %"
