"""The paper's Figures 6 and 7, and galleries of heads. Each function takes data and returns a figure."""

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
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from vitreous.display.figures import SERIES, drawing, figure
from vitreous.inspection.distance import AttentionDistances, patch_distances
from vitreous.inspection.filters import FilterComponents
from vitreous.inspection.findings import Findings
from vitreous.inspection.layout import Layout
from vitreous.inspection.pictures import Pixels, brightness, overlay

Tile = NDArray[np.floating[Any]]  # (h, w, 3 or 4) in 0..1
HEAT, SIMILARITY, SIGNED = "inferno", "viridis", "RdBu_r"
PICTURE_DPI = 200  # of pictures inside SVG files
NUM_IN_GALLERY = 6  # pictures in the gallery of heads
TILE_PX = 112  # of a picture in a gallery
MOSAIC_PX = 900  # the least width of a mosaic of small tiles


def figures(findings: Findings, pictures: Sequence[Pixels], captions: Sequence[str] | None = None) -> dict[str, Figure]:
    """All of them, by name; `pictures` and `captions` are those of the findings' maps, as the model sees them."""
    look, few = findings.look, slice(NUM_IN_GALLERY)
    depth = findings.heads.shape[1]
    layer = look.layer_of(depth)
    return {
        "figure6": attention_figure(pictures, findings.maps, captions, title=look.title(findings.layout, depth)),
        "figure7": figure7(findings),
        "layers": layers_figure(pictures[0], findings.heads[0]),
        "heads": heads_figure(
            pictures[few], findings.heads[few, layer - 1], captions and captions[few], title=f"layer {layer}"
        ),
    }


# ---- Figure 6


