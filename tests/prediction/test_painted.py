"""Masks as pictures."""

import io

import numpy as np
import pytest
from PIL import Image

from vitreous.display.palette import palette
from vitreous.prediction.painted import coloured, mask_png, overlay


def test_no_two_classes_share_a_colour():
    colours = palette(256)
    assert len(set(colours)) == 256 and (0, 0, 0) not in colours
    assert palette(5) == colours[:5]  # the number of a class decides
    first = np.array(colours[:20], dtype=np.float64)
    apart = np.linalg.norm(first[:, None] - first, axis=2)[~np.eye(20, dtype=np.bool_)]
    assert apart.min() > 60  # and those of few classes can be told apart


@pytest.mark.parametrize("num", [3, 256, 300])
def test_a_mask_file_holds_the_numbers(num):
    labels = np.random.default_rng(0).integers(0, num, (9, 13))
    read = Image.open(io.BytesIO(mask_png(labels, num)))
    assert (np.asarray(read) == labels).all()
    if num <= 256:
        assert read.mode == "P" and (np.asarray(read.convert("RGB")) == coloured(labels, num)).all()


def test_an_overlay_shows_both_and_the_lines_between():
    picture = np.full((4, 6, 3), 100, np.uint8)
    labels = np.zeros((4, 6), int)
    labels[:, 3:] = 1
    shown = overlay(picture, labels, 2, opacity=0.25)
    assert (shown[0, 0] == np.round(0.75 * 100 + 0.25 * np.array(palette(2)[0]))).all()
    assert (shown[:, 2] == 255).all()  # where the classes meet
    assert (overlay(picture, np.full((4, 6), -1), 2) == 100).all()  # ignored pixels stay as they are
