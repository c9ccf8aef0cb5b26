"""The data of a model that finds objects: how many of every class, how large, where, and pictures with them."""

from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from vitreous.data.base import Source
from vitreous.data.check import DataReport
from vitreous.data.images import Picture
from vitreous.data.objects import Objects
from vitreous.data.targets import Boxes
from vitreous.display.figures import SERIES, drawing, figure
from vitreous.display.palette import palette
from vitreous.display.thumbnails import picture
from vitreous.display.words import counted
from vitreous.prediction.drawn_boxes import LINE, THUMBNAIL_LINE, Drawn, drawn
from vitreous.prediction.drawn_shapes import DrawnShape, drawn_shapes
from vitreous.prediction.scored import known_objects
from vitreous.report.figures import inline
from vitreous.report.html import Html, folded, name, paragraph, path, table, tag, together
from vitreous.report.masked_data import legend
from vitreous.report.pictures import readable
from vitreous.report.words import percent

SHOWN, SHOWN_PX = 12, 320  # pictures
MOST_TICKS = 8  # on an axis of ratios, about
CELLS = 32  # on a side of the map of places
LISTED = 20  # pictures of a kind that are named
SMALL_PX, LARGE_PX = 32, 96  # COCO's sizes: a small object has an area below 32 squared, a large one above 96 squared


def balance(data: DataReport, train: Source) -> Html:
    """A bar for every class, in the colour it has on the pictures; then how large boxes are, and where."""
    boxes = data.parts[0].boxes
    assert boxes is not None and isinstance(train.targets, Boxes)
    colours, most = palette(len(data.classes)), max(*boxes.counts, 1)
    order = sorted(range(len(data.classes)), key=lambda place: -boxes.counts[place])
    bars = [
        tag.div(
            tag.span(name(data.classes[place]), class_="label"),
            tag.span(
                tag.span(style=f"width: {100 * boxes.counts[place] / most:.2f}%; background: rgb{colours[place]}"),
                class_="track",
            ),
            tag.span(f"{boxes.counts[place]:,} in {counted(data.train_counts[place], 'picture')}", class_="number"),
        )
        for place in order
    ]
    note = f"Boxes of train, {boxes.total / max(1, boxes.pictures):.1f} per picture, at most {boxes.most:,}."
    if boxes.crowd:
        note += f" {counted(boxes.crowd, 'crowd or difficult object')} of these neither learned nor counted."
    return together(tag.div(bars, class_="bars"), paragraph(note, class_="note"), _shapes(train.targets))


def _shapes(targets: Boxes) -> Html | None:
    found = targets.objects.chosen(targets.objects.are_used)
    if not len(found):
        return None
    sides = found.boxes[:, 2:] - found.boxes[:, :2]
    side = np.sqrt(sides.prod(axis=1))
    small, large = float(np.mean(side < SMALL_PX)), float(np.mean(side >= LARGE_PX))
    sizes = (
        f"{percent(small, 0)} are small by COCO's measure (below {SMALL_PX} px), {percent(large, 0)} large "
        f"(from {LARGE_PX} px)."
    )
    counts = np.bincount(found.owner, minlength=len(targets))
    held = places(found, targets.sizes)
    charts = [
        inline(partial(size_chart, side), "Sizes of boxes", caption=f"The square root of each box's area. {sizes}"),
        inline(partial(aspect_chart, sides), "Aspect ratios of boxes", caption="Width to height of each box."),
        inline(partial(count_chart, counts), "Boxes per picture", caption="Objects in one picture."),
        inline(
            partial(place_chart, held),
            "Places of boxes",
            caption="How often each place in a picture lies in a box; all pictures are stretched to one square.",
        ),
    ]
    return tag.div(charts, class_="figures")


# ---- Figures


@drawing
def size_chart(side_px: NDArray[np.float32]) -> Figure:
    return _histogram(np.log2(np.maximum(side_px, 1)), 24, "side of a square of the same area (px)", 2)


@drawing
def aspect_chart(sides: NDArray[np.float32]) -> Figure:
    return _histogram(np.log2(sides[:, 0] / sides[:, 1]), 24, "width to height", 2)


@drawing
def count_chart(counts: NDArray[np.int64]) -> Figure:
    drawn = figure(4.6, 2.6)
    axes = drawn.subplots()
    bins = np.arange(counts.max() + 2) if counts.max() < 40 else np.linspace(0, counts.max() + 1, 40)
    axes.hist(counts, bins=(bins - 0.5).tolist(), color=SERIES[0])
    axes.set(xlabel="objects", ylabel="pictures")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return drawn


