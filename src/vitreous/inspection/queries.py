"""Where the queries of a decoder looked: the attention of its last layer, as a map of the canvas.

DETR's queries look at every place of one map, Mask2Former's at those of one map that lie in their masks. Those of
Deformable DETR read a few points of several maps: the weight of each point is spread over the four cells around it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vitreous.nn.deformable import DeformableAttention
from vitreous.nn.deformable_detr import DeformableDetr
from vitreous.nn.detr import CrossAttention, Detr
from vitreous.nn.mask2former import Mask2Former

CELLS = 32  # of the longer side, for points

T = TypeVar("T")


def has_looks(head: nn.Module) -> bool:
    """Whether it can be told where the queries of a head looked."""
    return isinstance(head, Detr | DeformableDetr | Mask2Former)


def query_looks(head: nn.Module, canvas: tuple[int, int], forward: Callable[[], T]) -> tuple[T, Tensor]:
    """What `forward`, a pass through this head, returns; and (B, Q, rows, columns): the share of each query's attention
    that each cell of the canvas had, mean over the heads."""
    assert isinstance(head, Detr | DeformableDetr | Mask2Former)
    last = head.decoder[-1].get_submodule("attention")
    seen: dict[str, Any] = {}
    before = head.pixels if isinstance(head, Mask2Former) else head.project
    hooks = [
        last.register_forward_pre_hook(lambda _, given: seen.update(given=given)),
        before.register_forward_hook(lambda *passed: seen.update(made=passed[-1])),
    ]
    try:
        found = forward()
    finally:
        for hook in hooks:
            hook.remove()
    if isinstance(last, DeformableAttention):
        queries, references, _, shapes, *_ = seen["given"]
        places, weights = last.looks(queries, references, shapes)
        return found, points_on_cells(places.flatten(2, 4), weights.flatten(2) / last.heads, cells_of(canvas))
    assert isinstance(last, CrossAttention)
    queries, keys, _, shown = seen["given"]
    shares = last.weights(queries, keys, shown).mean(dim=1)  # (B, Q, N)
    if isinstance(head, Mask2Former):  # its layers look at one map after another
        maps = seen["made"].maps
        looked_at: Tensor = maps[(len(head.decoder) - 1) % len(maps)]
    else:
        looked_at = seen["made"]
    return found, shares.view(*shares.shape[:2], *looked_at.shape[-2:])


def cells_of(canvas: tuple[int, int], most: int = CELLS) -> tuple[int, int]:
    """Square ones, as far as whole numbers allow."""
    rows, columns = (max(1, round(most * side / max(canvas))) for side in canvas)
    return rows, columns


def points_on_cells(places: Tensor, weights: Tensor, cells: tuple[int, int]) -> Tensor:
    """Points (B, Q, P, 2) as (x, y), 0 to 1 from border to border, and their weights (B, Q, P) -> (B, Q, rows,
    columns): each between the middles of the four cells around it. What lies outside is left out."""
    across, down = (
        (1 - (places[..., axis, None] * num - 0.5 - torch.arange(num, device=places.device)).abs()).clamp(min=0)
        for axis, num in ((0, cells[1]), (1, cells[0]))
    )  # (B, Q, P, columns), (B, Q, P, rows)
    return (down * weights[..., None]).mT @ across
