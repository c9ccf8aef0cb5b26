"""Labels are computed again from the pixels: what the picture shows is what it is called."""

import numpy as np
import pytest
from scipy import ndimage

from vitreous.data.rendered import NUMBERS, SIDE, TASKS
from vitreous.data.sources import DataSettings, open_sources
from vitreous.errors import UserError

NUM = 60


def seen(task, split="test"):
    source = open_sources(f"rendered:{task}")[split]
    return source, [source.read(index) for index in range(NUM)]


def cover(picture):
    """(SIDE, SIDE) how much of each pixel is not the ground, from 0 to 1, sprites being lighter in every channel."""
    ground = picture[0, 0].astype(float) if (picture[0, 0] <= 100).all() else picture[-1, -1].astype(float)
    change = (picture.astype(float) - ground).sum(axis=2)
    return np.clip(change / change.max(), 0, 1)


def centre_of(mask):
    row, column = ndimage.center_of_mass(mask)
    return np.array([column + 0.5, row + 0.5]) / SIDE


def test_location():
    source, pictures = seen("location")
    for label, picture in zip(source.labels, pictures, strict=False):
        x, y = ((centre_of(cover(picture)) - 0.16) / 0.68 * 4).astype(int)
        assert source.classes[label] == f"row {y + 1}, column {x + 1}"


def test_orientation():
    source, pictures = seen("orientation")
    for label, picture in zip(source.labels, pictures, strict=False):
        mask = cover(picture)
        rows, columns = np.mgrid[:SIDE, :SIDE] + 0.5
        offsets = np.stack([columns.ravel(), rows.ravel()], axis=1) / SIDE - centre_of(mask)
        weights = mask.ravel()[:, None]
        _, axes = np.linalg.eigh((weights * offsets).T @ offsets)
        axis = axes[:, 1]  # the long one
        along = offsets @ axis
        axis = axis if (weights[:, 0] * along**3).sum() > 0 else -axis  # the tip is the long tail
        turn = np.arctan2(axis[1], axis[0]) / (2 * np.pi) % 1.0
        middle = (label + 0.5) / 16
        assert abs((turn - middle + 0.5) % 1.0 - 0.5) < 0.5 / 16


def test_count():
    source, pictures = seen("count")
    for label, picture in zip(source.labels, pictures, strict=False):
        _, number = ndimage.label(cover(picture) > 0.02, structure=np.ones((3, 3)))
        assert source.classes[label] == str(number)


def test_distance():
    source, pictures = seen("distance")
    for label, picture in zip(source.labels, pictures, strict=False):
        mask = cover(picture)
        parts, number = ndimage.label(mask > 0.02, structure=np.ones((3, 3)))
        assert number == 2
        first, second = (centre_of(np.where(parts == part, mask, 0)) for part in (1, 2))
        least, most = (float(word) for word in source.classes[label].split(" to "))
        assert least - 0.01 < np.linalg.norm(first - second) < most + 0.01


def test_size():
    source, pictures = seen("size")
    for label, picture in zip(source.labels, pictures, strict=False):
        half_diagonal = np.sqrt(cover(picture).sum() / 2) / SIDE
        least, most = (float(word) for word in source.classes[label].split(" to "))
        assert least < half_diagonal < most


@pytest.mark.parametrize("task", TASKS)
def test_the_same_everywhere_and_none_twice(task):
    (source, pictures), (other, again) = seen(task), seen(task)
    _, train = seen(task, "train")
    assert all(np.array_equal(a, b) for a, b in zip(pictures, again, strict=True))
    assert np.array_equal(source.labels, other.labels)
    assert len({picture.tobytes() for picture in (*pictures, *train)}) == 2 * NUM
    assert pictures[0].shape == (SIDE, SIDE, 3)
    assert pictures[0].dtype == np.uint8
    counts = np.bincount(open_sources(f"rendered:{task}")["train"].labels, minlength=len(source.classes))
    even = NUMBERS["train"] / len(source.classes)
    assert np.abs(counts - even).max() < 5 * np.sqrt(even)


def test_edges_are_smooth():
    _, pictures = seen("size")
    shades = [len(np.unique(picture.reshape(-1, 3), axis=0)) for picture in pictures]
    assert min(shades) > 20


def test_opened_like_any_other_set():
    splits = DataSettings(where="rendered:count", examples=40, val_fraction=0.2, keep_gb=0).build()
    assert (len(splits.train), len(splits.val), len(splits.test)) == (32, 8, NUMBERS["test"])
    assert splits.train.where(0).endswith(" of rendered:count (train)")
    with pytest.raises(UserError, match="Did you mean count"):
        open_sources("rendered:counts")
