"""A random permutation of range(num), entry by entry: none of the others is computed, and nothing is kept.

A generalised Feistel cipher (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"): a number is a pair of
digits in a rectangle hardly larger than num, and each round adds a hash of one digit to the other, which can be undone;
so no two numbers share an entry. What lands in the rectangle but outside of range(num) is sent on until it does not
(cycle walking), which keeps the map one to one. Integer arithmetic: the same on every platform.
"""

import torch
from torch import Tensor

from vitreous import keys as K

ROUNDS = 16  # at 8, orders of five samples were not yet equally likely; recorded orders depend on it


def permuted(places: Tensor, num: Tensor | int, keys: Tensor | int) -> Tensor:
    """(B,) the entries at `places` of permutations of range(num). `num` and `keys`, which chooses the permutation, may
    differ between them."""
    num, keys = (torch.as_tensor(given, device=places.device).expand_as(places) for given in (num, keys))
    entries = _encrypted(places, num, keys)
    outside = (entries >= num).nonzero()[:, 0]
    while len(outside):
        entries[outside] = _encrypted(entries[outside], num[outside], keys[outside])
        outside = outside[entries[outside] >= num[outside]]
    return entries


def _encrypted(numbers: Tensor, num: Tensor, keys: Tensor) -> Tensor:
    rows = _root(num)
    columns = (num + rows - 1) // rows  # rows x columns is at least num, and below num + rows
    row, column = numbers // columns, numbers % columns
    for number in range(ROUNDS):
        keys = keys + K.GOLDEN
        if number % 2:
            column = (column + _hash(row, keys)) % columns
        else:
            row = (row + _hash(column, keys)) % rows
    return row * columns + column


def _hash(digit: Tensor, key: Tensor) -> Tensor:
    """In [0, 2^62): adding a digit to it does not overflow."""
    return (K.mix(digit * K.GOLDEN + K.mix(key)) >> 2) & (2**62 - 1)


def _root(num: Tensor) -> Tensor:
    """Rounded up; float64 has exact integers to 2^53, and one correctly rounded square root."""
    return num.to(torch.float64).sqrt().ceil().to(torch.int64)
