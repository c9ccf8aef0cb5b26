"""Runs of pixels against hotcoco, and there and back."""

import numpy as np
import pytest

from vitreous.data.outlines import run_mask, uncompressed
from vitreous.data.runs import Runs, compressed

mask_of = pytest.importorskip("hotcoco").mask


def some_mask(seed, height=37, width=23):
    """Blobs, some at the edges, sometimes all or nothing."""
    rng = np.random.default_rng(seed)
    coarse = rng.random((6, 5)) < (0.0, 1.0, 0.3, 0.6, 0.8)[seed % 5]
    rows, columns = np.arange(height) * 6 // height, np.arange(width) * 5 // width
    return coarse[rows][:, columns] ^ (rng.random((height, width)) < 0.02 * (seed % 5 > 1))


@pytest.mark.parametrize("seed", range(10))
def test_as_coco_writes_them(seed):
    mask = some_mask(seed)
    runs, theirs = Runs.of(mask, mask.shape), mask_of.encode(mask)
    assert runs.as_coco() == {"size": theirs["size"], "counts": theirs["counts"].decode()}
    assert runs.area == mask_of.area(theirs) == mask.sum()
    x, y, w, h = mask_of.to_bbox(theirs)
    assert runs.box == (x, y, x + w, y + h)
    assert np.array_equal(runs.mask(), mask) and np.array_equal(run_mask(runs.as_coco()), mask)
    x0, y0, x1, y1 = runs.box
    assert np.array_equal(runs.part(), mask[y0:y1, x0:x1])


def test_a_part_lies_where_it_is_said_to():
    part = some_mask(2, 9, 7)
    for corner in ((0, 0), (3, 5), (11, 13)):
        whole = np.zeros((20, 20), np.bool_)
        whole[corner[0] : corner[0] + 9, corner[1] : corner[1] + 7] = part
        assert Runs.of(part, (20, 20), corner).as_coco() == Runs.of(whole, (20, 20)).as_coco()
    tall = np.ones((20, 3), np.bool_)  # columns from top to bottom are one run
    assert Runs.of(tall, (20, 20), (0, 4)).counts.tolist() == [80, 60, 260]


def test_numbers_of_any_length():
    counts = np.array([0, 15, 16, 31, 1000, 2, 10**6, 1, 10**9, 0, 5])
    assert uncompressed(compressed(counts)) == counts.tolist()
