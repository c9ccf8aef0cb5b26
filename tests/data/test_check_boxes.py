"""The check of boxes: every kind of problem is one line, counted and named."""

import numpy as np
import pytest

from scenes import Pictures, scene
from vitreous import settings
from vitreous.data.check import DataReport, check
from vitreous.data.fingerprint import difference, fingerprint
from vitreous.data.objects import checked
from vitreous.data.splits import Splits
from vitreous.data.targets import Boxes

CLASSES = ("cat", "dog", "eel")
FINE, OTHER = (2, 3, 20, 25), (5, 5, 12, 12)


class Boxed(Pictures):
    """Pictures of 40 x 30 px with boxes as given: (box, class) of each."""

    def __init__(self, first, objects, name, size=(30, 40), crowd=()):
        super().__init__([scene(first + number, (40, 30)) for number in range(len(objects))], name=name)
        self.classes = CLASSES
        owner = [index for index, found in enumerate(objects) for _ in found]
        boxes = np.array([box for found in objects for box, _ in found], dtype=np.float32).reshape(-1, 4)
        numbers = [number for found in objects for _, number in found]
        sizes = np.tile(size, (len(objects), 1))
        flags = [place in crowd for place in range(len(owner))]
        self.targets = Boxes(checked(owner, boxes, numbers, flags, sizes), sizes)


@pytest.fixture
def splits():
    train = Boxed(
        0,
        [
            [(FINE, 0), (OTHER, 1)],
            [((-30, 3, -5, 9), 0), (FINE, 0)],
            [((3, 3, 3, 9), 0), (FINE, 0), (FINE, 0)],
            [],
            [((20, 3, 2, 25), 1), ((-9, 3, 20, 60), 1)],
        ],
        "train",
        crowd=(1,),
    )
    return Splits(train, None, Boxed(50, [[(FINE, 2)], []], "test"))


def test_every_problem_is_one_line_counted_and_named(splits):
    report = check(splits)
    assert report.task == "detect" and report.parts[0].boxes.counts == (3, 3, 0)
    assert report.parts[0].counts == (3, 2, 0)  # pictures
    lines = report.summary()
    for line in (
        "boxes of train: cat 3, dog 3; 1.2 per picture, at most 2",
        "classes without boxes in train: 1 (eel)",
        "classes without boxes in test: 2 (cat, dog)",
        "crowds and difficult objects of train, neither trained on nor scored: 1",
        "train: pictures without objects, kept as such: 1 (train/3)",
        "test: pictures without objects, kept as such: 1 (test/1)",
        "train: boxes outside their pictures, left out: 1 (train/1)",
        "train: boxes without an area, left out: 1 (train/2)",
        "train: duplicate boxes, kept once: 1 (train/2)",
        "train: boxes with swapped corners, corrected: 1 (train/4)",
        "train: boxes that extend beyond their pictures, clipped: 1 (train/4)",
    ):
        assert line in lines, lines
    assert not [line for line in lines if "another size" in line or "two sets" in line]


def test_sizes_that_are_not_those_of_the_pictures(splits):
    splits.train = Boxed(0, [[(FINE, 0)], [(OTHER, 1)]], "train", size=(60, 80))
    what = "train: pictures whose size is not what the data set says, their boxes misplaced: 2 (train/0, train/1)"
    assert what in check(splits).summary()


def test_pictures_in_two_parts_and_with_two_sets_of_boxes(splits):
    splits.test.given[0] = splits.train.given[0]
    report = check(splits)
    assert report.left_out == (0,)
    lines = report.summary()
    assert "pictures in two parts: 1 (train/0 in train is test/0 in test); left out: 1 of train, none of test" in lines
    assert "pictures with two sets of boxes: 1 (train/0 and test/0)" in lines


def test_boxes_that_nearly_repeat_another_are_told_and_kept():
    moved = (3, 3, 21, 25)  # over 0.89 of both
    train = Boxed(
        0, [[((0, 0, 30, 28), 0), ((1, 0, 31, 28), 0), ((1, 0, 31, 28), 1)], [(FINE, 1), (moved, 1)]], "train"
    )
    report = check(Splits(train, None, None))
    assert report.parts[0].boxes.total == 5
    assert "train: near-duplicates of other boxes of their class, kept: 1 (train/0)" in report.summary()


def test_many_are_counted_and_the_first_are_named():
    train = Boxed(0, [[]] * 120 + [[(FINE, 0)], [(FINE, 1)]], "train")
    boxes = check(Splits(train, None, None)).parts[0].boxes
    assert boxes.negatives.num == 120 and len(boxes.negatives.pictures) == 100


def test_a_report_is_stored_and_read(splits, tmp_path):
    report = check(splits)
    settings.save(report, tmp_path / "data.json")
    assert settings.load(DataReport, tmp_path / "data.json") == report


def test_a_moved_box_is_noticed(splits):
    before = fingerprint(splits)
    assert difference(before, fingerprint(splits)) is None
    splits.test = Boxed(50, [[(OTHER, 2)], []], "test")
    assert difference(before, fingerprint(splits)) == "some to test on have different names, labels or sizes"
