"""Pictures with boxes in every format: the same set read from each, and what is wrong said in one line."""

import json
import re

import numpy as np
import pytest
from boxed_made import (
    BOXES,
    CLASSES,
    LABELS,
    NAMES,
    SIZES,
    coco_json,
    picture,
    voc_xml,
    write_coco,
    write_parquet,
    write_pictures,
    write_voc,
    write_yolo,
    yolo_text,
)
from PIL import Image

from vitreous.data.images import BadPicture
from vitreous.data.names import Layout
from vitreous.data.sources import DataSettings, open_sources
from vitreous.errors import UserError


def opened(path, **layout):
    (source,) = open_sources(str(path), Layout(**layout)).values()
    return source


def check_read(source, classes=CLASSES):
    assert source.targets.task == "detect" and source.classes == classes
    assert [source.read(index).shape[:2] for index in range(4)] == SIZES
    for index in range(4):
        found = source.targets.of(index)
        np.testing.assert_allclose(found.boxes, np.array(BOXES[index]).reshape(-1, 4), atol=1e-4)
        assert [classes[number] for number in found.classes] == [CLASSES[number] for number in LABELS[index]]
    assert source.targets.sizes.tolist() == [list(size) for size in SIZES]
    assert source.described(2) == "no objects"


WRITERS = {
    "coco": write_coco,
    "coco file": lambda root: write_coco(root) / "instances.json",
    "yolo": write_yolo,
    "yolo file": lambda root: write_yolo(root) / "data.yaml",
    "parquet": lambda root: write_parquet(root / "set.parquet"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_gives_the_same_boxes(tmp_path, kind):
    source = opened(WRITERS[kind](tmp_path / "set"))
    check_read(source)
    assert "read as pictures with boxes" in source.notes[0]


@pytest.mark.parametrize("first", [0, 1])
def test_voc_counts_pixels_from_1_unless_a_corner_is_at_0(tmp_path, first):
    source = opened(write_voc(tmp_path, first=first))
    check_read(source, ("cat", "dog"))  # XML files name no class that has no object
    assert f"corners counted from {first}" in source.notes[0]


# ---- COCO


def test_coco_keeps_its_numbers_and_its_outlines(tmp_path):
    document = coco_json()
    document["annotations"][0]["segmentation"] = [[5, 6, 25, 6, 25, 30, 5, 30]]
    runs = np.zeros(SIZES[0], dtype=bool)
    runs[10:20, 30:50] = True
    flat = runs.T.ravel()
    edges = np.flatnonzero(np.diff(np.r_[False, flat, False].astype(int)))
    counts = np.diff(np.r_[0, edges, flat.size]).tolist()
    document["annotations"][1] |= {"iscrowd": 1, "segmentation": {"size": list(SIZES[0]), "counts": counts}}
    del document["annotations"][1]["bbox"]
    source = opened(write_coco(tmp_path, annotations=document["annotations"]))
    assert source.targets.ids.tolist() == [10, 11, 12, 13] and source.targets.category_ids == (7, 10, 13)
    square, crowd = source.targets.masks(0)
    expected = np.zeros(SIZES[0], dtype=bool)
    expected[6:30, 5:25] = True
    assert (square == expected).all() and (crowd == runs).all()
    assert source.targets.of(0).crowd.tolist() == [False, True]
    assert source.targets.of(0).boxes[1].tolist() == [30, 10, 50, 20]  # of its outline, since it had no box
    assert source.targets.masks(1) == [None]


@pytest.mark.parametrize("layout", ["annotations", "roboflow", "images"])
def test_coco_splits_are_found_by_names(tmp_path, layout):
    """As COCO itself lays them out, as services export them, and with the pictures of all in one folder."""
    for split, indices in (("train", [0, 1]), ("val", [2, 3])):
        pictures, file = {
            "annotations": (f"{split}2017", f"annotations/instances_{split}2017.json"),
            "roboflow": (split.replace("val", "valid"), f"{split.replace('val', 'valid')}/_annotations.coco.json"),
            "images": ("images", f"{split}.json"),
        }[layout]
        write_pictures(tmp_path / pictures, indices)
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(json.dumps(coco_json(indices)))
    (tmp_path / file).with_name("captions_train2017.json").write_text(
        '{"images": [], "annotations": [{"caption": ""}]}'
    )
    found = open_sources(str(tmp_path))
    assert {split: len(source) for split, source in found.items()} == {"train": 2, "val": 2}
    assert found["val"].where(1).endswith("d.png") and found["val"].described(1) == "1 cat, 2 dog"
    assert not any("unlabelled pictures" in note for source in found.values() for note in source.notes)


def test_pictures_beside_that_no_file_names_were_never_labelled(tmp_path):
    source = opened(write_coco(tmp_path, [0, 1, 2]))
    assert len(source) == 3 and not any("never" in note for note in source.notes)
    write_pictures(tmp_path / "images", [3])
    source = opened(tmp_path)
    assert len(source) == 3  # the third has no objects, and stays
    assert source.notes[-1].endswith("unlabelled pictures left out: 1 (d.png)")


def test_boxes_follow_pictures_that_were_resized_or_turned_after_they_were_annotated(tmp_path):
    write_coco(tmp_path)
    height, width = SIZES[3]
    Image.fromarray(picture(3)).resize((2 * width, 3 * height)).save(tmp_path / "images" / NAMES[3])
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    Image.fromarray(picture(1)).save(tmp_path / "images" / NAMES[1], exif=exif)
    source = opened(tmp_path)
    np.testing.assert_allclose(source.targets.of(3).boxes, np.array(BOXES[3]) * (2, 3, 2, 3))
    assert source.read(1).shape[:2] == SIZES[1][::-1] == tuple(source.targets.sizes[1])
    marked = picture(1) * 0
    (x0, y0, x1, y1), (left, top, right, bottom) = BOXES[1][0], source.targets.of(1).boxes[0].astype(int)
    marked[y0:y1, x0:x1] = 255
    assert (np.rot90(marked, -1)[top:bottom, left:right] == 255).all() and source.targets.of(1).boxes.size == 4
    assert "whose size is not what their annotations say, their boxes scaled: 1 (d.png 96 x 96, not 48 x 32)" in str(
        source.notes
    )
    assert "turned upright, their boxes turned too: 1 (b.png)" in str(source.notes)


@pytest.mark.parametrize("orientation", range(5, 9))
def test_boxes_turn_as_pixels_do(tmp_path, orientation):
    write_coco(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = orientation
    marked = picture(3) * 0
    for number, (x0, y0, x1, y1) in enumerate(BOXES[3]):
        marked[y0:y1, x0:x1] = 50 + 50 * number
    Image.fromarray(marked).save(tmp_path / "images" / NAMES[3], exif=exif)
    source = opened(tmp_path)
    shown = source.read(3)[..., 0]
    for number, box in enumerate(source.targets.of(3).boxes.tolist()):
        rows, columns = np.nonzero(shown == 50 + 50 * number)
        assert box == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert not source.targets.objects.faults.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": [{"id": 1}]}, r"an image without a file_name and an id of its own: \{'id': 1\}"),
        ({"images": []}, r"annotation 0: there is no image 10"),
        ({"annotations": [{"id": 5, "image_id": 10, "category_id": 1, "bbox": [1, 2, 3, 4]}]}, "no category 1"),
        ({"annotations": [{"id": 5, "image_id": 10, "category_id": 7, "bbox": [1, 2, 3]}]}, r"bbox is \[1, 2, 3\]"),
        (
            {"annotations": [{"id": 5, "image_id": 10, "category_id": 7, "segmentation": {"size": [2, 2]}}]},
            "its segmentation cannot be read",
        ),
        (
            {"annotations": [{"id": 5, "image_id": 10, "category_id": 7, "bbox": [1, 2, 10**400, 4]}]},
            "its bbox has a number that is no number, or too large",
        ),
        (
            {"annotations": [{"id": 5, "image_id": 10, "category_id": 7, "bbox": [1, 2, float("nan"), 4]}]},
            "its bbox has a number that is no number, or too large",
        ),
        ({"categories": []}, "has no categories"),
        ({"categories": [{"id": "x"}]}, "a category without a number and a name"),
        (
            {"categories": [{"id": 7, "name": "cat"}, {"id": 7, "name": "eel"}]},
            "two categories have the number 7: 'cat' and 'eel'",
        ),
    ],
)
def test_what_is_wrong_in_a_coco_file(tmp_path, change, message):
    write_coco(tmp_path, **change)
    with pytest.raises(UserError, match=message) as error:
        open_sources(str(tmp_path))
    assert str(tmp_path / "instances.json") in str(error.value) and "\n" not in str(error.value)


def test_wrong_annotations_cost_their_pictures_alone(tmp_path):
    document = coco_json()
    document["annotations"][0] |= {"image_id": 99}
    document["annotations"][2] |= {"bbox": [1, 2]}
    check_left_out(write_coco(tmp_path, **document), "annotation 100: its bbox is", "2 of 6 annotations", 1)


def test_what_is_no_record_among_annotations_is_told(tmp_path):
    document = coco_json()
    document["annotations"].append(None)
    source = opened(write_coco(tmp_path, **document))
    assert len(source) == 4 and any("1 of 7 annotations cannot be used" in note for note in source.notes)


def test_names_too_long_for_a_file_are_pictures_that_are_not_there(tmp_path):
    document = coco_json()
    document["images"][0]["file_name"] = "a" * 5000
    source = opened(write_coco(tmp_path, **document))
    with pytest.raises(BadPicture):
        source.read(0)
    assert [source.read(index).shape[:2] for index in (1, 2, 3)] == SIZES[1:]


def test_coco_pictures_that_lay_in_other_folders(tmp_path):
    document = coco_json()
    for one in document["images"]:
        one["file_name"] = f"data/upload/{one['file_name']}"
    check_read(opened(write_coco(tmp_path, **document)))


@pytest.mark.parametrize("text", [b"", b"\xff\xfe\x00", b"no"])
def test_a_broken_coco_file_is_no_lost_split(tmp_path, text):
    write_coco(tmp_path)
    (tmp_path / "instances.json").rename(tmp_path / "val.json")
    (tmp_path / "train.json").write_bytes(text)
    with pytest.raises(UserError, match=r"train\.json: is not JSON, though COCO files lie beside it"):
        open_sources(str(tmp_path))


def test_coco_in_utf_16_and_a_split_without_pictures(tmp_path):
    write_coco(tmp_path)
    text = (tmp_path / "instances.json").read_text()
    (tmp_path / "instances.json").unlink()
    (tmp_path / "val.json").write_bytes(text.encode("utf-16"))
    (tmp_path / "train.json").write_text(json.dumps(coco_json([])))
    found = open_sources(str(tmp_path))
    check_read(found["val"])
    assert list(found) == ["val"] and f"{tmp_path.name}: no pictures in train" in found["val"].notes


def test_coco_files_that_cannot_be_used(tmp_path):
    write_coco(tmp_path)
    text = (tmp_path / "instances.json").read_text()
    (tmp_path / "more.json").write_text(text)
    with pytest.raises(UserError, match=r"two COCO files of all: instances\.json and more\.json"):
        open_sources(str(tmp_path))
    (tmp_path / "more.json").unlink()
    (tmp_path / "instances.json").write_text(text[:-40])
    with pytest.raises(UserError, match=r"cannot be read as JSON"):
        open_sources(str(tmp_path))
    (tmp_path / "instances.json").write_text(text.replace(".png", ".jpg"))
    with pytest.raises(UserError, match=r"its pictures \(a\.jpg, \.\.\.\) are in none of"):
        open_sources(str(tmp_path))
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(UserError, match=r"other\.json: not a COCO file with boxes"):
        open_sources(str(tmp_path / "other.json"))


# ---- YOLO


def test_yolo_by_folders_alone_and_with_names(tmp_path):
    write_yolo(tmp_path, {"train": [0, 1], "val": [2, 3]}, yaml=False)
    found = open_sources(str(tmp_path))
    assert {split: len(source) for split, source in found.items()} == {"train": 2, "val": 2}
    assert found["train"].classes == ("0", "1") and "by number" in found["train"].notes[0]
    (tmp_path / "classes.txt").write_text("cat\ndog\neel\n")
    assert open_sources(str(tmp_path))["train"].classes == CLASSES


def test_yolo_is_recognised_though_the_first_files_are_broken(tmp_path):
    write_yolo(tmp_path, yaml=False)
    (tmp_path / "labels" / "train" / "a.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "labels" / "train" / "b.txt").write_text("cat oops")
    (source,) = open_sources(str(tmp_path)).values()
    assert len(source) == 2 and source.described(1) == "1 0, 2 1"
    assert any("2 of 4 label files" in note for note in source.notes)


def test_yolo_beside_the_pictures(tmp_path):
    write_pictures(tmp_path)
    for index in range(4):
        (tmp_path / NAMES[index]).with_suffix(".txt").write_text(yolo_text(index))
    (tmp_path / "classes.txt").write_text("cat\ndog\neel\n")
    check_read(opened(tmp_path))


def test_a_yaml_as_services_export_it_and_lists_of_pictures(tmp_path):
    """Paths from a folder below; names by number; a comment and a program, which is not run."""
    write_yolo(tmp_path, {"train": [0, 1], "valid": [2], "test": [3]})
    (tmp_path / "data.yaml").write_text(
        "# made by somebody\ntrain: ../images/train  # here\nval: ../images/valid\ntest: tests.txt\n\nnc: 3\n"
        "names:\n  0: cat\n  1: 'dog'\n  2: \"eel\"\ndownload: |\n  import os\n  x: [1\n"
        "roboflow:\n  license: CC BY 4.0\n"
    )
    (tmp_path / "tests.txt").write_text("./images/test/d.png\n")
    found = open_sources(str(tmp_path))
    assert {split: len(source) for split, source in found.items()} == {"train": 2, "val": 1, "test": 1}
    assert found["test"].classes == CLASSES and found["test"].described(0) == "1 cat, 2 dog"


def test_polygons_in_yolo(tmp_path):
    write_yolo(tmp_path)
    (tmp_path / "labels" / "train" / "c.txt").write_text("2 0.25 0.5 0.75 0.5 0.75 0.75 0.25 0.75\n")
    source = opened(tmp_path)
    assert source.targets.of(2).boxes.tolist() == [[16, 32, 48, 48]]
    (mask,) = source.targets.masks(2)
    assert mask[32:48, 16:48].all() and mask.sum() == 16 * 32


def test_a_picture_without_a_label_file_has_no_objects(tmp_path):
    write_yolo(tmp_path)
    (tmp_path / "labels" / "train" / "a.txt").unlink()
    source = opened(tmp_path)
    assert len(source) == 4 and source.described(0) == "no objects"
    assert source.notes[1].endswith("without a label file, taken as without objects: 1 (a.png)")
    for path in (tmp_path / "labels" / "train").iterdir():
        path.unlink()
    with pytest.raises(UserError, match=r"not one of its pictures has labels; .*labels/train/a\.txt is not there"):
        open_sources(str(tmp_path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("3 0.5 0.5 0.1 0.1", r"line 2: class 3, but there are 3 classes, from 0"),
        ("1.5 0.5 0.5 0.1 0.1", r"line 2: class 1\.5, but"),
        ("0 320 200 40 40", r"line 2: 320 is no share of a side"),
        ("0 0.5 0.5 0.1", r"line 2: 4 numbers: a class with a box has 5"),
        ("0 0.5 0.5 0.1 0.1 0.9 0.9 0.9", r"8 numbers: .*with a score 6"),
        ("cat 0.5 0.5 0.1 0.1", r"line 2: 'cat 0\.5 0\.5 0\.1 0\.1' is not a class and numbers"),
        ("0 nan 0.5 0.1 0.1", r"is not a class and numbers"),
    ],
)
def test_what_is_wrong_in_a_label_file(tmp_path, line, message):
    write_yolo(tmp_path)
    (tmp_path / "labels" / "train" / "b.txt").write_text(f"0 0.5 0.5 0.1 0.1\n{line}\n")
    check_left_out(tmp_path, str(tmp_path / "labels" / "train" / "b.txt"), message, 1)


def check_left_out(root, where, message, left_out):
    """One broken file costs its picture and nothing else, unless the user accepts none."""
    source = opened(root)
    assert [source.where(at)[-5:] for at in range(3)] == [name for name in NAMES if name != NAMES[left_out]]
    (note,) = [note for note in source.notes if "left out" in note]
    assert re.search(message, note) and where in note and "\n" not in note
    with pytest.raises(UserError, match=message) as error:
        opened(root, max_unreadable=0)
    assert where in str(error.value) and "--data.max_unreadable" in str(error.value)


def test_classes_of_one_name_are_one(tmp_path):
    write_yolo(tmp_path)
    (tmp_path / "data.yaml").write_text("train: images/train\nnames: [cat, eel, cat]")
    (tmp_path / "labels" / "train" / "a.txt").write_text("2 0.5 0.5 0.1 0.1")
    source = opened(tmp_path)
    assert source.classes == ("cat", "eel") and source.targets.of(0).classes.tolist() == [0]
    assert any("classes of the same name are one" in note for note in source.notes)


def test_a_yaml_may_miscount_its_classes(tmp_path):
    write_yolo(tmp_path)
    (tmp_path / "data.yaml").write_text("train: images/train\nnc: 5\nnames: [cat, dog, eel]\n")
    assert "nc is 5, but names lists 3" in opened(tmp_path).notes[0]


def test_label_files_without_a_picture_are_told(tmp_path):
    write_yolo(tmp_path)
    (tmp_path / "labels" / "train" / "z.txt").write_text("0 0.5 0.5 0.1 0.1")
    assert opened(tmp_path).notes[-1].endswith("label files without a picture, skipped: 1 (z.txt)")


def test_where_every_label_file_is_wrong_the_reason_is_said(tmp_path):
    write_yolo(tmp_path)
    for path in (tmp_path / "labels" / "train").iterdir():
        path.write_text("0 320 200 40 40")
    with pytest.raises(UserError, match=r"4 of 4 label files .* boxes go from 0 to 1 here, not in pixels"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: images/nowhere\nnames: [a]", r"train is 'images/nowhere', which is not there"),
        ("train: images/train\nnames: 3", r"names is '3': list the classes there"),
        ("train: images/train\nnames: {0: a, 2: b}", r"names are to be numbered from 0 to 1"),
        ("train: images/train\nnames: [a, b", r"cannot be read as YAML \(line 2 opens \[ and never closes it\)"),
        ("train:\nnames: [a, b]", r"names neither train, val nor test pictures"),
        ("train: images/train\nodd\nnames: [a]", r"cannot be read as YAML \(line 2 is neither"),
    ],
)
def test_what_is_wrong_in_a_data_yaml(tmp_path, text, message):
    write_yolo(tmp_path)
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        open_sources(str(tmp_path))
    assert str(tmp_path / "data.yaml") in str(error.value)


def test_another_yaml_is_none_of_ours(tmp_path):
    for name in ("cat", "dog"):
        write_pictures(tmp_path / name, [0, 1])
    (tmp_path / "config.yaml").write_text("deep:\n  - {a: [1, 2}\n? odd\n")
    assert opened(tmp_path).targets.task == "classify"


# ---- Pascal VOC


def test_voc_splits_difficult_objects_and_parts(tmp_path):
    root = write_voc(tmp_path / "VOCdevkit" / "VOC2012", [0, 1, 2])
    write_pictures(root / "JPEGImages", [3])
    more = (
        "<object><name>eel</name><difficult>1</difficult><part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
        "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
    )
    (root / "Annotations" / "c.xml").write_text(voc_xml(2, more=more))
    (root / "ImageSets" / "Main").mkdir(parents=True)
    for split, names in (("train", "a\nb\n"), ("val", "c\n"), ("trainval", "a\nb\nc\n"), ("cat_train", "a 1\n")):
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text(names)
    found = open_sources(str(tmp_path / "VOCdevkit"))
    assert {split: len(source) for split, source in found.items()} == {"train": 2, "val": 1}
    (hard,) = found["val"].targets.of(0).boxes.tolist()
    assert hard == [1, 2, 9, 9] and found["val"].targets.of(0).crowd.tolist() == [True]
    assert found["val"].classes == ("cat", "dog", "eel") and found["val"].targets.ids.tolist() == ["c"]
    assert any("unlabelled pictures left out: 1 (d.png)" in note for note in found["train"].notes)


def test_voc_beside_the_pictures_in_folders_of_splits(tmp_path):
    for split, indices in (("train", [0, 1]), ("valid", [2, 3])):
        write_pictures(tmp_path / split, indices)
        for index in indices:
            (tmp_path / split / NAMES[index]).with_suffix(".xml").write_text(voc_xml(index))
    found = open_sources(str(tmp_path))
    assert {split: len(source) for split, source in found.items()} == {"train": 2, "val": 2}


def test_where_there_are_masks_too_boxes_are_read_when_asked_for(tmp_path):
    write_voc(tmp_path)
    (tmp_path / "SegmentationClass").mkdir()
    for index in range(4):
        mask = np.zeros(SIZES[index], dtype=np.uint8)
        mask[:10] = 1
        Image.fromarray(mask).save(tmp_path / "SegmentationClass" / NAMES[index])
    source = opened(tmp_path)
    assert source.targets.task == "segment" and any("targets boxes" in note for note in source.notes)
    assert opened(tmp_path, targets="boxes").targets.task == "detect"
    with pytest.raises(UserError, match="no boxes in it"):
        opened(write_pictures(tmp_path / "bare"), targets="boxes")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation><object>", r"cannot be read as XML \(no element found"),
        (
            '<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]><annotation>&c;</annotation>',
            "declares a document type, which is not read",
        ),
        ("<annotation><object><bndbox/></object></annotation>", r"object 1 has no name"),
        ("<annotation><object><name>cat</name></object></annotation>", r"object 1 \(cat\): its bndbox has no xmin"),
        (voc_xml(0).replace("<xmin>6<", "<xmin>x<"), r"its bndbox is x, 7, 25, 30, not four numbers"),
        (voc_xml(0).replace("<xmin>6<", "<xmin>inf<"), r"its bndbox is inf, .* not four numbers"),
    ],
)
def test_what_is_wrong_in_an_xml_file(tmp_path, text, message):
    write_voc(tmp_path)
    (tmp_path / "Annotations" / "a.xml").write_text(text)
    check_left_out(tmp_path, str(tmp_path / "Annotations" / "a.xml"), message, 0)


