import numpy as np
import pytest
from PIL import Image
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


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-5, 5), (-3, 12), (2, 2)])
def test_ratios_have_few_marks_which_are_apart(low, high):
    (axes,) = boxed_data.aspect_chart(np.array([[2.0**low, 1], [2.0**high, 1]])).axes
    places = axes.get_xticks()
    assert 2 <= len(places) <= 8 and len(set(np.diff(places))) == 1
    assert [label.get_text() for label in axes.get_xticklabels()] == [f"{2**place:g}" for place in places]


def test_boxes_are_seen_in_small_pictures(splits):
    """A page shows the contact sheet at about half of SHOWN_PX."""
    one = next(index for index in range(24) if len(splits.train.targets.of(index)))
    pixels = np.zeros((600, 800, 3), np.uint8)
    small = np.asarray(Image.fromarray(boxed_data.labelled_objects(splits.train, one, pixels)).resize((160, 120)))
    assert (small.max(axis=-1) > 150).sum() > 8


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
