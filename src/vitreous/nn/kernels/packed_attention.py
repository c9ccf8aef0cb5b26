"""Softmax attention of short sequences, read and written where queries, keys and values lie side by side:
nn/packed_attention.py says what it computes.

A program has one head and a block of its queries, or on the way back of its keys, and goes over all the others. So
every sum is made by one program, in one order: two runs give the same bits. What is left of a sequence after whole
blocks is a block of its own, as small as can be: of 197 tokens 5 are left, which cost 16. On the way back everything is
computed again from queries, keys and values; gradients go where those of one matrix product are wanted, and each
program leaves their sums, from which that of the bias is made.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, NUM_WARPS, NUM_STAGES = 64, 4, 2
LEAST = 16  # tokens that a matrix product of these units has at least
LOG2_E = 1.4426950408889634
HIDDEN = tl.constexpr(-1e30)  # finite, so that rows of nothing but padding are no NaN


def attended(packed: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """packed (B, N, 3 * D) -> (B, N, D), and (B, heads, N) float32: the logarithm to base 2 of each softmax's sum."""
    B, N, tripled = packed.shape
    out = packed.new_empty(B, N, tripled // 3)
    sums = torch.empty(B, heads, N, dtype=torch.float32, device=packed.device)
    attend[(B * heads * triton.cdiv(N, BLOCK),)](packed, out, sums, **_sizes(packed, heads))
    return out, sums


def gradients(packed: Tensor, out: Tensor, sums: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Of `packed` and, in float32, of a bias (3 * D,) that was added to it; `grad` is that of the output."""
    (B, N, tripled), heads = packed.shape, sums.shape[1]
    blocks = triton.cdiv(N, BLOCK)
    to_packed, shares = torch.empty_like(packed), torch.empty_like(sums)
    of_bias = torch.empty(B, blocks, tripled, dtype=torch.float32, device=packed.device)
    grid, sizes = (B * heads * blocks,), _sizes(packed, heads)
    differentiate_queries[grid](packed, out, grad, sums, shares, to_packed, of_bias, **sizes)
    differentiate_keys[grid](packed, grad, sums, shares, to_packed, of_bias, **sizes)
    return to_packed, of_bias.sum((0, 1))


def _sizes(packed: Tensor, heads: int) -> dict[str, Any]:
    N, width = packed.shape[1], packed.shape[2] // 3
    left = N % BLOCK
    rest = max(LEAST, triton.next_power_of_2(left)) if left else 0
    sizes = {"N": N, "WIDTH": width, "HEADS": heads, "HEAD": width // heads, "BLOCK": BLOCK, "REST": rest}
    # Logits are to base 2, as the processor's exponential is.
    scale = (width // heads) ** -0.5
    return {**sizes, "SCALE": scale, "SCALE_2": scale * LOG2_E, "num_warps": NUM_WARPS, "num_stages": NUM_STAGES}


@triton.jit
def place(N: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """Of a program: its sample, its head, its block of tokens."""
    BLOCKS: tl.constexpr = (N + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    return (program // (BLOCKS * HEADS)).to(tl.int64), program // BLOCKS % HEADS, program % BLOCKS


@triton.jit
def rows(at, first, N: tl.constexpr, PITCH: tl.constexpr, HEAD: tl.constexpr, SIZE: tl.constexpr, WHOLE: tl.constexpr):
    """(SIZE, HEAD): of a matrix with rows PITCH apart; zero beyond row N, where a block is not whole."""
    row = first + tl.arange(0, SIZE)
    at += row[:, None] * PITCH + tl.arange(0, HEAD)[None, :]
    if WHOLE:
        return tl.load(at)
    return tl.load(at, mask=(row < N)[:, None], other=0.0)


@triton.jit
def attend(
    packed_at, out_at, sums_at,
    N: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
    REST: tl.constexpr, SCALE: tl.constexpr, SCALE_2: tl.constexpr,
):  # fmt: skip
    WHOLE: tl.constexpr = N // BLOCK * BLOCK
    sample, head, block = place(N, HEADS, BLOCK)
    queries_at = packed_at + sample * N * 3 * WIDTH + head * HEAD
    query = block * BLOCK + tl.arange(0, BLOCK)
    queries = rows(queries_at, block * BLOCK, N, 3 * WIDTH, HEAD, BLOCK, False)
    top = tl.full((BLOCK,), HIDDEN, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    out = tl.zeros((BLOCK, HEAD), tl.float32)
    for first in range(0, WHOLE, BLOCK):
        top, total, out = take_keys(
            queries, top, total, out, queries_at, first, N, WIDTH, HEAD, SCALE_2, BLOCK, True
        )  # fmt: skip
    if REST > 0:
        top, total, out = take_keys(
            queries, top, total, out, queries_at, WHOLE, N, WIDTH, HEAD, SCALE_2, REST, False
        )  # fmt: skip
    to = out_at + (sample * N + query)[:, None] * WIDTH + head * HEAD + tl.arange(0, HEAD)[None, :]
    tl.store(to, (out / total[:, None]).to(out_at.dtype.element_ty), mask=(query < N)[:, None])
    tl.store(sums_at + (sample * HEADS + head) * N + query, top + tl.log2(total), mask=query < N)


@triton.jit
def take_keys(
    queries, top, total, out, queries_at, first,
    N: tl.constexpr, WIDTH: tl.constexpr, HEAD: tl.constexpr, SCALE_2: tl.constexpr,
    SIZE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The softmax so far, and some more keys: the largest logit, the sum, and the values weighted by it."""
    keys = rows(queries_at + WIDTH, first, N, 3 * WIDTH, HEAD, SIZE, WHOLE)
    values = rows(queries_at + 2 * WIDTH, first, N, 3 * WIDTH, HEAD, SIZE, WHOLE)
    logits = tl.dot(queries, tl.trans(keys)) * SCALE_2
    if not WHOLE:
        logits = tl.where((first + tl.arange(0, SIZE) < N)[None, :], logits, HIDDEN)
    higher = tl.maximum(top, tl.max(logits, axis=1))
    weights = tl.exp2(logits - higher[:, None])
    shrunk = tl.exp2(top - higher)
    out = tl.dot(weights.to(values.dtype), values, out * shrunk[:, None])
    return higher, total * shrunk + tl.sum(weights, axis=1), out


@triton.jit
def differentiate_queries(
    packed_at, out_at, grad_at, sums_at, shares_at, to_packed_at, of_bias_at,
    N: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
    REST: tl.constexpr, SCALE: tl.constexpr, SCALE_2: tl.constexpr,
):  # fmt: skip
    """Of a block of queries; leaves for the keys' turn what each query's weights share: sum(grad * out)."""
    WHOLE: tl.constexpr = N // BLOCK * BLOCK
    BLOCKS: tl.constexpr = (N + BLOCK - 1) // BLOCK
    sample, head, block = place(N, HEADS, BLOCK)
    query = block * BLOCK + tl.arange(0, BLOCK)
    channel = head * HEAD + tl.arange(0, HEAD)
    queries_at = packed_at + sample * N * 3 * WIDTH + head * HEAD
    queries = rows(queries_at, block * BLOCK, N, 3 * WIDTH, HEAD, BLOCK, False)
    outs = rows(out_at + sample * N * WIDTH + head * HEAD, block * BLOCK, N, WIDTH, HEAD, BLOCK, False)
    grads = rows(grad_at + sample * N * WIDTH + head * HEAD, block * BLOCK, N, WIDTH, HEAD, BLOCK, False)
    of_query = (sample * HEADS + head) * N + query
    sums = tl.load(sums_at + of_query, mask=query < N, other=0.0)
    share = tl.sum(outs.to(tl.float32) * grads.to(tl.float32), axis=1)
    tl.store(shares_at + of_query, share, mask=query < N)
    total = tl.zeros((BLOCK, HEAD), tl.float32)
    for first in range(0, WHOLE, BLOCK):
        total = through_keys(
            queries, grads, sums, share, total, queries_at, first, N, WIDTH, HEAD, SCALE_2, BLOCK, True
        )  # fmt: skip
    if REST > 0:
        total = through_keys(
            queries, grads, sums, share, total, queries_at, WHOLE, N, WIDTH, HEAD, SCALE_2, REST, False
        )  # fmt: skip
    total *= SCALE
    to = to_packed_at + (sample * N + query)[:, None] * 3 * WIDTH + channel[None, :]
    tl.store(to, total.to(to_packed_at.dtype.element_ty), mask=(query < N)[:, None])
    tl.store(of_bias_at + (sample * BLOCKS + block) * 3 * WIDTH + channel, tl.sum(total, axis=0))


@triton.jit
def through_keys(
    queries, grads, sums, share, total, queries_at, first,
    N: tl.constexpr, WIDTH: tl.constexpr, HEAD: tl.constexpr, SCALE_2: tl.constexpr,
    SIZE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    keys = rows(queries_at + WIDTH, first, N, 3 * WIDTH, HEAD, SIZE, WHOLE)
    values = rows(queries_at + 2 * WIDTH, first, N, 3 * WIDTH, HEAD, SIZE, WHOLE)
    weights = tl.exp2(tl.dot(queries, tl.trans(keys)) * SCALE_2 - sums[:, None])
    if not WHOLE:
        weights = tl.where((first + tl.arange(0, SIZE) < N)[None, :], weights, 0.0)
    to_logits = weights * (tl.dot(grads, tl.trans(values)) - share[:, None])
    return tl.dot(to_logits.to(keys.dtype), keys, total)


@triton.jit
def differentiate_keys(
    packed_at, grad_at, sums_at, shares_at, to_packed_at, of_bias_at,
    N: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
    REST: tl.constexpr, SCALE: tl.constexpr, SCALE_2: tl.constexpr,
):  # fmt: skip
    """Of a block of keys and values."""
    WHOLE: tl.constexpr = N // BLOCK * BLOCK
    BLOCKS: tl.constexpr = (N + BLOCK - 1) // BLOCK
    sample, head, block = place(N, HEADS, BLOCK)
    key = block * BLOCK + tl.arange(0, BLOCK)
    channel = head * HEAD + tl.arange(0, HEAD)
    queries_at = packed_at + sample * N * 3 * WIDTH + head * HEAD
    grads_at = grad_at + sample * N * WIDTH + head * HEAD
    of_queries = (sample * HEADS + head) * N
    keys = rows(queries_at + WIDTH, block * BLOCK, N, 3 * WIDTH, HEAD, BLOCK, False)
    values = rows(queries_at + 2 * WIDTH, block * BLOCK, N, 3 * WIDTH, HEAD, BLOCK, False)
    to_keys = tl.zeros((BLOCK, HEAD), tl.float32)
    to_values = tl.zeros((BLOCK, HEAD), tl.float32)
    for first in range(0, WHOLE, BLOCK):
        to_keys, to_values = through_queries(
            keys, values, to_keys, to_values, queries_at, grads_at, sums_at + of_queries, shares_at + of_queries,
            first, N, WIDTH, HEAD, SCALE_2, BLOCK, True,
        )  # fmt: skip
    if REST > 0:
        to_keys, to_values = through_queries(
            keys, values, to_keys, to_values, queries_at, grads_at, sums_at + of_queries, shares_at + of_queries,
            WHOLE, N, WIDTH, HEAD, SCALE_2, REST, False,
        )  # fmt: skip
    exists = (key < N)[:, None]
    # Beyond the last key there is nothing, which may be infinite by now.
    to_keys = tl.where(exists, to_keys * SCALE, 0.0)
    to_values = tl.where(exists, to_values, 0.0)
    to = to_packed_at + (sample * N + key)[:, None] * 3 * WIDTH + WIDTH + channel[None, :]
    tl.store(to, to_keys.to(to_packed_at.dtype.element_ty), mask=exists)
    tl.store(to + WIDTH, to_values.to(to_packed_at.dtype.element_ty), mask=exists)
    of_bias = of_bias_at + (sample * BLOCKS + block) * 3 * WIDTH + WIDTH + channel
    tl.store(of_bias, tl.sum(to_keys, axis=0))
    tl.store(of_bias + WIDTH, tl.sum(to_values, axis=0))


@triton.jit
def through_queries(
    keys, values, to_keys, to_values, queries_at, grads_at, sums_at, shares_at, first,
    N: tl.constexpr, WIDTH: tl.constexpr, HEAD: tl.constexpr, SCALE_2: tl.constexpr,
    SIZE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    query = first + tl.arange(0, SIZE)
    queries = rows(queries_at, first, N, 3 * WIDTH, HEAD, SIZE, WHOLE)
    grads = rows(grads_at, first, N, WIDTH, HEAD, SIZE, WHOLE)
    sums = tl.load(sums_at + query, mask=query < N, other=0.0)
    share = tl.load(shares_at + query, mask=query < N, other=0.0)
    weights = tl.exp2(tl.dot(keys, tl.trans(queries)) * SCALE_2 - sums[None, :])  # a column per query
    to_values = tl.dot(weights.to(grads.dtype), grads, to_values)
    to_logits = weights * (tl.dot(values, tl.trans(grads)) - share[None, :])
    to_keys = tl.dot(to_logits.to(queries.dtype), queries, to_keys)
    return to_keys, to_values
