import json
import os

import numpy as np
import pytest
from made import is_picture, png, write_folder

from vitreous.data.folder import open_folder
from vitreous.data.images import BadPicture
from vitreous.data.names import Layout
from vitreous.data.targets import NoTargets
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
    source = open_folder(tmp_path, Layout())["all"]
    assert source.classes == ("Cat", "ant", "dog")
    assert source.labels.tolist() == [0, 0, 0, 1, 2, 2, 2] and source.labels.dtype == np.int64
    assert all(is_picture(source.read(index), index) for index in range(6))
    assert is_picture(source.read(6), 77) and source.where(6) == str(tmp_path / "dog/more/still/x.JPeG")


@pytest.mark.parametrize("val", ["val", "valid", "validation", "Val"])
def test_split_folders(tmp_path, val):
    for split, number in (("train", 3), (val, 2), ("test", 1), ("annotations", 1)):
        write_folder(tmp_path / split, {"a": number, "b": number})
    sources = open_folder(tmp_path, Layout())
    assert {name: len(source) for name, source in sources.items()} == {"train": 6, "val": 4, "test": 2}


def test_a_class_may_be_called_test(tmp_path):
    write_folder(tmp_path, {"test": 2, "trial": 3, "val": 1})
    assert open_folder(tmp_path, Layout())["all"].classes == ("test", "trial", "val")


def test_readable_names(tmp_path):
    write_folder(tmp_path, {"n01": 1, "n02": 2})
    (tmp_path / "classes.json").write_text(json.dumps({"n02": "crane", "n01": "tench"}))
    source = open_folder(tmp_path, Layout())["all"]
    assert source.classes == ("crane", "tench") and source.labels.tolist() == [1, 0, 0]


def test_unusual_file_names(tmp_path):
    write_folder(tmp_path, {"ä b": 1})
    (tmp_path / "ä b" / "日本.png").write_bytes(png(9))
    source = open_folder(tmp_path, Layout())["all"]
    assert is_picture(source.read(1), 9) and source.where(1).endswith("ä b/日本.png")


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"no sub-folders.*--data.layout.label_pattern"):
        open_folder(tmp_path, Layout())
    (tmp_path / "labels.csv").write_text("path,label\n")
    with pytest.raises(UserError, match=r"labels\.csv holds the labels, give .*/labels\.csv"):
        open_folder(tmp_path, Layout())
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "x.png").write_bytes(png(0))
    with pytest.raises(UserError, match="train: no sub-folders"):
        open_folder(tmp_path, Layout())
    write_folder(tmp_path / "train", {"a": 0, "b": 0})
    (tmp_path / "train" / "a" / "x.cr2").write_bytes(b"raw")
    with pytest.raises(
        UserError, match=r"no pictures in it; .*not read: 1 \.cr2; .*without pictures .*: a, b; .*: 1\."
    ):
        open_folder(tmp_path, Layout())


def test_what_is_no_picture_is_passed_over_with_a_note(tmp_path):
    write_folder(tmp_path, {"a": 2, "b": 1, "empty": 0, "__MACOSX/a": 1, ".git": 1})
    for name in (".DS_Store", "a/.DS_Store", "a/._0000.png", "a/notes.txt", "a/more.TXT", "b/x.cr2", "b/none"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "loose.png").write_bytes(png(0))
    (tmp_path / "a" / "again").symlink_to(tmp_path / "b")
    os.mkfifo(tmp_path / "b" / "pipe.png")
    source = open_folder(tmp_path, Layout())["all"]
    assert source.classes == ("a", "b") and len(source) == 3
    assert source.notes == (
        f"{tmp_path}: files that are not read: 2 .txt, 1 no suffix, 1 .cr2",
        f"{tmp_path}: hidden files and folders skipped: .DS_Store (2), .git, __MACOSX, ._*",
        f"{tmp_path}: class folders without pictures skipped: empty",
        f"{tmp_path}: pipes, sockets and devices skipped: {tmp_path}/b/pipe.png",
        f"{tmp_path}: linked folders skipped: {tmp_path}/a/again",
        f"{tmp_path}: pictures outside the class folders skipped: 1",
    )


def test_folders_beside_the_splits_are_named(tmp_path):
    for split in ("train", "val", "extra"):
        write_folder(tmp_path / split, {"a": 1, "b": 1})
    (tmp_path / "val" / "a" / "x.heic.bak").write_bytes(b"")
    sources = open_folder(tmp_path, Layout())
    beside = f"{tmp_path}: folders that belong to no split skipped: extra"
    assert sources["train"].notes == (beside,)
    assert sources["val"].notes == (f"{tmp_path}/val: files that are not read: 1 .bak", beside)


