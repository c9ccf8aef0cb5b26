"""The parts of plain ViTs, hybrids and ResNets as nodes of an ONNX graph. A part that is not here is traced by torch.

All that does not depend on the picture is computed now: position tables, standardised filters, LayerScale and the
attention's 1/sqrt(d), which go into weights. What no output needs is left out: where the class token alone is read,
the last block computes nothing else for its queries and its MLP.

In int8 the first layer and the last, 1.4 % of the dense products of a ViT-S/16, stay exact: of the ways that round
every block, this one changed the logits of held-out training pictures least (docs/results/int8.json).
"""

import math
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.export.graph import Graph
from vitreous.models.base import Encoder
from vitreous.models.pixels import Pixels
from vitreous.models.resnet import PostActivatedUnit, PreActivatedUnit, ResNet, Root, Trunk
from vitreous.models.stems import ConvLayer, ResidualLayer
from vitreous.models.vit import ViT
from vitreous.nn.attention import Attention
from vitreous.nn.blocks import Block, LayerScale, Mlp, QuickGelu, SwiGlu
from vitreous.nn.convolution import StandardizedConv
from vitreous.nn.relative import RelativePositions
from vitreous.nn.tokens import PatchEmbedding, position_rows
from vitreous.tasks.classify import ClassAndMeanHead, DistilledHead, LinearHead, TanhHead

Array = NDArray[np.float32]


def write_task(task: nn.Module, graph: Graph, x: str) -> str:
    """(B, 3, h, w) normalised -> (B, K) logits."""
    encoder, head = task.encoder, task.head
    assert isinstance(encoder, Encoder) and isinstance(head, nn.Module)
    if isinstance(encoder, ViT):
        return _write_vit(encoder, head, graph, x)
    return write(head, graph, write(encoder, graph, x))


class NotByHandError(Exception):
    """Of a part whose nodes nobody has written here: torch traces the model."""


@singledispatch
def write(part: nn.Module, graph: Graph, x: str) -> str:
    """The nodes of a part; returns the name of its output."""
    raise NotByHandError(type(part).__name__)


def array(tensor: Tensor | nn.Parameter) -> Array:
    found: Array = tensor.detach().float().cpu().numpy()
    return found


def _bias(linear: nn.Linear) -> Array | None:
    return None if linear.bias is None else array(linear.bias)


# ---- plain layers


@write.register
def _(part: nn.Identity, graph: Graph, x: str) -> str:
    return x


@write.register
def _(part: nn.Sequential, graph: Graph, x: str) -> str:
    for one in part:
        x = write(one, graph, x)
    return x


@write.register
def _(part: nn.Linear, graph: Graph, x: str) -> str:
    return graph.linear(x, array(part.weight), _bias(part))


@write.register
def _(part: nn.LayerNorm, graph: Graph, x: str) -> str:
    weight, bias = graph.constant(array(part.weight)), graph.constant(array(part.bias))
    return graph.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=part.eps)


@write.register
def _(part: nn.GELU, graph: Graph, x: str) -> str:
    return graph.op("Gelu", x, approximate=part.approximate)


@write.register
def _(part: QuickGelu, graph: Graph, x: str) -> str:
    return graph.op("Mul", x, graph.op("Sigmoid", graph.op("Mul", x, graph.constant(1.702))))


# ---- the transformer


def _write_vit(encoder: ViT, head: nn.Module, graph: Graph, x: str) -> str:
    if encoder.pool == "attention":
        raise NotByHandError(type(encoder.pooling).__name__)
    x = _write_encoded(encoder, graph, x, _num_read(encoder, head))
    if isinstance(head, DistilledHead):
        return write(head, graph, x)
    if isinstance(head, ClassAndMeanHead):
        both = graph.op("Concat", _write_token(encoder, graph, x, 0), _write_mean(encoder, graph, x), axis=1)
        return write(head, graph, both)
    x = _write_token(encoder, graph, x, 0) if encoder.pool == "class" else _write_mean(encoder, graph, x)
    if encoder.pool_norm == "after":
        x = write(encoder.norm, graph, x)
    if isinstance(encoder.projection, nn.Linear):
        x = _write_exact(encoder.projection, graph, x)
    return write(head, graph, x)


def _write_encoded(encoder: ViT, graph: Graph, x: str, num_read: int | None = None) -> str:
    """(B, P + N, D), or only this many tokens from the front."""
    x = _write_tokens(encoder, graph, x)
    for depth, block in enumerate(encoder.blocks):
        assert isinstance(block, Block)
        if depth:
            x = _write_positions(encoder, depth, graph, x)
        is_last = depth == len(encoder.blocks) - 1
        x = write_block(block, graph, x, _bias_of_pairs(encoder, block), num_read if is_last else None)
    return write(encoder.norm, graph, x) if encoder.pool_norm == "before" else x


