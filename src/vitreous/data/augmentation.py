"""What training does to a picture: settings in parts, and View, which follows them.

A `View` is an augmentation on top of the preprocessing; an objective that wants several (multi-crop) gives each its own
name, from which all its random choices are drawn. Two views that share a name of crop see the same part of the picture.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous import keys as K
from vitreous.data import colour, erasing, placement, randaugment, resample, thin
from vitreous.data.geometry import Geometry, resized_boxes, shifted, together, zoomed
from vitreous.data.mixing import Mixer
from vitreous.data.placement import Size
from vitreous.data.thin import Cut
from vitreous.data.transforms import Preprocessing, as_tensor
from vitreous.errors import UserError
from vitreous.platforms import widest


@dataclass(frozen=True, kw_only=True)
class CropSettings:
    """Which part of a picture is shown, and how large."""

    method: Literal["random-resized", "zoom", "pad", "squash", "centre"] = "random-resized"  # pad: shift in a border
    scale: tuple[float, float] = (0.08, 1.0)  # random-resized: least and greatest share of the picture's area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # random-resized: least and greatest width to height
    zoom: tuple[float, float] = (
        0.5,
        2.0,
    )  # zoom: least and greatest size, 1 covering the view (letterbox: fitting into it); what is free is padding
    pad_px: int = 4  # pad: width of the border
    padding: Literal["zero", "reflect"] = "zero"  # pad: what the border shows

    def __post_init__(self) -> None:
        _check_ranges(self, "scale", "ratio", "zoom")
        _check_shares(self, "scale")
        _check_not_negative(self, "pad_px")


@dataclass(frozen=True, kw_only=True)
class WarpSettings:
    """RandAugment."""

    ops: int = 0  # operations per picture; 0 is off
    magnitude: int = 9  # strength, 0 to 30
    spread: bool = False  # draw the strength from 0 to the magnitude
    fill: tuple[int, int, int] = (0, 0, 0)  # colour of the pixels that move in

    def __post_init__(self) -> None:
        _check_not_negative(self, "ops")
        if not 0 <= self.magnitude <= randaugment.TOP_LEVEL:
            raise UserError(f"magnitude is {self.magnitude}: it goes from 0 to 30")


@dataclass(frozen=True, kw_only=True)
class ColourSettings:
    """Brightness, contrast, saturation and hue, in turn; then grey, blur and solarize, each by chance."""

    probability: float = 1.0  # of changing the colours at all, by as much as the next four say
    brightness: float = 0.0  # greatest change, as a share
    contrast: float = 0.0  # greatest change, as a share
    saturation: float = 0.0  # greatest change, as a share
    hue: float = 0.0  # greatest turn of the colour circle, 0 to 0.5
    grey: float = 0.0  # probability of taking the colours away
    blur: float = 0.0  # probability of a Gaussian blur
    blur_sigma: tuple[float, float] = (0.1, 2.0)  # least and greatest width of the blur, in pixels
    solarize: float = 0.0  # probability of inverting the upper half of the levels

    def __post_init__(self) -> None:
        _check_chances(self, "probability", "grey", "blur", "solarize")
        _check_ranges(self, "blur_sigma")
        _check_not_negative(self, "brightness", "contrast", "saturation", "hue")
        if self.hue > 0.5:
            raise UserError(f"hue is {self.hue}: half a turn, 0.5, is the most")


@dataclass(frozen=True, kw_only=True)
class EraseSettings:
    """Random erasing."""

    probability: float = 0.0  # of erasing a box
    scale: tuple[float, float] = (0.02, 0.33)  # least and greatest share of the area erased
    ratio: tuple[float, float] = (0.3, 3.3)  # least and greatest height to width of the box
    fill: Literal["mean", "noise"] = "mean"  # what the box shows

    def __post_init__(self) -> None:
        _check_chances(self, "probability")
        _check_ranges(self, "scale", "ratio")
        _check_shares(self, "scale")


@dataclass(frozen=True, kw_only=True)
class MixSettings:
    """Mixup and CutMix."""

    mixup: float = 0.0  # alpha of Mixup's Beta distribution; 0 is off
    cutmix: float = 0.0  # alpha of CutMix's Beta distribution; 0 is off
    probability: float = 1.0  # of mixing a picture at all
    switch: float = 0.5  # probability of CutMix where Mixup is on too

    def __post_init__(self) -> None:
        _check_chances(self, "probability", "switch")
        _check_not_negative(self, "mixup", "cutmix")

    def build(self, device: torch.device | str) -> Mixer:
        return Mixer(self.mixup, self.cutmix, self.probability, self.switch, device)

    @property
    def is_on(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What training does to a picture, in this order."""

    crop: CropSettings = field(default_factory=CropSettings)
    flip: float = 0.5  # probability of swapping left and right
    warp: WarpSettings = field(default_factory=WarpSettings)
    colour: ColourSettings = field(default_factory=ColourSettings)
    erase: EraseSettings = field(default_factory=EraseSettings)
    mix: MixSettings = field(default_factory=MixSettings)

    def __post_init__(self) -> None:
        _check_chances(self, "flip")

    def build(self, preprocessing: Preprocessing, name: str = "view0", crop_name: str | None = None) -> "View":
        return View(self, preprocessing, name, crop_name or name)


