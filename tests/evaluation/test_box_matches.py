"""Kinds of error and drawn pictures, against what the library says of the same detections."""

import numpy as np
import pytest

from detections import made_up
from vitreous.evaluation.box_matches import KINDS, matches
from vitreous.evaluation.box_resampling import draws, ranked
from vitreous.tasks import box_precision
from vitreous.tasks.box_precision import Found, Truth, box_overlaps


def entries(measured):
    with box_precision.matched(measured) as found:
        return found


@pytest.mark.parametrize("seed", range(3))
def test_as_many_errors_of_each_kind_as_tide_counts(seed):
    truth, found = made_up(seed=seed, crowd=0)
    measured = box_precision.evaluator(truth, found, 3, 40)
    ours = matches(truth, found, entries(measured)).counts(np.ones(len(found.picture), bool))
    theirs = measured.tide_errors()["counts"]
    names = {"Cls": "class", "Loc": "place", "Both": "both", "Dupe": "duplicate", "Bkg": "background", "Miss": "missed"}
    assert ours == {ours_name: theirs[name] for name, ours_name in names.items()}
    assert min(ours.values()) > 0  # every kind was put to the test


def one(*rows):
    picture, classes, boxes, last = zip(*rows, strict=True)
    return np.array(picture), np.array(classes), np.array(boxes, float), np.array(last)


def test_each_kind_by_hand():
    truth = Truth(*one((0, 0, (0, 0, 10, 10), False), (0, 1, (50, 0, 60, 10), False), (0, 1, (0, 50, 9, 59), True),
                       (1, 0, (0, 0, 5, 5), False)))  # fmt: skip
    found = Found(*one(
        (0, 0, (0, 0, 10, 9), 0.9),  # right
        (0, 0, (0, 1, 10, 10), 0.8),  # the same again
        (0, 0, (50, 0, 60, 9), 0.7),  # called something else
        (0, 0, (0, 0, 3, 10), 0.6),  # a part of it
        (0, 0, (50, 0, 53, 10), 0.5),  # a part of something else
        (0, 1, (80, 80, 90, 90), 0.4),  # nothing
        (0, 1, (0, 50, 9, 58), 0.3),  # of the crowd
    ))  # fmt: skip
    measured = box_precision.evaluator(truth, found, 2, 2)
    result = matches(truth, found, entries(measured))
    assert [KINDS[kind] for kind in result.kind] == [
        "right", "duplicate", "class", "place", "both", "background", "crowd"
    ]  # fmt: skip
    assert result.nearest.tolist() == [0, 0, 1, 0, 1, -1, 2]
    np.testing.assert_allclose(result.overlap[:4], [0.9, 0.9, 0.9, 0.3])
    assert result.finder.tolist() == [0, -1, -1, -1]
    every = np.ones(7, bool)
    assert result.unfound(every).tolist() == [False, True, False, True]
    assert result.missed(every).tolist() == [False, False, False, True]  # the second has an error of class about it
    surest = found.scores > 0.75
    assert result.counts(surest) == {
        "class": 0, "place": 0, "both": 0, "duplicate": 1, "background": 0, "missed": 2
    }  # fmt: skip


def test_box_overlaps_of_nothing_are_none():
    boxes = np.array([[0.0, 0, 2, 2], [1, 1, 1, 1]])
    assert box_overlaps(boxes, boxes).tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize("seed", range(3))
def test_every_picture_once_is_what_the_library_says(seed):
    truth, found = made_up(seed=seed)
    measured = box_precision.evaluator(truth, found, 3, 40)
    expected = box_precision.precisions(measured)  # (10, K, 4)
    for label, sizes in enumerate(ranked(entries(measured), 3, 40)):
        for size, detections in enumerate(sizes):
            ours = detections.precision(np.ones((1, 40)))[0]
            np.testing.assert_allclose(ours, expected[:, label, size], atol=1e-12)


def test_a_picture_drawn_twice_counts_as_two():
    truth, found = made_up(pictures=8)
    times = np.array([1, 2, 0, 1, 3, 1, 0, 0])
    numbers = np.repeat(np.arange(8), times)

    def drawn(rows, last):
        parts = [(at, np.flatnonzero(rows.picture == number)) for at, number in enumerate(numbers)]
        chosen = np.concatenate([which for _, which in parts])
        owner = np.concatenate([np.full(len(which), at) for at, which in parts])
        return owner, rows.classes[chosen], rows.boxes[chosen], getattr(rows, last)[chosen]

    again = box_precision.evaluator(Truth(*drawn(truth, "crowd")), Found(*drawn(found, "scores")), 3, len(numbers))
    expected = box_precision.precisions(again)[:, :, 0]  # (10, K)
    once = ranked(entries(box_precision.evaluator(truth, found, 3, 8)), 3, 8)
    ours = np.stack([sizes[0].precision(times[None].astype(float))[0] for sizes in once], axis=1)
    np.testing.assert_allclose(ours, expected, atol=1e-12)


def test_draws_are_fewer_where_there_is_much_to_count():
    assert draws(10, 5).shape == (1001, 10) and draws(3, 10**9).shape == (201, 3)
    assert (draws(10, 5).sum(axis=1) == 10).all() and (draws(10, 5)[0] == 1).all()
