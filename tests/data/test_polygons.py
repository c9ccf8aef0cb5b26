"""Polygons of masks, filled again by an independent rule, give the masks back."""

import numpy as np
import pytest

from vitreous.data.polygons import as_json, polygons, signed_area


def filled(rings, shape):
    """By the even-odd rule: every vertical edge turns all pixels to its right over."""
    found = np.zeros(shape, bool)
    for ring in rings:
        for (x, y), (next_x, next_y) in zip(ring, ring[1:] + ring[:1], strict=True):
            assert (x == next_x) != (y == next_y)  # along the edges of pixels, and no corner twice
            if x == next_x:
                found[min(y, next_y) : max(y, next_y), x:] ^= True
    return found


def connected(mask):
    from scipy.ndimage import label

    return label(mask)


@pytest.mark.parametrize("seed", range(8))
def test_filled_again_they_are_the_mask(seed):
    draws = np.random.default_rng(seed)
    mask = draws.random((draws.integers(1, 24), draws.integers(1, 24))) < draws.choice([0.3, 0.6, 0.9])
    found = polygons(mask)
    everything = np.zeros(mask.shape, bool)
    regions, num = connected(mask)
    assert len(found) == num
    for one in found:
        region = filled([one.outline, *one.holes], mask.shape)
        assert one.area == region.sum()
        assert len(np.unique(regions[region])) == 1  # exactly one connected region, with its own holes
        assert signed_area(one.outline) > 0 and all(signed_area(hole) < 0 for hole in one.holes)
        assert not (everything & region).any()
        everything |= region
    assert (everything == mask).all()


def test_a_frame_around_a_dot():
    mask = np.ones((5, 5), bool)
    mask[1:4, 1:4] = False
    mask[2, 2] = True
    frame, dot = sorted(polygons(mask), key=lambda one: -one.area)
    assert frame.area == 16 and len(frame.holes) == 1 and len(frame.outline) == 4
    assert sorted(dot.outline) == [(2, 2), (2, 3), (3, 2), (3, 3)] and dot.holes == []


def test_as_json():
    labels = np.array([[0, 0, 2], [0, 0, 2]])
    found = as_json(labels, ("road", "car", "sky"))
    assert (found["width"], found["height"]) == (3, 2)
    assert [(one["class"], one["area"]) for one in found["polygons"]] == [("road", 4), ("sky", 2)]
