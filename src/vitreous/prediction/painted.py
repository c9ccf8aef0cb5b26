"""Masks as pictures: in the colours of a palette, and laid over the picture they are about. Knows no torch."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.images import Picture
from vitreous.display.palette import palette

Labels = NDArray[np.integer]
EDGE = (255, 255, 255)


def coloured(labels: Labels, num: int) -> Picture:
    """(H, W) numbers of classes -> (H, W, 3); what is no class (ignored pixels) is black."""
    table = np.zeros((num + 1, 3), np.uint8)
    table[:num] = palette(num)
    return table[np.where((labels >= 0) & (labels < num), labels, num)]


def overlay(picture: Picture, labels: Labels, num: int, opacity: float = 0.5) -> Picture:
    """The picture under the colours of its classes, with a line where one class meets another."""
    mixed = picture * (1 - opacity) + coloured(labels, num) * opacity
    mixed = np.where((labels >= 0)[..., None], mixed, picture)
    mixed[borders(labels)] = EDGE
    return mixed.round().astype(np.uint8)


def borders(labels: Labels) -> NDArray[np.bool_]:
    """(H, W): pixels whose neighbour to the right or below has another class."""
    found = np.zeros(labels.shape, np.bool_)
    found[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    found[:-1] |= labels[:-1] != labels[1:]
    return found


def mask_png(labels: Labels, num: int) -> bytes:
    """A PNG whose pixels are the numbers of classes, shown in the palette; in 16 bits of grey beyond 256 classes."""
    if num > 256:
        image = Image.fromarray(labels.astype(np.uint16))
    else:
        image = Image.fromarray(labels.astype(np.uint8))
        image.putpalette([level for colour in palette(num) for level in colour])
    return as_png(image)


def as_png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
