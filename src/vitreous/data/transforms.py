"""What is done to pictures between the source and the model: the settings, and their composition.

`Preprocessing` is what evaluation and prediction do, and is stored with a model. `Augmentation` is what training
does on top. A `View` is the two together; an objective that wants several (multi-crop) gives each its own name, from
which all its random choices are drawn. Two views that share a name of crop see the same part of the picture.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous import keys as K
from vitreous.data import colour, erasing, randaugment, resample, thin
from vitreous.data.geometry import Geometry, of_placement, resized_boxes, shifted
from vitreous.data.mixing import Mixer
from vitreous.data.placement import Fit, Placement, Size, enlarged, placed
from vitreous.data.thin import Cut
from vitreous.errors import UserError, shown
from vitreous.platforms import widest

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
            raise UserError(f"size_px is {shown(self.size_px)}: sides go from 1 to {MAX_SIDE} px")
        if not LEAST_FRACTION <= self.crop_fraction <= 1:
            raise UserError(f"crop_fraction is {self.crop_fraction}: it goes from {LEAST_FRACTION} to 1")
        if not _are_three_numbers(self.mean) or not _are_three_numbers(self.std) or min(self.std) <= 0:
            raise UserError(
                f"mean is {shown(self.mean)}, std {shown(self.std)}: each has three numbers, those of std above 0"
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


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What training does to a picture, in this order: crop, flip, RandAugment, colours, grey, blur, solarize, erase,
    mix."""

    crop: Literal["random-resized", "pad", "squash", "centre"] = "random-resized"  # pad: shift within a border
    scale: tuple[float, float] = (0.08, 1.0)  # random-resized: least and greatest share of the picture's area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # random-resized: least and greatest width to height
    pad_px: int = 4  # pad: width of the border
    padding: Literal["zero", "reflect"] = "zero"  # pad: what the border shows
    flip: float = 0.5  # probability of swapping left and right
    randaugment_ops: int = 0  # RandAugment: operations a picture; 0 is off
    randaugment_magnitude: int = 9  # RandAugment: strength, 0 to 30
    randaugment_spread: bool = False  # RandAugment: draw the strength from 0 to the magnitude
    randaugment_fill: tuple[int, int, int] = (0, 0, 0)  # RandAugment: colour of the pixels that move in
    jitter: float = 1.0  # probability of changing the colours at all, by as much as the next four say
    brightness: float = 0.0  # colours: greatest change, as a share; brightness, contrast, saturation, hue in turn
    contrast: float = 0.0  # colours: greatest change, as a share
    saturation: float = 0.0  # colours: greatest change, as a share
    hue: float = 0.0  # colours: greatest turn of the colour circle, 0 to 0.5
    grey: float = 0.0  # probability of taking the colours away
    blur: float = 0.0  # probability of a Gaussian blur
    blur_sigma: tuple[float, float] = (0.1, 2.0)  # least and greatest width of the blur, in pixels
    solarize: float = 0.0  # probability of inverting the upper half of the levels
    erase: float = 0.0  # probability of erasing a box
    erase_scale: tuple[float, float] = (0.02, 0.33)  # least and greatest share of the area erased
    erase_ratio: tuple[float, float] = (0.3, 3.3)  # least and greatest height to width of the box
    erase_fill: Literal["mean", "noise"] = "mean"  # what the box shows
    mixup: float = 0.0  # alpha of Mixup's Beta distribution; 0 is off
    cutmix: float = 0.0  # alpha of CutMix's Beta distribution; 0 is off
    mix_probability: float = 1.0  # probability of mixing a picture at all
    switch_probability: float = 0.5  # probability of CutMix where Mixup is on too

    def __post_init__(self) -> None:
        chances = ("flip", "jitter", "grey", "blur", "solarize", "erase", "mix_probability", "switch_probability")
        for name in chances:
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} is {getattr(self, name)}: a probability lies between 0 and 1")
        for name in ("scale", "ratio", "blur_sigma", "erase_scale", "erase_ratio"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise UserError(f"{name} is {low}, {high}: give the least first, above 0")
        if self.scale[1] > 1 or self.erase_scale[1] > 1:
            raise UserError("scale and erase_scale are shares of the area: at most 1")
        for name in ("pad_px", "randaugment_ops", "brightness", "contrast", "saturation", "hue", "mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} is {getattr(self, name)}: it must not be negative")
        if self.hue > 0.5:
            raise UserError(f"hue is {self.hue}: half a turn, 0.5, is the most")
        if not 0 <= self.randaugment_magnitude <= randaugment.TOP_LEVEL:
            raise UserError(f"randaugment_magnitude is {self.randaugment_magnitude}: it goes from 0 to 30")

    def build(self, preprocessing: Preprocessing, name: str = "view0", crop_name: str | None = None) -> "View":
        return View(self, preprocessing, name, crop_name or name)

    def build_mixer(self, device: torch.device | str) -> Mixer:
        return Mixer(self.mixup, self.cutmix, self.mix_probability, self.switch_probability, device)


class View:
    """One way to see a picture in training: first cut to its size (uint8), then augmented and normalised."""

    def __init__(self, augmentation: Augmentation, preprocessing: Preprocessing, name: str, crop_name: str) -> None:
        self.augmentation, self.preprocessing = augmentation, preprocessing
        self.name, self.crop_name = name, crop_name
        fraction = {"squash": None, "centre": preprocessing.crop_fraction, "pad": preprocessing.cover_fraction}
        self._fraction = fraction.get(augmentation.crop)
        self._fixed = replace(preprocessing, crop="squash" if self._fraction is None else "centre")

    @property
    def cuts_alike(self) -> bool:
        """Whether `cut` draws nothing from the keys."""
        return self.augmentation.crop != "random-resized"

    @property
    def leaves_room(self) -> bool:
        """Whether pictures may be smaller than the canvas, so that some of it is padding."""
        return False

    def extent(self, geometry: Geometry) -> Tensor | None:
        """(B, 2) rows and columns that are picture, where some may be padding."""
        return geometry.extent if self.leaves_room else None

    def geometry(self, keys: Tensor, height: int, width: int) -> Geometry:
        """What `cut` and `augment` do to the places of pixels, for pictures of one size."""
        a, size = self.augmentation, self.preprocessing.size_px
        if self.cuts_alike:
            found = self._fixed.geometry(keys, height, width)
        else:
            sides = (torch.full_like(keys, side) for side in (height, width))
            found = resized_boxes(self._boxes(keys, *sides), size)
        if a.crop == "pad" and a.pad_px:
            found = shifted(found, a.pad_px - self._shifts(keys))
        if a.flip:
            found = found.mirrored(self._flipped(keys), torch.full_like(keys, size[1]))
        return found

    def cut(self, images: Tensor, keys: Tensor) -> Tensor:
        """A batch of one size, on any device: (B, 3, H, W) uint8 -> (B, 3, h, w) uint8."""
        size, interpolation = self.preprocessing.size_px, self.preprocessing.interpolation
        if self.cuts_alike:
            return resample.cover_crop(images, size, self._fraction, interpolation)
        height, width = (torch.full_like(keys, side) for side in images.shape[-2:])
        return resample.resized_crop(images, self._boxes(keys, height, width), size, interpolation)

    def cut_pictures(self, pictures: list[np.ndarray], keys: Tensor, out: Tensor) -> None:
        """The same for pictures (H, W, 3) of any sizes, on the CPU, into `out` (B, 3, h, w)."""
        if self.cuts_alike:
            fixed = self._fixed
            for slot, picture in zip(out, pictures, strict=True):
                slot.copy_(fixed.resized(picture))
            return
        height, width = (torch.tensor([picture.shape[axis] for picture in pictures]) for axis in (0, 1))
        boxes = self._boxes(keys, height, width).tolist()
        for slot, picture, (top, left, tall, wide) in zip(out, pictures, boxes, strict=True):
            part = as_tensor(picture[top : top + tall, left : left + wide])[None].permute(0, 3, 1, 2)
            resized = resample.resize(part, self.preprocessing.size_px, self.preprocessing.interpolation)
            slot.copy_(resized[0])

    def _boxes(self, keys: Tensor, height: Tensor, width: Tensor) -> Tensor:
        draws = resample.draw_crops(keys, f"{self.crop_name}.crop")
        return resample.draw_boxes(draws, height, width, self.augmentation.scale, self.augmentation.ratio)

    def _shifts(self, keys: Tensor) -> Tensor:
        return resample.draw_shifts(keys, f"{self.crop_name}.crop", self.augmentation.pad_px)

    def _flipped(self, keys: Tensor) -> Tensor:
        return resample.draw_chances(keys, f"{self.crop_name}.flip", self.augmentation.flip)

    def augment(self, images: Tensor, keys: Tensor, extent: Tensor | None = None) -> Tensor:
        """What `cut` gave -> (B, 3, h, w) float32, augmented and normalised."""
        a = self.augmentation
        if a.crop == "pad" and a.pad_px:
            images = resample.pad_crop(images, self._shifts(keys), a.pad_px, a.padding)
        if a.flip:
            images = resample.flip(images, self._flipped(keys))
        if a.randaugment_ops:
            purpose = f"{self.name}.randaugment"
            drawn = randaugment.draw(keys, purpose, a.randaugment_ops, a.randaugment_magnitude, a.randaugment_spread)
            for operation, level, sign in zip(*(part.unbind(1) for part in drawn), strict=True):
                images = randaugment.apply(images, operation, level, sign, a.randaugment_fill)
        images = self.preprocessing.normalised(self._filter(self._jitter(images, keys), keys))
        if a.erase:
            size = self.preprocessing.size_px
            boxes = erasing.draw(
                keys, f"{self.name}.erase", size, probability=a.erase, scale=a.erase_scale, ratio=a.erase_ratio
            )
            fill = erasing.noise(keys, f"{self.name}.noise", size) if a.erase_fill == "noise" else 0.0
            images = erasing.erase(images, boxes, fill)
        return images

    def _jitter(self, images: Tensor, keys: Tensor) -> Tensor:
        """Brightness, contrast, saturation, hue: in this order for every picture."""
        a, unchanged = self.augmentation, images
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
        return images if a.jitter == 1 else self._by_chance("jitter", a.jitter, keys, images, unchanged)

    def _filter(self, images: Tensor, keys: Tensor) -> Tensor:
        """Grey, blur, solarize: what contrastive learning adds (Chen et al. 2020, appendix A; Grill et al. 2020)."""
        a = self.augmentation
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
