"""Shortest augmenting paths, one Triton program per sample: nn/assignment.py says what it computes and why it is exact.

All that the search knows of a query lies in registers, as vectors over the queries: its price, the target that has it,
that target's price, and during a search how far it is, whence it was reached and whether its distance is final. One
step reads one row of costs. A single element is read and written by comparing indices, for registers have no addresses.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def launch(cost: Tensor, valid: Tensor) -> Tensor:
    """cost (B, M, Q) float32, finite and contiguous; valid (B, M) bool -> (B, M) int64."""
    samples, targets, queries = cost.shape
    found = torch.full_like(valid, -1, dtype=torch.int64)
    width = triton.next_power_of_2(max(queries, targets))
    flags = valid.contiguous().view(torch.uint8)
    num_warps = 1 if width <= 512 else min(width // 512, 8)
    augmenting_paths[(samples,)](cost, flags, found, targets, queries, WIDTH=width, num_warps=num_warps)
    return found


@triton.jit
def augmenting_paths(cost_at, valid_at, found_at, targets, queries, WIDTH: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    cost_at += sample * targets * queries
    valid_at += sample * targets
    found_at += sample * targets
    column = tl.arange(0, WIDTH)
    num_valid = tl.sum(tl.load(valid_at + column, mask=column < targets, other=0).to(tl.int32), 0)
    # Where targets are more than queries, as many columns of cost 0 as are missing: see the plain form.
    exists = column < tl.maximum(queries, num_valid)

    row_of = tl.full([WIDTH], -1, tl.int32)
    row_price = tl.zeros([WIDTH], tl.float32)  # of the row that has the column
    column_price = tl.zeros([WIDTH], tl.float32)
    for new in range(targets):
        distance = tl.full([WIDTH], float("inf"), tl.float32)
        before = tl.full([WIDTH], -1, tl.int32)
        is_open = exists
        is_valid = tl.load(valid_at + new) != 0
        row = tl.where(is_valid, new, -1)
        price = 0.0
        price_of_row = 0.0
        reached = -1
        while row >= 0:  # Dijkstra's algorithm, until a free column is reached
            costs = tl.load(cost_at + row * queries + column, mask=column < queries, other=0.0)
            through = price + costs - price_of_row - column_price
            nearer = is_open & (through < distance)
            distance = tl.where(nearer, through, distance)
            before = tl.where(nearer, reached, before)
            price, reached = tl.min(tl.where(is_open, distance, float("inf")), 0, return_indices=True)
            is_reached = column == reached
            is_open = is_open & (column != reached)
            row = tl.max(tl.where(is_reached, row_of, -1), 0)
            price_of_row = tl.sum(tl.where(is_reached, row_price, 0.0), 0)
        saved = tl.where(exists & (is_open == 0), price - distance, 0.0)
        column_price -= saved
        row_price += saved
        while reached >= 0:  # back along the path, every column takes the row of the one before it
            source = tl.max(tl.where(column == reached, before, -1), 0)
            is_source = column == source
            moved_row = tl.max(tl.where(is_source, row_of, -1), 0)
            moved_price = tl.sum(tl.where(is_source, row_price, 0.0), 0)
            row_of = tl.where(column == reached, tl.where(source < 0, new, moved_row), row_of)
            row_price = tl.where(column == reached, tl.where(source < 0, price, moved_price), row_price)
            reached = source
    tl.store(found_at + row_of, column.to(tl.int64), mask=(row_of >= 0) & (column < queries))
