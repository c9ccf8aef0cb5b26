import json

import numpy as np
import pytest
from made import is_picture, png, write_folder

from vitreous.data.folder import open_folder
from vitreous.data.images import BadPicture
from vitreous.errors import UserError


def test_classes_are_sorted_and_pictures_found_at_any_depth(tmp_path):
    write_folder(tmp_path, {"dog": 2, "Cat": 3, "ant": 1})
    (tmp_path / "dog" / "more" / "still").mkdir(parents=True)
    (tmp_path / "dog" / "more" / "still" / "x.JPeG").write_bytes(png(77))  # the suffix lies: no matter
    for ignored in ("dog/.hidden.png", "dog/notes.txt", "readme.md"):
        (tmp_path / ignored).write_bytes(b"no picture")
    for hidden in (".git", "dog/.thumbs"):
        (tmp_path / hidden).mkdir()
        (tmp_path / hidden / "y.png").write_bytes(png(1))
    source = open_folder(tmp_path)["all"]
    assert source.classes == ("Cat", "ant", "dog")
    assert source.labels.tolist() == [0, 0, 0, 1, 2, 2, 2] and source.labels.dtype == np.int64
    assert all(is_picture(source.read(index), index) for index in range(6))
    assert is_picture(source.read(6), 77) and source.where(6) == str(tmp_path / "dog/more/still/x.JPeG")


@pytest.mark.parametrize("val", ["val", "valid", "validation", "Val"])
def test_split_folders(tmp_path, val):
    for split, number in (("train", 3), (val, 2), ("test", 1), ("annotations", 1)):
        write_folder(tmp_path / split, {"a": number, "b": number})
    sources = open_folder(tmp_path)
    assert {name: len(source) for name, source in sources.items()} == {"train": 6, "val": 4, "test": 2}


def test_a_class_may_be_called_test(tmp_path):
    write_folder(tmp_path, {"test": 2, "trial": 3, "val": 1})
    assert open_folder(tmp_path)["all"].classes == ("test", "trial", "val")


def test_readable_names(tmp_path):
    write_folder(tmp_path, {"n01": 1, "n02": 2})
    (tmp_path / "classes.json").write_text(json.dumps({"n02": "crane", "n01": "tench"}))
    source = open_folder(tmp_path)["all"]
    assert source.classes == ("crane", "tench") and source.labels.tolist() == [1, 0, 0]


def test_unusual_file_names(tmp_path):
    write_folder(tmp_path, {"ä b": 1})
    (tmp_path / "ä b" / "日本.png").write_bytes(png(9))
    source = open_folder(tmp_path)["all"]
    assert is_picture(source.read(1), 9) and source.where(1).endswith("ä b/日本.png")


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(UserError, match="no sub-folders"):
        open_folder(tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "x.png").write_bytes(png(0))
    with pytest.raises(UserError, match="no class folders"):
        open_folder(tmp_path)
    write_folder(tmp_path / "train", {"a": 1, "b": 0})
    with pytest.raises(UserError, match=r"train/b: no pictures"):
        open_folder(tmp_path)


def test_pictures_without_labels_lie_as_they_come(tmp_path):
    for number, name in enumerate(("b.png", "a.png", "more/c.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png(number))
    source = open_folder(tmp_path, need_labels=False)["all"]
    assert source.classes == ("unlabelled",) and source.labels.tolist() == [0, 0, 0]
    assert [is_picture(source.read(index), number) for index, number in enumerate((1, 0, 2))] == [True] * 3


def test_parts_without_labels(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "x.png").write_bytes(png(0))
    found = open_folder(tmp_path, need_labels=False)
    assert {part: (len(source), source.classes) for part, source in found.items()} == {
        "train": (1, ("unlabelled",)),
        "test": (1, ("unlabelled",)),
    }


def test_labels_that_are_not_needed_stay(tmp_path):
    assert open_folder(write_folder(tmp_path, {"a": 1, "b": 2}), need_labels=False)["all"].classes == ("a", "b")


def test_a_file_that_vanished_is_a_bad_picture(tmp_path):
    source = open_folder(write_folder(tmp_path, {"a": 2}))["all"]
    (tmp_path / "a" / "0001.png").unlink()
    with pytest.raises(BadPicture, match="No such file"):
        source.read(1)
