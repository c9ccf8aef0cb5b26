import json

import numpy as np
import pytest
from segmented_made import mask_png

from vitreous.data.images import BadPicture
from vitreous.data.legends import Entry, entries_of, find_legend, numbered_entries
from vitreous.errors import UserError


def found(masks, entries=(), ignored=None):
    """The legend of masks that are given as lists of numbers or colours."""
    stored = [mask if isinstance(mask, bytes) else mask_png(np.array([mask], dtype=np.uint8)) for mask in masks]
    return find_legend(len(stored), stored.__getitem__, entries, ignored, "set")


def table(tmp_path, classes):
    (tmp_path / "classes.json").write_text(json.dumps(classes))
    return entries_of(tmp_path)


def test_numbers_that_occur_are_classes():
    legend, notes = found([[0, 2], [7, 255]])
    assert (legend.classes, legend.values, legend.ignored) == (("0", "2", "7"), ((0,), (2,), (7,)), (255,))
    assert notes == ("set: no classes.json, so classes are named by their numbers: 0, 2, 7, 255 ignored",)


def test_colours_that_occur_are_classes():
    legend, notes = found([[[0, 0, 0], [128, 64, 128]], [[0, 0, 0], [0, 0, 0]]])
    assert (legend.classes, legend.coloured, legend.ignored) == (("#000000", "#804080"), True, ())
    assert "named by their colours: #000000, #804080" in notes[0]
    assert found([[[0, 0, 0], [128, 64, 128]]], ignored="#000000")[0].classes == ("#804080",)


def test_black_and_white_masks_have_two_classes():
    legend, _ = found([[0, 255], [0, 0]])
    assert legend.classes == ("0", "255")
    assert not legend.ignored
    legend, notes = found([[0, 255], [0, 0]], numbered_entries(["ground", "cell"]))
    assert legend.values == ((0,), (1, 255))
    assert notes == ("set: 255 in masks is read as cell, since they hold 0 and 255",)
    assert found([[0, 1, 255]], numbered_entries(["ground", "cell"]))[0].ignored == (255,)


def test_what_is_ignored():
    assert found([[0, 1, 255]], ignored="0,255")[0].classes == ("1",)
    assert found([[0, 1, 255]], ignored="")[0].classes == ("0", "1", "255")
    assert found([[0, 1]], numbered_entries(["void", "road"]), ignored="0")[0].classes == ("road",)
    with pytest.raises(UserError, match=r"--data.layout.ignored: 'black' is not a number"):
        found([[0, 1]], ignored="black")
    with pytest.raises(UserError, match="every pixel of every mask is ignored"):
        found([[0, 0]], ignored="0")


def test_lists_of_names(tmp_path):
    legend, notes = found([[0, 1]], table(tmp_path, ["sky", "road", None]))
    assert (legend.classes, legend.values, legend.ignored, notes) == (("sky", "road"), ((0,), (1,)), (2, 255), ())


@pytest.mark.parametrize(
    "classes",
    [
        {"1": "sky", "4": "road", "0": None},
        {"sky": 1, "road": 4},
        {"classes": [{"label": 1, "name": "sky"}, {"label": 4, "name": "road"}]},
    ],
)
def test_names_by_number(tmp_path, classes):
    legend, _ = found([[1, 4]], table(tmp_path, classes))
    assert (legend.classes, legend.values) == (("sky", "road"), ((1,), (4,)))


@pytest.mark.parametrize(
    "classes",
    [
        {"#804080": "road", "0,0,0": None, "70 70 70": "building"},
        {"road": [128, 64, 128], "building": [70, 70, 70]},
        [{"name": "road", "colour": [128, 64, 128]}, {"name": "building", "colour": "#464646"}],
    ],
)
def test_names_by_colour(tmp_path, classes):
    mask = [[128, 64, 128], [70, 70, 70], [128, 64, 128]]
    legend, _ = found([mask], table(tmp_path, classes))
    assert (legend.classes, legend.values, legend.coloured) == (("road", "building"), ((0x804080,), (0x464646,)), True)


def test_both_numbers_and_colours_are_known(tmp_path):
    classes = [{"label": 3, "name": "road", "color": [128, 64, 128]}, {"label": 5, "name": "sky", "color": [1, 2, 3]}]
    entries = table(tmp_path, classes)
    assert found([[3, 5]], entries)[0].values == ((3,), (5,))
    assert found([[[128, 64, 128], [1, 2, 3]]], entries)[0].values == ((0x804080,), (0x010203,))


def test_several_values_of_one_class(tmp_path):
    legend, _ = found([[0, 1, 2]], table(tmp_path, {"0": "road", "1": "sky", "2": "road"}))
    assert (legend.classes, legend.values) == (("road", "sky"), ((0, 2), (1,)))


def test_colours_without_names_for_them():
    with pytest.raises(UserError, match=r"masks hold colours, but classes are given by number. Write classes.json"):
        found([[[128, 64, 128]]], numbered_entries(["road"]))
    with pytest.raises(UserError, match="the class 'sky' has no colour"):
        found([[[128, 64, 128]]], [Entry("road", None, 0x804080), Entry("sky", 1)])


def test_masks_that_hold_no_classes():
    soft = np.arange(3 * 300, dtype=np.uint16).reshape(3, 300)
    with pytest.raises(UserError, match="masks hold more than 256 different values, too many for classes"):
        found([mask_png(soft)])


def test_bad_masks_are_left_to_whoever_reads_them():
    def stored(index):
        if index == 1:
            raise BadPicture("no mask")
        return mask_png(np.array([[0, index]], dtype=np.uint8))

    assert find_legend(3, stored, [], None, "set")[0].classes == ("0", "2")


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"99999999999": "a", "0": "b"}, "the class 'a' has the number 99999999999; numbers go from 0 to 65,535"),
        ([{"name": "a", "label": -1}], "has the number -1"),
        ([f"class {number}" for number in range(40_000)], "40,000 classes in masks; there must be from 1 to 32,767"),
        ([None], "0 classes in masks"),
        ('[{"name": "a", "label": Infinity}]', "not a list of class names"),
        ("[" * 200_000, "cannot be read as JSON"),
        ("null", "not a list of class names: None"),
        (7, "not a list of class names"),
    ],
)
def test_odd_lists_of_classes(tmp_path, classes, message):
    (tmp_path / "classes.json").write_text(classes if isinstance(classes, str) else json.dumps(classes))
    with pytest.raises(UserError, match=message):
        found([[0, 1]], entries_of(tmp_path))