def test_pictures_that_need_an_extra_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.data.skipped.SUFFIXES", (".png",))
    write_folder(tmp_path, {"a": 1, "b": 1})
    (tmp_path / "b" / "x.HEIC").write_bytes(b"")
    (note,) = open_folder(tmp_path, Layout())["all"].notes
    assert note.endswith("files that are not read: 1 .heic (pip install 'vitreous[heic]')")


def test_links_and_special_files_that_look_like_pictures(tmp_path):
    write_folder(tmp_path, {"a": 2})
    (tmp_path / "a" / "link.png").symlink_to(tmp_path / "a" / "0001.png")
    (tmp_path / "a" / "nowhere.png").symlink_to(tmp_path / "gone")
    (tmp_path / "a" / "zero.png").symlink_to("/dev/zero")
    source = open_folder(tmp_path, Layout())["all"]
    assert len(source) == 5 and is_picture(source.read(2), 1)
    for index, reason in ((3, "No such file"), (4, "a device, not a regular file")):
        with pytest.raises(BadPicture, match=reason):
            source.read(index)


@pytest.mark.parametrize(
    ("pattern", "classes"),
    [(r"(.+)_\d+", ("big cat", "dog")), (r"^(\w)", ("b", "d")), (r"(\w+)/[^/]+$", ("one", "two"))],
)
def test_labels_in_file_names(tmp_path, pattern, classes):
    for number, name in enumerate(("one/big cat_1.png", "one/dog_7.png", "two/dog_12.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png(number))
    source = open_folder(tmp_path, Layout(label_pattern=pattern))["all"]
    assert source.classes == classes and source.labels.tolist() == ([0, 0, 1] if "/" in pattern else [0, 1, 1])


def test_labels_in_file_names_of_splits(tmp_path):
    for name in ("train/a_1.png", "train/b_1.png", "test/b_2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png(0))
    sources = open_folder(tmp_path, Layout(label_pattern=r"(.+)_\d+"))
    assert sources["train"].classes == ("a", "b") and sources["test"].classes == ("b",)
    with pytest.raises(UserError, match=r"'\(\.\)_1' finds no label in 1 of 1 files, such as b_2\.png"):
        open_folder(tmp_path, Layout(label_pattern="(.)_1"))


def test_a_missing_label_is_no_class(tmp_path):
    with pytest.raises(UserError, match="2 pictures have the label 'NaN', which means that it is missing"):
        open_folder(write_folder(tmp_path, {"a": 3, "NaN": 2}), Layout())


def test_several_labels_are_named(tmp_path):
    write_folder(tmp_path, {"pizza,yellow": 2, "pizza": 1, "red; round": 1})
    assert open_folder(tmp_path, Layout())["all"].notes == (
        f"{tmp_path}: 3 pictures have labels such as 'pizza,yellow', each read as one class; several labels per "
        "picture are read from a labels.json, or from a table with --data.layout.label_separator ','",
    )
    (tmp_path / "classes.json").write_text(json.dumps(["pizza,yellow", "pizza", "red; round"]))
    assert open_folder(tmp_path, Layout())["all"].notes == (), "somebody has said that these are the classes"


def test_pictures_without_labels_lie_as_they_come(tmp_path):
    for number, name in enumerate(("b.png", "a.png", "more/c.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png(number))
    source = open_folder(tmp_path, Layout(need_labels=False))["all"]
    assert source.classes == ("unlabelled",) and isinstance(source.targets, NoTargets) and len(source) == 3
    assert [is_picture(source.read(index), number) for index, number in enumerate((1, 0, 2))] == [True] * 3


def test_parts_without_labels(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "x.png").write_bytes(png(0))
    found = open_folder(tmp_path, Layout(need_labels=False))
    assert {part: (len(source), source.classes) for part, source in found.items()} == {
        "train": (1, ("unlabelled",)),
        "test": (1, ("unlabelled",)),
    }


def test_labels_that_are_not_needed_stay(tmp_path):
    assert open_folder(write_folder(tmp_path, {"a": 1, "b": 2}), Layout(need_labels=False))["all"].classes == ("a", "b")


def test_a_file_that_vanished_is_a_bad_picture(tmp_path):
    source = open_folder(write_folder(tmp_path, {"a": 2}), Layout())["all"]
    (tmp_path / "a" / "0001.png").unlink()
    with pytest.raises(BadPicture, match="No such file"):
        source.read(1)