@drawing
def attention_figure(
    pictures: Sequence[Pixels],
    maps: Tensor,
    captions: Sequence[str] | None = None,
    *,
    title: str = "",
    columns: int = 3,
) -> Figure:
    """Pairs of a picture and what of it is looked at (paper, Figure 6). maps: (S, h, w)."""
    rows = -(-len(pictures) // columns)
    columns = -(-len(pictures) // rows)  # rows of like length: four pictures make a square
    height, width = pictures[0].shape[:2]
    tall = 1.05 * min(height / width, 2.0)
    legend = "brightness: least to most attention (numbers: multiples of the mean)"
    wide = 2.15 * columns + 0.1
    heading = [line for part in (title, legend) for line in textwrap.wrap(_sentence(part), int(12 * wide))]
    drawn = _picture_figure(wide, (tall + 0.2) * rows + 0.3 + 0.15 * len(heading))
    axes = drawn.subplots(rows, columns, squeeze=False)
    for number, ax in enumerate(axes.flat):
        ax.axis("off")
        if number >= len(pictures):
            continue
        picture = pictures[number]
        seen = overlay(picture, maps[number], stretch=True)
        _show(ax, _mosaic([[_rgba(picture / 255.0), _rgba(seen / 255.0)]], 0.04))
        low, high = (maps[number] / maps[number].mean().clamp_min(1e-30)).aminmax()
        words = [(0.0, "left", _short(captions[number], 26) if captions else "")]
        words += [(1.0, "right", f"{float(low):.2g}\N{EN DASH}{float(high):.2g}")]
        for place, side, word in words:
            ax.text(place, -0.03, word, transform=ax.transAxes, ha=side, va="top", fontsize="x-small", parse_math=False)
        if number < columns:
            for place, word in ((0.245, "input"), (0.755, "attention")):
                ax.text(place, 1.02, word, transform=ax.transAxes, ha="center", va="bottom", fontsize="small")
    drawn.suptitle("\n".join(heading), fontsize="medium")
    return drawn


# ---- Figure 7


@drawing
def figure7(findings: Findings) -> Figure:
    """Filters of the patch embedding, similarity of positions, attention distance by depth (paper, Figure 7)."""
    drawn = _picture_figure(10.4, 3.6)
    left, centre, right = drawn.subplots(1, 3, width_ratios=(1.25, 1.1, 1.0))
    drawn.get_layout_engine().set(wspace=0.07)  # type: ignore[union-attr, call-arg]
    _draw_filters(left, findings.filters)
    if findings.biases is None:
        _draw_positions(centre, findings.positions)
    else:
        _draw_biases(centre, findings.biases)
    _draw_distances(right, findings.distances, findings.layout)
    return drawn


@drawing
def filters_figure(filters: FilterComponents | str) -> Figure:
    """Figure 7 left."""
    drawn = _picture_figure(4.2, 2.9)
    _draw_filters(drawn.subplots(), filters)
    return drawn


@drawing
def positions_figure(similarity: Tensor | str) -> Figure:
    """Figure 7 centre. similarity: (h, w, h, w)."""
    drawn = _picture_figure(4.2, 3.6)
    _draw_positions(drawn.subplots(), similarity)
    return drawn


@drawing
def biases_figure(biases: Tensor) -> Figure:
    """Figure 7 centre for models with a bias an offset. biases: (heads, 2h - 1, 2w - 1)."""
    drawn = _picture_figure(4.2, 3.6)
    _draw_biases(drawn.subplots(), biases)
    return drawn


@drawing
def distances_figure(distances: AttentionDistances | str, place: Layout) -> Figure:
    """Figure 7 right."""
    drawn = figure(4.2, 3.4)
    _draw_distances(drawn.subplots(), distances, place)
    return drawn


def _draw_filters(ax: Axes, filters: FilterComponents | str) -> None:
    if isinstance(filters, str):
        _say(ax, "Patch embedding filters", filters)
        return
    pictures = filters.pictures.numpy()
    # As wide as the paper's: seven in a row.
    rows = [[_rgba(tile) for tile in pictures[start : start + 7]] for start in range(0, len(pictures), 7)]
    _show(ax, _mosaic(rows))
    ax.axis("off")
    share = float(filters.explained.sum())
    ax.set_title(f"Patch embedding filters\nfirst {len(pictures)} principal components, {share:.0%} of variance")


def _draw_positions(ax: Axes, similarity: Tensor | str) -> None:
    if isinstance(similarity, str):
        _say(ax, "Position embeddings", similarity)
        return
    h, w = similarity.shape[:2]
    scale = Normalize(min(-1.0, float(similarity.min())), 1.0)
    tiles = [[_heat(similarity[i, j], scale, SIMILARITY) for j in range(w)] for i in range(h)]
    _show(ax, _mosaic(tiles, 0.12))
    _number(ax, rows=h, columns=w)
    ax.set(
        xlabel="patch column", ylabel="patch row", title="Position embeddings\ncosine similarity of each patch to all"
    )
    _bar(ax, scale, SIMILARITY)


def _draw_biases(ax: Axes, biases: Tensor) -> None:
    largest = max(float(biases.abs().max()), 1e-6)
    scale = Normalize(-largest, largest)
    columns = int(np.ceil(np.sqrt(len(biases))))
    tiles = [_heat(head, scale, SIGNED) for head in biases]
    _show(ax, _mosaic([tiles[start : start + columns] for start in range(0, len(tiles), columns)]))
    ax.axis("off")
    h, w = biases.shape[1:]
    ax.set_title(f"Position biases on the logits of each head\noffsets up to {h // 2} rows, {w // 2} columns")
    _bar(ax, scale, SIGNED)


def _draw_distances(ax: Axes, distances: AttentionDistances | str, place: Layout) -> None:
    if isinstance(distances, str):
        _say(ax, "Mean attention distance", distances)
        return
    mean = distances.mean.numpy()
    layers = np.repeat(np.array(distances.layers)[:, None], mean.shape[1], axis=1)
    ax.plot(layers[:, 0], mean.mean(axis=1), color=SERIES[6], linewidth=1.2, label="mean of heads", zorder=1)
    ax.scatter(layers, mean, s=16, color=SERIES[0], alpha=0.75, linewidths=0, label="one head", zorder=2)
    even = float(patch_distances(place).mean())
    ax.axhline(even, color=SERIES[1], linewidth=1.0, linestyle="--", label="even attention")
    ax.set(xlabel="network depth (layer)", ylabel="mean attention distance (pixels)")
    ax.set_ylim(0, 1.08 * max(even, float(mean.max())))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.legend(fontsize="small", loc="lower right")
    num = distances.num_pictures
    ax.set_title(f"Mean attention distance\nover {num} picture{'s' if num > 1 else ''}")


# ---- Galleries


@drawing
def layers_figure(picture: Pixels, maps: Tensor) -> Figure:
    """Every head of every layer for one picture. maps: (layers, heads, h, w)."""
    first = _rgba(_smaller(picture) / 255.0)
    tiles = [
        [first if number == 0 else np.zeros_like(first), *(_attention_tile(head, first) for head in layer)]
        for number, layer in enumerate(maps)
    ]
    return _gallery(tiles, [f"layer {i + 1}" for i in range(len(maps))], _head_labels(maps.shape[1]))


@drawing
def heads_figure(
    pictures: Sequence[Pixels], maps: Tensor, captions: Sequence[str] | None = None, *, title: str = ""
) -> Figure:
    """Every head of one layer for some pictures, as DINO's authors show it. maps: (S, heads, h, w)."""
    tiles = []
    for picture, of_picture in zip(pictures, maps, strict=True):
        first = _rgba(_smaller(picture) / 255.0)
        tiles.append([first, *(_attention_tile(head, first) for head in of_picture)])
    labels = [textwrap.fill(caption, 16, max_lines=2) for caption in captions] if captions else [""] * len(tiles)
    drawn = _gallery(tiles, labels, _head_labels(maps.shape[1]))
    if title:
        drawn.suptitle(_sentence(title), fontsize="medium")
    return drawn


def _head_labels(num_heads: int) -> list[str]:
    return ["input", *(f"head {i + 1}" for i in range(num_heads))]


def _gallery(tiles: list[list[Tile]], row_labels: Sequence[str], column_labels: Sequence[str]) -> Figure:
    num_rows, num_columns = len(tiles), len(tiles[0])
    height, width = tiles[0][0].shape[:2]
    inch = min(0.95, 9.0 / num_columns)
    margin = 0.25 + 0.07 * max(len(line) for label in row_labels for line in [*label.splitlines(), ""])
    drawn = _picture_figure(inch * num_columns + margin, inch * height / width * num_rows + 0.4)
    ax = drawn.subplots()
    _show(ax, _mosaic(tiles))
    _number(ax, rows=num_rows, columns=num_columns)
    ax.set_yticklabels(row_labels, parse_math=False)
    ax.set_xticklabels(column_labels, rotation=0 if inch > 0.6 else 45, parse_math=False)
    ax.xaxis.tick_top()
    return drawn


# ---- Parts of figures


def _picture_figure(width: float, height: float) -> Figure:
    drawn = figure(width, height)
    drawn.set_dpi(PICTURE_DPI)
    return drawn


def _rgba(picture: Tile) -> Tile:
    return np.concatenate([picture, np.ones_like(picture[..., :1])], axis=-1)


def _heat(values: Tensor, scale: Normalize, colours: str) -> Tile:
    """(h, w) -> (h, w, 4)."""
    return np.asarray(matplotlib.colormaps[colours](scale(values.numpy())))


def _attention_tile(attention_map: Tensor, like: Tile) -> Tile:
    """Each patch in one colour, the brightest that of the most attention."""
    height, width = like.shape[:2]
    large = F.interpolate(brightness(attention_map)[None, None], size=(height, width), mode="nearest")[0, 0]
    return _heat(large, Normalize(0.0, 1.0), HEAT)


def _smaller(picture: Pixels) -> Pixels:
    """For a gallery: no more pixels than one can see there."""
    height, width = picture.shape[:2]
    share = min(1.0, TILE_PX / max(height, width))
    size = (max(1, round(height * share)), max(1, round(width * share)))
    pixels = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None].float()
    resized = F.interpolate(pixels, size=size, mode="bilinear", antialias=True)[0]
    return resized.permute(1, 2, 0).round().clamp(0, 255).byte().numpy()


def _mosaic(rows: Sequence[Sequence[Tile]], gap: float = 0.06) -> Tile:
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


def _show(ax: Axes, mosaic: Tile) -> None:
    # In units of tiles' pixels; the labels are set by `_number`.
    ax.imshow(mosaic)
    ax.grid(visible=False)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    ax.set_anchor("N")


def _number(ax: Axes, rows: int, columns: int) -> None:
    """A tick in the middle of every tile, counted from 1."""
    height, width = ax.get_images()[0].get_size()
    ax.set_xticks([(i + 0.5) * width / columns for i in range(columns)], [str(i + 1) for i in range(columns)])
    ax.set_yticks([(i + 0.5) * height / rows for i in range(rows)], [str(i + 1) for i in range(rows)])
    ax.tick_params(length=0, labelsize="x-small" if max(rows, columns) > 10 else "small")


def _bar(ax: Axes, scale: Normalize, colours: str) -> None:
    drawn = ax.get_figure()
    assert drawn is not None
    beside = ax.inset_axes((1.03, 0.0, 0.045, 1.0))  # as high as the picture, whatever its shape
    bar = drawn.colorbar(ScalarMappable(scale, colours), cax=beside, ticks=MaxNLocator(4, steps=[1, 2, 5, 10]))
    bar.outline.set_visible(False)


def _say(ax: Axes, title: str, why: str) -> None:
    """A panel that has nothing to show says so."""
    ax.axis("off")
    ax.set_title(title)
    ax.text(0.5, 0.6, textwrap.fill(_sentence(why), 34), ha="center", va="center", transform=ax.transAxes)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _short(text: str, length: int) -> str:
    """Cut in the middle: a name begins it, and an answer may end it."""
    if len(text) <= length:
        return text
    return text[: length - length // 2 - 1] + "\N{HORIZONTAL ELLIPSIS}" + text[-(length // 2) :]
