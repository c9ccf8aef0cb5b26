"""Polygons and runs of pixels, against pictures drawn finely and against texts made as COCO makes them."""

import json

import numpy as np
import pytest
from PIL import Image, ImageDraw

from vitreous.data.images import BadPicture
from vitreous.data.outlines import WrittenOutlines, bounds, outline_mask, polygon_mask, run_mask, uncompressed

FINE = 16


def some_mask(seed, height=23, width=31):
    rng = np.random.default_rng(seed)
    return np.kron(rng.random((height // 4 + 1, width // 4 + 1)) < 0.4, np.ones((4, 4)))[:height, :width].astype(bool)


def runs_of(mask):
    """Outside and inside in turn, column after column, outside first."""
    flat = mask.T.ravel()
    edges = np.flatnonzero(np.diff(np.r_[False, flat, False].astype(int)))
    return np.diff(np.r_[0, edges, flat.size])[: len(edges) + (edges[-1] < flat.size if len(edges) else 1)].tolist()


def compressed(runs):
    """From the fourth number on, the difference to the last but one; 5 bits a letter, the lowest first, with a sign."""
    text = ""
    for at, run in enumerate(runs):
        left = run - (runs[at - 2] if at > 2 else 0)
        while True:
            bits, left = left & 31, left >> 5
            is_last = left == (-1 if bits & 16 else 0)
            text += chr(48 + bits + (0 if is_last else 32))
            if is_last:
                break
    return text


@pytest.mark.parametrize("seed", range(6))
def test_runs_plain_and_compressed(seed):
    mask = some_mask(seed)
    if seed == 5:
        mask[0, 0] = True  # begins inside
    runs = runs_of(mask)
    assert sum(runs) == mask.size
    for counts in (runs, compressed(runs)):
        assert (run_mask({"size": list(mask.shape), "counts": counts}) == mask).all()
    assert uncompressed(compressed(runs)) == runs
    rows, columns = np.nonzero(mask)
    assert bounds({"size": list(mask.shape), "counts": runs}) == (
        columns.min(), rows.min(), columns.max() + 1, rows.max() + 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    "outline",
    [{"size": [3, 3]}, {"size": [10**6, 10**6], "counts": [10**12]}, {"size": [3, 3], "counts": "~"}, [[1, 2, 3]], 3],
)
def test_an_outline_that_cannot_be_read_says_so(outline):
    outlines = WrittenOutlines([json.dumps(outline)], np.array([[3, 3]]), np.array([1]))
    with pytest.raises(BadPicture, match="an outline of it cannot be read"):
        outlines.mask(0, 3, 3)


def test_runs_that_do_not_fill_their_picture():
    with pytest.raises(ValueError, match="runs of 7 pixels for a picture of 9"):
        run_mask({"size": [3, 3], "counts": [4, 3]})
    assert bounds({"size": [3, 3], "counts": [9]}) is None


@pytest.mark.parametrize("seed", range(8))
def test_polygons_have_the_pixels_whose_centres_they_hold(seed):
    """As drawn with 16 times as many pixels, where the pixel in the middle tells, but next to edges."""
    rng = np.random.default_rng(seed)
    angles = np.sort(rng.random(rng.integers(3, 12))) * 2 * np.pi
    radii = rng.uniform(4, 14, len(angles))
    points = np.stack([18 + radii * np.cos(angles), 12 + radii * np.sin(angles)], axis=1)  # may leave the picture
    mask = polygon_mask(points, 23, 31)
    drawn = Image.new("1", (31 * FINE, 23 * FINE))
    ImageDraw.Draw(drawn).polygon([tuple(point * FINE) for point in points], fill=1)
    fine = np.asarray(drawn).reshape(23, FINE, 31, FINE).transpose(0, 2, 1, 3).reshape(23, 31, -1)
    sure = (fine.mean(axis=2) < 0.05) | (fine.mean(axis=2) > 0.95)
    assert (mask == (fine.mean(axis=2) > 0.5))[sure].all() and sure.mean() > 0.7
    assert mask.any()


def test_a_square_of_whole_pixels_and_one_outside():
    square = np.array([[2.0, 3], [7, 3], [7, 9], [2, 9]])
    mask = polygon_mask(square, 20, 30)
    assert mask[3:9, 2:7].all() and mask.sum() == 30
    assert not polygon_mask(square + 100, 20, 30).any() and not polygon_mask(square[:0], 20, 30).any()
    assert bounds([square.ravel().tolist(), [0, 0, 1, 1, 4, 12]]) == (0, 0, 7, 12) and bounds([]) is None


def test_outlines_follow_a_picture_that_was_resized():
    polygon = [[2, 3, 7, 3, 7, 9, 2, 9]]
    assert outline_mask(polygon, (20, 30), (40, 60))[6:18, 4:14].all()
    assert outline_mask(polygon, (20, 30), (40, 60)).sum() == 120
    runs = {"size": [20, 30], "counts": runs_of(outline_mask(polygon, (20, 30), (20, 30)))}
    assert (outline_mask(runs, (20, 30), (40, 60)) == outline_mask(polygon, (20, 30), (40, 60))).all()
