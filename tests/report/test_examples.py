"""Which pictures a report shows."""

import pytest

from vitreous.report.examples import chosen


@pytest.mark.parametrize(
    ("num", "expected"),
    [
        (1, [[0]]),
        (2, [[0], [1]]),
        (4, [[0], [1], [3]]),
        (5, [[0, 1], [2], [4, 3]]),
        (6, [[0, 1], [2, 3], [5, 4]]),
        (101, [[0, 1, 2], [49, 50, 51], [100, 99, 98]]),
    ],
)
def test_the_best_the_typical_and_the_worst_are_different_pictures(num, expected):
    order = list(range(num))
    assert list(chosen(order, order[::-1]).values()) == expected


def test_where_all_are_as_bad_the_worst_are_others_than_the_best():
    assert chosen([5, 3, 1, 0, 2, 4], [5, 3, 1, 0, 2, 4]) == {
        "The best": [5, 3],
        "The typical": [2, 4],
        "The worst": [1, 0],
    }
