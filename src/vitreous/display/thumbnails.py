"""Small pictures embedded in a page or a notebook."""

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.display.html import Html, tag

LOSSLESS_PX = 48  # pictures up to this size are kept as they are, larger ones as JPEG
QUALITY = 80
MOST_ENLARGED_PX = 2048  # of the longer side: a strip 2 px wide and 3,000 long would take 460 MB


def picture(pixels: NDArray[np.uint8], alt: str, *, most_px: int, square: bool = False) -> Html:
    """The picture with sides of at most this many pixels; `square`: cropped to its centre."""
    image = Image.fromarray(pixels)
    if square:
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    image.thumbnail((most_px, most_px), Image.Resampling.LANCZOS)
    return tag.img(
        src=_uri(image),
        alt=alt,
        title=alt,
        width=image.width,
        height=image.height,
        class_="pixels" if max(image.size) <= LOSSLESS_PX else None,
    )


def _uri(image: Image.Image) -> str:
    file, lossless = io.BytesIO(), max(image.size) <= LOSSLESS_PX
    image.save(file, *("PNG",) if lossless else ("JPEG",), quality=QUALITY, optimize=True)
    return f"data:image/{'png' if lossless else 'jpeg'};base64,{base64.b64encode(file.getvalue()).decode()}"


def enlarged(pixels: NDArray[np.uint8], least_px: int) -> NDArray[np.uint8]:
    """Every pixel as a block, so that what is drawn over a tiny picture is finer than its pixels. `least_px`: of the
    shorter side, unless the other becomes too long."""
    shorter, longer = sorted(pixels.shape[:2])
    times = min(-(-least_px // shorter), MOST_ENLARGED_PX // longer)
    return pixels if times <= 1 else np.repeat(np.repeat(pixels, times, axis=0), times, axis=1)
