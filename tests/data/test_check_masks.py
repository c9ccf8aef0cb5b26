import numpy as np
import pytest

from scenes import Pictures, scene
from vitreous import settings
from vitreous.data.check import DataReport, check
from vitreous.data.fingerprint import difference, fingerprint
from vitreous.data.splits import Splits
from vitreous.data.targets import PixelLabels
from vitreous.data.targets.pixels import HeldMasks

CLASSES = ("sky", "road", "car", "train")


class Segmented(Pictures):
    """Pictures with masks as given."""

    def __init__(self, first, masks, name):
        super().__init__([scene(first + number, (40, 30)) for number in range(len(masks))], name=name)
        self.classes, self.targets = CLASSES, PixelLabels(HeldMasks(masks))


def half(upper, lower):
    mask = np.full((30, 40), upper, dtype=np.int16)
    mask[15:] = lower
    return mask


@pytest.fixture
def splits():
    train = Segmented(0, [half(0, 1), half(0, 1), half(-1, -1), half(0, -1), half(2, 1), half(0, 1)], "train")
    train.given[5] = train.given[1]  # equal, with an equal mask
    return Splits(train, None, Segmented(50, [half(0, 3), half(-1, -1)], "test"))


def test_pixels_and_pictures_of_each_class(splits):
    report = check(splits)
    train, test = report.parts
    assert train.counts == (4, 4, 1, 0)
    assert train.pixels.counts == (2400, 2400, 600, 0)
    assert train.pixels.ignored == 1800
    assert train.pixels.shares() == pytest.approx((4 / 9, 4 / 9, 1 / 9, 0))
    assert test.pixels.counts == (600, 0, 0, 600)
    assert (train.pixels.blank, test.pixels.num_blank) == (("train/2",), 1)
    lines = report.summary()
    assert "pixels of train: sky 44.44 %, road 44.44 %, car 11.11 %; 25.0 % of all ignored" in lines
    assert "classes that occur in no training mask: train" in lines
    assert "pictures of train in which every pixel is ignored: 1 (train/2)" in lines
    assert report.num_two_labels == 0


def test_a_report_is_stored_and_read(splits, tmp_path):
    report = check(splits)
    settings.save(report, tmp_path / "data.json")
    assert settings.load(DataReport, tmp_path / "data.json") == report


def test_equal_pictures_with_different_masks(splits):
    splits.train.given[4] = splits.train.given[0]
    report = check(splits)
    assert [(twins.one, twins.other) for twins in report.two_labels] == [("train/0", "train/4")]
    assert "equal pictures with different masks: 1 (train/0 and train/4)" in report.summary()


def test_a_changed_mask_is_noticed(splits, tmp_path):
    before = fingerprint(splits)
    assert difference(before, fingerprint(splits)) is None
    splits.train.targets = PixelLabels(HeldMasks([half(0, 1)] * 6))
    assert difference(before, fingerprint(splits)) == "some to train on have different names, labels or sizes"
