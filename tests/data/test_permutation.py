"""Permutations entry by entry: exact, and as good as drawn."""

import math

import pytest
import torch

from vitreous.data.permutation import permuted


def test_it_never_changes():
    """A change here would silently change the order of every large run ever recorded."""
    assert permuted(torch.arange(10), 10, 7).tolist() == [8, 2, 7, 1, 3, 0, 9, 4, 6, 5]
    far = permuted(torch.tensor([0, 1, 10**8 - 1]), 10**8, -5)
    assert far.tolist() == [50400361, 41623034, 59241218]


def test_every_number_comes_once_whatever_their_number():
    nums = [*range(1, 70), 99, 100, 101, 4095, 4096, 4097, 99_991, 2**17 + 1]
    for num in nums:
        for key in (0, -(2**63)):
            assert permuted(torch.arange(num), num, key).sort()[0].equal(torch.arange(num)), (num, key)


def test_beyond_32_bits_entries_are_distinct_and_inside():
    for num in (2**31 + 11, 10**12 + 39, 2**52):
        entries = permuted(torch.cat([torch.arange(50_000), num - 1 - torch.arange(50_000)]), num, 3)
        assert len(entries.unique()) == 100_000 and entries.min() >= 0 and entries.max() < num


def by_hand(place: int, num: int, key: int) -> int:
    """The same in Python's integers, which have no limit."""

    def mix(x: int) -> int:
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) % 2**64
        return x ^ x >> 31

    golden = 0x9E3779B97F4A7C15
    rows = math.isqrt(num - 1) + 1
    columns = -(-num // rows)
    row, column = divmod(place, columns)
    for number in range(1, 17):
        round_key = mix((key + number * golden) % 2**64)
        if number % 2:
            row = (row + (mix((column * golden + round_key) % 2**64) >> 2)) % rows
        else:
            column = (column + (mix((row * golden + round_key) % 2**64) >> 2)) % columns
    entry = row * columns + column
    return entry if entry < num else by_hand(entry, num, key)


@pytest.mark.parametrize("num", [1, 2, 7, 1000, 2**24 + 1, 10**15 + 37])
def test_it_is_what_the_formula_says(num):
    places = torch.linspace(0, num - 1, 50, dtype=torch.float64).long()
    assert permuted(places, num, -77).tolist() == [by_hand(place, num, -77) for place in places.tolist()]


def test_one_call_may_be_about_several_permutations():
    nums = torch.tensor([5, 1000, 77]).repeat_interleave(5)
    keys, places = torch.tensor([9, -4, 0]).repeat_interleave(5), torch.arange(5).repeat(3)
    apart = [permuted(torch.arange(5), num, key) for num, key in ((5, 9), (1000, -4), (77, 0))]
    assert permuted(places, nums, keys).equal(torch.cat(apart))


@pytest.mark.parametrize("num", [2, 3, 4, 5, 6])
def test_all_orders_are_equally_likely(num):
    keys = torch.arange(60_000) * 977
    columns = [permuted(torch.full_like(keys, place), num, keys) for place in range(num)]
    orders = sum(column * num**place for place, column in enumerate(columns))
    assert is_even(orders.unique(return_counts=True)[1], math.factorial(num))


def test_neighbours_part_at_random():
    """Where two neighbouring places lead, of many keys; and of one key, how far entries are apart."""
    keys, num = torch.arange(400_000) * 31, 41
    one, next_one = (permuted(torch.full_like(keys, place), num, keys) for place in (7, 8))
    assert is_even((one * num + next_one).unique(return_counts=True)[1], num * (num - 1))
    num = 3 * 10**8
    entries = permuted(torch.arange(200_000), num, 11)
    assert is_even(torch.bincount(entries * 1000 // num), 1000)
    assert is_even(torch.bincount(entries.diff() % num * 1000 // num), 1000)


def is_even(counts: torch.Tensor, kinds: int) -> bool:
    """Whether a chi-squared test finds so many kinds equally frequent, up to five standard deviations."""
    expected = counts.sum().item() / kinds
    chi_squared = ((counts - expected) ** 2 / expected).sum().item() + (kinds - len(counts)) * expected
    return chi_squared < kinds - 1 + 5 * math.sqrt(2 * (kinds - 1))


def test_the_test_of_evenness_can_fail():
    assert is_even(torch.full((10,), 100), 10) and not is_even(torch.tensor([200, *[100] * 9]), 10)
