"""The attention of any layer and head, from any token, caught during an ordinary forward pass.

The pass runs its fused kernels as ever; beside it, only the rows that are asked for are computed, from the same input.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.inspection.layout import Layout, layout, transformer
from vitreous.nn.attention import Attention

BLOCK_VALUES = 2**24  # attention weights held at once where all rows are read, 64 MiB in float32


@dataclass(frozen=True)
class Seen:
    """A layer's attention, and what it was called with."""

    layer: int  # 1 = the first
    module: Attention
    x: Tensor  # (B, N, D)
    pairs: Tensor | None = None
    bias: Tensor | None = None

    def weights(self, rows: Tensor | slice | None = None) -> Tensor:
        """(B, heads, r, N): the rows asked for, all by default."""
        return self.module.weights(self.x, rows, self.pairs, self.bias)

    def row_blocks(self, rows: range) -> Iterator[Tensor]:
        """(B, heads, some, N) of many rows, few at a time, so that memory stays bounded however large the picture."""
        B, N, _ = self.x.shape
        size = max(1, BLOCK_VALUES // (B * self.module.heads * N))
        for start in range(rows.start, rows.stop, size):
            yield self.weights(slice(start, min(start + size, rows.stop)))


Reader = Callable[[Seen], None]


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """Rows of the attention matrices. Each sums to 1 over all tokens, prefix included."""

    layers: tuple[int, ...]  # 1 = the first block
    depth: int  # how many layers the model has
    rows: tuple[int, ...] | None  # places in the sequence of the tokens that look; None: the mean over all patches
    weights: tuple[Tensor, ...]  # one (B, heads, r, N) a layer
    layout: Layout

    def of(self, layer: int) -> Tensor:
        """(B, heads, r, N); -1 is the last layer."""
        number = numbered(layer, self.depth)
        if number not in self.layers:
            there = ", ".join(map(str, self.layers))
            raise UserError(f"no layer {layer} among those that were looked at: {there}")
        return self.weights[self.layers.index(number)]

    def maps(self, layer: int) -> Tensor:
        """(B, heads, r, h, w): the part that falls on patches."""
        return self.layout.as_map(self.of(layer))


def attention(
    encoder: nn.Module, images: Tensor, layers: Sequence[int] | None = None, rows: Sequence[int] | None = None
) -> AttentionMaps:
    """What the tokens at `rows` look at, in each of `layers` (1 = the first, -1 the last; all by default).

    `rows` counts prefix tokens first; `layout(encoder).rows(token)` knows them. By default the row of what is pooled:
    the class token's, or the mean of all patches' rows, so that r is 1.
    """
    with evaluating(encoder), torch.no_grad(), watching(encoder, layers, rows) as watched:
        transformer(encoder).forward(images)
    return watched.maps()


@dataclass(frozen=True)
class Watched:
    """What was caught so far, of the latest pass."""

    layers: tuple[int, ...]
    depth: int
    rows: tuple[int, ...] | None
    layout: Layout
    weights: dict[int, Tensor]  # by layer

    def maps(self) -> AttentionMaps:
        if not self.weights:
            raise UserError("nothing was seen: run the model between, in this thread and not compiled")
        weights = tuple(self.weights[layer] for layer in self.layers)
        return AttentionMaps(layers=self.layers, depth=self.depth, rows=self.rows, weights=weights, layout=self.layout)


@contextmanager
def watching(
    encoder: nn.Module, layers: Sequence[int] | None = None, rows: Sequence[int] | None = None
) -> Iterator[Watched]:
    """The same for passes of one's own: `with watching(encoder) as watched: task.predict(images)`, then
    `watched.maps()`: the answer and what it rests on from one pass. Compiled code is not seen."""
    place = layout(encoder)
    chosen = list(place.rows(None)) if rows is None else _checked(rows, place.num_tokens)
    mean = rows is None and place.pool == "mean"
    depth = len(transformer(encoder).blocks)
    watched = Watched(numbered_layers(encoder, layers), depth, None if mean else tuple(chosen), place, {})
    picked = _picked(chosen)

    def read(seen: Seen) -> None:
        if mean:
            total = sum(block.sum(dim=2, keepdim=True) for block in seen.row_blocks(place.patch_rows))
            assert isinstance(total, Tensor)
            watched.weights[seen.layer] = total / place.grid.cells
        else:
            watched.weights[seen.layer] = seen.weights(picked)

    with reading(encoder, read, watched.layers):
        yield watched


@contextmanager
def reading(encoder: nn.Module, read: Reader, layers: Sequence[int] | None = None) -> Iterator[None]:
    """Calls `read` with the input of each layer's attention, in passes of this thread, until the context ends."""
    blocks = transformer(encoder).blocks
    here = threading.get_ident()  # a server may run other passes of the same model meanwhile
    hooks = []
    try:
        for layer in numbered_layers(encoder, layers):
            module = blocks[layer - 1].attention
            assert isinstance(module, Attention)

            def hook(_: nn.Module, inputs: tuple[Tensor, ...], layer: int = layer, module: Attention = module) -> None:
                if not torch.compiler.is_compiling() and threading.get_ident() == here:  # nothing enters compiled code
                    read(Seen(layer, module, *inputs))

            hooks.append(module.register_forward_pre_hook(hook))
        yield
    finally:
        for handle in hooks:
            handle.remove()


@contextmanager
def evaluating(encoder: nn.Module) -> Iterator[None]:
    """Without dropout and stochastic depth; afterwards every part is as it was."""
    training = [module for module in encoder.modules() if module.training]
    encoder.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def numbered_layers(encoder: nn.Module, layers: Sequence[int] | None) -> tuple[int, ...]:
    """All, or those named, counted from 1; negative numbers count from the end."""
    depth = len(transformer(encoder).blocks)
    if layers is None:
        return tuple(range(1, depth + 1))
    return tuple(numbered(layer, depth) for layer in layers)


def numbered(layer: int, depth: int) -> int:
    """1 for the first layer, -1 for the last."""
    number = layer + depth + 1 if layer < 0 else layer
    if not 1 <= number <= depth:
        raise UserError(f"no layer {layer}: this model has layers 1 to {depth} (-1 is the last)")
    return number


def _checked(rows: Sequence[int], num_tokens: int) -> list[int]:
    wrong = [row for row in rows if not 0 <= row < num_tokens]
    if wrong or not len(rows):
        asked = f"no token {wrong[0]}" if wrong else "no row was asked for"
        raise UserError(f"{asked}: the sequence has tokens 0 to {num_tokens - 1}")
    return list(rows)


def _picked(rows: Sequence[int]) -> Tensor | slice:
    """Neighbours as a slice: an index would first have to be brought to the device."""
    if all(later == earlier + 1 for earlier, later in pairwise(rows)):
        return slice(rows[0], rows[0] + len(rows))
    return torch.tensor(rows)