@pytest.mark.parametrize("width", ["inf", "1e30", "nan", "-5"])
def test_a_size_that_no_picture_has_is_not_believed(tmp_path, width):
    write_voc(tmp_path)
    (tmp_path / "Annotations" / "a.xml").write_text(voc_xml(0).replace("<width>60<", f"<width>{width}<"))
    check_read(opened(tmp_path), ("cat", "dog"))


def test_folders_that_are_nearly_voc(tmp_path):
    write_voc(tmp_path / "VOC2007", [0])
    write_voc(tmp_path / "VOC2012", [1])
    with pytest.raises(UserError, match=r"holds VOC2007 and VOC2012\. Name one of them"):
        open_sources(str(tmp_path))
    (tmp_path / "VOC2007" / "JPEGImages").rename(tmp_path / "VOC2007" / "elsewhere")
    with pytest.raises(UserError, match="no pictures in JPEGImages"):
        open_sources(str(tmp_path / "VOC2007"))
    (tmp_path / "VOC2012" / "Annotations" / "b.xml").rename(tmp_path / "VOC2012" / "Annotations" / "z.xml")
    with pytest.raises(UserError, match="no XML file has the name of a picture"):
        open_sources(str(tmp_path / "VOC2012"))


# ---- Parquet


def test_pictures_that_were_never_labelled_are_left_out(tmp_path):
    cells = [None, {"bbox": [[0.0, 10.0, 30.0, 50.0]], "category": [1]}, {"bbox": [], "category": []}, None]
    source = opened(write_parquet(tmp_path / "set.parquet", cells=cells))
    assert len(source) == 2 and [source.described(index) for index in range(2)] == ["1 dog", "no objects"]
    assert source.read(0).shape[:2] == SIZES[1] and source.where(1).endswith("row 2")
    assert source.notes[1].endswith("unlabelled pictures left out: 2 (objects is null)")