def write_maps(encoder: Encoder, graph: Graph, x: str) -> list[tuple[str, tuple[int, int]]]:
    """Each of an encoder's maps as (B, h * w, D), with h and w; finest first."""
    if isinstance(encoder, ViT):
        tokens, P, grid = _write_encoded(encoder, graph, x), encoder.num_prefix, encoder.grid
        return [(graph.part(tokens, P, P + grid.cells), grid)]
    if not isinstance(encoder, ResNet):
        raise NotByHandError(type(encoder).__name__)
    found = []
    with torch.no_grad():
        sizes = [one.shape for one in encoder(torch.zeros(1, encoder.channels, *encoder.picture_px)).maps]
    for level in encoder.trunk.levels:
        x = write(level, graph, x)
        found.append(x)
    found[-1] = _active(encoder.norm, graph, x)
    rows = [graph.op("Transpose", one, perm=[0, 2, 3, 1]) for one in found[-len(sizes) :]]  # the root's is left out
    return [(graph.reshape(one, 0, h * w, D), (h, w)) for one, (_, D, h, w) in zip(rows, sizes, strict=True)]


def _num_read(encoder: ViT, head: nn.Module) -> int | None:
    """How many tokens, from the front, the output is made of; None: all."""
    if isinstance(head, DistilledHead):
        return 2
    return 1 if encoder.pool == "class" and not isinstance(head, ClassAndMeanHead) else None


def _write_token(encoder: ViT, graph: Graph, x: str, place: int) -> str:
    return graph.reshape(graph.part(x, place, place + 1), 0, encoder.token_width)


def _write_mean(encoder: ViT, graph: Graph, x: str) -> str:
    patches = graph.part(x, encoder.num_prefix, encoder.num_prefix + encoder.grid.cells)
    return graph.op("ReduceMean", patches, graph.constant([1]), keepdims=0)


def _write_tokens(encoder: ViT, graph: Graph, x: str) -> str:
    """Patches, prefix and the first positions: room for the prefix is made by padding, and one table is added."""
    if encoder.stem.trunk is not None:
        x = write(encoder.stem.trunk, graph, x)
    patches, P = encoder.stem.patches, encoder.num_prefix
    x = _write_patches(patches, encoder.grid, graph, x)
    if P:
        x = graph.op("Pad", x, graph.constant([0, P, 0, 0, 0, 0]))
    table = np.zeros((P + encoder.grid.cells, encoder.token_width), np.float32)
    if encoder.prefix is not None:
        table[:P] += array(encoder.prefix.tokens)
    if patches.linear.bias is not None:
        table[P:] += array(patches.linear.bias)
    positions = _positions(encoder, 0)
    x = graph.op("Add", x, graph.weight(table if positions is None else table + positions))
    return write(encoder.pre_norm, graph, x)


def _write_patches(part: PatchEmbedding, grid: tuple[int, int], graph: Graph, x: str) -> str:
    (h, w), (ph, pw) = grid, part.patch
    channels = part.linear.in_features // (ph * pw)
    x = graph.op("Transpose", graph.reshape(x, 0, channels, h, ph, w, pw), perm=[0, 2, 4, 1, 3, 5])
    x = graph.reshape(x, 0, h * w, part.linear.in_features)
    return graph.linear(x, array(part.linear.weight), None, exact=True)


def _positions(encoder: ViT, depth: int) -> Array | None:
    table = encoder.positions.at_depth(depth)
    if table is None:
        return None
    return array(position_rows(table, encoder.num_prefix - encoder.num_registers, encoder.num_registers, None))


def _write_positions(encoder: ViT, depth: int, graph: Graph, x: str) -> str:
    rows = _positions(encoder, depth)
    return x if rows is None else graph.op("Add", x, graph.weight(rows))


def _bias_of_pairs(encoder: ViT, block: Block) -> Array | None:
    """(1, heads, N, N): what is added to all pictures' logits alike."""
    table = block.attention.bias_table or encoder.positions.bias_table
    if table is None:
        return None
    pairs = table.pairs(encoder.num_prefix, torch.arange(encoder.grid.cells, device=table.table.device))
    return array(table(table.table, pairs))


def write_block(part: Block, graph: Graph, x: str, bias: Array | None = None, num: int | None = None) -> str:
    """`num`: only this many tokens from the front are needed."""
    attended = _write_attention(part, graph, write(part.attention_norm, graph, x), bias, num)
    x = graph.op("Add", x if num is None else graph.first(x, num), attended)
    return graph.op("Add", x, _write_mlp(part, graph, write(part.mlp_norm, graph, x)))


def _scaled(linear: nn.Linear, scale: nn.Module) -> tuple[Array, Array | None]:
    """Weight and bias of a linear layer before a LayerScale."""
    weight, bias = array(linear.weight), _bias(linear)
    if not isinstance(scale, LayerScale):
        return weight, bias
    factor = array(scale.factor)
    return weight * factor[:, None], None if bias is None else bias * factor


