"""Depthwise convolution of maps whose channels lie last: nn/channels_last.py says what it computes.

A program has some columns of places, ROWS high, and some channels. It goes over the offsets to the right one by one; at
each it walks down the column, reads every place once and adds it to all the rows that it counts for: a 7 x 7 kernel
reads (ROWS + 6) * 7 values for ROWS sums, in place of ROWS * 49. Sums stay in registers, in float32. Sizes of the map
are constants, so that every offset is part of a load instruction.

The gradient of the weights is summed by each program over its share of the columns, and these sums are added up in a
fixed order: two runs give the same bits.
"""

# mypy: disable-error-code="assignment"
# ruff: noqa: RUF005 (Triton knows tuples, and no unpacking)

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

NUM_WARPS = 4
Choices = dict[int, tuple[tuple[int, ...], int]]
# By side of the kernel: how high columns may be, and how many channels a thread has. Registers allow that much if a
# processor is to have 12 or 16 warps at a time.
FORWARD: Choices = {3: ((7, 8, 6), 4), 5: ((7, 8, 6), 4), 7: ((14, 8, 7), 4)}
BACKWARD: Choices = {3: ((14, 8, 7), 2), 5: ((7, 8, 6), 2), 7: ((7, 8, 6), 2)}
# Programs that the gradient of the weights is spread over: whole rounds of what 132 processors have at a time.
PROGRAMS = {3: 1056, 5: 1056, 7: 792}


def convolved(x: Tensor, filters: Tensor, gelu: bool) -> Tensor:
    """x (B, H, W, C), filters (kernel * kernel + 1, C) float32, the bias in the last row -> (B, H, W, C)."""
    out = torch.empty_like(x)
    sizes = _sizes(x, filters, FORWARD)
    grid = (triton.cdiv(sizes["NUM"], sizes["COLUMNS"]) * triton.cdiv(x.shape[3], sizes["CHANNELS"]),)
    convolve[grid](x, filters, out, GELU=gelu, **sizes)
    return out


