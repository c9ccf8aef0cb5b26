"""The boundary F-score, against one from exact distances (SciPy's)."""

import math

import numpy as np
import pytest
from scipy.ndimage import distance_transform_edt

from vitreous.evaluation.boundaries import TOLERANCE, boundary_scores, widened


def by_distances(labels, found, num_classes):
    """Loops over pixels, distances by SciPy."""
    height, width = labels.shape
    reach = max(1, math.ceil(TOLERANCE * math.hypot(height, width)))

    def outline(values, number):
        drawn = np.zeros(values.shape, bool)
        for y in range(height):
            for x in range(width):
                if values[y, x] != number or labels[y, x] < 0:
                    continue
                for other_y, other_x in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                    if 0 <= other_y < height and 0 <= other_x < width and labels[other_y, other_x] >= 0:
                        drawn[y, x] |= values[other_y, other_x] != number
        return drawn

    scores = []
    for number in range(num_classes):
        wanted, drawn = outline(labels, number), outline(found, number)
        if not wanted.any() and not drawn.any():
            scores.append(np.nan)
        elif not wanted.any() or not drawn.any():
            scores.append(0.0)
        else:
            precision = (distance_transform_edt(~wanted)[drawn] <= reach).mean()
            recall = (distance_transform_edt(~drawn)[wanted] <= reach).mean()
            scores.append(2 * precision * recall / max(precision + recall, 1e-12))
    return np.array(scores)


def blobs(draws, num_classes, shape=(40, 50)):
    coarse = draws.integers(0, num_classes, (5, 5))
    return coarse[np.ix_(np.arange(shape[0]) * 5 // shape[0], np.arange(shape[1]) * 5 // shape[1])]


@pytest.mark.parametrize("seed", range(4))
def test_against_distances(seed):
    draws = np.random.default_rng(seed)
    labels = blobs(draws, 4)
    found = np.roll(labels, draws.integers(-3, 4, 2), axis=(0, 1))
    found[10:20, 10:20] = draws.integers(0, 5)
    labels = np.where(draws.random(labels.shape) < 0.02, -1, labels)
    np.testing.assert_allclose(boundary_scores(labels, found, 6), by_distances(labels, found, 6))


def test_what_is_right_has_one_and_what_has_no_outline_none():
    labels = blobs(np.random.default_rng(0), 3)
    assert np.nanmin(boundary_scores(labels, labels, 3)) == 1
    plain = np.zeros((9, 9), int)
    assert np.isnan(boundary_scores(plain, plain, 3)).all()


def test_discs():
    dot = np.zeros((11, 11), bool)
    dot[5, 5] = True
    rows, columns = np.indices(dot.shape) - 5
    for reach in (1, 2, 3, 5):
        assert (widened(dot, reach) == (rows**2 + columns**2 <= reach**2)).all()
