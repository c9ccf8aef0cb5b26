import io
import json
import os
import tarfile

import numpy as np
import pytest
from made import is_picture, png
from segmented_made import SIZE, mask_of, mask_png, noise_png

from vitreous.data.images import BadPicture
from vitreous.data.names import Layout
from vitreous.data.tar import open_tar
from vitreous.errors import UserError


def write(path, members):
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_class_folders_across_shards(tmp_path):
    (tmp_path / "classes.json").write_text(
        json.dumps(
            {"classes": [{"wnid": "n2", "label": 0, "name": "crane"}, {"wnid": "n1", "label": 1, "name": "crane"}]}
        )
    )
    write(
        tmp_path / "train-0000.tar", [("train/n1/a.png", png(0)), ("train/n2/b.x.png", png(1)), ("train/readme", b"")]
    )
    write(tmp_path / "train-0001.tar", [("train/n1/._a.png", b""), ("train/n1/a.png", png(2))])
    write(tmp_path / "val.tar", [("val/n2/c.png", png(3))])
    sources = open_tar(tmp_path, Layout())
    train = sources["train"]
    assert train.labels.tolist() == [1, 0, 1] and sources["val"].labels.tolist() == [0]
    assert train.classes == ("crane (0, n2)", "crane (1, n1)"), "two classes of one name are told apart"
    assert all(is_picture(train.read(index), index) for index in range(3))
    assert train.where(2) == f"{tmp_path}/train-0001.tar:train/n1/a.png"


def test_labels_beside_pictures(tmp_path):
    members = [(f"{n:03}.{kind}", data) for n in range(12) for kind, data in (("cls", b"%d\n" % n), ("png", png(n)))]
    source = open_tar(write(tmp_path / "x.tar", members[:-2] + members[-2:][::-1]), Layout())["all"]
    assert source.labels.tolist() == list(range(12)) and source.classes[10] == "10"
    assert is_picture(source.read(11), 11)


def test_members_without_a_class_where_no_labels_are_needed(tmp_path):
    path = write(tmp_path / "x.tar", [("a.png", png(0)), ("b.png", png(1))])
    assert open_tar(path, Layout(need_labels=False))["all"].classes == ("unlabelled",)


def test_splits_inside_one_file(tmp_path):
    members = [
        (f"{split}/{name}/0.png", png(n))
        for n, (split, name) in enumerate((s, c) for s in ("train", "test") for c in "ab")
    ]
    sources = open_tar(write(tmp_path / "x.tar", members), Layout())
    assert sorted(sources) == ["test", "train"] and is_picture(sources["test"].read(1), 3)
    assert list(open_tar(write(tmp_path / "y.tar", members[:2]), Layout())) == ["all"]


