"""AdamW on many parameters in one launch: the gradient scaled to the largest norm that is allowed, moments, weight and
its average, each read and written once. training/one_pass.py says where they lie and when it may.

A program has a piece of one parameter, which it finds by its address.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PIECE, NUM_WARPS = 2048, 8
ROWS = 5  # of the addresses: weights, gradients, two moments, averages; 0 where there is none


def pieces(sizes: list[int], device: torch.device) -> Tensor:
    """(2, n) int32: of each piece, its parameter and which of its pieces it is."""
    found = [(index, number) for index, size in enumerate(sizes) for number in range(triton.cdiv(size, PIECE))]
    return torch.tensor(found, dtype=torch.int32).T.contiguous().to(device)


def step(
    addresses: Tensor,  # (ROWS, P) int64
    cut: Tensor,  # of `pieces`
    sizes: Tensor,  # (P,) int64
    factors: Tensor,  # (4, P) float32: learning rate, weight decay, and the two corrections of moments that are young
    numbers: Tensor,  # (3,) float32: factor on the gradient, 1 where nothing may change, share of the average's change
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> None:
    move[(cut.shape[1],)](
        addresses, cut, sizes, factors, numbers, addresses.shape[1], cut.shape[1],
        beta1, beta2, epsilon, PIECE=PIECE, num_warps=NUM_WARPS,
    )  # fmt: skip


@triton.jit
def move(
    addresses_at, cut_at, sizes_at, factors_at, numbers_at, num, num_pieces, beta1, beta2, epsilon,
    PIECE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    index = tl.load(cut_at + program)
    first = tl.load(cut_at + num_pieces + program).to(tl.int64) * PIECE
    size = tl.load(sizes_at + index)
    # All of a piece can be read 16 bytes at a time, but for the last one of a parameter.
    if first + PIECE <= size:
        move_piece(
            addresses_at + index, factors_at + index, numbers_at, num, first, size, beta1, beta2, epsilon, PIECE, True
        )
    else:
        move_piece(
            addresses_at + index, factors_at + index, numbers_at, num, first, size, beta1, beta2, epsilon, PIECE, False
        )


@triton.jit
def move_piece(
    addresses_at, factors_at, numbers_at, num, first, size, beta1, beta2, epsilon,
    PIECE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    at = first + tl.arange(0, PIECE)
    inside = at < size
    weights_at = numbers_of(addresses_at) + at
    gradients_at = tl.load(addresses_at + num)
    averages_at = tl.load(addresses_at + 4 * num)
    weights = read(weights_at, inside, WHOLE)
    if gradients_at != 0:
        moments_at, squares_at = numbers_of(addresses_at + 2 * num) + at, numbers_of(addresses_at + 3 * num) + at
        rate, decay = tl.load(factors_at), tl.load(factors_at + num)
        young, young_square = tl.load(factors_at + 2 * num), tl.load(factors_at + 3 * num)
        is_bad = tl.load(numbers_at + 1) != 0
        gradients = read(numbers_of(addresses_at + num) + at, inside, WHOLE) * tl.load(numbers_at)
        old_moments, old_squares = read(moments_at, inside, WHOLE), read(squares_at, inside, WHOLE)
        moments = old_moments + (1 - beta1) * (gradients - old_moments)
        squares = beta2 * old_squares + (1 - beta2) * gradients * gradients
        depth = tl.sqrt_rn(squares) / tl.sqrt_rn(young_square) + epsilon
        moved = weights * (1 - rate * decay) - rate / young * moments / depth
        weights = tl.where(is_bad, weights, moved)
        write(moments_at, tl.where(is_bad, old_moments, moments), inside, WHOLE)
        write(squares_at, tl.where(is_bad, old_squares, squares), inside, WHOLE)
        write(weights_at, weights, inside, WHOLE)
    if averages_at != 0:
        averages = read(numbers_of(addresses_at + 4 * num) + at, inside, WHOLE)
        share = tl.load(numbers_at + 2)
        write(numbers_of(addresses_at + 4 * num) + at, averages + (weights - averages) * share, inside, WHOLE)


@triton.jit
def numbers_of(at):
    """What lies at an address."""
    return tl.multiple_of(tl.load(at).to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def read(at, inside, WHOLE: tl.constexpr):
    if WHOLE:
        return tl.load(at)
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def write(at, values, inside, WHOLE: tl.constexpr):
    if WHOLE:
        tl.store(at, values)
    else:
        tl.store(at, values, mask=inside)
