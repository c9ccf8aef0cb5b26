"""Boxes drawn on the picture they are about, in the colours of their classes. Knows no torch."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitreous.data.images import Picture
from vitreous.display.thumbnails import enlarged

LEAST_PX = 320  # of the shorter side: a smaller picture is enlarged, so that words can be read
LINE = 1 / 200  # width of a line, as a share of the shorter side
THUMBNAIL_LINE = 1 / 80  # the same of what is shown as a small picture
Colour = tuple[int, int, int]


class Drawn(NamedTuple):
    box: tuple[float, float, float, float]  # x0 y0 x1 y1 in px of the picture
    colour: Colour
    words: str = ""  # above the box; "": none


class Label(NamedTuple):
    at: tuple[int, int]  # x and y of a corner that it stands above
    colour: Colour
    words: str


def drawn(picture: Picture, boxes: Sequence[Drawn], least_px: int = LEAST_PX, line: float = LINE) -> Picture:
    """The last boxes lie on top, and all words above the boxes."""
    large = enlarged(picture, least_px)
    factor, image = large.shape[0] / picture.shape[0], Image.fromarray(large)
    pen, width = ImageDraw.Draw(image), max(2, round(line * min(image.size)))
    for one in boxes:
        x0, y0, x1, y1 = (round(factor * side) for side in one.box)
        # Half a line beyond each border; a box of no width is drawn as a line.
        pen.rectangle(
            (x0 - width // 2, y0 - width // 2, max(x1, x0 + 1), max(y1, y0 + 1)), outline=one.colour, width=width
        )
    for one in boxes:
        if one.words:
            at = round(factor * one.box[0]), round(factor * one.box[1])
            _write(pen, Label(at, one.colour, one.words), image.size)
    return np.asarray(image)


def labelled(picture: Picture, labels: Sequence[Label]) -> Picture:
    """With words alone."""
    image = Image.fromarray(picture)
    pen = ImageDraw.Draw(image)
    for one in labels:
        _write(pen, one, image.size)
    return np.asarray(image)


def _write(pen: ImageDraw.ImageDraw, one: Label, size: tuple[int, int]) -> None:
    """Above the corner where there is room, and below it where there is none."""
    font = _font(max(11, round(min(size) / 30)))
    left, top, right, bottom = pen.textbbox((0, 0), one.words, font=font)
    wide, tall = round(right - left) + 6, round(bottom - top) + 6
    x = max(0, min(one.at[0], size[0] - wide))
    y = one.at[1] - tall if one.at[1] >= tall else one.at[1]
    pen.rectangle((x, y, x + wide, y + tall), fill=one.colour)
    pen.text((x + 3 - left, y + 3 - top), one.words, font=font, fill=_ink(one.colour))


def _ink(colour: Colour) -> Colour:
    """Black or white, whichever is better seen on it."""
    red, green, blue = colour
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else (255, 255, 255)


@cache
def _font(px: int) -> ImageFont.FreeTypeFont:
    """The one that matplotlib brings: it has the letters of most languages."""
    from matplotlib import font_manager

    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), px)