def _check_chances(part: Any, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(part, name) <= 1:
            raise UserError(f"{name} is {getattr(part, name)}: a probability is between 0 and 1")


def _check_ranges(part: Any, *names: str) -> None:
    for name in names:
        low, high = getattr(part, name)
        if not 0 < low <= high:
            raise UserError(f"{name} is {low}, {high}: give the least first, above 0")


def _check_shares(part: Any, name: str) -> None:
    if getattr(part, name)[1] > 1:
        raise UserError(f"{name} is {getattr(part, name)}: it is a share of the area, at most 1")


def _check_not_negative(part: Any, *names: str) -> None:
    for name in names:
        if getattr(part, name) < 0:
            raise UserError(f"{name} is {getattr(part, name)}: it must not be negative")


class View:
    """One way to see a picture in training: first cut to its size (uint8), then augmented and normalised."""

    def __init__(self, augmentation: Augmentation, preprocessing: Preprocessing, name: str, crop_name: str) -> None:
        self.augmentation, self.preprocessing = augmentation, preprocessing
        self.name, self.crop_name = name, crop_name
        method = augmentation.crop.method
        if method == "pad" and preprocessing.crop == "letterbox":
            raise UserError("crop.method pad does not go with letterboxed pictures: set it to zoom or random-resized")
        if method == "zoom" and augmentation.mix.is_on:
            raise UserError("crop.method zoom leaves padding, which cannot be mixed: set mix.mixup and mix.cutmix to 0")
        fraction = {"squash": None, "centre": preprocessing.crop_fraction, "pad": preprocessing.cover_fraction}
        self._fraction = fraction.get(method)
        self._fixed = replace(preprocessing, crop="squash" if self._fraction is None else "centre")

    @property
    def cuts_alike(self) -> bool:
        """Whether `cut` draws nothing from the keys."""
        return self.augmentation.crop.method not in ("random-resized", "zoom")

    @property
    def leaves_room(self) -> bool:
        """Whether pictures may be smaller than the canvas, so that some of it is padding."""
        return self.augmentation.crop.method == "zoom"

    def extent(self, geometry: Geometry) -> Tensor | None:
        """(B, 2) rows and columns that are picture, where some may be padding."""
        return geometry.extent if self.leaves_room else None

    def geometry(self, keys: Tensor, height: int, width: int) -> Geometry:
        """What `cut` and `augment` do to the places of pixels, for pictures of one size, on any device."""
        if self.cuts_alike:
            return self._moved(self._fixed.geometry(keys, height, width), keys)
        # Filled on the device: a copy from the host would have no place in a CUDA graph.
        size = torch.stack([torch.full_like(keys, side) for side in (height, width)], dim=1)
        unzoomed = torch.stack([torch.full_like(keys, side) for side in self._unzoomed(height, width)], dim=1)
        return self._moved(self._cropped(keys, size, unzoomed), keys)

    def geometries(self, keys: Tensor, sizes: Sequence[Size]) -> Geometry:
        """The same for pictures of any sizes, on the CPU."""
        if self.cuts_alike:
            found = [self._fixed.geometry(key, *size) for key, size in zip(keys[:, None], sizes, strict=True)]
            return self._moved(together(found), keys)
        unzoomed = torch.tensor([self._unzoomed(*size) for size in sizes])
        return self._moved(self._cropped(keys, torch.tensor(sizes), unzoomed), keys)

    def _unzoomed(self, height: int, width: int) -> Size:
        """As large as it is shown in prediction, where all of it is; else as it covers the canvas."""
        fitted = placement.contained if self.preprocessing.crop == "letterbox" else placement.covering
        return fitted(self.preprocessing.size_px, (height, width))

    def _cropped(self, keys: Tensor, size: Tensor, unzoomed: Tensor) -> Geometry:
        """By what is drawn; `size` and `unzoomed` (B, 2)."""
        crop, canvas = self.augmentation.crop, self.preprocessing.size_px
        if self.leaves_room:
            return zoomed(K.uniform(keys, f"{self.crop_name}.crop", 3), crop.zoom, size, unzoomed, canvas)
        return resized_boxes(self._boxes(keys, *size.unbind(1)), canvas)

    def _moved(self, found: Geometry, keys: Tensor) -> Geometry:
        """And then shifted and flipped."""
        a = self.augmentation
        if self._is_shifted:
            found = shifted(found, a.crop.pad_px - self._shifts(keys))
        if a.flip:
            # Padding on a canvas stays where it is; a border belongs to the picture.
            columns = found.extent[:, 1] if self.leaves_room else torch.full_like(keys, found.canvas[1])
            found = found.mirrored(self._flipped(keys), columns)
        return found

    def cut(self, images: Tensor, keys: Tensor) -> Tensor:
        """A batch of one size, on any device: (B, 3, H, W) uint8 -> (B, 3, h, w) uint8."""
        size, interpolation = self.preprocessing.size_px, self.preprocessing.interpolation
        if self.cuts_alike:
            return resample.cover_crop(images, size, self._fraction, interpolation)
        if self.leaves_room:
            placed = self.geometry(keys, images.shape[-2], images.shape[-1]).placed
            return resample.on_canvas(images, placed, size, interpolation)
        height, width = (torch.full_like(keys, side) for side in images.shape[-2:])
        return resample.resized_crop(images, self._boxes(keys, height, width), size, interpolation)

    def cut_pictures(self, pictures: list[np.ndarray], keys: Tensor, out: Tensor) -> None:
        """The same for pictures (H, W, 3) of any sizes, on the CPU, into `out` (B, 3, h, w)."""
        if self.cuts_alike:
            fixed = self._fixed
            for slot, picture in zip(out, pictures, strict=True):
                slot.copy_(fixed.resized(picture))
            return
        if self.leaves_room:
            found = self.geometries(keys, [picture.shape[:2] for picture in pictures])
            for slot, picture, *place in zip(out, pictures, found.placed.tolist(), found.extent.tolist(), strict=True):
                slot.copy_(self._zoomed(picture, *place))
            return
        height, width = (torch.tensor([picture.shape[axis] for picture in pictures]) for axis in (0, 1))
        boxes = self._boxes(keys, height, width).tolist()
        for slot, picture, (top, left, tall, wide) in zip(out, pictures, boxes, strict=True):
            part = as_tensor(picture[top : top + tall, left : left + wide])[None].permute(0, 3, 1, 2)
            resized = resample.resize(part, self.preprocessing.size_px, self.preprocessing.interpolation)
            slot.copy_(resized[0])

    def _zoomed(self, picture: np.ndarray, placed: Sequence[int], extent: Sequence[int]) -> Tensor:
        """One picture on its canvas: (3, h, w)."""
        (top, left, tall, wide), (rows, columns) = placed, extent
        batch = as_tensor(picture)[None].permute(0, 3, 1, 2)
        cut = Cut((tall, wide), (-top, -left), (rows, columns), thin.most(self.preprocessing.size_px))
        interpolation = self.preprocessing.interpolation
        if max(tall, wide) > cut.most:
            return self.preprocessing.padded(resample.windowed(batch, cut, interpolation))[0]
        resized = resample.resize(batch, (tall, wide), interpolation)
        return self.preprocessing.padded(resized[..., -top : rows - top, -left : columns - left])[0]

    @property
    def _is_shifted(self) -> bool:
        return self.augmentation.crop.method == "pad" and self.augmentation.crop.pad_px > 0

    def _boxes(self, keys: Tensor, height: Tensor, width: Tensor) -> Tensor:
        draws = resample.draw_crops(keys, f"{self.crop_name}.crop")
        return resample.draw_boxes(draws, height, width, self.augmentation.crop.scale, self.augmentation.crop.ratio)

    def _shifts(self, keys: Tensor) -> Tensor:
        return resample.draw_shifts(keys, f"{self.crop_name}.crop", self.augmentation.crop.pad_px)

    def _flipped(self, keys: Tensor) -> Tensor:
        return resample.draw_chances(keys, f"{self.crop_name}.flip", self.augmentation.flip)

    def augment(self, images: Tensor, keys: Tensor, extent: Tensor | None = None) -> Tensor:
        """What `cut` gave -> (B, 3, h, w) float32, augmented and normalised. `extent`: how much of it is picture."""
        a = self.augmentation
        if self._is_shifted:
            images = resample.pad_crop(images, self._shifts(keys), a.crop.pad_px, a.crop.padding)
        if a.flip:
            images = resample.flip(images, self._flipped(keys), None if extent is None else extent[:, 1])
        images = self._filter(self._jitter(self._warp(images, keys), keys), keys)
        if extent is not None:
            is_picture = erasing.inside(F.pad(extent, (2, 0)), *images.shape[-2:])
            images = torch.where(is_picture, images, self.preprocessing.mean_levels(images))
        return self._erase(self.preprocessing.normalised(images), keys)

    def _warp(self, images: Tensor, keys: Tensor) -> Tensor:
        a = self.augmentation.warp
        if a.ops:
            drawn = randaugment.draw(keys, f"{self.name}.randaugment", a.ops, a.magnitude, a.spread)
            for operation, level, sign in zip(*(part.unbind(1) for part in drawn), strict=True):
                images = randaugment.apply(images, operation, level, sign, a.fill)
        return images

    def _erase(self, images: Tensor, keys: Tensor) -> Tensor:
        a, size = self.augmentation.erase, self.preprocessing.size_px
        if not a.probability:
            return images
        boxes = erasing.draw(keys, f"{self.name}.erase", size, probability=a.probability, scale=a.scale, ratio=a.ratio)
        fill = erasing.noise(keys, f"{self.name}.noise", size) if a.fill == "noise" else 0.0
        return erasing.erase(images, boxes, fill)

    def _jitter(self, images: Tensor, keys: Tensor) -> Tensor:
        """Brightness, contrast, saturation, hue: in this order for every picture."""
        a, unchanged = self.augmentation.colour, images
        draws = K.uniform(keys, f"{self.name}.colour", 4).to(widest(keys.device)).unbind(1)
        for operation, most, draw in zip(
            (colour.brightness, colour.contrast, colour.saturation),
            (a.brightness, a.contrast, a.saturation),
            draws,
            strict=False,
        ):
            if most:
                low = max(0.0, 1 - most)
                images = operation(images, low + (1 + most - low) * draw)
        images = colour.hue(images, a.hue * (2 * draws[3] - 1)) if a.hue else images
        return images if a.probability == 1 else self._by_chance("jitter", a.probability, keys, images, unchanged)

    def _filter(self, images: Tensor, keys: Tensor) -> Tensor:
        """Grey, blur, solarize: what contrastive learning adds (Chen et al. 2020, appendix A; Grill et al. 2020)."""
        a = self.augmentation.colour
        if a.grey:
            grey = colour.grey(images).to(torch.uint8).expand_as(images)
            images = self._by_chance("grey", a.grey, keys, grey, images)
        if a.blur:
            low, high = a.blur_sigma
            sigma = low + (high - low) * K.uniform(keys, f"{self.name}.sigma", 1)[:, 0]
            images = self._by_chance("blur", a.blur, keys, colour.gaussian_blur(images, sigma, high), images)
        if a.solarize:
            inverted = torch.where(images >= 128, 255 - images, images)
            images = self._by_chance("solarize", a.solarize, keys, inverted, images)
        return images

    def _by_chance(self, what: str, probability: float, keys: Tensor, changed: Tensor, unchanged: Tensor) -> Tensor:
        chosen = resample.draw_chances(keys, f"{self.name}.{what}", probability)
        return torch.where(chosen[:, None, None, None], changed, unchanged)
