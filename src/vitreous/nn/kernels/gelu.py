"""The exact GELU, and its gradient together with that of the bias before it: nn/gelu.py says what they compute.

Memory is what these should wait for, and with the library's erf they do not: of 36 instructions per number on the way
forward and 51 on the way back, 16 and 20 are left. The gradient of the bias is summed by each program over its share
of the rows, and these sums are added up in a fixed order: two runs give the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, ROWS, COLUMNS, NUM_WARPS = 4096, 16, 256, 8
PROGRAMS = 2112  # about: whole rounds of what 132 processors have at a time


def activated(x: Tensor) -> Tensor:
    """Contiguous x of any shape."""
    out = torch.empty_like(x)
    activate[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), BLOCK=BLOCK, ASM=x.is_cuda, num_warps=NUM_WARPS)
    return out


def gradients(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Of x (..., C) and, in float32, of a bias (C,) that was added to it; both contiguous."""
    C = x.shape[-1]
    rows, blocks = x.numel() // C, triton.cdiv(C, COLUMNS)
    tiles = triton.cdiv(rows, ROWS)
    shares = min(tiles, max(1, PROGRAMS // blocks))
    to_x, sums = torch.empty_like(x), torch.empty(shares, C, dtype=torch.float32, device=x.device)
    sizes = {"C": C, "ROWS": ROWS, "COLUMNS": COLUMNS, "ASM": x.is_cuda, "num_warps": NUM_WARPS}
    differentiate[(shares * blocks,)](x, grad, to_x, sums, rows, shares, triton.cdiv(tiles, shares), **sizes)
    return to_x, sums.sum(0)


@triton.jit
def activate(x_at, out_at, num, BLOCK: tl.constexpr, ASM: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_at + at, mask=at < num, other=0.0).to(tl.float32)
    sums, density = tail(x, ASM)
    y = tl.maximum(x, 0.0) - tl.abs(x) * (sums * density)
    tl.store(out_at + at, y.to(out_at.dtype.element_ty), mask=at < num)


@triton.jit
def differentiate(
    x_at, grad_at, to_x_at, sums_at, rows, shares, turns,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (C + COLUMNS - 1) // COLUMNS
    share = tl.program_id(0) // BLOCKS
    column = tl.program_id(0) % BLOCKS * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in range(turns):
        row = (turn * shares + share) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < C)[None, :]
        at = row.to(tl.int64)[:, None] * C + column[None, :]
        x = tl.load(x_at + at, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_at + at, mask=inside, other=0.0).to(tl.float32)
        sums, density = tail(x, ASM)
        rise = density * (tl.abs(x) - sums)
        to_x = grad * tl.where(x < 0, -rise, 1 + rise)
        tl.store(to_x_at + at, to_x.to(to_x_at.dtype.element_ty), mask=inside)
        total += to_x
    tl.store(sums_at + share * C + column, tl.sum(total, axis=0), mask=column < C)


@triton.jit
def tail(x, ASM: tl.constexpr):
    """Two factors whose product is the share of the normal distribution beyond |x|; the second is the density at x.
    Abramowitz and Stegun, 26.2.17, within 1e-7 of the share."""
    power = x * x * -0.7213475204444817
    below = 1 + 0.2316419 * tl.abs(x)
    if ASM:  # without what the others do for numbers so small that they do not count here
        density = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [power], tl.float32, True, 1)
        t = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [below], tl.float32, True, 1)
    else:
        density, t = tl.exp2(power), 1 / below
    density *= 0.3989422804014327
    sums = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    return sums, density
