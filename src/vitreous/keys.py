"""Randomness without state: every random choice about a sample is a hash of what it is about.

A sample's key is a hash of (seed, epoch, sample). A choice is a hash of (key, purpose, counter). So a choice is the
same on every device, for any number of workers and ranks, in any order, and a run that resumes has nothing to restore.
It is all integer arithmetic, so the CPU and the GPU agree to the bit.

The mixing function is the finaliser of splitmix64 (Steele, Lea and Flood 2014).
"""

import math
from typing import TypeVar

import torch
from torch import Tensor

GOLDEN = -7046029254386353131  # 2^64 / golden ratio, as a signed number: the step between counters

IntOrTensor = TypeVar("IntOrTensor", int, Tensor)


def _shift_right(x: IntOrTensor, bits: int) -> IntOrTensor:
    # torch has only signed 64-bit integers, whose >> copies the sign bit; the mask makes it a logical shift.
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """A bijection of int64 in which every input bit reaches every output bit."""
    x = (x ^ _shift_right(x, 30)) * -4658895280553007687
    x = (x ^ _shift_right(x, 27)) * -7723592293110705685
    return x ^ _shift_right(x, 31)


def _signed(x: int) -> int:
    """A Python integer wrapped to int64, as tensors wrap by themselves."""
    return (x + 2**63) % 2**64 - 2**63


def _mix_number(x: int) -> int:
    """`mix` of one number, in Python, so that no constant has to be copied to the device."""
    x = _signed(x)
    x = _signed((x ^ _shift_right(x, 30)) * -4658895280553007687)
    x = _signed((x ^ _shift_right(x, 27)) * -7723592293110705685)
    return x ^ _shift_right(x, 31)


def purpose_code(purpose: str) -> int:
    """A fixed number for a purpose's name (FNV-1a, 63 bits), so that two purposes never share their draws."""
    code = 0xCBF29CE484222325
    for byte in purpose.encode():
        code = ((code ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return code >> 1


# What torch.compiler.assume_constant_result does; calling that would import the whole compiler, which takes longer than
# importing torch, at the start of every command.
purpose_code._dynamo_marked_constant = True  # type: ignore[attr-defined]


def sample_keys(seed: int, epoch: int, ids: Tensor) -> Tensor:
    """(B,) keys of the samples `ids` in an epoch."""
    root = _mix_number(_mix_number(seed + GOLDEN) ^ (epoch + 1))
    return mix(ids.to(torch.int64) * GOLDEN + root)


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed for dropout, whose draws are not about a sample. In [0, 2^63)."""
    return _mix_number(_mix_number(_mix_number(seed ^ purpose_code("step")) + step) + rank) & (2**63 - 1)


def bits(keys: Tensor, purpose: str, num: int) -> Tensor:
    """(B, num) int64, all 64 bits random: the raw draws that the others are made of."""
    counters = torch.arange(1, num + 1, dtype=torch.int64, device=keys.device)
    # Changes nothing, but without it inductor treats the product below as a 32-bit index.
    counters = counters & 0x7FFFFFFF
    return mix(mix(keys ^ purpose_code(purpose))[:, None] + counters * GOLDEN)


def uniform(keys: Tensor, purpose: str, num: int) -> Tensor:
    """(B, num) float32 in [0, 1), multiples of 2^-24: exact, so equal on every device."""
    return _shift_right(bits(keys, purpose, num), 40).to(torch.float32) * 2.0**-24


def integers(keys: Tensor, purpose: str, num: int, below: int) -> Tensor:
    """(B, num) int64 in [0, below), for `below` up to 2^31."""
    return (_shift_right(bits(keys, purpose, num), 32) * below) >> 32


def one_below(keys: Tensor, purpose: str, limits: Tensor) -> Tensor:
    """(B,) int64: for every sample a number in [0, its own limit), for limits up to 2^31."""
    return (_shift_right(bits(keys, purpose, 1)[:, 0], 32) * limits) >> 32


def normal(keys: Tensor, purpose: str, num: int) -> Tensor:
    """(B, num) float32, standard normal (Box and Muller 1958); equal across devices up to rounding."""
    draws = bits(keys, purpose, num)
    radius = (-2.0 * ((_shift_right(draws, 40) + 1).to(torch.float32) * 2.0**-24).log()).sqrt()
    return radius * ((draws & 0xFFFFFF).to(torch.float32) * (2.0**-24 * 2.0 * math.pi)).cos()


def orderings(keys: Tensor, purpose: str, num: int) -> Tensor:
    """(B, num) int64: a random ordering of range(num) for every sample. Masks take its first entries."""
    return bits(keys, purpose, num).argsort(dim=1)


def epoch_order(seed: int, epoch: int, num: int, device: torch.device | str = "cpu") -> Tensor:
    """(num,) int64: the order in which an epoch visits the samples."""
    # Keys of one epoch never tie, since `mix` is a bijection, so every device sorts them alike.
    return sample_keys(seed, epoch, torch.arange(num, device=device)).argsort()
