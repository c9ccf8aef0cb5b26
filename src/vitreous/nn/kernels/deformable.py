"""The inner part of deformable attention: weighted sums of values read between the places of maps."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.nn import kernels

Shapes = Sequence[tuple[int, int]]  # (h, w) of each level's map, known before a value is


def weighted_samples(values: Tensor, shapes: Shapes, places: Tensor, weights: Tensor) -> Tensor:
    """(B, Q, heads * d): of each query and head, the values at `places`, summed by `weights`.

    values: (B, N, heads, d), the maps of all levels in reading order, one behind the other: N is the sum of h * w.
    places: (B, Q, heads, levels, points, 2) as (x, y), 0 to 1 from border to border of a level's map. Between the
    middles of a map's places values are interpolated linearly; outside of it they are 0.
    weights: (B, Q, heads, levels, points).
    """
    if values.is_cuda and values.dtype != torch.float64 and kernels.is_available():
        sides = [side for shape in shapes for side in shape]
        found: Tensor = weighted_samples_fused(values, sides, places, weights)
        return found
    return weighted_samples_torch(values, shapes, places, weights)


def weighted_samples_torch(values: Tensor, shapes: Shapes, places: Tensor, weights: Tensor) -> Tensor:
    """The same by grid_sample, level by level. Its gradients on CUDA are sums in an order that nobody chose."""
    B, _, heads, d = values.shape
    maps = values.permute(0, 2, 3, 1).flatten(0, 1)  # (B heads, d, N)
    grids = (2 * places - 1).transpose(1, 2).flatten(0, 1)  # (B heads, Q, levels, points, 2)
    factors = weights.transpose(1, 2).flatten(0, 1)  # (B heads, Q, levels, points)
    total = None
    for level, one in enumerate(torch.split(maps, [h * w for h, w in shapes], dim=2)):
        grid = grids[:, :, level]
        dtype = torch.promote_types(one.dtype, grid.dtype)
        found = F.grid_sample(one.reshape(B * heads, d, *shapes[level]).to(dtype), grid.to(dtype), align_corners=False)
        summed = (found * factors[:, None, :, level]).sum(dim=3)  # (B heads, d, Q)
        total = summed if total is None else total + summed
    assert total is not None
    return total.view(B, heads * d, places.shape[1]).transpose(1, 2).to(values.dtype)


# The same in Triton, in float32 inside: gradients are the same in every run (kernels/deformable_triton.py).


@torch.library.custom_op("vitreous::weighted_samples", mutates_args=(), device_types="cuda")
def weighted_samples_fused(values: Tensor, sides: list[int], places: Tensor, weights: Tensor) -> Tensor:
    """`sides` are h and w of each level, one after the other."""
    from vitreous.nn.kernels.deformable_triton import forward

    return forward(values.contiguous(), sides, places.contiguous(), weights.contiguous())


@weighted_samples_fused.register_fake
def _(values: Tensor, sides: list[int], places: Tensor, weights: Tensor) -> Tensor:
    return values.new_empty(*places.shape[:2], values.shape[2] * values.shape[3])


@torch.library.custom_op("vitreous::weighted_samples_backward", mutates_args=(), device_types="cuda")
def weighted_samples_backward(
    grad: Tensor, values: Tensor, sides: list[int], places: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    from vitreous.nn.kernels.deformable_triton import backward

    return backward(grad.contiguous(), values.contiguous(), sides, places.contiguous(), weights.contiguous())


@weighted_samples_backward.register_fake
def _(grad: Tensor, values: Tensor, sides: list[int], places: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return values.new_empty(values.shape), places.new_empty(places.shape), weights.new_empty(weights.shape)


def _remember(ctx: Any, inputs: tuple[Tensor, list[int], Tensor, Tensor], output: Tensor) -> None:
    values, ctx.sides, places, weights = inputs
    ctx.save_for_backward(values, places, weights)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
    values, places, weights = ctx.saved_tensors
    to_values, to_places, to_weights = weighted_samples_backward(grad, values, ctx.sides, places, weights)
    return to_values, None, to_places, to_weights


weighted_samples_fused.register_autograd(_gradients, setup_context=_remember)
