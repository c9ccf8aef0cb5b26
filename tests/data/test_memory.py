from pathlib import Path

import numpy as np
import pytest
from made import is_picture, png, write_folder

from vitreous.data.base import BadFiles, PathList, Relabelled, Subset, with_classes
from vitreous.data.folder import open_folder
from vitreous.data.memory import InMemory, estimated_bytes
from vitreous.data.names import Layout
from vitreous.errors import UserError


def test_pictures_of_one_size_are_one_array(tmp_path):
    source = open_folder(write_folder(tmp_path, {"a": 150, "b": 50}), Layout())["all"]
    kept = InMemory(source)
    assert kept.pictures.shape == (200, 5, 6, 3) and kept.pictures.dtype == np.uint8
    assert all(is_picture(kept.read(index), index) for index in range(200))
    assert estimated_bytes(source) == kept.pictures.nbytes
    part = Subset(kept, [3, 160])
    assert part.labels.tolist() == [0, 1] and is_picture(part.pictures[1], 160) and is_picture(part.read(1), 160)
    assert part.where(1) == source.where(160)


@pytest.mark.parametrize("odd", [0, 1, 149])
def test_pictures_of_several_sizes(tmp_path, odd):
    source = open_folder(write_folder(tmp_path, {"a": 150}), Layout())["all"]
    (tmp_path / "a" / f"{odd:04}.png").write_bytes(png(odd, size=(9, 9)))
    kept = InMemory(source)
    assert kept.pictures is None and kept.read(odd).shape == (9, 9, 3)
    assert all(is_picture(kept.read(index), index) for index in range(150))


def test_long_pictures_are_read_one_by_one(tmp_path):
    source = open_folder(write_folder(tmp_path, {"a": 2}), Layout())["all"]
    for number in range(2):
        (tmp_path / "a" / f"{number:04}.png").write_bytes(png(number, size=(1, 4097)))
    kept = InMemory(source)
    assert kept.pictures is None and max(kept.read(1).shape) == 4097


def test_bad_pictures_are_named_counted_and_left_out(tmp_path):
    source = open_folder(write_folder(tmp_path, {"a": 150, "b": 150}), Layout())["all"]
    for name in ("a/0000.png", "a/0100.png", "b/0002.png"):
        (tmp_path / name).write_bytes(b"junk")
    kept = InMemory(source)
    assert len(kept) == 297 == len(kept.pictures) and np.bincount(kept.labels).tolist() == [148, 149]
    assert is_picture(kept.read(0), 1) and is_picture(kept.read(99), 101) and is_picture(kept.read(296), 299)
    assert kept.where(99) == source.where(101)
    assert sorted(kept.bad.reasons) == [source.where(index) for index in (0, 100, 152)]
    assert kept.unreadable == tuple(source.where(index) for index in (0, 100, 152))
    assert (
        "3 of 300 pictures cannot be read" in kept.bad.summary() and "a/0000.png: not a picture" in kept.bad.summary()
    )
    (tmp_path / "b" / "0003.png").write_bytes(b"")
    with pytest.raises(
        UserError,
        match=r"4 of 300 pictures cannot be read .*and 1 more\)\. That is more than 3: .*--data.max_unreadable",
    ):
        InMemory(source)


def test_a_bad_picture_counts_once_and_three_are_always_accepted():
    bad = BadFiles("some", 16)
    for _ in range(2):
        for index in range(3):
            bad.add(f"{index}.png", "truncated")
    bad.check()
    assert len(bad) == 3
    bad.add("3.png", "truncated")
    with pytest.raises(UserError, match=r"some: 4 of 16 .*0.png: truncated"):
        bad.check()


@pytest.mark.parametrize(("num", "limit", "accepted"), [(399, None, 3), (400, None, 4), (1000, 0, 0), (5, 5, 5)])
def test_one_in_a_hundred_is_accepted_or_what_the_user_says(num, limit, accepted):
    assert BadFiles("some", num, limit).limit == accepted


def test_parts_share_what_could_not_be_read(tmp_path):
    source = open_folder(write_folder(tmp_path, {"a": 8, "b": 8}), Layout())["all"]
    for index in range(2, 6):
        Path(source.where(index)).write_bytes(b"junk")
    first, second = Subset(source, range(5)), Relabelled(Subset(source, range(5, 16)), ("b", "a"))
    assert len(InMemory(first)) == 2, "three of five are few of sixteen"
    with pytest.raises(UserError, match="4 of 16 pictures"):
        InMemory(second)


def test_labels_by_another_class_list(tmp_path):
    source = open_folder(write_folder(tmp_path, {"b": 2, "d": 1}), Layout())["all"]
    moved = with_classes(source, ("a", "b", "c", "d"))
    assert moved.labels.tolist() == [1, 1, 3] and moved.classes == ("a", "b", "c", "d")
    assert is_picture(moved.read(2), 2) and moved.where(2) == source.where(2)
    assert with_classes(source, ["b", "d"]) is source
    with pytest.raises(UserError, match="has the class 'd', which is not among"):
        with_classes(source, ("a", "b"))


def test_path_list():
    paths = ["a", "", "äö/\udcff", "last"]
    packed = PathList(paths)
    assert len(packed) == 4 and [packed[index] for index in range(4)] == paths
