"""What one look at a picture and its mask tells: the data check gathers these."""

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.data.base import Sample
from vitreous.data.duplicates import Fingerprint, fingerprint
from vitreous.data.images import Picture
from vitreous.data.targets.pixels import count_pixels

FLAT_LEVELS = 2  # between the darkest and the brightest pixel of a picture that shows nothing


class Look(NamedTuple):
    fingerprint: Fingerprint
    height: int
    width: int
    is_grey: bool
    is_flat: bool
    sums: NDArray[np.float64]  # (2, 3): mean and mean square of the channels
    pixels: NDArray[np.int64] | None = None  # (1 + classes,): of its mask, those that are ignored first
    mask: bytes = b""  # a digest


def look_at(sample: Sample, num_classes: int) -> Look:
    """At a picture, and at its mask where it has one."""
    mask, found = sample.large.get("mask"), look(sample.picture)
    if mask is None:
        return found
    pixels = count_pixels(mask, num_classes)
    return found._replace(pixels=pixels, mask=hashlib.sha256(np.ascontiguousarray(mask).data).digest())


def look(picture: Picture) -> Look:
    height, width = picture.shape[:2]
    every = max(1, min(height, width) // 64)  # colours need no more than some thousand pixels
    some = picture[::every, ::every].astype(np.int16)
    is_grey = bool((some.max(axis=2) - some.min(axis=2)).max() <= 4)  # levels, which JPEG may add
    levels = some.reshape(-1, 3) / 255
    sums = np.stack([levels.mean(axis=0), np.square(levels).mean(axis=0)])
    is_flat = int(picture.max()) - int(picture.min()) <= FLAT_LEVELS
    return Look(fingerprint(picture), height, width, is_grey, is_flat, sums)