def _write_attention(block: Block, graph: Graph, x: str, bias: Array | None, num: int | None) -> str:
    part = block.attention
    heads, d = part.heads, part.width // part.heads
    weights, biases = np.split(array(part.project_in.weight), 3), _biases(part)
    # Rows of an attention with offsets are cut at the end: the offsets are found by the rows' places.
    few = num is not None and part.relative is None
    scale = np.float32(d**-0.5)
    queries = graph.linear(
        graph.first(x, num) if few and num else x, weights[0] * scale, None if biases[0] is None else biases[0] * scale
    )
    keys, values = (graph.linear(x, weights[i], biases[i]) for i in (1, 2))
    q, v = (graph.op("Transpose", graph.reshape(y, 0, -1, heads, d), perm=[0, 2, 1, 3]) for y in (queries, values))
    k = graph.op("Transpose", graph.reshape(keys, 0, -1, heads, d), perm=[0, 2, 3, 1])
    logits = graph.op("MatMul", q, k)  # (B, heads, r, N)
    if bias is not None:
        logits = graph.op("Add", logits, graph.constant(bias[:, :, :num]))
    if part.relative is not None:
        logits = graph.op("Add", logits, _write_offsets(part.relative, heads, graph, q))
    mixed = graph.op("MatMul", graph.op("Softmax", logits, axis=-1), v)
    mixed = graph.reshape(graph.op("Transpose", mixed, perm=[0, 2, 1, 3]), 0, -1, part.width)
    if num is not None and not few:
        mixed = graph.first(mixed, num)
    return graph.linear(mixed, *_scaled(part.project_out, block.attention_scale))


def _biases(part: Attention) -> list[Array | None]:
    if part.query_bias is not None and part.value_bias is not None:
        return [array(part.query_bias), None, array(part.value_bias)]
    bias = _bias(part.project_in)
    return [None, None, None] if bias is None else list(np.split(bias, 3))


def _write_offsets(part: RelativePositions, heads: int, graph: Graph, q: str) -> str:
    """out[i, j] = products[i, i - j + N - 1], without an index: with the table turned around, cell (i, j) lies N - 1 +
    j + i (2N - 2) places from the start of the flattened products."""
    N = part.length
    turned = np.ascontiguousarray(array(part.table)[::-1].T)  # (d, 2N - 1)
    products = graph.op("MatMul", q, graph.weight(turned))  # q is scaled already
    flat = graph.reshape(products, 0, heads, N * (2 * N - 1))
    wanted = graph.part(flat, N - 1, N - 1 + N * (2 * N - 2), axis=2)
    return graph.part(graph.reshape(wanted, 0, heads, N, 2 * N - 2), 0, N, axis=3)


def _write_mlp(block: Block, graph: Graph, x: str) -> str:
    part = block.mlp
    if isinstance(part, Mlp):
        hidden = write(part.gelu, graph, write(part.expand, graph, x))
    elif isinstance(part, SwiGlu):
        gate, value = graph.ops("Split", 2, write(part.expand, graph, x), axis=-1, num_outputs=2)
        hidden = graph.op("Mul", graph.op("Mul", gate, graph.op("Sigmoid", gate)), value)
    else:
        return write(part, graph, x)
    return graph.linear(hidden, *_scaled(part.contract, block.mlp_scale))


# ---- convolutions


@write.register
def _(part: StandardizedConv, graph: Graph, x: str) -> str:
    filters = array(part.filters().detach().float())
    padding: dict[str, Any] = {"pads": [*part.padding, *part.padding]}
    if part.same:
        padding = {"auto_pad": "SAME_UPPER"}  # as TensorFlow and JAX: where odd, the far side gets more
    sides = {"kernel_shape": list(part.kernel_size), "strides": list(part.stride)}
    return graph.op("Conv", x, graph.weight(filters), **sides, **padding)


@write.register
def _(part: nn.GroupNorm, graph: Graph, x: str) -> str:
    """As the norm of each group's values, which every runtime has, then a factor and a shift a channel."""
    G, C = part.num_groups, part.num_channels
    one, none = (graph.constant(np.full(G, value, np.float32)) for value in (1, 0))
    grouped = graph.reshape(x, 0, G, -1)
    normed = graph.op("InstanceNormalization", grouped, one, none, epsilon=part.eps)
    back = graph.op("Reshape", normed, graph.op("Shape", x))
    factor, shift = (graph.constant(array(values).reshape(1, C, 1, 1)) for values in (part.weight, part.bias))
    return graph.op("Add", graph.op("Mul", back, factor), shift)


