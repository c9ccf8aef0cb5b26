"""Tiny data sets of pictures with masks: picture `number` has one colour, its mask a known pattern of classes."""

import io

import numpy as np
from made import png
from PIL import Image

SIZE = (6, 5)  # width and height of the pictures


def mask_of(number, classes=3, size=SIZE):
    """(H, W): a block of class `number`, on 0."""
    mask = np.zeros(size[::-1], dtype=np.uint8)
    mask[:2, : 1 + number % 4] = number % classes
    return mask


def mask_png(values):
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def write_pairs(pictures, masks, numbers, end="", classes=3):
    for folder in (pictures, masks):
        folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (pictures / f"{number:04}.png").write_bytes(png(number, SIZE))
        (masks / f"{number:04}{end}.png").write_bytes(mask_png(mask_of(number, classes)))


def noise_png(seed, kind="PNG", channels=3, side=48):
    """A photo, as far as its statistics go."""
    shape = (side, side, 3) if channels == 3 else (side, side)
    levels = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, kind)
    return file.getvalue()
