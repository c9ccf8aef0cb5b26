"""Preprocessing as nodes of a graph: uint8 pictures (B, H, W, 3) of any size -> what the model sees.

The antialiased resize is two products with weight matrices that the graph computes from the picture's size, by the
same formulas as `data/resample.py`. ONNX has an operator for it, `Resize` with antialias, but ONNX Runtime's differs
from Pillow, torch and us by up to 15 of 255 levels at some scales.
"""

import math

import numpy as np
from onnx import TensorProto

from vitreous.export.graph import Graph
from vitreous.export.usage import Fitting

DOUBLE = TensorProto.DOUBLE


def write_pictures(fitting: Fitting, graph: Graph, pictures: str) -> str:
    """(B, H, W, 3) uint8 -> (B, 3, h, w) float32, resized, cut and normalised."""
    shape = graph.op("Shape", pictures)
    height, width = (graph.op("Gather", shape, graph.constant(axis)) for axis in (1, 2))
    (tall, wide) = _write_size(fitting, graph, height, width)
    rows = _write_crop(fitting, graph, _write_weights(fitting, graph, height, tall), tall, 0)
    columns = _write_crop(fitting, graph, _write_weights(fitting, graph, width, wide), wide, 1)
    levels = graph.op("Cast", graph.op("Transpose", pictures, perm=[0, 3, 1, 2]), to=TensorProto.FLOAT)
    across = _write_levels(graph, graph.op("MatMul", levels, graph.op("Transpose", columns, perm=[1, 0])))
    fitted = _write_levels(graph, graph.op("MatMul", rows, across))  # (B, 3, h, w)
    mean, std = (np.array(values, np.float64).reshape(1, 3, 1, 1) for values in (fitting.mean, fitting.std))
    factor, shift = (graph.constant(values.astype(np.float32)) for values in (1 / (255 * std), -mean / std))
    return graph.op("Add", graph.op("Mul", fitted, factor), shift)


def _write_size(fitting: Fitting, graph: Graph, height: str, width: str) -> tuple[str, str]:
    """The size that a picture is resized to, before the centre is cut out."""
    h, w = (graph.constant(side) for side in fitting.size_px)
    if fitting.crop == "squash":
        return h, w
    enlarged = (int(side / fitting.crop_fraction + 1e-6) for side in fitting.size_px)
    tall, wide = (graph.constant(side) for side in enlarged)
    if fitting.crop == "centre":  # the shorter side, by the target's proportions, decides
        is_wide = graph.op("LessOrEqual", graph.op("Mul", height, wide), graph.op("Mul", width, tall))
        by_height = graph.op("Max", wide, graph.op("Div", graph.op("Mul", tall, width), height))
        by_width = graph.op("Max", tall, graph.op("Div", graph.op("Mul", wide, height), width))
        tall, wide = graph.op("Where", is_wide, tall, by_width), graph.op("Where", is_wide, by_height, wide)
    if not fitting.skip_fitting:
        return tall, wide
    fits = graph.op("And", graph.op("Equal", height, h), graph.op("Equal", width, w))
    return graph.op("Where", fits, h, tall), graph.op("Where", fits, w, wide)


def _write_crop(fitting: Fitting, graph: Graph, weights: str, size: str, axis: int) -> str:
    """The weights of the pixels in the centre. Of an odd margin the half is rounded to even, or down."""
    two, one = graph.constant(2), graph.constant(1)
    margin = graph.op("Sub", size, graph.constant(fitting.size_px[axis]))
    start = graph.op("Div", margin, two)
    if fitting.odd_margin == "even":
        odd = graph.op("Mul", graph.op("Mod", margin, two), graph.op("Mod", start, two))
        start = graph.op("Add", start, odd)
    stop = graph.op("Add", start, graph.constant(fitting.size_px[axis]))
    starts, stops = (graph.op("Reshape", value, graph.constant([1])) for value in (start, stop))
    return graph.op("Slice", weights, starts, stops, graph.constant([0]), graph.reshape(one, 1))


def _write_weights(fitting: Fitting, graph: Graph, source: str, out: str) -> str:
    """(out, source) float32: `resample.resize_weights` for a whole side."""

    def double(value: float) -> str:
        return graph.constant(np.array(value, np.float64))

    def op(kind: str, *inputs: str | float) -> str:
        return graph.op(kind, *(double(x) if isinstance(x, int | float) else x for x in inputs))

    if fitting.interpolation == "nearest":
        return _write_nearest(graph, source, out)
    length, num = (graph.op("Cast", side, to=DOUBLE) for side in (source, out))
    pixel = graph.reshape(op("Range", 0.0, length, 1.0), 1, -1)
    row = graph.reshape(op("Range", 0.0, num, 1.0), -1, 1)
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


def _write_nearest(graph: Graph, source: str, out: str) -> str:
    """In float32, as torch computes which pixel is the nearest."""
    length, num = (graph.op("Cast", side, to=TensorProto.FLOAT) for side in (source, out))
    pixel, row = (graph.op("Range", graph.constant(0.0), side, graph.constant(1.0)) for side in (length, num))
    place = graph.op("Floor", graph.op("Mul", graph.reshape(row, -1, 1), graph.op("Div", length, num)))
    nearest = graph.op("Min", place, graph.op("Sub", length, graph.constant(1.0)))
    return graph.op("Cast", graph.op("Equal", graph.reshape(pixel, 1, -1), nearest), to=TensorProto.FLOAT)


def _write_levels(graph: Graph, x: str) -> str:
    """Whole levels, halves up, as torch's uint8 kernel keeps them between its passes and at the end."""
    whole = graph.op("Floor", graph.op("Add", x, graph.constant(0.5)))
    return graph.op("Clip", whole, graph.constant(0.0), graph.constant(255.0))
