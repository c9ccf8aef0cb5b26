"""Boxes written for other programs come back as they were, through our own readers."""

import json

import numpy as np
import pytest
from boxed_made import BOXES, CLASSES, LABELS, NAMES, SIZES, write_coco, write_parquet, write_pictures
from PIL import Image

from vitreous.data.box_files import BoxedPicture, boxed_pictures, coco_document, coco_results, yolo_files, yolo_names
from vitreous.data.rendered import open_rendered
from vitreous.data.sources import open_sources
from vitreous.errors import UserError


def predictions(scores=True):
    return [
        BoxedPicture(
            NAMES[index],
            SIZES[index],
            np.array(BOXES[index], dtype=np.float32).reshape(-1, 4),
            np.array(LABELS[index], dtype=np.int64),
            np.linspace(0.9, 0.5, len(BOXES[index])) if scores else None,
        )
        for index in range(4)
    ]


def test_coco_comes_back_with_its_own_numbers(tmp_path):
    (source,) = open_sources(str(write_coco(tmp_path))).values()
    document = coco_document(boxed_pictures(source), source.classes, source.targets.category_ids)
    (tmp_path / "instances.json").write_text(json.dumps(document))
    (again,) = open_sources(str(tmp_path)).values()
    assert (again.targets.objects.boxes == source.targets.objects.boxes).all() and again.classes == source.classes
    assert again.targets.ids.tolist() == source.targets.ids.tolist() == [10, 11, 12, 13]
    assert again.targets.category_ids == source.targets.category_ids == (7, 10, 13)
    assert document["annotations"][0]["area"] == 480 and "score" not in document["annotations"][0]


def test_predictions_as_results_of_coco():
    found = coco_results(predictions(), [7, 10, 13])
    assert found[0] == {"image_id": 1, "category_id": 7, "bbox": [5, 6, 20, 24], "score": 0.9}
    assert [one["image_id"] for one in found] == [1, 1, 2, 4, 4, 4]
    document = coco_document(predictions(), CLASSES)
    assert [one["id"] for one in document["images"]] == [1, 2, 3, 4] and len(document["annotations"]) == 6
    assert document["annotations"][0]["score"] == 0.9 and document["categories"][2] == {"id": 3, "name": "eel"}
    json.dumps([found, document])  # plain numbers


def test_yolo_comes_back_and_predictions_have_scores(tmp_path):
    write_pictures(tmp_path / "images")
    (tmp_path / "labels").mkdir()
    files = yolo_files(predictions(scores=False))
    assert files["c.txt"] == ""
    for name, text in files.items():
        (tmp_path / "labels" / name).write_text(text)
    names = ("a: 'cat'", "dög, big", '"eel" # 3')
    (tmp_path / "data.yaml").write_text(yolo_names(names, {"train": "images"}))
    (source,) = open_sources(str(tmp_path)).values()
    assert source.classes == names
    for index in range(4):
        np.testing.assert_allclose(source.targets.of(index).boxes, np.array(BOXES[index]).reshape(-1, 4), atol=1e-3)
        assert source.targets.of(index).classes.tolist() == LABELS[index]
    (tmp_path / "labels" / "a.txt").write_text(yolo_files(predictions())["a.txt"])
    assert (tmp_path / "labels" / "a.txt").read_text().startswith("0 0.250000 0.450000 0.333333 0.600000 0.900000\n")
    (again,) = open_sources(str(tmp_path)).values()
    assert (again.targets.objects.boxes == source.targets.objects.boxes).all()


def test_rows_of_parquet_have_names_of_files(tmp_path):
    (source,) = open_sources(str(write_parquet(tmp_path / "set.a.parquet"))).values()
    assert list(yolo_files(boxed_pictures(source))) == [f"set-a-parquet-row-{row}.txt" for row in range(4)]


def test_every_source_of_boxes_can_be_written_and_others_say_so(tmp_path):
    (source,) = [one for split, one in open_rendered("objects").items() if split == "val"]
    document = coco_document(boxed_pictures(source), source.classes)
    assert len(document["annotations"]) == len(source.targets.objects)
    assert document["images"][3]["file_name"] == "picture-3-of-rendered-objects-val"
    Image.fromarray(source.read(0)).save(tmp_path / "x.png")
    with pytest.raises(UserError, match="its pictures have no boxes"):
        boxed_pictures(open_rendered("count")["test"])
    with pytest.raises(UserError, match=r"another picture would have the text file a\.txt too"):
        yolo_files([*predictions(), BoxedPicture("a.jpg", (4, 4), np.empty((0, 4)), np.empty(0, dtype=np.int64))])
