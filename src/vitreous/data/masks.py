"""Reading one mask: a picture whose pixels are classes, by number or by colour.

Numbers are grey levels of 1 to 16 bits, or places in a palette. Whatever they stand for, what comes out has the numbers
of classes, from 0, and IGNORED where a pixel does not count.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.batch import IGNORED
from vitreous.data.images import MAX_PIXELS, BadPicture, Values, read_exactly
from vitreous.data.targets.pixels import Mask

MOST = 65_535  # the greatest number in a mask
_UNKNOWN = -2
_SCALED = {"L;2": 85, "L;4": 17}  # grey of few bits: what Pillow multiplies its levels with


class ColouredMask(BadPicture):
    """A mask of colours, where numbers were expected."""


def read_values(source: bytes | Path, coloured: bool, max_pixels: int = MAX_PIXELS) -> Values:
    """(H, W) what the pixels of a mask hold: numbers, or colours as 0xRRGGBB. Raises BadPicture."""
    return read_exactly(source, _colours if coloured else _numbers, max_pixels)


def _numbers(image: Image.Image) -> Values:
    scale = _SCALED.get(_raw_mode(image), 1)
    image.load()
    values = np.asarray(image)
    if image.mode in ("1", "L", "P"):
        return values.astype(np.uint8) // scale
    if image.mode.startswith("I"):
        if values.min() < 0 or values.max() > MOST:
            raise BadPicture(f"values from {values.min()} to {values.max()}, but classes go from 0 to {MOST}")
        return values.astype(np.int32)
    if image.mode in ("LA", "PA"):
        return values[..., 0]
    if image.mode not in ("RGB", "RGBA"):
        raise BadPicture(f"in the colour mode {image.mode}: use PNG with 8 bits per pixel")
    red, green, blue = (values[..., channel] for channel in range(3))
    differs = (red != green) | (green != blue)
    if differs.any():
        example = colour_name(int(_packed(values[differs][:1])[0]))
        raise ColouredMask(f"in colours such as {example}, but classes are given by number")
    return red


def _raw_mode(image: Image.Image) -> str:
    """How Pillow unpacks the file, as far as it says so."""
    tiles: list[Any] = getattr(image, "tile", [])
    arguments = tiles[0][3] if tiles else ""
    return arguments if isinstance(arguments, str) else ""


def _colours(image: Image.Image) -> Values:
    image.load()
    if image.mode not in ("1", "L", "P", "LA", "PA", "RGB", "RGBA"):
        raise BadPicture(f"in the colour mode {image.mode}, but classes are given by colour")
    return _packed(np.asarray(image.convert("RGB")))


def _packed(pixels: Values) -> NDArray[np.int32]:
    red, green, blue = (pixels[..., channel].astype(np.int32) for channel in range(3))
    return red << 16 | green << 8 | blue


def colour_name(colour: int) -> str:
    return f"#{colour:06x}"


def parsed_colour(text: str) -> int | None:
    """'#804080', '128,64,128', '(128, 64, 128)', '[128 64 128]' -> 0x804080; None for anything else."""
    if text.startswith("#"):
        digits = text[1:]
        return int(digits, 16) if len(digits) == 6 and set(digits.lower()) <= set("0123456789abcdef") else None
    words = text.strip("()[] ").replace(",", " ").split()
    if len(words) != 3 or not all(word.isdecimal() and int(word) < 256 for word in words):
        return None
    red, green, blue = map(int, words)
    return red << 16 | green << 8 | blue


@dataclass(frozen=True)
class Legend:
    """What the values in masks stand for: classes by name, each with the values it goes by, and what is ignored."""

    classes: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]  # of each class
    ignored: tuple[int, ...] = ()
    coloured: bool = False  # values are colours, not numbers

    def read(self, source: bytes | Path, max_pixels: int = MAX_PIXELS) -> Mask:
        """(H, W) classes by number. Raises BadPicture."""
        return self.decoded(read_values(source, self.coloured, max_pixels))

    def decoded(self, values: Values) -> Mask:
        """Classes by number, of what a mask holds."""
        table = self._table
        # The last entry stands for all values beyond the table.
        places = values if values.dtype == np.uint8 else np.minimum(values, len(table) - 1)
        mask: Mask = table[places]
        unknown = mask == _UNKNOWN
        if unknown.any():
            found = np.unique(values[unknown])
            more = f" (and {len(found) - 1:,} more)" if len(found) > 1 else ""
            raise BadPicture(f"{self.spelled(int(found[0]))}{more}, which is neither a class nor ignored")
        return mask

    def spelled(self, value: int) -> str:
        return f"the colour {colour_name(value)}" if self.coloured else f"the value {value}"

    @cached_property
    def _table(self) -> NDArray[np.int16]:
        """By value. Looking up is many times as fast as searching, for colours too."""
        every = [value for own in self.values for value in own] + list(self.ignored)
        table = np.full(max(256, max(every) + 1) + 1, _UNKNOWN, dtype=np.int16)
        table[list(self.ignored)] = IGNORED
        for number, own in enumerate(self.values):
            table[list(own)] = number
        return table

    def __getstate__(self) -> dict[str, Any]:  # processes make the table anew: it has up to 16 million entries
        return {name: value for name, value in self.__dict__.items() if name != "_table"}
