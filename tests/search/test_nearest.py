"""Blocks give what one product of all with all gives."""

import numpy as np
import pytest

from vitreous.search import nearest as search
from vitreous.search.nearest import duplicates, nearest, outliers


def unit(num, width=8, seed=0):
    values = np.random.default_rng(seed).normal(size=(num, width)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So that a few vectors are many blocks, the last of them short."""
    monkeypatch.setattr(search, "BLOCK", 16)
    monkeypatch.setattr(search, "SQUARE", 7)


@pytest.mark.parametrize("num", [1, 5, 40, 60, 100])
def test_nearest_are_those_of_a_full_sort(num):
    vectors, query = unit(60), unit(1, seed=1)[0]
    rows, scores = nearest(vectors, query, num)
    expected = np.argsort(-(vectors @ query), kind="stable")[:num]
    assert rows.tolist() == expected.tolist()
    np.testing.assert_allclose(scores, (vectors @ query)[expected], atol=1e-6)


def test_no_more_than_a_block_is_read_at_a_time(tmp_path):
    """What is asked of the array are slices of a block, each once."""
    asked = []

    class Watched:
        def __init__(self, values):
            self.values = values

        def __len__(self):
            return len(self.values)

        def __getitem__(self, rows):
            asked.append(rows)
            return self.values[rows]

    nearest(Watched(unit(60)), unit(1)[0], 3)
    assert asked == [slice(start, start + 16) for start in range(0, 60, 16)]


def groups_by_hand(vectors, least):
    """One picture at a time takes all that are like it, of those that none has taken."""
    left, found = list(range(len(vectors))), []
    while left:
        group = [row for row in left if row == left[0] or vectors[row] @ vectors[left[0]] >= least]
        left = [row for row in left if row not in group]
        found.append(group)
    return sorted(group for group in found if len(group) > 1)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("least", [0.6, 0.8, 0.95])
def test_duplicates_are_like_the_first_of_their_group(seed, least):
    vectors = unit(50, width=4, seed=seed)
    found = duplicates(vectors, least)
    assert sorted(group.tolist() for group in found) == groups_by_hand(vectors, least)
    assert [len(group) for group in found] == sorted(map(len, found), reverse=True)


def test_duplicates_of_equals_and_of_none():
    same = np.repeat(unit(3), 20, axis=0)
    assert [group.tolist() for group in duplicates(same, 1.0)] == [list(range(i, i + 20)) for i in (0, 20, 40)]
    assert duplicates(np.eye(30, dtype=np.float32), 0.5) == []


@pytest.mark.parametrize("num", [3, 9, 50])
def test_outliers_are_far_from_their_nearest(num):
    vectors = unit(num)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    expected = np.sort(cosines, axis=1)[:, ::-1][:, : min(10, num - 1)].mean(axis=1)
    rows, scores = outliers(vectors, 4)
    assert rows.tolist() == np.argsort(expected)[:4].tolist()
    np.testing.assert_allclose(scores, expected[rows], atol=1e-6)
