"""Preprocessing: the fixed way from a picture to the model's input. It is stored with a model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.data import resample, thin
from vitreous.data.geometry import Geometry, of_placement
from vitreous.data.placement import Fit, Placement, Size, enlarged, placed
from vitreous.data.thin import Cut
from vitreous.errors import UserError, shown

MAX_SIDE = 8192  # px of a model's input
LEAST_FRACTION = 0.1  # of a picture's side that a crop may keep


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The fixed way from a picture to the model's input."""

    size_px: tuple[int, int] = (224, 224)  # height and width of the model's input
    crop: Fit = "centre"  # keep the proportions and cut; squash; squash larger and cut; letterbox: keep all, and pad
    crop_fraction: float = 0.875  # share of the shorter side that the centre crop keeps
    odd_margin: Literal["even", "down"] = "even"  # how the half of an odd margin is rounded: torchvision, transformers
    skip_fitting: bool = True  # a picture that has the size already is neither resized nor cropped
    interpolation: resample.Interpolation = "bilinear"  # how pictures are resized
    resizer: Literal["torch", "pillow"] = "torch"  # whose rounding: transformers', or timm's; two levels apart at most
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)  # subtracted from each channel, levels being 0 to 1
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)  # each channel is divided by this, after the mean

    def __post_init__(self) -> None:
        if not all(type(side) is int and 1 <= side <= MAX_SIDE for side in self.size_px):
            raise UserError(f"size_px is {shown(self.size_px)}: each side must be from 1 to {MAX_SIDE} px")
        if not LEAST_FRACTION <= self.crop_fraction <= 1:
            raise UserError(f"crop_fraction is {self.crop_fraction}: it must be from {LEAST_FRACTION} to 1")
        if not _are_three_numbers(self.mean) or not _are_three_numbers(self.std) or min(self.std) <= 0:
            raise UserError(
                f"mean is {shown(self.mean)}, std {shown(self.std)}: each needs three numbers, those of std above 0"
            )

    @property
    def cover_fraction(self) -> float | None:
        """What `resample.cover_crop` wants."""
        return None if self.crop == "squash" else self.crop_fraction

    def resized(self, pictures: np.ndarray) -> Tensor:
        """One uint8 picture (H, W, 3) -> (3, h, w), or some of one size (B, H, W, 3) -> (B, 3, h, w)."""
        batch = as_tensor(pictures if pictures.ndim == 4 else pictures[None]).permute(0, 3, 1, 2)
        if batch.shape[-2:] != self.size_px or not self.skip_fitting:
            batch = self._fitted(batch)
        return (batch if pictures.ndim == 4 else batch[0]).contiguous()

    def _fitted(self, batch: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 3, h, w): resized, and what hangs over cut off, or what is missing padded."""
        target = self.size_px if self.crop in ("squash", "letterbox") else enlarged(self.size_px, self.crop_fraction)
        if self.crop in ("squash", "squash-centre"):
            batch = resample.squashable(batch)
        place = self._placed((batch.shape[-2], batch.shape[-1]))
        (height, width), whole, most = self.size_px, (place.tall, place.wide), thin.most(target)
        if max(whole) > most:
            resize_window = _window_by_pillow if self.resizer == "pillow" else resample.windowed
            return resize_window(batch, Cut(whole, (-place.top, -place.left), self.size_px, most), self.interpolation)
        resize = _resize_by_pillow if self.resizer == "pillow" else resample.resize
        resized = resize(batch, whole, self.interpolation)
        if self.crop == "letterbox":
            return self.padded(resized)
        return resized[..., -place.top : height - place.top, -place.left : width - place.left]

    def extents(self, sizes: Sequence[Size]) -> Tensor | None:
        """(B, 2) int64: how many rows and columns of the input are picture; None where there is never any padding."""
        if self.crop != "letterbox":
            return None
        return torch.tensor([self.placement(*size).extent for size in sizes])

    def placement(self, height: int, width: int) -> Placement:
        """Where a picture of this size goes."""
        if (height, width) == self.size_px and self.skip_fitting:
            return Placement(self.size_px, 0, 0, *self.size_px, self.size_px)
        return self._placed((height, width))

    def _placed(self, source: Size) -> Placement:
        return placed(self.size_px, self.crop, self.crop_fraction, source, floor=self.odd_margin == "down")

    def geometry(self, keys: Tensor, height: int, width: int) -> Geometry:
        """The same for as many pictures as there are keys, on their device; nothing is drawn from them."""
        return of_placement(self.placement(height, width), keys)

    def padded(self, images: Tensor) -> Tensor:
        """(B, 3, <= h, <= w) -> (B, 3, h, w), on a canvas of the mean colour: close to 0 once it is normalised."""
        canvas = self.mean_levels(images).expand(len(images), 3, *self.size_px).clone()
        canvas[..., : images.shape[-2], : images.shape[-1]] = images
        return canvas

    def mean_levels(self, like: Tensor) -> Tensor:
        """(3, 1, 1) uint8."""
        return (255 * _channels(self.mean, like.device)).round().clamp(0, 255).to(torch.uint8)

    def normalised(self, images: Tensor) -> Tensor:
        """uint8 (..., 3, h, w) -> float32, the same for training, evaluation and prediction."""
        mean, std = (_channels(values, images.device) for values in (self.mean, self.std))
        return (images.to(torch.float32) / 255 - mean) / std


def _resize_by_pillow(images: Tensor, size: Size, interpolation: resample.Interpolation) -> Tensor:
    """(B, 3, H, W) uint8 on the CPU -> (B, 3, h, w) uint8, to the last bit as Pillow does it."""
    pictures = [Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()) for image in images]
    resized = [np.array(picture.resize(size[::-1], _PILLOW[interpolation])) for picture in pictures]
    return torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2)


def _window_by_pillow(images: Tensor, cut: Cut, interpolation: resample.Interpolation) -> Tensor:
    """As `resample.windowed`, with Pillow's rounding; one side after the other, in the order in which Pillow (13.0)
    takes them when it resizes a whole picture as thin as this."""
    windows = cut.windows(images.shape[-2:])
    rows, columns = (window.seen for window in windows)
    (top, bottom), (left, right) = (
        tuple(place * source / out - seen.start for place in (kept.start, kept.stop))
        for source, out, kept, _, seen in windows
    )
    tall, wide = cut.whole
    height_first = tall < images.shape[-2] and tall > wide
    resized = []
    for image in images[..., rows, columns]:
        picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        for is_down in (height_first, not height_first):
            width, height = picture.size
            size = (width, cut.size[0]) if is_down else (cut.size[1], height)
            box = (0, top, width, bottom) if is_down else (left, 0, right, height)
            picture = picture.resize(size, _PILLOW[interpolation], box)
        resized.append(np.array(picture))
    return torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2)


_PILLOW = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


def _are_three_numbers(values: tuple[float, ...]) -> bool:
    return len(values) == 3 and all(type(value) in (int, float) and math.isfinite(value) for value in values)


def as_tensor(array: np.ndarray) -> Tensor:
    """Without a copy where the array may be written to; torch warns of the others."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _channels(values: tuple[float, float, float], device: torch.device) -> Tensor:
    # Filled on the device: a copy from the host would have no place in a CUDA graph.
    return torch.cat([torch.full((1, 1, 1), value, device=device) for value in values])