def as_records(names=("bbox", "category"), xywh=False, classes=None):
    return [
        [
            {
                names[0]: [float(x0), float(y0), float(x1 - x0 * xywh), float(y1 - y0 * xywh)],
                names[1]: label if classes is None else classes[label],
            }
            for (x0, y0, x1, y1), label in zip(BOXES[index], LABELS[index], strict=True)
        ]
        for index in range(4)
    ]


def test_lists_of_records_with_names_of_classes_and_boxes_as_coco_has_them(tmp_path):
    cells = as_records(("bbox", "label"), xywh=True, classes=CLASSES)
    source = opened(write_parquet(tmp_path / "set.parquet", metadata={}, cells=cells, sizes=False))
    check_read(source, ("cat", "dog"))
    assert "boxes are read as xywh" in source.notes[0]
    source = opened(write_parquet(tmp_path / "set.parquet", metadata={}, cells=as_records(), sizes=False))
    assert "as xywh they would extend beyond their pictures" in source.notes[0] and source.classes == ("0", "1")
    hub = {"info": {"features": {"objects": {"category": {"feature": {"names": list(CLASSES)}}, "bbox": {}}}}}
    source = opened(write_parquet(tmp_path / "set.parquet", metadata={"huggingface": json.dumps(hub)}))
    check_read(source)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([{"bbox": [[1.0, 2, 3, 4]], "category": [0, 1]}] * 4, "row 0: 1 boxes, but 2 classes"),
        (
            [{"bbox": [[1.0, 2, 3]], "category": [0]}] * 4,
            r"row 0: the box \[1\.0, 2\.0, 3\.0\] of 0 is not four numbers",
        ),
        ([{"bbox": [[1.0, 2, 3, 4]], "category": [9]}] * 4, "class 9, but only 3 class names"),
        ([{"bbox": [[1.0, 2, 3, 4]], "colour": [9]}] * 4, r"has no classes \(category, .*\) among bbox, colour"),
        ([[1, 2]] * 4, "expected records of a box and a class"),
    ],
)
def test_what_is_wrong_in_a_column_of_objects(tmp_path, cells, message):
    with pytest.raises(UserError, match=message):
        opened(write_parquet(tmp_path / "set.parquet", cells=cells))


