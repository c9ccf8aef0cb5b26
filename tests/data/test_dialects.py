"""The formats of boxes as services and tools export them: each in its own folders, with paths from elsewhere."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.data.sources import open_sources
from vitreous.errors import UserError

SIZE = (40, 30)  # width and height
LINE = "1 .5 .5 .2 .2\n"
BOX = [16.0, 12.0, 24.0, 18.0]
CORNERS = "<xmin>17</xmin><ymin>13</ymin><xmax>24</xmax><ymax>18</ymax>"
XML = f"<annotation><object><name>b</name><bndbox>{CORNERS}</bndbox></object></annotation>"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", SIZE).save(path)


def check(root: Path, sizes: dict[str, int], classes: tuple[str, ...] = ("a", "b")) -> str:
    """That every picture of every split has the one box; the notes."""
    found = open_sources(str(root))
    assert {split: len(source) for split, source in found.items()} == sizes
    for source in found.values():
        assert source.classes == classes
        for index in range(len(source)):
            assert source.read(index).shape == (SIZE[1], SIZE[0], 3)
            objects = source.targets.of(index)
            np.testing.assert_allclose(objects.boxes, [BOX], atol=1e-4)
            assert classes[int(objects.classes[0])] in ("b", "1")
    return " ".join(note for source in found.values() for note in source.notes)


# ---- YOLO


def in_folders(root: Path, *splits: str) -> None:
    for split in splits:
        for number in range(2):
            picture(root / split / "images" / f"{number}.jpg")
            write(root / split / "labels" / f"{number}.txt", LINE)


def test_paths_from_a_folder_below_and_a_part_that_is_not_there(tmp_path):
    """As Roboflow writes them, whatever lies beside the set."""
    root = tmp_path / "set"
    in_folders(root, "train", "valid")
    in_folders(tmp_path, "train")
    write(tmp_path / "train" / "labels" / "0.txt", "0 .1 .1 .1 .1\n")
    write(root / "data.yaml", "train: ../train/images\nval: ../valid/images\ntest: ../test/images\nnames: [a, b]\n")
    assert "test is '../test/images', which is not there" in check(root, {"train": 2, "val": 2})
    write(root / "data.yaml", "train: ../lost/images\nval: ../valid/images\nnames: [a, b]\n")
    with pytest.raises(UserError, match=r"train is '../lost/images', which is not there"):
        open_sources(str(root))


def test_of_poses_the_boxes(tmp_path):
    in_folders(tmp_path, "train")
    for path in (tmp_path / "train" / "labels").iterdir():
        path.write_text(f"{LINE.strip()} .4 .4 2 .6 .6 1\n")
    write(tmp_path / "data.yaml", "train: train/images\nkpt_shape: [2, 3]\nnames: [a, b]\n")
    assert "of poses their boxes alone" in check(tmp_path, {"train": 2})


def test_lists_with_paths_of_another_machine(tmp_path):
    in_folders(tmp_path, "train")
    write(tmp_path / "some.txt", "/home/x/set/train/images/0.jpg\n./train/images/1.jpg\n")
    write(tmp_path / "data.yaml", "train: some.txt\nnames: [a, b]\n")
    check(tmp_path, {"train": 2})


def test_labels_are_found_in_whatever_case(tmp_path):
    picture(tmp_path / "Images" / "0.jpg")
    write(tmp_path / "Labels" / "0.txt", LINE)
    write(tmp_path / "data.yaml", "train: Images\nnames: [a, b]\n")
    check(tmp_path, {"train": 1})


def darknet(root: Path, *folders: str) -> None:
    write(root / "obj.names", "a\nb\n")
    write(root / "obj.data", "classes = 2\n")
    for folder in folders:
        picture(root / folder / f"{folder}.jpg")
        write(root / folder / f"{folder}.txt", LINE)


def test_darknet_has_a_folder_per_split(tmp_path):
    darknet(tmp_path, "obj_train_data", "obj_valid_data", "test")
    check(tmp_path, {"train": 1, "val": 1, "test": 1})
    darknet(tmp_path, "more")
    with pytest.raises(UserError, match="more: cannot tell which split it is of"):
        open_sources(str(tmp_path))


def test_darknet_has_lists(tmp_path):
    darknet(tmp_path, "data", "others")
    write(tmp_path / "train.txt", "x/data/data.jpg\n")
    write(tmp_path / "valid.txt", "x/others/others.jpg\n")
    picture(tmp_path / "data" / "bare.jpg")
    assert "pictures without a label file left out: 1 (bare.jpg)" in check(tmp_path, {"train": 1, "val": 1})


def test_texts_beside_pictures_need_no_names_if_they_are_boxes(tmp_path):
    for split in ("train", "val"):
        picture(tmp_path / split / "0.jpg")
        write(tmp_path / split / "0.txt", LINE)
    assert "classes by number" in check(tmp_path, {"train": 1, "val": 1}, ("0", "1"))
    for name, text in (("words", "a picture of two dogs on grass"), ("pixels", "1 100 100 50 50")):
        for number in range(2):
            picture(tmp_path / name / "cat" / f"{number}.jpg")
        write(tmp_path / name / "0.txt", text)
        assert open_sources(str(tmp_path / name))["all"].targets.task == "classify"


# ---- Pascal VOC


@pytest.mark.parametrize(("pictures", "files"), [("x/", "x/"), ("x/", ""), ("", "x/")])
def test_files_lie_in_sub_folders(tmp_path, pictures, files):
    for name in ("p", "q"):
        picture(tmp_path / "JPEGImages" / f"{pictures}{name}.jpg")
        write(tmp_path / "Annotations" / f"{files}{name}.xml", XML)
    write(tmp_path / "ImageSets" / "Main" / "train.txt", "p\n")
    write(tmp_path / "ImageSets" / "Main" / "val.txt", f"{pictures}q\n")
    check(tmp_path, {"train": 1, "val": 1}, ("b",))


def test_equal_names_in_sub_folders_are_told_apart(tmp_path):
    for name in ("x/p", "y/p"):
        picture(tmp_path / "JPEGImages" / f"{name}.jpg")
        write(
            tmp_path / "Annotations" / f"{name}.xml", XML.replace("<name>b", "<name>b" if name == "x/p" else "<name>c")
        )
    (source,) = open_sources(str(tmp_path)).values()
    assert source.classes == ("b", "c")
    assert [source.classes[source.targets.of(index).classes[0]] for index in range(2)] == ["b", "c"]


def test_a_file_of_cvat_says_what_to_do(tmp_path):
    picture(tmp_path / "images" / "0.jpg")
    write(tmp_path / "annotations" / "annotations.xml", "<?xml version='1.0'?>\n<annotations><version>1.1</version>")
    with pytest.raises(UserError, match="an XML file of CVAT's own, which is not read"):
        open_sources(str(tmp_path))


# ---- COCO


def coco(path: Path, *names: str, groups: bool = False) -> None:
    images = [{"id": number, "file_name": name, "width": 40, "height": 30} for number, name in enumerate(names)]
    annotations = [{"image_id": one["id"], "category_id": 2, "bbox": [16, 12, 8, 6]} for one in images]
    above = {"supercategory": "things"} if groups else {}
    categories = [{"id": number, "name": name} | above for number, name in ((1, "a"), (2, "b"))]
    categories += [{"id": 0, "name": "things", "supercategory": "none"}] if groups else []
    write(path, json.dumps({"images": images, "annotations": annotations, "categories": categories}))


def test_a_group_of_classes_that_no_object_has_is_no_class(tmp_path):
    picture(tmp_path / "train" / "0.jpg")
    coco(tmp_path / "train" / "_annotations.coco.json", "0.jpg", groups=True)
    assert "no class of its own: things" in check(tmp_path, {"all": 1})


@pytest.mark.parametrize("where", ["images", "images/default", "pictures", "images/train"])
@pytest.mark.parametrize("name", ["0.jpg", r"C:\set\0.jpg", "/content/set/0.jpg"])
def test_pictures_lie_in_one_folder_or_another(tmp_path, where, name):
    picture(tmp_path / where / "0.jpg")
    coco(tmp_path / "annotations" / "instances_train.json", name)
    check(tmp_path, {"all": 1})  # one file is all there is


def test_the_first_pictures_may_be_lost(tmp_path):
    names = [f"{number}.jpg" for number in range(12)]
    picture(tmp_path / "images" / names[10])
    coco(tmp_path / "annotations" / "instances_train.json", *names)
    (source,) = open_sources(str(tmp_path)).values()
    assert source.read(10).shape == (30, 40, 3)


# ---- LabelMe


def shape(label: str, kind: str, *points: tuple[float, float], group: int | None = None) -> dict:
    return {"label": label, "points": points, "group_id": group, "shape_type": kind, "flags": {}}


def labelme(path: Path, shapes: list[dict], named: str) -> None:
    size = {"imageHeight": SIZE[1], "imageWidth": SIZE[0]}
    write(path, json.dumps({"version": "5.0.1", "flags": {}, "shapes": shapes, "imagePath": named, **size}))


def test_labelme_beside_its_pictures(tmp_path):
    """Drawn from any corner; in pieces; with a path from another machine; and a shape that is no object."""
    ring = [(16, 12), (24, 12), (24, 18), (16, 18)]
    pieces = [shape("b", "polygon", *ring[:3], group=1), shape("b", "polygon", *ring[2:], ring[0], group=1)]
    for split in ("train", "val"):
        picture(tmp_path / split / "0.jpg")
        labelme(tmp_path / split / "0.json", [shape("b", "rectangle", (24, 12), (16, 18))], r"..\elsewhere\0.jpg")
    picture(tmp_path / "train" / "1.jpg")
    labelme(tmp_path / "train" / "1.json", [*pieces, shape("a", "point", (1, 1))], "1.jpg")
    picture(tmp_path / "train" / "2.jpg")
    notes = check(tmp_path, {"train": 2, "val": 1}, ("b",))
    assert "LabelMe" in notes and "unlabelled pictures left out: 1 (2.jpg)" in notes
    assert "shapes without an area, left out: 1 point" in notes
    shown = open_sources(str(tmp_path))["train"].targets
    assert shown.masks(0) == [None] and shown.masks(1)[0].sum() == 48, "a rectangle is all that is known of the first"


def test_of_a_circle_the_box_is_around_it(tmp_path):
    picture(tmp_path / "0.jpg")
    labelme(tmp_path / "labels" / "0.json", [shape("c", "circle", (20, 15), (20, 20))], "0.jpg")
    (source,) = open_sources(str(tmp_path)).values()
    np.testing.assert_allclose(source.targets.of(0).boxes, [[15, 10, 25, 20]], atol=1e-4)


def test_a_shape_without_corners_costs_its_picture(tmp_path):
    for number in range(2):
        picture(tmp_path / f"{number}.jpg")
    labelme(tmp_path / "0.json", [shape("b", "rectangle", (16, 12), (24, 18))], "0.jpg")
    labelme(tmp_path / "1.json", [shape("b", "polygon", (16, 12), (24, 18))], "1.jpg")
    assert "shape 1: b: a polygon needs 3 points" in check(tmp_path, {"all": 1}, ("b",))


# ---- Formats that are not read


@pytest.mark.parametrize(
    ("name", "text", "tool"),
    [
        ("train/_annotations.csv", "filename,width,height,class,xmin,ymin,xmax,ymax\n", "TensorFlow"),
        ("_annotations.createml.json", '[{"annotations": [{"coordinates": {"x": 1}}]}]', "CreateML"),
        ("project.json", '[{"annotations": [{"value": {"rectanglelabels": ["a"]}}]}]', "Label Studio"),
    ],
)
def test_a_format_that_is_not_read_is_named(tmp_path, name, text, tool):
    picture(tmp_path / "images" / "0.jpg")
    write(tmp_path / name, text)
    with pytest.raises(
        UserError, match=f"{name}: boxes in the format of {tool}, which is not read. Export them as COCO"
    ):
        open_sources(str(tmp_path))