@write.register
def _(part: Root, graph: Graph, x: str) -> str:
    x = write(part.conv, graph, x)
    if part.norm is not None:
        x = graph.op("Relu", write(part.norm, graph, x))
    if not part.pool:
        return x
    if part.same:  # a ReLU came before: the padding of a maximum changes nothing
        return graph.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")
    padded = graph.op("Pad", x, graph.constant([0, 0, 1, 1, 0, 0, 1, 1]))  # with zeros, as BiT
    # Changes nothing, but keeps ONNX Runtime from giving the padding to MaxPool, whose own is minus infinity.
    padded = graph.op("Clip", padded, graph.constant(float(np.finfo(np.float32).min)))
    return graph.op("MaxPool", padded, kernel_shape=[3, 3], strides=[2, 2])


def _active(norm: nn.Module, graph: Graph, x: str) -> str:
    return graph.op("Relu", write(norm, graph, x))


@write.register
def _(part: PreActivatedUnit, graph: Graph, x: str) -> str:
    y = _active(part.norm1, graph, x)
    shortcut = x if part.project is None else write(part.project, graph, y)
    y = _active(part.norm2, graph, write(part.conv1, graph, y))
    y = _active(part.norm3, graph, write(part.conv2, graph, y))
    return graph.op("Add", shortcut, write(part.conv3, graph, y))


@write.register
def _(part: PostActivatedUnit, graph: Graph, x: str) -> str:
    shortcut = x
    if part.project is not None and part.project_norm is not None:
        shortcut = write(part.project_norm, graph, write(part.project, graph, x))
    y = _active(part.norm1, graph, write(part.conv1, graph, x))
    y = _active(part.norm2, graph, write(part.conv2, graph, y))
    y = write(part.norm3, graph, write(part.conv3, graph, y))
    return graph.op("Relu", graph.op("Add", shortcut, y))


@write.register
def _(part: ConvLayer, graph: Graph, x: str) -> str:
    return _active(part.norm, graph, write(part.conv, graph, x))


@write.register
def _(part: ResidualLayer, graph: Graph, x: str) -> str:
    y = _active(part.norm1, graph, write(part.conv1, graph, x))
    return graph.op("Relu", graph.op("Add", x, write(part.norm2, graph, write(part.conv2, graph, y))))


@write.register
def _(part: Trunk, graph: Graph, x: str) -> str:
    for level in part.levels:
        x = write(level, graph, x)
    return x


@write.register
def _(part: ResNet, graph: Graph, x: str) -> str:
    last = _active(part.norm, graph, write(part.trunk, graph, x))
    return graph.op("ReduceMean", last, graph.constant([2, 3]), keepdims=0)


@write.register
def _(part: Pixels, graph: Graph, x: str) -> str:
    kernel = [side // cells for side, cells in zip(part.picture_px, part.grid, strict=True)]
    if part.picture_px != tuple(size * cells for size, cells in zip(kernel, part.grid, strict=True)):
        raise NotByHandError(f"pictures of {part.picture_px} px, not a whole multiple of {part.grid} cells")
    if kernel != [1, 1]:
        x = graph.op("AveragePool", x, kernel_shape=kernel, strides=kernel)
    return graph.reshape(x, 0, part.width)


# ---- heads: as small as they are decisive, so exact


@write.register(LinearHead)
@write.register(ClassAndMeanHead)
def _(part: LinearHead | ClassAndMeanHead, graph: Graph, x: str) -> str:
    return graph.linear(x, array(part.weight), array(part.bias), exact=True)


@write.register
def _(part: TanhHead, graph: Graph, x: str) -> str:
    return _write_exact(part.output, graph, graph.op("Tanh", _write_exact(part.hidden, graph, x)))


@write.register
def _(part: DistilledHead, graph: Graph, x: str) -> str:
    """Of the two tokens at the front (B, 2, D)."""
    width = part.classes.in_features
    tokens = [graph.reshape(graph.part(x, i, i + 1), 0, width) for i in (0, 1)]
    both = [_write_exact(one, graph, y) for one, y in zip((part.classes, part.distillation), tokens, strict=True)]
    if part.fusion == "logits":
        return graph.op("Mul", graph.op("Add", *both), graph.constant(0.5))
    # The logarithm of the mean of both softmaxes, without an exponential that could overflow.
    first, second = (graph.op("LogSoftmax", logits, axis=1) for logits in both)
    larger, apart = graph.op("Max", first, second), graph.op("Abs", graph.op("Sub", first, second))
    smaller = graph.op("Log", graph.op("Add", graph.op("Exp", graph.op("Neg", apart)), graph.constant(1.0)))
    return graph.op("Add", graph.op("Add", larger, smaller), graph.constant(-math.log(2)))


def _write_exact(part: nn.Linear, graph: Graph, x: str) -> str:
    return graph.linear(x, array(part.weight), _bias(part), exact=True)