def test_a_wrong_row_costs_its_picture_alone(tmp_path):
    cells = [
        {"bbox": [list(map(float, box)) for box in one], "category": k} for one, k in zip(BOXES, LABELS, strict=True)
    ]
    cells[1]["category"] = [9]
    source = opened(write_parquet(tmp_path / "set.parquet", cells=cells))
    assert len(source) == 3 and any("1 of 4 rows cannot be used" in note for note in source.notes)


def test_labels_win_over_objects_unless_boxes_are_asked_for(tmp_path):
    write_parquet(tmp_path / "set.parquet")
    import pyarrow.parquet as pq

    table = pq.read_table(tmp_path / "set.parquet")
    pq.write_table(table.append_column("label", [[0, 1, 0, 1]]), tmp_path / "set.parquet")
    assert opened(tmp_path).targets.task == "classify"
    assert opened(tmp_path, targets="boxes").targets.task == "detect"
    pq.write_table(table.drop_columns("objects"), tmp_path / "set.parquet")
    with pytest.raises(UserError, match="no column 'objects' with boxes"):
        opened(tmp_path, targets="boxes")


# ---- The shared sets, which are both parquet and JSON


@pytest.mark.parametrize(("name", "suffix"), [("bccd", ""), ("coco_small", "2017")])
def test_a_shared_set_is_the_same_from_parquet_and_from_json(shared_data, tmp_path, name, suffix):
    import shutil

    import pyarrow.parquet as pq

    for path in sorted((shared_data / name).glob("*.parquet")):
        folder = tmp_path / (path.stem + suffix)
        folder.mkdir()
        for cell in pq.read_table(path, columns=["image"]).column("image").to_pylist():
            (folder / cell["path"]).write_bytes(cell["bytes"])
    beside = shared_data / name / "annotations"
    for path in sorted((beside if beside.is_dir() else shared_data / name).glob("*.json")):
        shutil.copy(path, tmp_path)
    packed, plain = open_sources(str(shared_data / name)), open_sources(str(tmp_path))
    assert packed.keys() == plain.keys()
    for split in packed:
        one, other = packed[split].targets, plain[split].targets
        assert packed[split].classes == plain[split].classes and one.ids.tolist() == other.ids.tolist()
        np.testing.assert_allclose(one.objects.boxes, other.objects.boxes, atol=0.02)
        assert (one.objects.classes == other.objects.classes).all() and (one.objects.crowd == other.objects.crowd).all()
        assert (one.sizes == other.sizes).all() and one.objects.are_used.all()


