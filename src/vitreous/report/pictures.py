"""Pictures for the page, from a source."""

from collections.abc import Iterable, Iterator

import numpy as np

from vitreous.data.base import Source
from vitreous.data.images import BadPicture, Picture


def enlarged(pixels: Picture, least_px: int) -> Picture:
    """Every pixel as a block, so that what is laid upon a tiny picture is not as coarse as it is."""
    times = -(-least_px // min(pixels.shape[:2]))
    return pixels if times <= 1 else np.repeat(np.repeat(pixels, times, axis=0), times, axis=1)


def readable(source: Source, indices: Iterable[int]) -> Iterator[tuple[int, Picture]]:
    """Those that can be read."""
    for index in indices:
        try:
            yield index, source.read(index)
        except BadPicture:
            continue