def test_nothing_is_extracted_and_other_members_are_ignored(tmp_path):
    path = tmp_path / "x.tar"
    write(path, [("a/x.png", png(0)), ("../../b/y.png", png(1))])
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("a/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    source = open_tar(path, Layout())["all"]
    assert len(source) == 2 and is_picture(source.read(0), 0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.tar"]


def test_labels_in_member_names(tmp_path):
    members = [("train/a_1.png", png(0)), ("train/b_1.png", png(1)), ("test/x/b_2.png", png(2))]
    sources = open_tar(write(tmp_path / "x.tar", members), Layout(label_pattern=r"(.+)_\d"))
    assert sources["train"].classes == ("a", "b") and sources["test"].classes == ("b",)
    with pytest.raises(UserError, match=r"finds no label in 1 of 2 files, such as b_1.png"):
        open_tar(tmp_path / "x.tar", Layout(label_pattern="(a)_"))


def test_what_is_no_picture_is_passed_over_with_a_note(tmp_path):
    members = [
        ("a/x.png", png(0)),
        ("__MACOSX/a/x.png", b""),
        ("./a/y.png", png(1)),
        ("a/.DS_Store", b""),
        ("a/z.raw", b""),
    ]
    path = write(tmp_path / "x.tar", members)
    source = open_tar(path, Layout())["all"]
    assert len(source) == 2 and source.notes == (
        f"{path}: files that are not read: 1 .raw",
        f"{path}: hidden files and folders skipped: __MACOSX, .DS_Store",
    )


def test_sizes_are_checked_before_reading(tmp_path):
    """The file says that a member is large, and is as large, though it takes no room on the disk."""
    huge = tarfile.TarInfo("a/x.png")
    huge.size = 2**36
    path = tmp_path / "x.tar"
    path.write_bytes(huge.tobuf(tarfile.GNU_FORMAT))
    os.truncate(path, 512 + 2**36)
    with pytest.raises(BadPicture, match="68,719,476,736 bytes, more than"):
        open_tar(path, Layout())["all"].read(0)
    huge.name = "x.cls"
    with path.open("r+b") as file:
        file.write(huge.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(UserError, match=r"x.cls: 68,719,476,736 bytes are too many for a label"):
        open_tar(path, Layout())
    huge.type = tarfile.XHDTYPE
    with path.open("r+b") as file:
        file.write(huge.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(UserError, match="a header of 68,719,476,736 bytes"):
        open_tar(path, Layout())
    path.unlink()
    os.mkfifo(tmp_path / "y.tar")
    with pytest.raises(UserError, match=r"y.tar: cannot be read .*\(a pipe, not a regular file\)"):
        open_tar(tmp_path, Layout())


def test_errors(tmp_path):
    with pytest.raises(UserError, match="no class"):
        open_tar(write(tmp_path / "a.tar", [("x.png", png(0))]), Layout())
    with pytest.raises(UserError, match=r"no pictures in it; files that are not read: 1 \.txt"):
        open_tar(write(tmp_path / "b.tar", [("a/x.txt", b"")]), Layout())
    (tmp_path / "c.tar").write_bytes(b"something else" * 100)
    with pytest.raises(UserError, match="cannot be read as an uncompressed tar"):
        open_tar(tmp_path / "c.tar", Layout())
    path = write(tmp_path / "d.tar", [("a/x.png", png(0)), ("a/y.png", png(1))])
    source = open_tar(path, Layout())["all"]
    path.write_bytes(path.read_bytes()[: 512 + 1024 + 10])
    assert is_picture(source.read(0), 0)
    with pytest.raises(BadPicture, match="ends before"):
        source.read(1)
    with pytest.raises(UserError, match="unexpected end"):
        open_tar(path, Layout())


# ---- Masks


def scenes(numbers, picture="images/{}.png", mask="masks/{}_mask.png"):
    for number in numbers:
        yield picture.format(number), png(number, SIZE)
        yield mask.format(number), mask_png(mask_of(number))


LAYOUTS = {
    "folders": ("images/{}.png", "masks/{}_mask.png"),
    "a folder around all": ("./scenes/images/{}.png", "./scenes/labels/{}.png"),
    "side by side": ("{}.png", "{}.mask.png"),
}


@pytest.mark.parametrize("names", LAYOUTS.values(), ids=LAYOUTS)
def test_masks_are_matched_as_in_folders(names, tmp_path):
    (tmp_path / "classes.json").write_text(json.dumps({"0": "ground", "1": "one", "2": "two"}))
    write(tmp_path / "train-0.tar", scenes(range(4), *names))
    write(tmp_path / "train-1.tar", [*scenes(range(4, 6), *names), (names[0].format(9), png(9, SIZE))])
    write(tmp_path / "val.tar", scenes(range(6, 9), *names))
    sources = open_tar(tmp_path, Layout())
    assert {name: len(one) for name, one in sources.items()} == {"train": 7, "val": 3}
    for source, first in ((sources["train"], 0), (sources["val"], 6)):
        assert source.targets.task == "segment" and source.classes == ("ground", "one", "two")
        for place in range(min(6, len(source))):
            assert is_picture(source.read(place), first + place)
            assert np.array_equal(source.targets.read(place)["mask"], mask_of(first + place))
    assert "read as pictures with a mask each" in sources["train"].notes[0]
    with pytest.raises(BadPicture, match="it has no mask"):
        sources["train"].targets.read(6)


def test_splits_of_masks_inside_one_file(tmp_path):
    members = [*scenes(range(3), "train/images/{}.png", "train/masks/{}.png")]
    members += scenes(range(3, 5), "val/images/{}.png", "val/masks/{}.png")
    sources = open_tar(write(tmp_path / "x.tar", members), Layout())
    assert {name: len(one) for name, one in sources.items()} == {"train": 3, "val": 2}
    assert np.array_equal(sources["val"].targets.read(1)["mask"], mask_of(4))


def test_classes_that_are_called_images_and_masks_are_classes(tmp_path):
    members = [(f"{name}/{n}.png", noise_png(n)) for n in range(3) for name in ("images", "masks")]
    source = open_tar(write(tmp_path / "x.tar", members), Layout())["all"]
    assert source.classes == ("images", "masks") and "not read as pictures with masks, because" in source.notes[-1]


def test_a_damaged_mask_and_a_file_without_masks_are_named(tmp_path):
    members = [*scenes(range(3)), ("images/3.png", png(3, SIZE)), ("masks/3_mask.png", b"no picture")]
    write(tmp_path / "train-0.tar", members)
    with pytest.raises(BadPicture, match=r"its mask 3_mask\.png: "):
        open_tar(tmp_path, Layout())["all"].targets.read(3)
    write(tmp_path / "train-1.tar", [("cats/1.png", png(1))])
    with pytest.raises(UserError, match=r"train-1\.tar: no masks in it, unlike other files. Leave it out\.$"):
        open_tar(tmp_path, Layout())