def _histogram(logarithms: NDArray[np.floating], num: int, label: str, base: int) -> Figure:
    """Of numbers whose ratios matter, by their logarithms."""
    drawn = figure(4.6, 2.6)
    axes = drawn.subplots()
    low, high = np.floor(logarithms.min()), max(np.ceil(logarithms.max()), np.floor(logarithms.min()) + 1)
    axes.hist(logarithms, bins=np.linspace(low, high, num + 1).tolist(), color=SERIES[0])
    step = -(-(high - low) // MOST_TICKS)
    ticks = step * np.arange(np.ceil(low / step), high // step + 1)
    axes.set_xticks(ticks, [f"{base**tick:g}" for tick in ticks])
    axes.set(xlabel=label, ylabel="boxes")
    return drawn


def places(objects: Objects, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """(CELLS, CELLS) the share of all boxes that hold the middle of each cell, pictures stretched to a square."""
    sides = np.tile(sizes[objects.owner][:, ::-1], 2)
    edges = (
        np.ceil(CELLS * objects.boxes / sides - 0.5).clip(0, CELLS).astype(np.int64)
    )  # first cell inside, and beyond
    turns = np.zeros((CELLS + 1, CELLS + 1))
    x0, y0, x1, y1 = edges.T
    for rows, columns, sign in ((y0, x0, 1), (y0, x1, -1), (y1, x0, -1), (y1, x1, 1)):
        np.add.at(turns, (rows, columns), sign)
    held: NDArray[np.float64] = turns.cumsum(axis=0).cumsum(axis=1)[:CELLS, :CELLS] / max(1, len(objects))
    return held


@drawing
def place_chart(held: NDArray[np.float64]) -> Figure:
    drawn = figure(4.2, 3.2)
    axes = drawn.subplots()
    image = axes.imshow(100 * held, cmap="viridis", vmin=0, extent=(0, 1, 1, 0), interpolation="nearest")
    axes.set(xlabel="across the picture", ylabel="down the picture", xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    axes.grid(visible=False)
    drawn.colorbar(image, ax=axes, label="boxes that hold this place (%)")
    return drawn


# ---- Problems


def problems(data: DataReport) -> Html | None:
    """Classes that a part does not have, pictures without objects, and boxes that are wrong."""
    found: list[Html] = []
    for part in data.parts:
        if part.boxes is None:
            continue
        missing = [data.classes[place] for place, count in enumerate(part.boxes.counts) if not count]
        if missing:
            found.append(
                folded(f"Classes without boxes in {part.name}: {len(missing):,}", paragraph(name(", ".join(missing))))
            )
        for one in (part.boxes.negatives, *part.boxes.problems):
            if one.num:
                rows = [(path(where),) for where in one.pictures[:LISTED]]
                found.append(folded(f"{part.name}: {one.what}: {one.num:,}", table(("picture",), rows)))
    return together(*found) if found else None


# ---- Contact sheet


def sheet(train: Source) -> Html:
    """Some pictures with their objects."""
    chosen = np.unique(np.linspace(0, len(train) - 1, min(SHOWN, len(train))).astype(int))
    shown = [
        tag.figure(picture(labelled_objects(train, index, pixels), train.where(index), most_px=SHOWN_PX))
        for index, pixels in readable(train, chosen.tolist())
    ]
    note = "Training pictures, spread evenly over the set, with their objects."
    return together(legend(train.classes), tag.div(shown, class_="cards sets"), paragraph(note, class_="note"))


def labelled_objects(source: Source, index: int, pixels: Picture, *, named: bool = False) -> Picture:
    """A picture with the objects that its data set knows, as boxes or as shapes; `named`: with their classes."""
    assert isinstance(source.targets, Boxes)
    known, colours = known_objects(source.targets, index), palette(len(source.classes))
    names = source.classes if named else [""] * len(source.classes)
    rows = zip(known.objects.classes.tolist(), known.objects.crowd.tolist(), strict=True)
    looks = [(colours[number], "crowd" if is_crowd else names[number]) for number, is_crowd in rows]
    if known.shapes is not None:
        return drawn_shapes(pixels, [DrawnShape(shape, *look) for shape, look in zip(known.shapes, looks, strict=True)])
    boxes = known.objects.boxes.tolist()
    marked = [Drawn(tuple(box), *look) for box, look in zip(boxes, looks, strict=True)]
    return drawn(pixels, marked, line=LINE if named else THUMBNAIL_LINE)
