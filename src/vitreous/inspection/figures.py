"""The paper's Figures 6 and 7, and galleries of heads. Each function takes data and returns a figure."""

import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from vitreous.display.figures import SERIES, drawing, figure
from vitreous.inspection.distance import AttentionDistances
from vitreous.inspection.filters import FilterComponents
from vitreous.inspection.findings import Attention, Findings
from vitreous.inspection.mosaics import (
    HEAT,
    SIGNED,
    SIMILARITY,
    Tile,
    bar,
    centred,
    frame,
    heat,
    mosaic,
    number_tiles,
    picture_figure,
    rgba,
    say,
    sentence,
    short,
    show,
    smaller,
)
from vitreous.inspection.pictures import WHOLE, Covered, Pixels, brightness, enlarged, in_squares, overlay
from vitreous.inspection.receptive_figures import receptive_figure
from vitreous.models.layout import AttentionLayer, Box

NUM_IN_GALLERY = 6  # pictures in the gallery of heads
MOST_PLACES = 16  # along a side of the figure of positions


def figures(findings: Findings, pictures: Sequence[Pixels], captions: Sequence[str] | None = None) -> dict[str, Figure]:
    """All that there are, by name; `pictures` and `captions` are those of the maps, as the model sees them."""
    found = {"figure7": figure7(findings)}
    if not isinstance(findings.attention, str):
        found |= _of_attention(findings.attention, pictures, captions)
    if not isinstance(findings.receptive, str):
        found["receptive"] = receptive_figure({"": findings.receptive})
    return found


def _of_attention(found: Attention, pictures: Sequence[Pixels], captions: Sequence[str] | None) -> dict[str, Figure]:
    few, layer = slice(NUM_IN_GALLERY), found.layers[found.layer - 1]
    return {
        "figure6": attention_figure(
            pictures,
            found.maps,
            captions,
            title=found.title,
            covered=found.seen.covered,
            patch_px=found.patch_px,
            window_px=found.window_px,
        ),
        "layers": layers_figure(pictures[0], [heads[0] for heads in found.heads], found.layers),
        "heads": heads_figure(
            pictures[few],
            found.heads[found.layer - 1][few],
            captions and captions[few],
            title=", ".join(filter(None, [layer.name, layer.grouped])),
            covered=layer.seen.covered,
            window_px=found.window_px,
        ),
    }


# ---- Figure 6


MOST_COLUMNS = 3  # of pairs side by side


