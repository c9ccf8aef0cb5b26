import numpy as np
import pytest

from vitreous.data.objects import Fault
from vitreous.data.rendered_objects import CLASSES, ObjectScenes
from vitreous.data.rendered_scenes import NUMBERS, SIDE
from vitreous.data.sources import open_sources

FINE = 6


@pytest.fixture(scope="module")
def scenes():
    return ObjectScenes("val")


def test_boxes_are_those_of_the_shapes_drawn_finely(scenes):
    found = scenes.boxes(FINE * SIDE)
    for index in range(0, len(scenes), 16):
        for number in range(scenes.counts[index]):
            rows, columns = np.nonzero(scenes.shape_mask(index, number, FINE * SIDE))
            around = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            most = 0.6 if scenes.shape[index, number] < 4 else 2.5  # fine pixels; thin ends have no centre in them
            assert np.abs(found[index, number] - around).max() < FINE * most


def test_shapes_are_apart_and_inside(scenes):
    boxes = scenes.boxes()
    for index in range(len(scenes)):
        masks = [scenes.shape_mask(index, number) for number in range(scenes.counts[index])]
        assert sum(mask.astype(int) for mask in masks).max(initial=0) <= 1 if masks else True
        inside = boxes[index, : scenes.counts[index]]
        assert (inside >= 0).all() and (inside <= SIDE).all()


def test_the_picture_changes_where_a_shape_is():
    plain = ObjectScenes("val")
    plain.texture[:] = 0
    index = int(np.argmax(plain.counts))
    plain.colour[index] = 20 + 40 * np.arange(len(plain.colour[index]))[:, None]
    picture = plain.picture(index)[..., 0]
    ground = np.ones_like(picture, dtype=bool)
    for number in range(plain.counts[index]):
        assert np.median(picture[plain.shape_mask(index, number)]) == 60 + 40 * number
        x0, y0, x1, y1 = plain.boxes()[index, number]
        ground[int(y0) - 1 : int(y1) + 2, int(x0) - 1 : int(x1) + 2] = False
    assert (picture[ground] == 20).all()


def test_pictures_and_boxes_need_no_file_and_never_change():
    found = open_sources("rendered:objects")
    assert {split: len(source) for split, source in found.items()} == NUMBERS
    again = open_sources("rendered:objects")["train"]
    train, test = found["train"], found["test"]
    assert train.classes == CLASSES and train.targets.task == "detect"
    assert (train.read(5) == again.read(5)).all() and not (train.read(5) == test.read(5)).all()
    assert (train.targets.objects.boxes == again.targets.objects.boxes).all()
    assert (train.targets.objects.faults == Fault.NONE).all()
    shares = train.targets.counts(len(CLASSES)) / len(train)
    assert shares.min() > 0.2 and np.ptp(shares) < 0.1  # all classes are as common
    empty = np.mean([not len(train.targets.of(index)) for index in range(300)])
    assert 0.1 < empty < 0.25
    masks, objects = train.targets.masks(7), train.targets.of(7)
    for mask, box in zip(masks, objects.boxes, strict=True):
        rows, columns = np.nonzero(mask)
        assert np.abs(np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) - box).max() < 1.6
    taken = train.targets.take(np.array([7]))
    assert all((one == other).all() for one, other in zip(masks, taken.masks(0), strict=True))
