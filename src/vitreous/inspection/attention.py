"""The attention of any layer and head, from any token, caught during an ordinary forward pass.

The pass runs its fused kernels as usual; beside it, only the requested rows are computed, from the same input.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.inspection.layout import attention_layers, numbered, plain
from vitreous.models.layout import AttentionLayer, Layout, Token

BLOCK_VALUES = 2**24  # attention weights held at once where all rows are read, 64 MiB in float32


@dataclass(frozen=True)
class Seen:
    """A layer's attention, and what it was called with."""

    number: int  # 1 = the first layer
    layer: AttentionLayer
    x: Tensor  # (B, ...)
    others: tuple[Any, ...]  # whatever else the layer was given

    def weights(self, rows: Tensor | slice | None = None) -> Tensor:
        """(B, groups, heads, r, k): the rows asked for of every group, all by default."""
        found: Tensor = self.layer.module.weights(self.x, rows, *self.others)  # type: ignore[operator]
        return found.view(len(found), len(self.layer.queries), self.layer.heads, *found.shape[2:])

    def row_blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """The same of all rows, few at a time, so that memory stays bounded however large the picture."""
        num_groups, num_rows = self.layer.queries.shape
        a_row = len(self.x) * num_groups * self.layer.heads * self.layer.keys.shape[1]
        size = max(1, BLOCK_VALUES // a_row)
        for start in range(0, num_rows, size):
            block = slice(start, min(start + size, num_rows))
            yield block, self.weights(block)

    def of_tokens(self, tokens: Sequence[int]) -> Tensor:
        """(B, heads, r, N): what the tokens at these places of the sequence look at, on all that can be seen."""
        queries, keys = self.layer.queries, self.layer.keys
        if len(queries) == 1:
            return self._spread(self.weights(_picked(tokens))[:, 0], keys)
        places = [torch.nonzero(queries == token)[0].tolist() for token in tokens]
        groups, rows = (list(each) for each in zip(*places, strict=True))
        chosen = self.weights()[:, groups, :, rows]  # (r, B, heads, k): two lists bring their axis to the front
        return self._spread(chosen.permute(1, 2, 0, 3), keys[groups])

    def of_patches(self) -> Tensor:
        """(B, heads, 1, N): the mean of what the patches look at."""
        looks = (self.layer.queries >= self.layer.looking.num_prefix).to(self.x.device)  # (groups, q)
        parts = [(block * looks[:, None, rows, None]).sum(dim=3) for rows, block in self.row_blocks()]
        total = torch.stack(parts).sum(dim=0).transpose(1, 2).flatten(2)  # (B, heads, groups * k)
        return self._spread(total.unsqueeze(2), self.layer.keys.flatten()[None]) / self.layer.looking.grid.cells

    def _spread(self, weights: Tensor, tokens: Tensor) -> Tensor:
        """(B, heads, r, n), each weight falling on one of the tokens (r or 1, n) -> (B, heads, r, N). What falls on
        padding is cut off."""
        num = self.layer.seen.num_tokens
        if len(self.layer.keys) == 1 and tokens.shape[1] == num:  # all of them, in order
            return weights
        index = tokens.where(tokens >= 0, num).to(weights.device).expand_as(weights)
        return weights.new_zeros(*weights.shape[:-1], num + 1).scatter_add_(-1, index, weights)[..., :num]


Reader = Callable[[Seen], None]
Rows = Sequence[int] | None  # places in a layer's sequence of the tokens that look; None: the mean over all patches


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """Rows of the attention matrices. Each sums to 1 over all that is seen: prefix tokens, patches, and padding."""

    layers: tuple[int, ...]  # 1 = the first block
    described: tuple[AttentionLayer, ...]  # all layers of the model
    rows: tuple[int, ...] | None  # of the tokens that look; None: the mean over all patches, or others in every layer
    weights: tuple[Tensor, ...]  # one (B, heads, r, N) a layer

    @property
    def layout(self) -> Layout:
        """Of those that are looked at, in the last layer."""
        return self.described[-1].seen

    def of(self, layer: int) -> Tensor:
        """(B, heads, r, N); -1 is the last layer."""
        number = numbered(layer, len(self.described))
        if number not in self.layers:
            there = ", ".join(map(str, self.layers))
            raise UserError(f"no layer {layer} among those recorded: {there}")
        return self.weights[self.layers.index(number)]

    def maps(self, layer: int) -> Tensor:
        """(B, heads, r, h, w): the part that falls on patches."""
        seen = self.described[numbered(layer, len(self.described)) - 1].seen
        return seen.as_map(self.of(layer))


def attention(
    encoder: nn.Module, images: Tensor, layers: Sequence[int] | None = None, rows: Sequence[int] | None = None
) -> AttentionMaps:
    """What the tokens at `rows` look at, in each of `layers` (1 = the first, -1 the last; all by default).

    `rows` counts prefix tokens first; `layout(encoder).rows(token)` knows them. By default the row of what is pooled:
    the class token's, or the mean of all patches' rows, so that r is 1.
    """
    with evaluating(encoder), torch.no_grad(), watching(encoder, layers, rows) as watched:
        plain(encoder).forward(images)
    return watched.maps()


def attention_from(encoder: nn.Module, images: Tensor, token: Token, layer: int = -1) -> AttentionMaps:
    """What a token of one layer looks at there, and in every other layer the token at the same place of the picture,
    where patches may be finer."""
    described = attention_layers(encoder)
    rows = rows_at(described, token, numbered(layer, len(described)))
    with evaluating(encoder), torch.no_grad(), _catching(encoder, dict(enumerate(rows, start=1))) as watched:
        plain(encoder).forward(images)
    return watched.maps()


def rows_at(layers: Sequence[AttentionLayer], token: Token, number: int) -> list[Rows]:
    """Which rows a token of layer `number` is in the sequence of every layer. Where a layer has no prefix tokens, all
    patches together stand for one."""
    chosen = layers[number - 1].looking
    row = chosen.rows(token).start  # an error for what is not there
    if isinstance(token, tuple):
        down, right = chosen.centres_px()[row - chosen.num_prefix].tolist()
        return [layer.looking.rows(layer.looking.patch_at(down, right)) for layer in layers]
    return [
        _pooled(layer.looking) if token is None or not layer.looking.num_prefix else layer.looking.rows(token)
        for layer in layers
    ]


def _pooled(place: Layout) -> Rows:
    return None if place.pool == "mean" else place.rows(None)


@dataclass(frozen=True)
class Watched:
    """What was caught so far, of the latest pass."""

    layers: tuple[int, ...]
    described: tuple[AttentionLayer, ...]
    rows: tuple[int, ...] | None
    weights: dict[int, Tensor]  # by layer

    def maps(self) -> AttentionMaps:
        if not self.weights:
            raise UserError(
                "nothing was recorded: run the model inside the `with` block, in this thread and not compiled"
            )
        weights = tuple(self.weights[layer] for layer in self.layers)
        return AttentionMaps(layers=self.layers, described=self.described, rows=self.rows, weights=weights)


@contextmanager
def watching(
    encoder: nn.Module, layers: Sequence[int] | None = None, rows: Sequence[int] | None = None
) -> Iterator[Watched]:
    """The same for your own passes: `with watching(encoder) as watched: task.predict(images)`, then
    `watched.maps()`: the output and what it rests on from one pass. Compiled code is not seen."""
    places = [layer.looking for layer in attention_layers(encoder)]
    chosen = numbered_layers(encoder, layers)
    for number in chosen if rows is not None else ():
        _check(rows or (), places[number - 1].num_tokens)
    of_layers = {number: _pooled(places[number - 1]) if rows is None else rows for number in chosen}
    with _catching(encoder, of_layers) as watched:
        yield watched


@contextmanager
def _catching(encoder: nn.Module, rows: Mapping[int, Rows]) -> Iterator[Watched]:
    """`rows` of every layer that is asked for, by its number."""
    asked = tuple(dict.fromkeys(tuple(each) if each is not None else None for each in rows.values()))
    watched = Watched(tuple(rows), tuple(attention_layers(encoder)), asked[0] if len(asked) == 1 else None, {})

    def read(seen: Seen) -> None:
        chosen = rows[seen.number]
        watched.weights[seen.number] = seen.of_patches() if chosen is None else seen.of_tokens(chosen)

    with reading(encoder, read, watched.layers):
        yield watched


@contextmanager
def reading(encoder: nn.Module, read: Reader, layers: Sequence[int] | None = None) -> Iterator[None]:
    """Calls `read` with the input of each layer's attention, in passes of this thread, until the context ends."""
    described = attention_layers(encoder)
    here = threading.get_ident()  # a server may run other passes of the same model meanwhile
    hooks = []
    try:
        for number in numbered_layers(encoder, layers):
            layer = described[number - 1]

            def hook(
                _: nn.Module, inputs: tuple[Any, ...], number: int = number, layer: AttentionLayer = layer
            ) -> None:
                if not torch.compiler.is_compiling() and threading.get_ident() == here:  # nothing enters compiled code
                    read(Seen(number, layer, inputs[0], inputs[1:]))

            hooks.append(layer.module.register_forward_pre_hook(hook))
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
    depth = len(attention_layers(encoder))
    if layers is None:
        return tuple(range(1, depth + 1))
    return tuple(numbered(layer, depth) for layer in layers)


def _check(rows: Sequence[int], num_tokens: int) -> None:
    wrong = [row for row in rows if not 0 <= row < num_tokens]
    if wrong or not len(rows):
        asked = f"no token {wrong[0]}" if wrong else "no row was given"
        raise UserError(f"{asked}: the sequence has tokens 0 to {num_tokens - 1}")


def _picked(rows: Sequence[int]) -> Tensor | slice:
    """Neighbours as a slice: an index would first have to be brought to the device."""
    if all(later == earlier + 1 for earlier, later in pairwise(rows)):
        return slice(rows[0], rows[0] + len(rows))
    return torch.tensor(rows)
