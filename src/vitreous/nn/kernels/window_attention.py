"""Attention inside windows, read and written where the map lies: nn/windows.py says what it computes.

A program has one head and some windows, one after the other. Shift and cut are arithmetic on addresses, so nothing is
rolled or copied; the biases of the offsets are read once per program, and the whole of a window's softmax is in
registers. On the way back all of it is computed again from queries, keys and values. The gradients of the biases are
summed by each program over its windows, and these sums are added up in a fixed order: two runs give the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

NUM_WARPS = 4
FORWARD_STAGES, BACKWARD_STAGES = 3, 2  # windows that are on their way at a time, the one at work included
FORWARD_WINDOWS = 8  # that a program goes through
BACKWARD_PROGRAMS = 1056  # about: each leaves sums behind, so they are not many
Cut = tuple[int, ...]  # height and width of a window, then those of the shift, then those of the table's windows
LOG2_E = tl.constexpr(1.4426950408889634)
HIDDEN = tl.constexpr(-1e30)  # finite, so that rows of nothing but padding are no NaN


def attended(projected: Tensor, table: Tensor, cut: Cut) -> Tensor:
    """projected (B, H, W, 3 * D), whole windows; table (offsets, heads) -> (B, H, W, D)."""
    *shape, tripled = projected.shape
    out = projected.new_empty(*shape, tripled // 3)
    sizes, num = _sizes(projected, table, cut), _num_windows(projected, cut)
    programs = triton.cdiv(num, FORWARD_WINDOWS) * sizes["HEADS"]
    attend[(programs,)](projected, table, out, num, WINDOWS=FORWARD_WINDOWS, num_stages=FORWARD_STAGES, **sizes)
    return out


def gradients(projected: Tensor, table: Tensor, grad: Tensor, cut: Cut) -> tuple[Tensor, Tensor]:
    """Of `projected` and of the table; `grad` is that of the output."""
    sizes, num = _sizes(projected, table, cut), _num_windows(projected, cut)
    heads, tokens = sizes["HEADS"], sizes["TOKENS"]
    windows = triton.cdiv(num * heads, BACKWARD_PROGRAMS)
    groups = triton.cdiv(num, windows)
    to_projected, to_table = torch.empty_like(projected), torch.empty_like(table)
    sums = torch.empty(groups, heads, tokens, tokens, dtype=torch.float32, device=projected.device)
    stages = {"num_stages": BACKWARD_STAGES}
    attend_backward[(groups * heads,)](projected, table, grad, to_projected, sums, num, windows, **stages, **sizes)
    of_window = {name: sizes[name] for name in ("SIDE_H", "SIDE_W", "GRID_H", "GRID_W", "TOKENS", "num_warps")}
    sum_offsets[table.shape](sums, to_table, groups, heads, GROUPS=16, **of_window)
    return to_projected, to_table


def _num_windows(projected: Tensor, cut: Cut) -> int:
    B, H, W, _ = projected.shape
    return B * (H // cut[0]) * (W // cut[1])


def _sizes(projected: Tensor, table: Tensor, cut: Cut) -> dict[str, int]:
    _, H, W, tripled = projected.shape
    heads = table.shape[1]
    names = ("SIDE_H", "SIDE_W", "SHIFT_H", "SHIFT_W", "GRID_H", "GRID_W")
    sizes = {"H": H, "W": W, "HEADS": heads, "HEAD": tripled // 3 // heads, **dict(zip(names, cut, strict=True))}
    sizes["TOKENS"] = max(16, triton.next_power_of_2(cut[0] * cut[1]))
    return {**sizes, "num_warps": NUM_WARPS}


@triton.jit
def attend(
    projected_at, table_at, out_at, num, WINDOWS: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    SIDE_H: tl.constexpr, SIDE_W: tl.constexpr, SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr,
    GRID_H: tl.constexpr, GRID_W: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = HEADS * HEAD
    head = tl.program_id(0) % HEADS
    first = tl.program_id(0) // HEADS * WINDOWS
    feature = head * HEAD + tl.arange(0, HEAD)
    added = biases(table_at + head, HEADS, SIDE_H, SIDE_W, GRID_H, GRID_W, TOKENS)
    around = rolled_around(SIDE_H, SIDE_W, SHIFT_H, SHIFT_W, TOKENS)
    query_around, key_around = around[:, None], around[None, :]
    for turn in range(WINDOWS):
        map_from, place, exists, edges = places(first + turn, num, H, W, SIDE_H, SIDE_W, SHIFT_H, SHIFT_W, TOKENS)
        from_at = projected_at + map_from * (3 * WIDTH) + (place[:, None] * (3 * WIDTH) + feature[None, :])
        q = tl.load(from_at, mask=exists[:, None], other=0.0)
        k = tl.load(from_at + WIDTH, mask=exists[:, None], other=0.0)
        v = tl.load(from_at + 2 * WIDTH, mask=exists[:, None], other=0.0)
        apart = (query_around & edges) != (key_around & edges)
        weights, total = softmax(q, k, added, apart, HEAD, SHIFT_H + SHIFT_W > 0)
        out = tl.dot(weights.to(v.dtype), v) / total[:, None]
        to = out_at + map_from * WIDTH + (place[:, None] * WIDTH + feature[None, :])
        tl.store(to, out.to(out_at.dtype.element_ty), mask=exists[:, None])


@triton.jit
def attend_backward(
    projected_at, table_at, grad_at, to_projected_at, sums_at, num, windows,
    H: tl.constexpr, W: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    SIDE_H: tl.constexpr, SIDE_W: tl.constexpr, SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr,
    GRID_H: tl.constexpr, GRID_W: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = HEADS * HEAD
    head = tl.program_id(0) % HEADS
    group = tl.program_id(0) // HEADS
    feature = head * HEAD + tl.arange(0, HEAD)
    added = biases(table_at + head, HEADS, SIDE_H, SIDE_W, GRID_H, GRID_W, TOKENS)
    added_sum = tl.zeros((TOKENS, TOKENS), tl.float32)
    around = rolled_around(SIDE_H, SIDE_W, SHIFT_H, SHIFT_W, TOKENS)
    query_around, key_around = around[:, None], around[None, :]
    for turn in range(windows):
        map_from, place, exists, edges = places(
            group * windows + turn, num, H, W, SIDE_H, SIDE_W, SHIFT_H, SHIFT_W, TOKENS
        )
        at = place[:, None] * (3 * WIDTH) + feature[None, :]
        from_at = projected_at + map_from * (3 * WIDTH) + at
        q = tl.load(from_at, mask=exists[:, None], other=0.0)
        k = tl.load(from_at + WIDTH, mask=exists[:, None], other=0.0)
        v = tl.load(from_at + 2 * WIDTH, mask=exists[:, None], other=0.0)
        grad_from = grad_at + map_from * WIDTH + (place[:, None] * WIDTH + feature[None, :])
        grad = tl.load(grad_from, mask=exists[:, None], other=0.0)
        apart = (query_around & edges) != (key_around & edges)
        weights, total = softmax(q, k, added, apart, HEAD, SHIFT_H + SHIFT_W > 0)
        weights = weights / total[:, None]
        to_v = tl.dot(tl.trans(weights.to(grad.dtype)), grad)
        to_weights = tl.dot(grad, tl.trans(v))
        to_logits = weights * (to_weights - tl.sum(weights * to_weights, axis=1)[:, None])
        added_sum += to_logits
        scaled = (to_logits * HEAD**-0.5).to(q.dtype)
        to_q = tl.dot(scaled, k)
        to_k = tl.dot(tl.trans(scaled), q)
        to = to_projected_at + map_from * (3 * WIDTH) + at
        tl.store(to, to_q.to(to_projected_at.dtype.element_ty), mask=exists[:, None])
        tl.store(to + WIDTH, to_k.to(to_projected_at.dtype.element_ty), mask=exists[:, None])
        tl.store(to + 2 * WIDTH, to_v.to(to_projected_at.dtype.element_ty), mask=exists[:, None])
    token = tl.arange(0, TOKENS)
    sums_at += tl.program_id(0).to(tl.int64) * TOKENS * TOKENS
    tl.store(sums_at + token[:, None] * TOKENS + token[None, :], added_sum)


@triton.jit
def sum_offsets(
    sums_at, table_at, groups, heads,
    SIDE_H: tl.constexpr, SIDE_W: tl.constexpr, GRID_H: tl.constexpr, GRID_W: tl.constexpr,
    TOKENS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """(groups, heads, N, N) -> (offsets, heads): over all groups, and all pairs that are one offset apart."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    query = tl.arange(0, TOKENS)
    y = query // SIDE_W - (row // (2 * GRID_W - 1) - (GRID_H - 1))  # of the key
    x = query % SIDE_W - (row % (2 * GRID_W - 1) - (GRID_W - 1))
    is_pair = (query < SIDE_H * SIDE_W) & (y >= 0) & (y < SIDE_H) & (x >= 0) & (x < SIDE_W)
    at = head * TOKENS * TOKENS + query * TOKENS + y * SIDE_W + x
    total = tl.zeros((GROUPS, TOKENS), tl.float32)
    for first in range(0, groups, GROUPS):
        group = first + tl.arange(0, GROUPS)
        from_at = sums_at + group.to(tl.int64)[:, None] * heads * TOKENS * TOKENS + at[None, :]
        total += tl.load(from_at, mask=(group < groups)[:, None] & is_pair[None, :], other=0.0)
    tl.store(table_at + row * heads + head, tl.sum(tl.sum(total, axis=1), axis=0))


