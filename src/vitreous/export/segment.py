"""A segmenter as nodes of an ONNX graph: normalised pictures in, one coarse map of logits per class out."""

import numpy as np
from torch import nn

from vitreous.export.graph import Graph
from vitreous.export.parts import array, write, write_block, write_maps
from vitreous.nn.bilinear import bilinear_matrix
from vitreous.nn.blocks import Block
from vitreous.tasks.segment import LinearDecoder, MaskTransformer, Segment

Grid = tuple[int, int]
Maps = list[tuple[str, Grid]]  # names of (B, h * w, D), and h and w


def write_segment(task: Segment, graph: Graph, x: str) -> tuple[str, Grid]:
    """(B, 3, H, W) -> (B, K, h, w), and h and w."""
    maps = write_maps(task.encoder, graph, x)
    if isinstance(task.head, LinearDecoder):
        return _write_linear(task.head, graph, maps), maps[0][1]
    return _write_mask_transformer(task.head, graph, *maps[-1]), maps[-1][1]


def _write_linear(part: LinearDecoder, graph: Graph, maps: Maps) -> str:
    finest, total = maps[0][1], ""
    for level, (tokens, grid) in zip(part.levels, maps, strict=True):
        assert isinstance(level, nn.Linear)
        logits = graph.linear(tokens, array(level.weight), array(level.bias), exact=True)  # (B, h * w, K)
        logits = _as_map(graph, graph.op("Transpose", logits, perm=[0, 2, 1]), grid)
        if grid != finest:
            logits = _write_resized(graph, logits, grid, finest)
        total = logits if not total else graph.op("Add", total, logits)
    return total


def _write_resized(graph: Graph, x: str, grid: Grid, size: Grid) -> str:
    rows, columns = (bilinear_matrix(old, new).numpy() for old, new in zip(grid, size, strict=True))
    return graph.op("MatMul", graph.constant(rows), graph.op("MatMul", x, graph.constant(columns.T)))


def _write_mask_transformer(part: MaskTransformer, graph: Graph, x: str, grid: Grid) -> str:
    num, cells = len(part.classes), grid[0] * grid[1]
    x = write(part.project_in, graph, x)
    # Room for the classes is made by padding, and one table is added.
    table = np.zeros((num + cells, part.classes.shape[1]), np.float32)
    table[:num] = array(part.classes)
    x = graph.op("Add", graph.op("Pad", x, graph.constant([0, num, 0, 0, 0, 0])), graph.weight(table))
    for block in part.blocks:
        assert isinstance(block, Block)
        x = write_block(block, graph, x)
    x = write(part.norm, graph, x)
    classes = graph.linear(graph.part(x, 0, num), array(part.project_classes.weight), None, exact=True)
    patches = graph.linear(graph.part(x, num, num + cells), array(part.project_patches.weight), None, exact=True)
    classes, patches = (_write_unit(graph, one) for one in (classes, patches))
    cosines = graph.op("MatMul", classes, graph.op("Transpose", patches, perm=[0, 2, 1]))  # (B, K, h * w)
    return _as_map(graph, graph.op("Mul", cosines, graph.constant(array(part.factor))), grid)


def _write_unit(graph: Graph, x: str) -> str:
    """Of length 1, as `F.normalize`."""
    length = graph.op("ReduceL2", x, graph.constant([-1]), keepdims=1)
    return graph.op("Div", x, graph.op("Max", length, graph.constant(1e-12)))


def _as_map(graph: Graph, x: str, grid: Grid) -> str:
    return graph.reshape(x, 0, 0, *grid)
