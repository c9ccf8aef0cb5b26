import json
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from made import is_picture, png, write_folder
from PIL import Image
from segmented_made import mask_of, mask_png, noise_png, write_pairs

from vitreous.data.augmentation import Augmentation
from vitreous.data.images import BadPicture
from vitreous.data.loader import TrainLoader
from vitreous.data.memory import InMemory
from vitreous.data.names import Layout
from vitreous.data.sources import DataSettings, open_sources
from vitreous.data.targets import ClassLabels, NoTargets, PixelLabels
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError

HAS_DATA = pytest.mark.skipif("VITREOUS_DATA" not in os.environ, reason="the folder VITREOUS_DATA is not set")


def mask(source, index):
    return source.sample(index).large["mask"]


def write_parquet(path, numbers, as_bytes=False, metadata=None, mask_name="mask", more=None):
    pictures = [{"bytes": png(number), "path": None} for number in numbers]
    masks = [mask_png(mask_of(number)) for number in numbers]
    columns = {"image": pictures, mask_name: masks if as_bytes else [{"bytes": one, "path": "x"} for one in masks]}
    table = pa.table({**columns, **(more or {})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=2)


# ---- Folders


def test_a_folder_of_pictures_and_masks(tmp_path):
    for split, numbers in (("train", range(7)), ("test", range(7, 9))):
        write_pairs(tmp_path / split / "images", tmp_path / split / "masks", numbers, end="_mask")
    (tmp_path / "classes.json").write_text(json.dumps(["ground", "stone", "water"]))
    found = open_sources(str(tmp_path))
    assert {split: len(source) for split, source in found.items()} == {"train": 7, "test": 2}
    assert found["train"].classes == found["test"].classes == ("ground", "stone", "water")
    assert isinstance(found["train"].targets, PixelLabels)
    assert is_picture(found["test"].read(1), 8)
    assert (mask(found["test"], 1) == mask_of(8)).all()
    assert found["test"].notes == (f"{tmp_path}: read as pictures with a mask each (train/images and train/masks)",)


def test_classes_of_all_splits_are_the_same(tmp_path):
    """Without names: a class that only test has is one of train's too."""
    write_pairs(tmp_path / "images/train", tmp_path / "masks/train", range(2))
    write_pairs(tmp_path / "images/test", tmp_path / "masks/test", range(4, 6), classes=6)
    found = open_sources(str(tmp_path))
    assert found["train"].classes == found["test"].classes == ("0", "1", "4", "5")
    assert set(np.unique(mask(found["test"], 0))) == {0, 2}


def test_wrong_masks_are_counted_and_named(tmp_path):
    write_pairs(tmp_path / "images", tmp_path / "masks", range(8))
    (tmp_path / "classes.json").write_text(json.dumps(["a", "b", "c"]))
    (tmp_path / "masks/0001.png").unlink()
    (tmp_path / "masks/0002.png").write_bytes(mask_png(mask_of(2, size=(9, 4))))
    wrong = mask_of(3)
    wrong[0, 0] = 77
    (tmp_path / "masks/0003.png").write_bytes(mask_png(wrong))
    (tmp_path / "masks/0004.png").write_bytes(mask_png(mask_of(4))[:50])
    (tmp_path / "masks/0005.png").write_bytes(mask_png(np.full((5, 6, 3), (1, 2, 3), np.uint8)))
    (tmp_path / "images/0006.png").write_bytes(b"no picture")
    with pytest.raises(UserError) as raised:
        DataSettings(where=str(tmp_path), val_fraction=0, test_fraction=0).build()
    assert "6 of 8 pictures cannot be read" in str(raised.value)
    splits = DataSettings(where=str(tmp_path), val_fraction=0, test_fraction=0, max_unreadable=6).build()
    assert len(splits.train) == 2
    reasons = {where.rpartition("/")[2]: reason for where, reason in splits.train.bad.reasons.items()}
    assert reasons["0001.png"] == "it has no mask"
    assert reasons["0002.png"] == "its mask has 9 x 4 px, the picture 6 x 5 px"
    assert reasons["0003.png"] == "its mask 0003.png: the value 77, which is neither a class nor ignored"
    assert reasons["0004.png"].startswith("its mask 0004.png: ")
    assert reasons["0005.png"] == "its mask 0005.png: in colours such as #010203, but classes are given by number"
    assert "not a picture" in reasons["0006.png"]


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_masks_of_turned_photos(tmp_path, orientation):
    """A mask goes with the picture as it is seen; where its sides tell that it goes with the pixels as stored, it is
    turned like them."""
    stored = np.zeros((6, 10, 3), np.uint8)
    stored[:3, :5] = 255  # white in the upper left
    exif = Image.Exif()
    exif[0x0112] = orientation
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(2):
        Image.fromarray(stored).save(tmp_path / f"images/{number}.png", exif=exif)
    turns = {1: 0, 3: 2, 6: -1, 8: 1}[orientation]
    white = (stored[..., 0] > 0).astype(np.uint8)
    Image.fromarray(np.rot90(white, turns).copy()).save(tmp_path / "masks/0.png")  # as seen
    Image.fromarray(white if turns % 2 else np.rot90(white, turns).copy()).save(tmp_path / "masks/1.png")
    source = open_sources(str(tmp_path))["all"]
    for number in range(2):
        sample = source.sample(number)
        assert ((sample.picture[..., 0] > 0) == (sample.large["mask"] == 1)).all()


def test_two_classes_called_images_and_masks(tmp_path):
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
        for number in range(4):
            (tmp_path / folder / f"{number}.png").write_bytes(noise_png(number + 10 * len(folder)))
    source = open_sources(str(tmp_path))["all"]
    assert source.classes == ("images", "masks")
    assert isinstance(source.targets, ClassLabels)
    (note,) = source.notes
    assert "not read as pictures with masks, because 0.png has" in note


def test_a_pattern_for_labels_wins_over_masks(tmp_path):
    write_pairs(tmp_path / "images", tmp_path / "masks", range(3))
    found = open_sources(str(tmp_path), Layout(label_pattern="(images|masks)/"))
    assert found["all"].classes == ("images", "masks")


def test_class_folders_are_read_as_ever(tmp_path):
    found = open_sources(str(write_folder(tmp_path / "set", {"cat": 2, "dog": 2})))
    assert found["all"].notes == ()


def test_masks_in_colours(tmp_path):
    write_pairs(tmp_path / "images", tmp_path / "masks", range(3))
    colours = np.array([[0, 0, 0], [128, 64, 128], [70, 70, 70]], np.uint8)
    for number in range(3):
        (tmp_path / f"masks/{number:04}.png").write_bytes(mask_png(colours[mask_of(number)]))
    (tmp_path / "classes.json").write_text(json.dumps({"#804080": "road", "70,70,70": "wall", "#000000": None}))
    source = open_sources(str(tmp_path))["all"]
    assert source.classes == ("road", "wall")
    assert (mask(source, 2) == mask_of(2).astype(int) - 1).all()


# ---- Tables


@pytest.mark.parametrize("header", ["image,mask\n", "path,label\n", ""])
def test_a_table_of_two_paths(tmp_path, header):
    write_pairs(tmp_path / "a", tmp_path / "b", range(3))
    rows = "".join(f"a/{number:04}.png,b/{number:04}.png\n" for number in range(3))
    (tmp_path / "set.csv").write_text(header + rows)
    source = open_sources(str(tmp_path / "set.csv"))["all"]
    assert (mask(source, 2) == mask_of(2)).all()
    assert source.notes[0].endswith("read as pictures with a mask each, since two of its columns name pictures")


def test_a_table_with_splits_a_label_and_a_missing_mask(tmp_path):
    write_pairs(tmp_path / "a", tmp_path / "b", range(4))
    rows = [f"a/{number:04}.png,cat,b/{number:04}.png,{'train' if number else 'test'}" for number in range(3)]
    (tmp_path / "set.csv").write_text("\n".join(["image,label,mask,split", *rows, "a/0003.png,cat,,train"]))
    with_labels = open_sources(str(tmp_path / "set.csv"))
    assert isinstance(with_labels["train"].targets, ClassLabels)
    found = open_sources(str(tmp_path / "set.csv"), Layout(mask_column="mask"))
    assert {split: len(source) for split, source in found.items()} == {"train": 3, "test": 1}
    with pytest.raises(BadPicture, match="it has no mask"):
        found["train"].sample(2)


def test_a_table_whose_masks_are_elsewhere(tmp_path):
    write_pairs(tmp_path / "a", tmp_path / "b", range(5))
    (tmp_path / "set.csv").write_text("image,mask\n" + "".join(f"a/{n:04}.png,c/{n:04}.png\n" for n in range(5)))
    with pytest.raises(UserError, match=r"5 of its 5 files do not exist .* such as c/0000.png"):
        open_sources(str(tmp_path / "set.csv"))


# ---- Parquet


@pytest.mark.parametrize(("as_bytes", "name"), [(False, "mask"), (True, "annotation"), (False, "label")])
def test_a_column_of_masks(tmp_path, as_bytes, name):
    metadata = {"classes": json.dumps(["a", "b", "void"]), "ignore_index": "2"}
    write_parquet(tmp_path / "set/train.parquet", range(5), as_bytes, metadata, name)
    write_parquet(tmp_path / "set/test.parquet", range(5, 7), as_bytes, metadata, name)
    found = open_sources(str(tmp_path / "set"))
    assert found["train"].classes == ("a", "b")
    for number in range(5):
        expected = mask_of(number).astype(int)
        assert (mask(found["train"], number) == np.where(expected == 2, -1, expected)).all()
        assert is_picture(found["train"].read(number), number)
    assert found["train"].notes == (f"set: read as pictures with a mask each (the column {name})",)


def test_labels_come_before_masks(tmp_path):
    write_parquet(tmp_path / "set.parquet", range(4), more={"label": [0, 1, 0, 1]})
    assert isinstance(open_sources(str(tmp_path / "set.parquet"))["all"].targets, ClassLabels)
    found = open_sources(str(tmp_path / "set.parquet"), Layout(mask_column="mask", ignored="0"))
    assert found["all"].classes == ("1", "2")
    with pytest.raises(UserError, match=r"no column 'masc' among image, mask, label. Did you mean mask"):
        open_sources(str(tmp_path / "set.parquet"), Layout(mask_column="masc"))


def test_a_row_without_a_mask(tmp_path):
    masks = [mask_png(mask_of(0)), None, b"no picture"]
    table = pa.table({"image": [png(number) for number in range(3)], "mask": masks})
    pq.write_table(table, tmp_path / "set.parquet")
    source = open_sources(str(tmp_path / "set.parquet"))["all"]
    assert (mask(source, 0) == 0).all()
    with pytest.raises(BadPicture, match=r"^its mask: no picture in this row$"):
        source.sample(1)
    with pytest.raises(BadPicture, match=r"^its mask: not a picture in a known format"):
        source.sample(2)


def test_sources_travel_to_workers(tmp_path):
    write_parquet(tmp_path / "set.parquet", range(3))
    write_pairs(tmp_path / "folder/images", tmp_path / "folder/masks", range(3))
    for where in (tmp_path / "set.parquet", tmp_path / "folder"):
        source = pickle.loads(pickle.dumps(open_sources(str(where))["all"]))
        assert (mask(source, 2) == mask_of(2)).all()


def test_rare_classes_are_in_every_part(tmp_path):
    """Of 40 pictures, 4 have class 1 and all have class 0."""
    write_pairs(tmp_path / "images", tmp_path / "masks", range(40), classes=1)
    for number in (3, 11, 12, 35):
        rare = mask_of(number, classes=1)
        rare[4, 4] = 1
        (tmp_path / f"masks/{number:04}.png").write_bytes(mask_png(rare))
    splits = DataSettings(where=str(tmp_path), val_fraction=0.25, test_fraction=0.25).build()
    assert len(splits.train) + len(splits.val) + len(splits.test) == 40
    for part in (splits.train, splits.val, splits.test):
        assert any((mask(part, index) == 1).any() for index in range(len(part)))


def test_pictures_in_memory_keep_their_masks(tmp_path):
    write_pairs(tmp_path / "images", tmp_path / "masks", range(6))
    (tmp_path / "masks/0002.png").unlink()
    settings = DataSettings(where=str(tmp_path), val_fraction=0, test_fraction=0)
    train = settings.build().train
    assert [int(train.read(index)[0, 0, 0]) for index in range(5)] == [0, 1, 3, 4, 5]
    for index, number in enumerate((0, 1, 3, 4, 5)):
        assert (mask(train, index) == mask_of(number)).all()


def test_shrunken_masks_are_where_the_pixels_are(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    rng = np.random.default_rng(0)
    few = rng.integers(0, 4, (3, 5, 7)).astype(np.uint8)
    for number, blocks in enumerate(few.repeat(8, 1).repeat(8, 2)):
        (tmp_path / f"masks/{number}.png").write_bytes(mask_png(blocks))
        Image.fromarray(blocks * 60).save(tmp_path / f"images/{number}.png")
    settings = DataSettings(where=str(tmp_path), val_fraction=0, test_fraction=0, shrink_px=5)
    train = settings.build().train
    for number in range(3):
        sample = train.sample(number)
        assert sample.picture.shape == (5, 7, 3)
        assert (sample.large["mask"] == few[number]).all()


# ---- The sets by name


@HAS_DATA
def test_camvid():
    found = open_sources("camvid")
    assert {split: len(source) for split, source in found.items()} == {"train": 367, "val": 101, "test": 233}
    names = "sky, building, pole, road, pavement, tree, sign_symbol, fence, car, pedestrian, bicyclist"
    assert found["train"].classes == tuple(names.split(", "))
    sample = found["train"].sample(0)
    assert sample.picture.shape == (240, 320, 3)
    assert sorted(np.unique(sample.large["mask"])) == [-1, 0, 1, 2, 3, 4, 5, 6, 8, 9]
    road = sample.large["mask"] == 3
    assert road[120:].sum() > 9 * road[:120].sum()


@HAS_DATA
def test_pets():
    found = open_sources("pets_trimaps")
    assert {split: len(source) for split, source in found.items()} == {"train": 1184, "test": 592}
    assert found["train"].classes == ("pet", "background")
    sample = found["test"].sample(5)
    assert sample.large["mask"].shape == (192, 192)
    assert set(np.unique(sample.large["mask"])) == {-1, 0, 1}
    assert (open_sources("oxford_pets")["test"].read(5) == sample.picture).all()


def test_sets_by_name_without_their_folder(monkeypatch):
    monkeypatch.delenv("VITREOUS_DATA", raising=False)
    for name in ("camvid", "pets_trimaps"):
        with pytest.raises(UserError, match=f"{name} is expected in the folder that the variable VITREOUS_DATA"):
            open_sources(name)


def test_pictures_alone_where_nothing_else_is_needed(tmp_path):
    """What learns from pictures alone takes several views of them, and reads no mask: not even a bad one."""
    write_pairs(tmp_path / "images", tmp_path / "masks", range(6))
    (tmp_path / "masks/0002.png").unlink()
    train = DataSettings(where=str(tmp_path), val_fraction=0, test_fraction=0, need_labels=False).build().train
    assert isinstance(train.targets, NoTargets)
    assert [int(train.read(index)[0, 0, 0]) for index in range(6)] == list(range(6))
    assert not len(train.bad)


# ---- Reading while training


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_workers_read_masks_when_they_are_wanted(tmp_path, kind):
    """The batches are the same for any number of workers, and of pictures in memory; opening reads no mask for good."""
    if kind == "folder":
        write_pairs(tmp_path / "set/images", tmp_path / "set/masks", range(12))
    else:
        write_parquet(tmp_path / "set/train.parquet", range(12))
    source = open_sources(str(tmp_path / "set"))["all"]
    view = Augmentation().build(Preprocessing(size_px=(5, 6)))

    def batches(pictures, workers):
        loader = TrainLoader(pictures, [view], batch_size=4, seed=1, workers=workers)
        return [(batch.ids, batch.images, batch.targets["mask"]) for batch in loader.batches(0, 5)]

    expected = batches(source, 0)
    assert all(mask.shape == (4, 5, 6) and mask.dtype == torch.int64 for _, _, mask in expected)
    for other in (batches(source, 2), batches(InMemory(source), 0)):
        for one, two in zip(expected, other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    if kind == "folder":
        for number in range(12):
            (tmp_path / f"set/masks/{number:04}.png").write_bytes(mask_png(np.full((5, 6), 2, np.uint8)))
        assert all((mask == 2).all() for _, _, mask in batches(source, 2))
