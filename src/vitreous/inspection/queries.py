"""Where the queries of a decoder looked: the attention of its last layer, as a map of the canvas.

DETR's queries look at every place of one map, Mask2Former's at those of one map that lie in their masks. Those of
Deformable DETR read a few points of several maps: the weight of each point is spread over the four cells around it.
EoMT's look at all tokens in the encoder's last block; what they spend on other queries is left out.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from vitreous.models.base import TokenEncoder
from vitreous.nn.attention import Attention
from vitreous.nn.deformable import DeformableAttention
from vitreous.nn.deformable_detr import DeformableDetr
from vitreous.nn.detr import CrossAttention, Detr
from vitreous.nn.eomt import Eomt
from vitreous.nn.mask2former import Mask2Former

CELLS = 32  # of the longer side, for points

T = TypeVar("T")


def has_looks(head: nn.Module) -> bool:
    """Whether it can be told where the queries of a head looked."""
    return isinstance(head, Detr | DeformableDetr | Mask2Former | Eomt)


def query_looks(task: nn.Module, canvas: tuple[int, int], forward: Callable[[], T]) -> tuple[T, Tensor]:
    """What `forward`, a pass through this task, returns; and (B, Q, rows, columns): the share of each query's attention
    that each cell of the canvas had, mean over the heads."""
    head = task.get_submodule("head")
    if isinstance(head, Eomt):
        return _looks_inside(head, cast(TokenEncoder, task.encoder), forward)
    assert isinstance(head, Detr | DeformableDetr | Mask2Former)
    last = head.decoder[-1].get_submodule("attention")
    made: list[Any] = []
    before = head.pixels if isinstance(head, Mask2Former) else head.project
    hook = before.register_forward_hook(lambda *passed: made.append(passed[-1]))
    try:
        found, given = _given(last, forward)
    finally:
        hook.remove()
    if isinstance(last, DeformableAttention):
        queries, references, _, shapes, *_ = given
        places, weights = last.looks(queries, references, shapes)
        return found, points_on_cells(places.flatten(2, 4), weights.flatten(2) / last.heads, cells_of(canvas))
    assert isinstance(last, CrossAttention)
    queries, keys, _, shown = given
    shares = last.weights(queries, keys, shown).mean(dim=1)  # (B, Q, N)
    if isinstance(head, Mask2Former):  # its layers look at one map after another
        maps = made[-1].maps
        looked_at: Tensor = maps[(len(head.decoder) - 1) % len(maps)]
    else:
        looked_at = made[-1]
    return found, shares.view(*shares.shape[:2], *looked_at.shape[-2:])


def _looks_inside(head: Eomt, encoder: TokenEncoder, forward: Callable[[], T]) -> tuple[T, Tensor]:
    last = encoder.blocks[-1].get_submodule("attention")
    assert isinstance(last, Attention)
    found, (tokens, *added) = _given(last, forward)
    rows = last.weights(tokens, slice(-len(head.queries), None), *added).mean(dim=1)  # (B, Q, P + h * w + Q)
    first, (height, width) = encoder.num_prefix, encoder.grid
    return found, rows[..., first : first + height * width].reshape(*rows.shape[:2], height, width)


def _given(part: nn.Module, forward: Callable[[], T]) -> tuple[T, tuple[Any, ...]]:
    """What `forward` returns, and what it gave to this part."""
    seen: list[tuple[Any, ...]] = []
    hook = part.register_forward_pre_hook(lambda _, given: seen.append(given))
    try:
        return forward(), seen[-1]
    finally:
        hook.remove()


def cells_of(canvas: tuple[int, int]) -> tuple[int, int]:
    """Square ones, as far as whole numbers allow."""
    rows, columns = (max(1, round(CELLS * side / max(canvas))) for side in canvas)
    return rows, columns


def points_on_cells(places: Tensor, weights: Tensor, cells: tuple[int, int]) -> Tensor:
    """Points (B, Q, P, 2) as (x, y), 0 to 1 from border to border, and their weights (B, Q, P) -> (B, Q, rows,
    columns): each between the middles of the four cells around it. What lies outside is left out."""
    across, down = (
        (1 - (places[..., axis, None] * num - 0.5 - torch.arange(num, device=places.device)).abs()).clamp(min=0)
        for axis, num in ((0, cells[1]), (1, cells[0]))
    )  # (B, Q, P, columns), (B, Q, P, rows)
    return (down * weights[..., None]).mT @ across