def test_masks_of_the_shared_set_have_the_areas_and_boxes_that_it_says(shared_data):
    """Of polygons; runs of crowds say their own number of pixels, which is not the area that the set has for some."""
    document = json.loads((shared_data / "coco_small" / "annotations" / "instances_val2017.json").read_text())
    source = opened(shared_data / "coco_small" / "val.parquet")
    places = {number: index for index, number in enumerate(source.targets.ids.tolist())}
    num = {0: 0, 1: 0}
    for one in document["annotations"][::4] + [one for one in document["annotations"] if one["iscrowd"]]:
        x, y, width, height = one["bbox"]
        objects = source.targets.of(places[one["image_id"]])
        which = int(np.abs(objects.boxes - (x, y, x + width, y + height)).max(axis=1).argmin())
        mask = source.targets.outlines.mask(int(objects.outline[which]), *source.targets.sizes[places[one["image_id"]]])
        if one["iscrowd"]:
            assert mask.sum() == sum(one["segmentation"]["counts"][1::2])
        elif one["area"] > 300:
            assert abs(mask.sum() / one["area"] - 1) < 0.1
            rows, columns = np.nonzero(mask)
            around = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert np.abs(around - objects.boxes[which]).max() < 2.5
        num[one["iscrowd"]] += 1
    assert num[0] > 100 and num[1] > 10


def test_classes_that_only_test_has_are_no_error_and_one_class_will_do(tmp_path, shared_data):
    splits = DataSettings(where="coco_small", keep_gb=0).build()
    assert splits.train.targets.counts(80).min() == 0
    assert len(DataSettings(where="coco_small", keep_gb=0, train_limit=20).build().train) == 20
    write_coco(tmp_path, categories=[{"id": 7 + 3 * number, "name": "thing"} for number in range(3)])
    train = DataSettings(where=str(tmp_path), val_fraction=0, test_fraction=0).build().train
    assert train.classes == ("thing",) and train.targets.category_ids == (7,)
    write_coco(tmp_path, annotations=[])
    with pytest.raises(UserError, match="none of its pictures has an object"):
        DataSettings(where=str(tmp_path)).build()


def test_pictures_alone_may_be_learned_from_without_their_boxes(tmp_path):
    write_coco(tmp_path)
    train = DataSettings(where=str(tmp_path), val_fraction=0, test_fraction=0, need_labels=False).build().train
    assert train.targets.task is None and len(train) == 4