def gradients(x: Tensor, filters: Tensor, grad: Tensor, gelu: bool) -> tuple[Tensor, Tensor]:
    """Of x and, in float32, of the filters; `grad` is that of the output."""
    C = x.shape[3]
    sizes = _sizes(x, filters, BACKWARD)
    blocks, tiles = triton.cdiv(C, sizes["CHANNELS"]), triton.cdiv(sizes["NUM"], sizes["COLUMNS"])
    shares = min(tiles, max(1, PROGRAMS[sizes["KERNEL"]] // blocks))
    sums = torch.empty(shares, *filters.shape, dtype=torch.float32, device=x.device)
    inner = torch.empty_like(grad) if gelu else grad  # with respect to what goes into the GELU
    turns = triton.cdiv(tiles, shares)
    sum_products[(shares * blocks,)](x, filters, grad, inner, sums, shares, turns, GELU=gelu, **sizes)
    backwards = torch.zeros_like(filters)  # the same taps in reverse, and no bias
    backwards[:-1] = filters[:-1].flip(0)
    return convolved(inner, backwards, gelu=False), sums.sum(0)


def _sizes(x: Tensor, filters: Tensor, choices: Choices) -> dict[str, int]:
    B, H, W, C = x.shape
    kernel = math.isqrt(len(filters) - 1)
    heights, values = choices[kernel]
    rows = min(heights, key=lambda rows: triton.cdiv(H, rows) * (rows + kernel - 1))  # the fewest that are read
    channels = next((n for n in (64, 32, 16) if C % n == 0), min(64, triton.next_power_of_2(C)))
    columns = max(1, NUM_WARPS * 32 * values // channels)
    sizes = {"H": H, "W": W, "C": C, "KERNEL": kernel, "ROWS": rows, "COLUMNS": columns, "CHANNELS": channels}
    return {"NUM": B * triton.cdiv(H, rows) * W, **sizes, "num_warps": NUM_WARPS}


@triton.jit
def convolve(
    x_at, filters_at, out_at,
    NUM, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, KERNEL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
    GELU: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    tile = tl.program_id(0) // BLOCKS
    channel = tl.program_id(0) % BLOCKS * CHANNELS + tl.arange(0, CHANNELS)
    place, top, left, exists = columns_of(tile, NUM, H, W, ROWS, COLUMNS)
    at = place[:, None] * C + channel[None, :]
    sums = column_sums(x_at + at, filters_at, channel, top, left, exists, H, W, C, KERNEL, ROWS, COLUMNS, CHANNELS)
    for h in tl.static_range(ROWS):
        out = sums[h]
        if GELU:
            share, _ = normal(out)
            out *= share
        inside = (exists & (top + h < H))[:, None] & (channel < C)[None, :]
        tl.store(out_at + at + h * W * C, out.to(out_at.dtype.element_ty), mask=inside)


@triton.jit
def sum_products(
    x_at, filters_at, grad_at, inner_at, sums_at, shares, turns,
    NUM, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, KERNEL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    REACH: tl.constexpr = KERNEL // 2
    share = tl.program_id(0) // BLOCKS
    channel = tl.program_id(0) % BLOCKS * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = (channel < C)[None, :]
    bias_sum = tl.zeros((COLUMNS, CHANNELS), tl.float32)
    sums = ()  # one per tap, the taps of a column of the kernel together
    for _ in tl.static_range(KERNEL * KERNEL):
        sums = sums + (tl.zeros((COLUMNS, CHANNELS), tl.float32),)
    for turn in range(turns):
        tile = turn * shares + share
        place, top, left, exists = columns_of(tile, NUM, H, W, ROWS, COLUMNS)
        at = place[:, None] * C + channel[None, :]
        grads = ()
        for h in tl.static_range(ROWS):
            inside = (exists & (top + h < H))[:, None] & is_channel
            grads = grads + (tl.load(grad_at + at + h * W * C, mask=inside, other=0.0).to(tl.float32),)
        if GELU:
            grads = through_gelu(
                grads, x_at + at, filters_at, inner_at + at, channel, top, left, exists,
                H, W, C, KERNEL, ROWS, COLUMNS, CHANNELS,
            )  # fmt: skip
        for h in tl.static_range(ROWS):
            bias_sum += grads[h]
        rows = rows_inside(top, H, ROWS, KERNEL)
        for right in tl.static_range(KERNEL):
            there = exists & (left + (right - REACH) >= 0) & (left + (right - REACH) < W)
            column = sums[right * KERNEL : (right + 1) * KERNEL]
            for r in tl.static_range(ROWS + KERNEL - 1):
                offset = ((r - REACH) * W + right - REACH) * C
                inside = (there & rows[r])[:, None] & is_channel
                x = tl.load(x_at + at + offset, mask=inside, other=0.0).to(tl.float32)
                grown = ()
                for down in tl.static_range(KERNEL):
                    if (r - down >= 0) & (r - down < ROWS):
                        grown = grown + (column[down] + x * grads[r - down],)
                    else:
                        grown = grown + (column[down],)
                column = grown
            sums = sums[: right * KERNEL] + column + sums[(right + 1) * KERNEL :]
    to = sums_at + share.to(tl.int64) * (KERNEL * KERNEL + 1) * C + channel
    for right in tl.static_range(KERNEL):
        for down in tl.static_range(KERNEL):
            total = tl.sum(sums[right * KERNEL + down], axis=0)
            tl.store(to + (down * KERNEL + right) * C, total, mask=channel < C)
    tl.store(to + KERNEL * KERNEL * C, tl.sum(bias_sum, axis=0), mask=channel < C)


@triton.jit
def columns_of(tile, NUM, H: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The topmost place of each column of a tile among those of all pictures, its row, its column, and whether it is
    one: the columns of all strips of all pictures are counted in one go."""
    STRIPS: tl.constexpr = (H + ROWS - 1) // ROWS
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    left = column % W
    strip = column // W
    top = strip % STRIPS * ROWS
    place = ((strip // STRIPS * H + top) * W + left).to(tl.int64)
    return place, top, left, column < NUM


@triton.jit
def rows_inside(top, H: tl.constexpr, ROWS: tl.constexpr, KERNEL: tl.constexpr):
    """Of every row that columns reach, from above the topmost place to below the last, whether the map has it."""
    rows = ()
    for r in tl.static_range(ROWS + KERNEL - 1):
        rows = rows + ((top + (r - KERNEL // 2) >= 0) & (top + (r - KERNEL // 2) < H),)
    return rows


@triton.jit
def column_sums(
    from_at, filters_at, channel, top, left, exists,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, KERNEL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The convolution: (COLUMNS, CHANNELS), ROWS times."""
    REACH: tl.constexpr = KERNEL // 2
    is_channel = channel < C
    bias = tl.load(filters_at + KERNEL * KERNEL * C + channel, mask=is_channel, other=0.0)
    rows = rows_inside(top, H, ROWS, KERNEL)
    sums = ()
    for _ in tl.static_range(ROWS):
        sums = sums + (tl.zeros((COLUMNS, CHANNELS), tl.float32) + bias[None, :],)
    for right in range(KERNEL):  # a real loop: unrolled, its code would be too long for the instruction cache
        weights = ()  # of this column of the kernel
        for down in tl.static_range(KERNEL):
            at = filters_at + (down * KERNEL + right) * C + channel
            weights = weights + (tl.load(at, mask=is_channel, other=0.0)[None, :],)
        there = exists & (left + (right - REACH) >= 0) & (left + (right - REACH) < W)
        column_at = from_at + (right - REACH) * C
        for r in tl.static_range(ROWS + KERNEL - 1):
            inside = (there & rows[r])[:, None] & is_channel[None, :]
            x = tl.load(column_at + (r - REACH) * W * C, mask=inside, other=0.0).to(tl.float32)
            grown = ()
            for h in tl.static_range(ROWS):
                if (r - h >= 0) & (r - h < KERNEL):
                    grown = grown + (sums[h] + x * weights[r - h],)
                else:
                    grown = grown + (sums[h],)
            sums = grown
    return sums


@triton.jit
def through_gelu(
    grads, from_at, filters_at, inner_at, channel, top, left, exists,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, KERNEL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The gradients with respect to what went into the GELU, which is computed again; stored and returned."""
    sums = column_sums(from_at, filters_at, channel, top, left, exists, H, W, C, KERNEL, ROWS, COLUMNS, CHANNELS)
    inner = ()
    for h in tl.static_range(ROWS):
        y = sums[h]
        share, density = normal(y)
        one = grads[h] * (share + y * density)
        inside = (exists & (top + h < H))[:, None] & (channel < C)[None, :]
        tl.store(inner_at + h * W * C, one.to(inner_at.dtype.element_ty), mask=inside)
        inner = inner + (one,)
    return inner


@triton.jit
def normal(y):
    """The share of the normal distribution below y, and its density there: what a GELU and its slope are made of.
    Abramowitz and Stegun, 26.2.17, within 1e-7: a third of the instructions of the library's erf."""
    density = tl.exp2(y * y * -0.7213475204444817) * 0.3989422804014327
    t = 1 / (1 + 0.2316419 * tl.abs(y))
    sums = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    beyond = density * sums
    return tl.where(y < 0, beyond, 1 - beyond), density