@triton.jit
def places(
    window, num, H: tl.constexpr, W: tl.constexpr, SIDE_H: tl.constexpr, SIDE_W: tl.constexpr,
    SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Where a window's tokens are: the first place of their map among those of all maps, the place in the map of
    each, whether there is one, and at which edges of the rolled map (1: below, 2: right) the window is."""
    ACROSS: tl.constexpr = W // SIDE_W
    COUNT: tl.constexpr = ACROSS * (H // SIDE_H)
    token = tl.arange(0, TOKENS)
    top = window % COUNT // ACROSS * SIDE_H
    left = window % ACROSS * SIDE_W
    y = top + token // SIDE_W + SHIFT_H
    x = left + token % SIDE_W + SHIFT_W
    place = tl.where(y >= H, y - H, y) * W + tl.where(x >= W, x - W, x)
    edges = (top == H - SIDE_H).to(tl.int32) + 2 * (left == W - SIDE_W).to(tl.int32)
    exists = token < tl.where(window < num, SIDE_H * SIDE_W, 0)
    return (window // COUNT).to(tl.int64) * (H * W), place, exists, edges


@triton.jit
def rolled_around(
    SIDE_H: tl.constexpr, SIDE_W: tl.constexpr, SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr, TOKENS: tl.constexpr
):
    """(TOKENS,): at which edges of the rolled map (1: below, 2: right) a place of a window came around the edge."""
    token = tl.arange(0, TOKENS)
    below = token // SIDE_W >= SIDE_H - SHIFT_H
    right = token % SIDE_W >= SIDE_W - SHIFT_W
    return below.to(tl.int32) + 2 * right.to(tl.int32)


@triton.jit
def biases(
    table_at, HEADS: tl.constexpr, SIDE_H: tl.constexpr, SIDE_W: tl.constexpr,
    GRID_H: tl.constexpr, GRID_W: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """(TOKENS, TOKENS) to add to the logits, in units of log 2; keys that are none are hidden."""
    query = tl.arange(0, TOKENS)[:, None]
    key = tl.arange(0, TOKENS)[None, :]
    down = query // SIDE_W - key // SIDE_W + (GRID_H - 1)
    right = query % SIDE_W - key % SIDE_W + (GRID_W - 1)
    exist = (query < SIDE_H * SIDE_W) & (key < SIDE_H * SIDE_W)
    found = tl.load(table_at + (down * (2 * GRID_W - 1) + right) * HEADS, mask=exist, other=0.0)
    return tl.where(key < SIDE_H * SIDE_W, found.to(tl.float32) * LOG2_E, HIDDEN)


@triton.jit
def softmax(q, k, added, apart, HEAD: tl.constexpr, IS_SHIFTED: tl.constexpr):
    """Of a window's logits: what is to be divided, and by what."""
    logits = tl.dot(q, tl.trans(k)) * (HEAD**-0.5 * LOG2_E) + added
    if IS_SHIFTED:
        logits = tl.where(apart, HIDDEN, logits)
    weights = tl.exp2(logits - tl.max(logits, axis=1)[:, None])
    return weights, tl.sum(weights, axis=1)
