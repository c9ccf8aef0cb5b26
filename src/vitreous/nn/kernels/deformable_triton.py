"""Weighted samples of maps in Triton, forward and backward: kernels/deformable.py says what they are.

A program has one head of one sample and a block of its queries. Many queries read the same value, so that gradients of
values are sums over programs that end in any order. They are added as 64-bit integers, multiples of a unit far below
what float32 resolves of the largest: integers give the same sum in every order, and a run that is resumed has the same
gradients to the last bit.
"""

from collections.abc import Callable
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32  # queries per program
# The largest gradient is 2 ** 40 units: 2 ** 23 of them fit into 63 bits, more than queries times points ever are.
UNITS = 2.0**40


def forward(values: Tensor, sides: list[int], places: Tensor, weights: Tensor) -> Tensor:
    """(B, Q, heads * d)"""
    out = values.new_empty(*places.shape[:2], values.shape[2] * values.shape[3])
    _launch(sample, values, sides, places, weights, out)
    return out


def backward(
    grad: Tensor, values: Tensor, sides: list[int], places: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of values, places and weights, from that of the output."""
    unit = (grad.abs().amax().float() * weights.abs().amax().float()).clamp(min=1e-20) / UNITS
    sums = torch.zeros(values.shape, dtype=torch.int64, device=values.device)
    to_places, to_weights = torch.empty_like(places), torch.empty_like(weights)
    _launch(scatter, values, sides, places, weights, grad.contiguous(), unit, sums, to_places, to_weights)
    return (sums.float() * unit).to(values.dtype), to_places, to_weights


def _launch(
    kernel: Callable[..., None], values: Tensor, sides: list[int], places: Tensor, weights: Tensor, *rest: Tensor
) -> None:
    samples, tokens, heads, depth = values.shape
    queries, levels, points = places.shape[1], places.shape[3], places.shape[4]
    grid = (triton.cdiv(queries, BLOCK), samples * heads)
    table = _levels(tuple(sides), values.device)
    kernel[grid](  # type: ignore[index]
        *(values, places, weights, table, *rest, queries, tokens, heads, depth, levels),
        POINTS=points,
        BLOCK=BLOCK,
        DEPTH=triton.next_power_of_2(depth),
    )


@cache
def _levels(sides: tuple[int, ...], device: torch.device) -> Tensor:
    """(levels, 3) int32: height, width and first token. All are kept: a CUDA graph could not copy them from the host,
    and reads them for as long as it lives."""
    shapes = list(zip(sides[::2], sides[1::2], strict=True))
    starts = [sum(h * w for h, w in shapes[:level]) for level in range(len(shapes))]
    rows = [(h, w, start) for (h, w), start in zip(shapes, starts, strict=True)]
    return torch.tensor(rows, dtype=torch.int32).to(device)


@triton.jit
def sample(
    values_at, places_at, weights_at, levels_at, out_at, queries, tokens, heads, depth, levels,
    POINTS: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """Forward: sums over levels and points."""
    query = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    channel = tl.arange(0, DEPTH)
    row = (number.to(tl.int64) * queries + query) * heads + head  # of places, weights and out
    values_at += (number.to(tl.int64) * tokens * heads + head) * depth + channel[None, :]
    inside = (query < queries)[:, None] & (channel < depth)[None, :]
    total = tl.zeros([BLOCK, DEPTH], tl.float32)
    for level in range(levels):
        height, width, start = level_of(levels_at, level)
        for point in range(POINTS):
            index = (row * levels + level) * POINTS + point
            weight = tl.load(weights_at + index, mask=query < queries, other=0.0).to(tl.float32)
            x, y, right, down = corner(places_at, index, query < queries, height, width)
            for corner_index in tl.static_range(4):
                across = corner_index % 2
                below = corner_index // 2
                share = (right if across else 1 - right) * (down if below else 1 - down)
                token, exists = token_at(x + across, y + below, height, width, start)
                offset = token.to(tl.int64) * heads * depth
                value = tl.load(values_at + offset[:, None], mask=inside & exists[:, None], other=0.0)
                total += (weight * share)[:, None] * value.to(tl.float32)
    tl.store(out_at + row[:, None] * depth + channel[None, :], total.to(out_at.dtype.element_ty), mask=inside)


@triton.jit
def scatter(
    values_at, places_at, weights_at, levels_at, grad_at, unit_at, sums_at, to_places_at, to_weights_at,
    queries, tokens, heads, depth, levels, POINTS: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """Backward: what each corner of each point contributed, and how that changes with place and weight."""
    query = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    channel = tl.arange(0, DEPTH)
    row = (number.to(tl.int64) * queries + query) * heads + head
    first = (number.to(tl.int64) * tokens * heads + head) * depth + channel[None, :]
    alive = query < queries
    inside = alive[:, None] & (channel < depth)[None, :]
    grad = tl.load(grad_at + row[:, None] * depth + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    in_units = grad / tl.load(unit_at)
    for level in range(levels):
        height, width, start = level_of(levels_at, level)
        for point in range(POINTS):
            index = (row * levels + level) * POINTS + point
            weight = tl.load(weights_at + index, mask=alive, other=0.0).to(tl.float32)
            x, y, right, down = corner(places_at, index, alive, height, width)
            to_weight = tl.zeros([BLOCK], tl.float32)
            to_right = tl.zeros([BLOCK], tl.float32)
            to_down = tl.zeros([BLOCK], tl.float32)
            for corner_index in tl.static_range(4):
                across = corner_index % 2
                below = corner_index // 2
                by_x = right if across else 1 - right
                by_y = down if below else 1 - down
                token, exists = token_at(x + across, y + below, height, width, start)
                offset = first + (token.to(tl.int64) * heads * depth)[:, None]
                here = inside & exists[:, None]
                value = tl.load(values_at + offset, mask=here, other=0.0).to(tl.float32)
                along = tl.sum(grad * value, 1)
                to_weight += by_x * by_y * along
                to_right += (by_y if across else -by_y) * along
                to_down += (by_x if below else -by_x) * along
                share = (in_units * (weight * by_x * by_y)[:, None]).to(tl.int64)
                tl.atomic_add(sums_at + offset, share, mask=here, sem="relaxed")
            tl.store(to_weights_at + index, to_weight.to(to_weights_at.dtype.element_ty), mask=alive)
            kind = to_places_at.dtype.element_ty
            tl.store(to_places_at + 2 * index, (weight * to_right * width).to(kind), mask=alive)
            tl.store(to_places_at + 2 * index + 1, (weight * to_down * height).to(kind), mask=alive)


@triton.jit
def level_of(levels_at, level):
    """Height, width and first token."""
    return tl.load(levels_at + 3 * level), tl.load(levels_at + 3 * level + 1), tl.load(levels_at + 3 * level + 2)


@triton.jit
def corner(places_at, index, alive, height, width):
    """Column and row of the upper left of the four neighbours, in whole numbers as floats; how far a place is to the
    right of it and below it."""
    x = tl.load(places_at + 2 * index, mask=alive, other=0.0).to(tl.float32) * width - 0.5
    y = tl.load(places_at + 2 * index + 1, mask=alive, other=0.0).to(tl.float32) * height - 0.5
    return tl.floor(x), tl.floor(y), x - tl.floor(x), y - tl.floor(y)


@triton.jit
def token_at(x, y, height, width, start):
    """The number of a token, and whether there is one: compared as floats, which may be NaN or beyond all integers."""
    exists = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    # Bounded rather than chosen by `exists`: Triton 3.6 cannot lay out a choice between two tensors here.
    column = tl.minimum(tl.maximum(x, 0.0), width - 1.0)
    line = tl.minimum(tl.maximum(y, 0.0), height - 1.0)
    return (line * width + column).to(tl.int32) + start, exists
