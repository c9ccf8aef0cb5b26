import numpy as np
import pytest

from vitreous.data.rendered_scenes import CLASSES, NUMBERS, SIDE, Scenes
from vitreous.data.sources import open_sources

FINE = 5  # times as many pixels on a side
SOME = range(0, 250, 21)


@pytest.fixture(scope="module")
def scenes():
    return Scenes("val")


def blocks(array, side=SIDE):
    """(side, side, FINE * FINE, ...): the fine pixels of every pixel."""
    cut = array.reshape(side, FINE, side, FINE, *array.shape[2:]).swapaxes(1, 2)
    return cut.reshape(side, side, FINE * FINE, *array.shape[2:])


@pytest.mark.parametrize("index", SOME)
def test_a_picture_and_its_mask_agree_with_themselves_drawn_finely(scenes, index):
    """A pixel has the class of the fine pixel in its middle, and the colour of all in the mean."""
    fine = blocks(scenes.mask(index, FINE * SIDE))
    mask, middle = scenes.mask(index), fine[..., FINE * FINE // 2]
    assert (mask == middle).all()
    most = (fine[..., None] == np.arange(len(CLASSES))).sum(axis=2).argmax(axis=2)
    assert (mask == most).mean() > 0.99  # thin ends and corners have their middle elsewhere
    mean = blocks(scenes.picture(index, FINE * SIDE)).mean(axis=2)
    apart = np.abs(scenes.picture(index) - mean)
    assert np.quantile(apart, 0.95) < 6
    assert apart.mean() < 2


@pytest.mark.parametrize("index", SOME)
def test_edges_of_the_mask_are_edges_of_the_picture(scenes, index):
    """With every shape in a flat colour of its own, a pixel of a class has a colour of that class, but on outlines."""
    plain = Scenes("val")
    plain.texture[:] = 0
    plain.colour[index] = 20 + 40 * np.arange(len(plain.colour[index]))[:, None]
    picture, mask = plain.picture(index)[..., 0], plain.mask(index)
    class_of = {20: 0}
    for number in range(plain.counts[index]):
        class_of[60 + 40 * number] = 1 + plain.shape[index, number]
    pure = np.isin(picture, list(class_of))
    assert pure.mean() > 0.7
    # A mixed colour may equal a third shape's by chance: on outlines alone.
    agree = np.array([class_of[int(level)] for level in picture[pure]]) == mask[pure]
    assert agree.mean() > 0.99


def test_pictures_need_no_file_and_never_change():
    found = open_sources("rendered:segment")
    assert {split: len(source) for split, source in found.items()} == NUMBERS
    train, test = found["train"], found["test"]
    assert train.classes == CLASSES
    assert train.read(3).shape == (SIDE, SIDE, 3)
    assert (train.sample(3).large["mask"] == open_sources("rendered:segment")["train"].sample(3).large["mask"]).all()
    assert not (train.read(3) == test.read(3)).all()


def test_every_class_is_common_and_the_ground_is_most(scenes):
    masks = np.stack([scenes.mask(index) for index in range(len(scenes))])
    shares = np.bincount(masks.ravel(), minlength=len(CLASSES)) / masks.size
    assert 0.6 < shares[0] < 0.85
    assert shares[1:].min() > 0.02


def test_colours_do_not_tell_the_class(scenes):
    """The mean colour of each class over many pictures is nearly the same."""
    pixels = np.concatenate([scenes.picture(index).reshape(-1, 3) for index in range(len(scenes))]).astype(float)
    classes = np.concatenate([scenes.mask(index).ravel() for index in range(len(scenes))])
    means = np.array([pixels[classes == number].mean(axis=0) for number in range(1, len(CLASSES))])
    assert np.ptp(means, axis=0).max() < 20
