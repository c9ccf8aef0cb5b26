"""Parts that figures of pictures are made of: tiles, mosaics of them, and what stands around."""

import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from vitreous.display.figures import figure
from vitreous.inspection.pictures import Pixels
from vitreous.models.layout import Box

Tile = NDArray[np.floating[Any]]  # (h, w, 3 or 4) in 0..1
HEAT, SIMILARITY, SIGNED = "inferno", "viridis", "RdBu_r"
PICTURE_DPI = 200  # of pictures inside SVG files
TILE_PX = 112  # of a picture in a gallery
MOSAIC_PX = 900  # the least width of a mosaic of small tiles


def picture_figure(width: float, height: float) -> Figure:
    drawn = figure(width, height)
    drawn.set_dpi(PICTURE_DPI)
    return drawn


def rgba(picture: Tile) -> Tile:
    return np.concatenate([picture, np.ones_like(picture[..., :1])], axis=-1)


def centred(tile: Tile, like: Tile) -> Tile:
    """(h, w, 4) in the middle of a tile as large as another; nothing is around it."""
    placed = np.zeros_like(like)
    top, left = ((whole - part) // 2 for whole, part in zip(like.shape[:2], tile.shape[:2], strict=True))
    placed[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    return placed


def heat(values: Tensor, scale: Normalize, colours: str) -> Tile:
    """(h, w) -> (h, w, 4)."""
    return np.asarray(matplotlib.colormaps[colours](scale(values.numpy())))


def smaller(picture: Pixels) -> Pixels:
    """For a gallery: no more pixels than one can see there."""
    height, width = picture.shape[:2]
    share = min(1.0, TILE_PX / max(height, width))
    size = (max(1, round(height * share)), max(1, round(width * share)))
    pixels = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None].float()
    resized = F.interpolate(pixels, size=size, mode="bilinear", antialias=True)[0]
    return resized.permute(1, 2, 0).round().clamp(0, 255).byte().numpy()


def mosaic(rows: Sequence[Sequence[Tile]], gap: float = 0.06) -> Tile:
    """Tiles of one size as one picture; between them, `gap` of a tile's width is transparent."""
    num_columns = max(len(row) for row in rows)
    height, width = rows[0][0].shape[:2]
    times = max(1, MOSAIC_PX // (num_columns * width))  # so that nothing blurs small tiles
    height, width, space = height * times, width * times, max(1, round(gap * width * times))
    mosaic = np.zeros((len(rows) * (height + space) - space, num_columns * (width + space) - space, 4), np.float32)
    for i, row in enumerate(rows):
        for j, tile in enumerate(row):
            top, left = i * (height + space), j * (width + space)
            mosaic[top : top + height, left : left + width] = tile.repeat(times, axis=0).repeat(times, axis=1)
    return mosaic


def show(ax: Axes, mosaic: Tile) -> None:
    # In units of tiles' pixels; the labels are set by `number_tiles`.
    ax.imshow(mosaic)
    ax.grid(visible=False)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    ax.set_anchor("N")


def frame(ax: Axes, box: Box | None, times: float) -> None:
    """Around a part of the first tile, which is shown `times` as large: dark with a light core, seen on any picture."""
    if box is None:
        return
    top, left, bottom, right = (times * each - 0.5 for each in box)
    for colour, thick in (("black", 2.0), ("white", 0.8)):
        part = Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=colour, linewidth=thick)
        ax.add_patch(part)


def number_tiles(ax: Axes, rows: range, columns: range) -> None:
    """A tick in the middle of every tile, whose numbers these are; shown counted from 1."""
    height, width = ax.get_images()[0].get_size()
    ax.set_xticks([(i + 0.5) * width / len(columns) for i in range(len(columns))], [str(i + 1) for i in columns])
    ax.set_yticks([(i + 0.5) * height / len(rows) for i in range(len(rows))], [str(i + 1) for i in rows])
    ax.tick_params(length=0, labelsize="x-small" if max(len(rows), len(columns)) > 10 else "small")


def bar(ax: Axes, scale: Normalize, colours: str) -> None:
    drawn = ax.get_figure()
    assert drawn is not None
    beside = ax.inset_axes((1.03, 0.0, 0.045, 1.0))  # as high as the picture, whatever its shape
    bar = drawn.colorbar(ScalarMappable(scale, colours), cax=beside, ticks=MaxNLocator(4, steps=[1, 2, 5, 10]))
    bar.outline.set_visible(False)


def say(ax: Axes, title: str, why: str) -> None:
    """A panel that has nothing to show says so."""
    ax.axis("off")
    ax.set_title(title)
    ax.text(0.5, 0.6, textwrap.fill(sentence(why), 34), ha="center", va="center", transform=ax.transAxes)


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def short(text: str, length: int) -> str:
    """Cut in the middle: a name begins it, and a class may end it."""
    if len(text) <= length:
        return text
    return text[: length - length // 2 - 1] + "\N{HORIZONTAL ELLIPSIS}" + text[-(length // 2) :]
