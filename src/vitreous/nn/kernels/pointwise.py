"""A product of matrices that begins with an offset and a ReLU and ends with a bias, a shortcut and a ReLU:
nn/pointwise.py says what it is for.

A program has some rows and columns of the result. Programs of the same rows follow one another, so that these rows are
read from memory once and from the cache after that; the weights fit into it whole.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, MOST_COLUMNS, DEPTH = 128, 128, 64  # of a program's tile, and of the sums it takes at a time
NUM_WARPS, NUM_STAGES = 8, 3  # two programs find room on a processor: one computes while the other reads or writes


def product(x: Tensor, weight: Tensor, bias: Tensor, before: Tensor | None, added: Tensor | None) -> Tensor:
    """(M, N), of x (M, C), weight (N, C) and added (M, N), all contiguous; C and N are multiples of 64."""
    (rows, depth), width = x.shape, weight.shape[0]
    columns = MOST_COLUMNS if width % MOST_COLUMNS == 0 else MOST_COLUMNS // 2
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    multiply[(triton.cdiv(rows, ROWS) * (width // columns),)](
        x, weight, bias, before, added, out, rows, width, depth,
        ROWS=ROWS, COLUMNS=columns, DEPTH=DEPTH, num_warps=NUM_WARPS, num_stages=NUM_STAGES,
    )  # fmt: skip
    return out


@triton.jit
def multiply(
    x_at, weight_at, bias_at, before_at, added_at, out_at, rows, width, depth,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    tiles = width // COLUMNS
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    # Rows beyond the last are the last one again, and are not stored: reading needs no mask.
    x_at += tl.minimum(row, rows - 1)[:, None] * depth + inner[None, :]
    weight_at += column[None, :] * depth + inner[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, depth, DEPTH):
        x = tl.load(x_at + start)
        if before_at is not None:
            offset = tl.load(before_at + start + inner).to(tl.float32)
            x = relu(x.to(tl.float32) + offset[None, :]).to(x_at.dtype.element_ty)
        total = tl.dot(x, tl.load(weight_at + start), total)
    total += tl.load(bias_at + column).to(tl.float32)[None, :]
    at, inside = row[:, None] * width + column[None, :], (row < rows)[:, None]
    if added_at is not None:
        total += tl.load(added_at + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_at + at, relu(total).to(out_at.dtype.element_ty), mask=inside)


@triton.jit
def relu(x):
    """NaN stays NaN, as in torch's."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
