"""Colour operations on uint8 batches (B, 3, H, W), each picture with its own strength (B,).

The definitions are torchvision's v2 (and so Pillow's, where torchvision follows it), within one level.
Operations on single levels are made as tables (B, 3, 256), so that several cost one look-up.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.level_counts import level_counts


def _per_picture(x: Tensor) -> Tensor:
    return x.to(torch.float32)[:, None, None, None]


def _to_uint8(x: Tensor) -> Tensor:
    return x.clamp(0, 255).to(torch.uint8)  # rounds down, as torchvision does


# ---- Blends: towards another picture, or away from it


def grey(images: Tensor) -> Tensor:
    """(B, 1, H, W) float32 luma in whole levels."""
    red, green, blue = images.to(torch.float32).unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).floor()[:, None]


def blurred(images: Tensor) -> Tensor:
    """float32: a 3x3 mean with the centre counted five times; the border stays as it is."""
    images = images.to(torch.float32)
    inner = images[..., 1:-1, 1:-1]
    inner = ((9 * F.avg_pool2d(images, 3, stride=1) + 4 * inner) / 13).round()
    outer = F.pad(inner, (1, 1, 1, 1))
    edge = F.pad(torch.zeros_like(inner, dtype=torch.bool), (1, 1, 1, 1), value=True)
    return torch.where(edge, images, outer)


def blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """`factor` (B,): 0 gives `other`, 1 the pictures themselves, above 1 the opposite of `other`."""
    images = images.to(torch.float32)
    return _to_uint8(images + (1 - _per_picture(factor)) * (other - images))


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    return _to_uint8(images * _per_picture(factor))


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    return blend(images, grey(images).mean(dim=(1, 2, 3), keepdim=True), factor)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    return blend(images, grey(images), factor)


def hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turns the colour circle by `turn` (B,) in -0.5 .. 0.5."""
    red, green, blue = images.to(torch.float32).unbind(1)
    high, low = torch.maximum(torch.maximum(red, green), blue), torch.minimum(torch.minimum(red, green), blue)
    chroma = high - low
    divisor = torch.where(chroma == 0, 1.0, chroma)
    sixth = torch.where(
        high == red,
        (green - blue) / divisor,
        torch.where(high == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    sixth = sixth + 6 * turn.to(torch.float32)[:, None, None]

    def channel(offset: int) -> Tensor:
        # Each channel is the highest level, less the chroma on the far side of the circle (Smith 1978, in closed form).
        place = (sixth + offset).remainder(6)
        return high - chroma * torch.minimum(place, 4 - place).clamp(0, 1)

    return torch.stack([channel(5), channel(3), channel(1)], dim=1).round().clamp(0, 255).to(torch.uint8)


def gaussian_blur(images: Tensor, sigma: Tensor, largest: float) -> Tensor:
    """A blur of width `sigma` (B,) pixels, none above `largest`; the border is mirrored. Four widths are looked at on
    either side, but never more than the picture has."""
    radius = min(math.ceil(4 * largest), min(images.shape[-2:]) - 1)
    offsets = torch.arange(-radius, radius + 1, device=images.device)
    weights = torch.exp(-0.5 * (offsets / sigma.to(torch.float32)[:, None]).square())
    weights = weights / weights.sum(dim=1, keepdim=True)  # (B, 2 radius + 1)
    x = images.to(torch.float32)
    for padding, axis in (((radius, radius, 0, 0), 3), ((0, 0, radius, radius), 2)):
        padded, size = F.pad(x, padding, mode="reflect"), x.shape[axis]
        x = torch.zeros_like(x)
        for place, weight in enumerate(weights.unbind(1)):
            x = x + weight[:, None, None, None] * padded.narrow(axis, place, size)
    return x.round().clamp(0, 255).to(torch.uint8)


# ---- Tables: what becomes of each level


def look_up(images: Tensor, table: Tensor) -> Tensor:
    """table: (B, 3, 256) uint8."""
    return table.gather(2, images.flatten(2).to(torch.int64)).view_as(images)


def levels(images: Tensor) -> Tensor:
    """(B, 3, 256) int64: the table that changes nothing."""
    return torch.arange(256, device=images.device).expand(*images.shape[:2], 256)


def posterize_table(images: Tensor, bits: Tensor) -> Tensor:
    """Keeps the upper `bits` (B,) of a level."""
    dropped = (8 - bits)[:, None, None]
    return ((levels(images) >> dropped) << dropped).to(torch.uint8)


def solarize_table(images: Tensor, threshold: Tensor) -> Tensor:
    """Inverts the levels from `threshold` (B,) up."""
    level = levels(images)
    return torch.where(level >= threshold[:, None, None], 255 - level, level).to(torch.uint8)


def autocontrast_table(images: Tensor) -> Tensor:
    """Stretches each channel to the whole range; a channel of one level stays."""
    flat = images.flatten(2)
    low, high = (x.to(torch.float32)[..., None] for x in (flat.amin(2), flat.amax(2)))
    level = levels(images).to(torch.float32)
    flat_channel = high == low
    stretched = (level - low) / torch.where(flat_channel, 1.0, (high - low) * (1 / 255))
    return _to_uint8(torch.where(flat_channel, level, stretched))


def equalize_table(images: Tensor, wanted: Tensor | None = None) -> Tensor:
    """Makes every level of a channel equally frequent, by Pillow's integer rule; of pictures that are not `wanted`
    (B,) the table may be any."""
    counts = level_counts(images, wanted)
    brightest = counts.gather(2, (levels(images) * (counts > 0)).amax(2, keepdim=True))
    step = (images.shape[-2] * images.shape[-1] - brightest) // 255  # (B, 3, 1)
    below = counts.cumsum(2) - counts  # pixels darker than each level
    # `step` is 0 where almost all pixels share one level; such a channel stays.
    equalized = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step == 0, levels(images), equalized).to(torch.uint8)