@drawing
def attention_figure(
    pictures: Sequence[Pixels],
    maps: Tensor,
    captions: Sequence[str] | None = None,
    *,
    title: str = "",
    covered: Covered = WHOLE,
    patch_px: Box | None = None,
    window_px: Box | None = None,
) -> Figure:
    """Pairs of a picture and what of it is looked at (paper, Figure 6). maps: (S, h, w).

    The patch that looks is framed, and so is its window, of which the second picture is then an enlarged part.
    """
    rows = -(-len(pictures) // MOST_COLUMNS)
    columns = -(-len(pictures) // rows)  # rows of like length: four pictures make a square
    height, width = pictures[0].shape[:2]
    size = 1.0 if columns > 1 else 2.0  # one column alone is drawn larger
    tall = 1.05 * size * min(height / width, 2.0)
    unbroken = "(numbers: multiples of the mean)".replace(" ", "\N{NO-BREAK SPACE}")  # never broken into two lines
    legend = f"brightness: least to most attention {unbroken}"
    wide = 2.15 * size * columns + 0.1
    heading = [line for part in (title, legend) for line in textwrap.wrap(sentence(part), int(12 * wide))]
    drawn = picture_figure(wide, (tall + 0.2) * rows + 0.3 + 0.15 * len(heading))
    axes = drawn.subplots(rows, columns, squeeze=False)
    for number, ax in enumerate(axes.flat):
        ax.axis("off")
        if number >= len(pictures):
            continue
        picture = pictures[number]
        seen = overlay(picture, maps[number], covered=covered, stretch=True)
        seen = seen if window_px is None else enlarged(seen, window_px)
        whole = rgba(picture / 255.0)
        pair = mosaic([[whole, centred(rgba(seen / 255.0), whole)]], 0.04)
        show(ax, pair)
        for box in (patch_px, window_px):
            frame(ax, box, pair.shape[0] / height)
        values = maps[number] if window_px is None else maps[number][maps[number] > 0]
        low, high = (values / values.mean().clamp_min(1e-30)).aminmax()
        words = [(0.0, "left", short(captions[number], round(26 * size)) if captions else "")]
        words += [(1.0, "right", f"{_times(float(low))}\N{EN DASH}{_times(float(high))}")]
        for place, side, word in words:
            ax.text(place, -0.03, word, transform=ax.transAxes, ha=side, va="top", fontsize="x-small", parse_math=False)
        if number < columns:
            for place, word in ((0.245, "input"), (0.755, "attention" if window_px is None else "in its window")):
                ax.text(place, 1.02, word, transform=ax.transAxes, ha="center", va="bottom", fontsize="small")
    drawn.suptitle("\n".join(heading), fontsize="medium")
    return drawn


# ---- Figure 7


@drawing
def figure7(findings: Findings) -> Figure:
    """Filters of the patch embedding, similarity of positions, attention distance by depth (paper, Figure 7)."""
    drawn = picture_figure(10.4, 3.6)
    left, centre, right = drawn.subplots(1, 3, width_ratios=(1.25, 1.1, 1.0))
    drawn.get_layout_engine().set(wspace=0.07)  # type: ignore[union-attr, call-arg]
    _draw_filters(left, findings.filters)
    if findings.biases is None:
        _draw_positions(centre, findings.positions)
    else:
        _draw_biases(centre, findings.biases)
    _draw_distances(right, findings.distances)
    return drawn


@drawing
def filters_figure(filters: FilterComponents | str) -> Figure:
    """Figure 7 left."""
    drawn = picture_figure(4.2, 2.9)
    _draw_filters(drawn.subplots(), filters)
    return drawn


@drawing
def positions_figure(similarity: Tensor | str) -> Figure:
    """Figure 7 centre. similarity: (h, w, h, w)."""
    drawn = picture_figure(4.2, 3.6)
    _draw_positions(drawn.subplots(), similarity)
    return drawn


@drawing
def biases_figure(biases: Tensor) -> Figure:
    """Figure 7 centre for models with a bias an offset. biases: (heads, 2h - 1, 2w - 1)."""
    drawn = picture_figure(4.2, 3.6)
    _draw_biases(drawn.subplots(), biases)
    return drawn


@drawing
def distances_figure(distances: AttentionDistances | str) -> Figure:
    """Figure 7 right."""
    drawn = figure(4.2, 3.4)
    _draw_distances(drawn.subplots(), distances)
    return drawn


def _draw_filters(ax: Axes, filters: FilterComponents | str) -> None:
    if isinstance(filters, str):
        say(ax, "Filters of the first layer", filters)
        return
    pictures = filters.pictures.numpy()
    # As wide as the paper's: seven in a row.
    rows = [[rgba(tile) for tile in pictures[start : start + 7]] for start in range(0, len(pictures), 7)]
    show(ax, mosaic(rows))
    ax.axis("off")
    percent = 100 * float(filters.explained.sum())
    ax.set_title(f"Filters of the first layer\nfirst {len(pictures)} principal components, {percent:.0f} % of variance")


def _draw_positions(ax: Axes, similarity: Tensor | str) -> None:
    if isinstance(similarity, str):
        say(ax, "Position embeddings", similarity)
        return
    h, w = similarity.shape[:2]
    # From the least that occurs: on the paper's scale, from -1, places that are all somewhat alike look the same.
    scale = Normalize(math.floor(10 * min(0.9, float(similarity.min()))) / 10, 1.0)
    every = -(-max(h, w) // MOST_PLACES)  # of more tiles none can be read
    rows, columns = range(0, h, every), range(0, w, every)
    show(ax, mosaic([[heat(similarity[i, j], scale, SIMILARITY) for j in columns] for i in rows], 0.12))
    number_tiles(ax, rows, columns)
    of = "each patch to all" if every == 1 else f"patches to all, one in {every} along each side"
    ax.set(xlabel="patch column", ylabel="patch row", title=f"Position embeddings\ncosine similarity of {of}")
    bar(ax, scale, SIMILARITY)


def _draw_biases(ax: Axes, biases: Tensor) -> None:
    largest = max(float(biases.abs().max()), 1e-6)
    scale = Normalize(-largest, largest)
    columns = int(np.ceil(np.sqrt(len(biases))))
    tiles = [heat(head, scale, SIGNED) for head in biases]
    show(ax, mosaic([tiles[start : start + columns] for start in range(0, len(tiles), columns)]))
    ax.axis("off")
    h, w = biases.shape[1:]
    ax.set_title(
        f"Position biases on the logits of the first layer's heads\noffsets up to {h // 2} rows, {w // 2} columns"
    )
    bar(ax, scale, SIGNED)


def _draw_distances(ax: Axes, distances: AttentionDistances | str) -> None:
    if isinstance(distances, str):
        say(ax, "Mean attention distance", distances)
        return
    mean = distances.mean.numpy()
    layers = np.repeat(np.array(distances.layers)[:, None], mean.shape[1], axis=1)
    ax.plot(layers[:, 0], np.nanmean(mean, axis=1), color=SERIES[6], linewidth=1.2, label="mean of heads", zorder=1)
    ax.scatter(layers, mean, s=16, color=SERIES[0], alpha=0.75, linewidths=0, label="one head", zorder=2)
    even = distances.even.numpy()
    ends = np.concatenate([[0.5], np.repeat(np.arange(1, len(even)) + 0.5, 2), [len(even) + 0.5]])  # of each layer
    ax.plot(ends, np.repeat(even, 2), color=SERIES[1], linewidth=1.0, linestyle="--", label="even attention")
    _mark_stages(ax, distances.names)
    ax.set(xlabel="network depth (layer)", ylabel="mean attention distance (pixels)")
    ax.set_ylim(0, 1.08 * max(float(np.nanmax(even)), float(np.nanmax(mean))))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.legend(fontsize="small", loc="lower right")
    num = distances.num_pictures
    ax.set_title(f"Mean attention distance\nover {num} picture{'s' if num > 1 else ''}")


def _mark_stages(ax: Axes, names: Sequence[str]) -> None:
    """A thin line wherever another stage begins."""
    stages = [name.split(", ")[0] for name in names]
    for number, (before, after) in enumerate(pairwise(stages), start=1):
        if len(set(stages)) < len(stages) and before != after:
            ax.axvline(number + 0.5, color=SERIES[6], linewidth=0.8, alpha=0.6)


# ---- Galleries


@drawing
def layers_figure(picture: Pixels, maps: Sequence[Tensor], layers: Sequence[AttentionLayer]) -> Figure:
    """Every head of every layer for one picture. maps: (heads, h, w) of each layer."""
    first = rgba(smaller(picture) / 255.0)
    tiles = [
        [
            first if number == 0 else np.zeros_like(first),
            *(_attention_tile(head, first, layer.seen.covered) for head in heads),
        ]
        for number, (heads, layer) in enumerate(zip(maps, layers, strict=True))
    ]
    names = [
        layer.name if layer.name == f"layer {number}" else f"{number}: {layer.name}"
        for number, layer in enumerate(layers, start=1)
    ]
    return _gallery(tiles, names, _head_labels(max(len(heads) for heads in maps)))


@drawing
def heads_figure(
    pictures: Sequence[Pixels],
    maps: Tensor,
    captions: Sequence[str] | None = None,
    *,
    title: str = "",
    covered: Covered = WHOLE,
    window_px: Box | None = None,
) -> Figure:
    """Every head of one layer for some pictures, as DINO's authors show it; or for a window of them, enlarged. maps:
    (S, heads, h, w)."""
    tiles = []
    for picture, of_picture in zip(pictures, maps, strict=True):
        box = window_px or Box(0, 0, *picture.shape[:2])
        first = rgba(smaller(enlarged(picture, box)) / 255.0)
        large = (_attention_tile(head, picture, covered) for head in of_picture)
        tiles.append([first, *(enlarged(one, box, first.shape[:2]) for one in large)])
    labels = [textwrap.fill(caption, 16, max_lines=2) for caption in captions] if captions else [""] * len(tiles)
    drawn = _gallery(tiles, labels, _head_labels(maps.shape[1]))
    if title:
        drawn.suptitle(sentence(title), fontsize="medium")
    return drawn


def _head_labels(num_heads: int) -> list[str]:
    return ["input", *(f"head {i + 1}" for i in range(num_heads))]


def _gallery(tiles: list[list[Tile]], row_labels: Sequence[str], column_labels: Sequence[str]) -> Figure:
    num_rows, num_columns = len(tiles), len(column_labels)
    height, width = tiles[0][0].shape[:2]
    inch = min(0.95, 9.0 / num_columns)
    margin = 0.25 + 0.07 * max(len(line) for label in row_labels for line in [*label.splitlines(), ""])
    drawn = picture_figure(inch * num_columns + margin, inch * height / width * num_rows + 0.4)
    ax = drawn.subplots()
    show(ax, mosaic(tiles))
    number_tiles(ax, range(num_rows), range(num_columns))
    ax.set_yticklabels(row_labels, parse_math=False)
    ax.set_xticklabels(column_labels, rotation=0 if inch > 0.6 else 45, parse_math=False)
    ax.xaxis.tick_top()
    return drawn


def _attention_tile(attention_map: Tensor, like: Tile | Pixels, covered: Covered) -> Tile:
    """Each patch in one colour, the brightest that of the most attention."""
    height, width = like.shape[:2]
    return heat(in_squares(brightness(attention_map), (height, width), covered), Normalize(0.0, 1.0), HEAT)


def _times(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"
