import numpy as np
import pytest
from test_masked_data import Counted

from vitreous.data.base import Subset
from vitreous.data.check import check
from vitreous.data.objects import Fault
from vitreous.data.splits import Splits
from vitreous.report import boxed_data, dataset


@pytest.fixture(scope="module")
def splits():
    from vitreous.data.sources import open_sources

    found = open_sources("rendered:objects")
    return Splits(Subset(found["train"], range(24)), None, Subset(found["test"], range(2)))


def test_the_section_shows_counts_sizes_places_problems_and_pictures(splits):
    train = splits.train.targets.objects
    train.faults[0] = Fault.CUT
    data = check(splits)
    markup = dataset.section(data, splits.train).markup
    tags = Counted(markup).tags
    bars = [attrs for _, attrs in tags if "background: rgb" in attrs.get("style", "") and "width: " in attrs["style"]]
    assert len([one for one in bars if "%" in one["style"]]) == 6
    figures = [attrs["aria-label"] for _, attrs in tags if attrs.get("role") == "img"]
    assert figures == ["Sizes of boxes", "Aspect ratios of boxes", "Boxes per picture", "Places of boxes"]
    assert sum(tag == "img" for tag, _ in tags) == 12
    assert "train: boxes that extend beyond their pictures, clipped: 1" in markup
    assert "train: pictures without objects, kept as such: " in markup and "Classes without boxes in test: " in markup
    assert "Pictures with two sets of boxes: 0" in markup


def test_the_map_of_places_counts_boxes_over_each_cell(splits):
    targets = splits.train.targets
    found = targets.objects.chosen(targets.objects.are_used)
    held = boxed_data.places(found, targets.sizes)
    middle = (np.arange(boxed_data.CELLS) + 0.5) / boxed_data.CELLS * 64
    expected = np.zeros_like(held)
    for x0, y0, x1, y1 in found.boxes:
        expected += ((middle >= y0) & (middle < y1))[:, None] & ((middle >= x0) & (middle < x1))
    np.testing.assert_allclose(held, expected / len(found), atol=1e-12)


def test_pictures_without_any_object_still_have_a_section(splits):
    empty = [index for index in range(24) if not len(splits.train.targets.of(index))][:2]
    one = next(index for index in range(24) if len(splits.train.targets.of(index)))
    train = Subset(splits.train, [*empty, one])
    assert "Boxes of train, " in dataset.section(check(Splits(train, None, None)), train).markup
    assert boxed_data._shapes(Subset(splits.train, empty).targets) is None
