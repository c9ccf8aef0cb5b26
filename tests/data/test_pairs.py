from pathlib import Path

import pytest
from segmented_made import mask_of, mask_png, noise_png, write_pairs

from vitreous.data.pairs import find_pairs, matched
from vitreous.errors import UserError


def names(pairs):
    files = zip(pairs.pictures, pairs.masks, strict=True)
    return [(Path(picture).stem, Path(mask).stem if mask else None) for picture, mask in files]


@pytest.mark.parametrize(
    ("pictures", "masks"),
    [
        ("images", "masks"),
        ("JPEGImages", "SegmentationClass"),
        ("images", "annotations/trimaps"),
        ("leftImg8bit", "gtFine"),
        ("img", "labels"),
    ],
)
def test_two_folders(tmp_path, pictures, masks):
    write_pairs(tmp_path / pictures, tmp_path / masks, range(3))
    found = find_pairs(tmp_path)
    assert names(found.splits["all"]) == [(f"{number:04}", f"{number:04}") for number in range(3)]
    assert found.splits["all"].notes == [f"{tmp_path}: read as pictures with a mask each ({pictures} and {masks})"]


@pytest.mark.parametrize(
    "layout",
    ["images/{split} masks/{split}", "{split}/images {split}/masks", "{split} {split}annot", "{split} {split}_masks"],
)
def test_splits_either_way_round(tmp_path, layout):
    for first, split in enumerate(("train", "val", "test")):
        pictures, masks = layout.format(split=split).split()
        write_pairs(tmp_path / pictures, tmp_path / masks, range(10 * first, 10 * first + 2))
    found = find_pairs(tmp_path).splits
    assert {split: names(pairs) for split, pairs in found.items()} == {
        "train": [("0000", "0000"), ("0001", "0001")],
        "val": [("0010", "0010"), ("0011", "0011")],
        "test": [("0020", "0020"), ("0021", "0021")],
    }


def test_test_pictures_without_masks_are_no_split(tmp_path):
    write_pairs(tmp_path / "images/train", tmp_path / "masks/train", range(3))
    (tmp_path / "images/test").mkdir()
    (tmp_path / "images/test/9.png").write_bytes(noise_png(0))
    assert list(find_pairs(tmp_path).splits) == ["train"]


def test_lists_of_names(tmp_path):
    write_pairs(tmp_path / "images", tmp_path / "masks", range(6))
    (tmp_path / "train.txt").write_text("0000\n0001.png\n# a comment\n\n")
    (tmp_path / "val.txt").write_text("/SegNet/CamVid/images/0002.png /SegNet/CamVid/masks/0002.png\n")
    (tmp_path / "test.txt").write_text("0003 1 1 1\n0007\n")
    found = find_pairs(tmp_path).splits
    assert {split: names(pairs) for split, pairs in found.items()} == {
        "train": [("0000", "0000"), ("0001", "0001")],
        "val": [("0002", "0002")],
        "test": [("0003", "0003")],
    }
    assert f"{tmp_path / 'images'}: pictures in none of the lists, skipped: 2" in [
        note for pairs in found.values() for note in pairs.notes
    ]
    assert f"{tmp_path / 'test.txt'}: names without a labelled picture, skipped: 1 (0007)" in found["test"].notes


def test_lists_where_voc_has_them(tmp_path):
    write_pairs(tmp_path / "JPEGImages", tmp_path / "SegmentationClass", range(4))
    lists = tmp_path / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    for name, numbers in (("train", [0, 1]), ("val", [2]), ("trainval", [0, 1, 2])):
        (lists / f"{name}.txt").write_text("".join(f"{number:04}\n" for number in numbers))
    assert {split: len(pairs) for split, pairs in find_pairs(tmp_path).splits.items()} == {"train": 2, "val": 1}


def test_a_list_of_other_names(tmp_path):
    write_pairs(tmp_path / "images", tmp_path / "masks", range(2))
    (tmp_path / "train.txt").write_text("frame7\n")
    with pytest.raises(UserError, match=r"train.txt: names no picture of this data set; its first line is 'frame7'"):
        find_pairs(tmp_path)


@pytest.mark.parametrize(
    ("picture", "mask"),
    [
        ("a", "a"),
        ("a", "a_mask"),
        ("0001TP_006690", "0001TP_006690_L"),
        ("aachen/a_000019_leftImg8bit", "aachen/a_000019_gtFine_labelIds"),
        ("image_7", "mask_7"),
        ("a_image", "a_segmentation"),
        ("x.1", "x.1_mask"),
    ],
)
def test_names_with_something_added(picture, mask):
    assert matched([picture, "other"], ["unrelated", mask]) == [1, None]


def test_of_several_masks_the_one_with_class_numbers_is_read():
    masks = ["a_gtFine_color", "a_gtFine_instanceIds", "a_gtFine_labelIds"]
    assert matched(["a_leftImg8bit"], masks) == [2]
    assert matched(["a"], ["a_mask", "a"]) == [1]


def test_pictures_and_masks_that_are_alone(tmp_path):
    write_pairs(tmp_path / "images", tmp_path / "masks", range(4))
    (tmp_path / "masks/0001.png").unlink()
    (tmp_path / "images/0002.png").unlink()
    (tmp_path / "masks/legend.txt").write_text("x")
    pairs = find_pairs(tmp_path).splits["all"]
    assert names(pairs) == [("0000", "0000"), ("0001", None), ("0003", "0003")]
    assert f"{tmp_path / 'masks'}: masks without a picture, skipped: 1 (0002.png)" in pairs.notes
    assert f"{tmp_path / 'masks'}: files that are not read: 1 .txt" in pairs.notes


# ---- Classes that are called images and masks


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda seed: noise_png(seed, "JPEG"), "is JPEG, which changes the values"),
        (noise_png, "different values"),
        (lambda seed: noise_png(seed, channels=1), "different values"),  # grey photos have at most 256
        (lambda seed: noise_png(seed, channels=1, side=7), "looks like a photo"),  # and tiny ones fewer
    ],
)
def test_photos_of_masks_are_no_masks(tmp_path, make, reason):
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
        for number in range(4):
            (tmp_path / folder / f"{number}.png").write_bytes(make(number))
    found = find_pairs(tmp_path)
    assert not found.splits
    assert reason in found.refused
    assert found.refused.endswith("(images and masks)")


def test_a_few_bad_masks_do_not_change_what_a_folder_is(tmp_path):
    write_pairs(tmp_path / "images", tmp_path / "masks", range(8))
    (tmp_path / "masks/0000.png").write_bytes(b"no picture")
    (tmp_path / "masks/0001.png").write_bytes(noise_png(1))
    (tmp_path / "masks/0002.png").write_bytes(mask_png(mask_of(2, size=(9, 9))))
    assert len(find_pairs(tmp_path).splits["all"]) == 8


def test_other_names_in_both_folders(tmp_path):
    for folder, name in (("images", "a.png"), ("masks", "b.png")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(noise_png(0))
    assert "no file in one has the same name as a file in the other" in find_pairs(tmp_path).refused


def test_folders_of_classes_are_none_of_this(tmp_path):
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(noise_png(0))
    assert find_pairs(tmp_path) is None
