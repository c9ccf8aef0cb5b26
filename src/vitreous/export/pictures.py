"""Preprocessing as nodes of a graph: uint8 pictures (B, H, W, 3) of any size -> what the model sees.

The antialiased resize is two products with weight matrices that the graph computes from the picture's size, by the
same formulas as `data/resample.py`. ONNX has an operator for it, `Resize` with antialias, but ONNX Runtime's differs
from Pillow, torch and us by up to 15 of 255 levels at some scales.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from vitreous.data import thin
from vitreous.export.graph import Graph
from vitreous.prediction.reading import Fitting

DOUBLE = TensorProto.DOUBLE


def write_pictures(fitting: Fitting, graph: Graph, pictures: str) -> str:
    """(B, H, W, 3) uint8 -> (B, 3, h, w) float32, resized, cut and normalised."""
    height, width = _sides(graph, pictures)
    if fitting.crop in ("squash", "squash-centre"):
        pictures = _write_slice(graph, pictures, steps=[_write_step(graph, side) for side in (height, width)])
        height, width = _sides(graph, pictures)
    tall, wide = _write_size(fitting, graph, height, width)
    windows = [_write_window(fitting, graph, *sides) for sides in ((height, tall, 0), (width, wide, 1))]
    rows, columns = (window.weights for window in windows)
    pictures = _write_slice(graph, pictures, [one.first for one in windows], [one.last for one in windows])
    levels = graph.op("Cast", graph.op("Transpose", pictures, perm=[0, 3, 1, 2]), to=TensorProto.FLOAT)
    across = _write_levels(graph, graph.op("MatMul", levels, graph.op("Transpose", columns, perm=[1, 0])))
    fitted = _write_levels(graph, graph.op("MatMul", rows, across))  # (B, 3, h, w)
    if fitting.crop == "letterbox":
        fitted = _write_padding(fitting, graph, fitted, tall, wide)
    mean, std = (np.array(values, np.float64).reshape(1, 3, 1, 1) for values in (fitting.mean, fitting.std))
    factor, shift = (graph.constant(values.astype(np.float32)) for values in (1 / (255 * std), -mean / std))
    return graph.op("Add", graph.op("Mul", fitted, factor), shift)


def write_extent(fitting: Fitting, graph: Graph, pictures: str) -> str:
    """(B, H, W, 3) uint8 -> (B, 2) int64: how many rows and columns of what the model sees of a letterboxed picture are
    not padding."""
    sides = _write_size(fitting, graph, *_sides(graph, pictures))
    one = graph.op("Concat", *(graph.reshape(side, 1, 1) for side in sides), axis=1)
    num = graph.op("Shape", pictures, start=0, end=1)
    return graph.op("Expand", one, graph.op("Concat", num, graph.constant([2]), axis=0))


def _sides(graph: Graph, pictures: str) -> tuple[str, str]:
    shape = graph.op("Shape", pictures)
    return graph.op("Gather", shape, graph.constant(1)), graph.op("Gather", shape, graph.constant(2))


def _write_step(graph: Graph, side: str) -> str:
    """`thin.step`."""
    return graph.op("Div", graph.op("Add", side, graph.constant(thin.MAX_LINES - 1)), graph.constant(thin.MAX_LINES))


def _write_slice(
    graph: Graph,
    pictures: str,
    starts: Sequence[str] | None = None,
    stops: Sequence[str] | None = None,
    steps: Sequence[str] | None = None,
) -> str:
    """Rows and columns of pictures (B, H, W, 3)."""

    def both(values: Sequence[str] | None, otherwise: int) -> str:
        if values is None:
            return graph.constant([otherwise, otherwise])
        return graph.op("Concat", *(graph.reshape(value, 1) for value in values), axis=0)

    bounds = both(starts, 0), both(stops, np.iinfo(np.int64).max)
    return graph.op("Slice", pictures, *bounds, graph.constant([1, 2]), both(steps, 1))


def _enlarged(side: int, fraction: float) -> int:
    """`placement.enlarged`."""
    return int(side / fraction + 1e-6)


def _write_size(fitting: Fitting, graph: Graph, height: str, width: str) -> tuple[str, str]:
    """The size that a picture is resized to, before the centre is cut out."""
    h, w = (graph.constant(side) for side in fitting.size_px)
    if fitting.crop == "squash":
        return h, w
    if fitting.crop == "letterbox":
        return _write_contained(graph, (h, w), height, width)
    tall, wide = (graph.constant(_enlarged(side, fitting.crop_fraction)) for side in fitting.size_px)
    if fitting.crop == "centre":  # the shorter side, by the target's proportions, decides
        is_wide = graph.op("LessOrEqual", graph.op("Mul", height, wide), graph.op("Mul", width, tall))
        by_height = graph.op("Max", wide, graph.op("Div", graph.op("Mul", tall, width), height))
        by_width = graph.op("Max", tall, graph.op("Div", graph.op("Mul", wide, height), width))
        tall, wide = graph.op("Where", is_wide, tall, by_width), graph.op("Where", is_wide, by_height, wide)
    if not fitting.skip_fitting:
        return tall, wide
    fits = graph.op("And", graph.op("Equal", height, h), graph.op("Equal", width, w))
    return graph.op("Where", fits, h, tall), graph.op("Where", fits, w, wide)


def _write_contained(graph: Graph, canvas: tuple[str, str], height: str, width: str) -> tuple[str, str]:
    """`placement.contained`."""

    def share(side: str, part: str, whole: str) -> str:
        product, divisor = (graph.op("Cast", x, to=DOUBLE) for x in (graph.op("Mul", side, part), whole))
        rounded = graph.op("Cast", graph.op("Round", graph.op("Div", product, divisor)), to=TensorProto.INT64)
        return graph.op("Max", graph.constant(1), rounded)

    h, w = canvas
    is_tall = graph.op("GreaterOrEqual", graph.op("Mul", height, w), graph.op("Mul", width, h))
    tall = graph.op("Where", is_tall, h, share(w, height, width))
    return tall, graph.op("Where", is_tall, share(h, width, height), w)


def _write_padding(fitting: Fitting, graph: Graph, fitted: str, tall: str, wide: str) -> str:
    """Below and to the right, in the mean colour, whole levels (`Preprocessing.padded`)."""
    mean = graph.constant(np.round(255 * np.array(fitting.mean, np.float32)).clip(0, 255).reshape(1, 3, 1, 1))
    free = [
        graph.reshape(graph.op("Sub", graph.constant(side), used), 1)
        for side, used in zip(fitting.size_px, (tall, wide), strict=True)
    ]
    pads = graph.op("Concat", graph.constant([0, 0, 0, 0, 0, 0]), *free, axis=0)
    # The filling is one number for all channels: of levels from which the mean is taken, 0.
    return graph.op("Add", graph.op("Pad", graph.op("Sub", fitted, mean), pads), mean)


class _Window(NamedTuple):
    """Of a side: the weights of the pixels that are kept, and which of the source they weigh."""

    weights: str  # (kept, last - first) float32
    first: str
    last: str


def _write_window(fitting: Fitting, graph: Graph, source: str, out: str, axis: int) -> _Window:
    """The centre of a side of `source` pixels that is resized to `out`, as `thin.Cut` has it, and its weights. Of an
    odd margin the half is rounded to even, or down."""
    two, kept = graph.constant(2), out if fitting.crop == "letterbox" else graph.constant(fitting.size_px[axis])
    margin = graph.op("Sub", out, kept)
    start = graph.op("Div", margin, two)
    if fitting.odd_margin == "even":
        odd = graph.op("Mul", graph.op("Mod", margin, two), graph.op("Mod", start, two))
        start = graph.op("Add", start, odd)
    fraction = 1.0 if fitting.crop in ("squash", "letterbox") else fitting.crop_fraction
    most = thin.most((_enlarged(fitting.size_px[0], fraction), _enlarged(fitting.size_px[1], fraction)))
    is_long = graph.op("Greater", out, graph.constant(most))
    begin = graph.op("Where", is_long, start, graph.constant(0))
    end = graph.op("Where", is_long, graph.op("Add", start, kept), out)
    first, last = _write_reach(graph, source, out, begin, end)
    weights = _write_weights(fitting, graph, (source, out), (begin, end), (first, last))
    place = graph.op("Sub", start, begin)
    bounds = (graph.reshape(value, 1) for value in (place, graph.op("Add", place, kept)))
    return _Window(graph.op("Slice", weights, *bounds, graph.constant([0]), graph.constant([1])), first, last)


def _write_reach(graph: Graph, source: str, out: str, begin: str, end: str) -> tuple[str, str]:
    """The pixels of the source that the filter reaches from those computed."""
    length, num, low, high = (graph.op("Cast", value, to=DOUBLE) for value in (source, out, begin, end))
    one, reach = (graph.constant(np.array(value, np.float64)) for value in (1.0, float(thin.REACH)))
    scale = graph.op("Div", length, num)
    around = graph.op("Add", graph.op("Mul", graph.op("Max", scale, one), reach), one)
    first = graph.op("Floor", graph.op("Sub", graph.op("Mul", low, scale), around))
    last = graph.op("Ceil", graph.op("Add", graph.op("Mul", high, scale), around))
    whole = [graph.op("Cast", value, to=TensorProto.INT64) for value in (first, last)]
    return graph.op("Max", whole[0], graph.constant(0)), graph.op("Min", whole[1], source)


def _write_weights(
    fitting: Fitting, graph: Graph, sides: tuple[str, str], computed: tuple[str, str], seen: tuple[str, str]
) -> str:
    """float32: `resample.resize_weights` for a whole side of `source` pixels, of `computed` rows and `seen` pixels."""

    def double(value: float) -> str:
        return graph.constant(np.array(value, np.float64))

    def op(kind: str, *inputs: str | float) -> str:
        return graph.op(kind, *(double(x) if isinstance(x, int | float) else x for x in inputs))

    if fitting.interpolation == "nearest":
        return _write_nearest(graph, sides, computed, seen)
    length, num = (graph.op("Cast", side, to=DOUBLE) for side in sides)
    (top, bottom), (left, right) = ([graph.op("Cast", end, to=DOUBLE) for end in ends] for ends in (computed, seen))
    pixel = graph.reshape(op("Range", left, right, 1.0), 1, -1)
    row = graph.reshape(op("Range", top, bottom, 1.0), -1, 1)
    scale = op("Div", length, num)
    # When shrinking, the filter widens with the scale: that is the antialiasing.
    centre = op("Mul", op("Add", row, 0.5), scale)
    distance = op("Abs", op("Div", op("Sub", op("Add", pixel, 0.5), centre), op("Max", scale, 1.0)))
    if fitting.interpolation == "bilinear":
        weights = op("Max", op("Sub", 1.0, distance), 0.0)
    else:  # Keys 1981 with a = -1/2, in Horner's form; beyond 2 the clamped distance gives zero
        x = op("Min", distance, 2.0)
        near = op("Add", op("Mul", op("Mul", op("Sub", op("Mul", x, 1.5), 2.5), x), x), 1.0)
        far = op("Mul", op("Sub", op("Mul", op("Add", op("Mul", x, -0.5), 2.5), x), 4.0), x)
        is_near = graph.op("Cast", op("Less", x, 1.0), to=DOUBLE)
        far = op("Add", far, 2.0)
        weights = op("Add", far, op("Mul", is_near, op("Sub", near, far)))
    weights = op("Div", weights, graph.op("ReduceSum", weights, graph.constant([1]), keepdims=1))
    # Weights of 16 bits, as in torch's uint8 kernel: the greatest just fits, at most 22 bits deep.
    greatest = graph.op("ReduceMax", weights, graph.constant([0, 1]), keepdims=1)
    bits = op("Div", op("Log", op("Div", 2**15 - 0.5, greatest)), math.log(2))
    one = op("Pow", 2.0, op("Min", op("Sub", op("Ceil", bits), 1.0), 22.0))
    halves = op("Mul", op("Sign", weights), 0.5)
    whole = op("Add", op("Mul", weights, one), halves)
    whole = graph.op("Cast", graph.op("Cast", whole, to=TensorProto.INT32), to=DOUBLE)  # towards zero
    return graph.op("Cast", op("Div", whole, one), to=TensorProto.FLOAT)


def _write_nearest(graph: Graph, sides: tuple[str, str], computed: tuple[str, str], seen: tuple[str, str]) -> str:
    """In float32, as torch computes which pixel is the nearest."""

    def counted(first: str, last: str) -> str:
        return graph.op("Cast", graph.op("Range", first, last, graph.constant(1)), to=TensorProto.FLOAT)

    length, num = (graph.op("Cast", side, to=TensorProto.FLOAT) for side in sides)
    pixel, row = counted(*seen), counted(*computed)
    place = graph.op("Floor", graph.op("Mul", graph.reshape(row, -1, 1), graph.op("Div", length, num)))
    nearest = graph.op("Min", place, graph.op("Sub", length, graph.constant(1.0)))
    return graph.op("Cast", graph.op("Equal", graph.reshape(pixel, 1, -1), nearest), to=TensorProto.FLOAT)


def _write_levels(graph: Graph, x: str) -> str:
    """Whole levels, halves up, as torch's uint8 kernel keeps them between its passes and at the end."""
    whole = graph.op("Floor", graph.op("Add", x, graph.constant(0.5)))
    return graph.op("Clip", whole, graph.constant(0.0), graph.constant(255.0))
