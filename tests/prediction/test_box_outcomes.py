"""From raw outputs to the objects of a picture: scores against torch, boxes there and back, files."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.placement import placed
from vitreous.data.sources import open_sources
from vitreous.errors import UserError
from vitreous.prediction.box_outcomes import BoxOutcome
from vitreous.prediction.boxes import restored, scores_of, surest
from vitreous.prediction.drawn_boxes import Drawn, drawn
from vitreous.prediction.files import files
from vitreous.prediction.outcomes import outcomes
from vitreous.prediction.reading import Fitting, Reading
from vitreous.prediction.records import BoxRecords, Wanted
from vitreous.tasks.box_metric import best_detections
from vitreous.tasks.predictions import Detections
from vitreous.weights.calibration import BoxCalibration

CLASSES = ("cat", "dog", "cow")
FITTING = Fitting(
    size_px=(64, 96),
    crop="letterbox",
    crop_fraction=1.0,
    odd_margin="even",
    skip_fitting=True,
    interpolation="bilinear",
    resizer="torch",
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)


def reading(calibration=None):
    return Reading(kind="detect", classes=CLASSES, fitting=FITTING, calibration=calibration)


def outcome(**changes):
    parts = {
        "classes": CLASSES,
        "size": (100, 200),
        "boxes": np.array([[10, 20, 60, 70], [0, 0, 5, 5], [100, 50, 200, 100]], np.float32),
        "labels": np.array([1, 0, 1]),
        "scores": np.array([0.9, 0.7, 0.2], np.float32),
        "queries": np.array([4, 2, 9]),
    }
    return BoxOutcome(**parts | changes)


@pytest.mark.parametrize("num_logits", [3, 4])
def test_the_same_as_the_metric_takes(num_logits):
    """Sigmoid where a logit per class is given, softmax where there is one more."""
    chance = torch.Generator().manual_seed(0)
    logits, boxes = torch.randn(2, 20, num_logits, generator=chance), torch.rand(2, 20, 4, generator=chance)
    scores, classes, chosen = best_detections(Detections(logits, boxes), len(CLASSES), most=15)
    ours = scores_of(logits.numpy(), len(CLASSES))
    assert ours.shape == (2, 20, 3)
    for at in range(2):
        found = surest(ours[at], most=15)
        np.testing.assert_allclose(found.scores, scores[at], atol=1e-6)
        assert found.classes.tolist() == classes[at].tolist()
        np.testing.assert_array_equal(boxes[at].numpy()[found.queries], chosen[at])


@pytest.mark.parametrize("fit", ["squash", "letterbox", "centre", "squash-centre"])
@pytest.mark.parametrize("source", [(100, 200), (333, 41)])
def test_boxes_come_back_to_where_the_picture_had_them(fit, source):
    place = placed((64, 96), fit, 0.875, source)
    height, width = source
    middle = np.array([[0.42 * width, 0.45 * height, 0.55 * width, 0.6 * height]])
    x, y = (place.left + middle[:, 0::2] * place.wide / width, place.top + middle[:, 1::2] * place.tall / height)
    x, y = x / place.extent[1], y / place.extent[0]  # shares of the picture's part of the canvas
    said = np.stack([x.mean(1), y.mean(1), np.diff(x)[:, 0], np.diff(y)[:, 0]], axis=1).astype(np.float32)
    np.testing.assert_allclose(restored(said, place), middle, rtol=1e-4)


def test_boxes_end_where_the_picture_does():
    place = placed((64, 96), "letterbox", 1.0, (100, 200))
    assert restored(np.array([[0.5, 0.5, 2, 2]], np.float32), place).tolist() == [[0, 0, 200, 100]]


def test_calibration_moves_scores_and_keeps_their_order():
    logits = np.random.default_rng(0).normal(size=(1, 30, 3)).astype(np.float32) * 3
    curve = BoxCalibration(shift=-1.0, slopes=(0.5, 2.0), knots=(0.3,), threshold=0.3)
    plain, moved = scores_of(logits, 3), scores_of(logits, 3, curve)
    assert (np.argsort(plain.ravel()) == np.argsort(moved.ravel())).all()
    z = np.array([-2.0, 0.3, 1.3])
    np.testing.assert_allclose(curve.probabilities(z), 1 / (1 + np.exp(-np.array([-2.0, -0.85, 1.15]))))
    higher = replace(curve, offsets=(0.0, 2.0, 0.0))
    of_all = higher.probabilities(np.stack([z, z, z], axis=-1))
    np.testing.assert_array_equal(of_all[:, 1], higher.probabilities(z, np.ones(3, int)))
    assert (of_all[:, 1] > of_all[:, 0]).all() and (of_all[:, 0] == curve.probabilities(z)).all()
    found = outcomes({"logits": logits, "boxes": np.full((1, 30, 4), 0.3, np.float32)}, reading(curve), [(100, 200)])[0]
    assert isinstance(found, BoxOutcome) and found.threshold == 0.3
    assert all(one.score >= 0.3 for one in found.objects()) and len(found.objects(0.0)) == 90


def test_an_outcome_says_what_it_shows():
    found = outcome()
    assert found.words == "1 dog, 1 cat"
    assert [one.label for one in found.objects(0.0)] == ["dog", "cat", "dog"]
    assert outcome(threshold=0.95).words == "nothing found"
    page = found.html().markup
    assert page.count("<rect") == 2 and 'viewBox="0 0 200 100"' in page and "90.0 %" in page
    evil = outcome(classes=("<script>", "<b>", "x"))
    assert "<script>" not in evil.html().markup and "<b>&lt;" not in evil.html().markup


def test_drawn_on_the_picture():
    picture = np.zeros((100, 200, 3), np.uint8)
    large = outcome().drawn(picture)
    assert large.shape == (400, 800, 3) and (picture == 0).all()
    assert large[4 * 40, 4 * 10].any() and not large[4 * 40, 4 * 30].any()  # the border of the first box, its inside
    edge = drawn(np.zeros((400, 400, 3), np.uint8), [Drawn((350, 0, 400, 20), (255, 255, 255), "a long name")])
    assert edge.shape == (400, 400, 3) and edge.any()


def test_no_box_is_drawn_over_words():
    picture, red, blue = np.zeros((400, 400, 3), np.uint8), (255, 0, 0), (0, 0, 255)
    below, above = Drawn((50, 100, 150, 300), red, "a name"), Drawn((0, 90, 390, 380), blue)
    alone, both = drawn(picture, [below]), drawn(picture, [below, above])
    words = (slice(80, 98), slice(50, 90))  # over the corner of the first box, where the second has its border
    assert alone[words].any() and (both[words] == alone[words]).all()


def test_records():
    records = BoxRecords(reading(), Wanted(top=1))
    record = records.record(outcome())
    assert record["objects"][0] == {"label": "dog", "score": 0.9, "box": [10.0, 20.0, 60.0, 70.0]}
    assert (record["width"], record["height"], len(record["objects"])) == (200, 100, 2)
    cells = dict(zip(records.columns, records.cells(record), strict=True))
    assert cells["labels"] == "dog|cat" and cells["boxes"] == "10.0 20.0 60.0 70.0|0.0 0.0 5.0 5.0"
    assert records.line("a.png", record) == "  2 objects  a.png  dog 90 % and 1 more"
    assert "nothing found" in records.line("a.png", records.record(outcome(threshold=1.0)))
    assert len(BoxRecords(reading(), Wanted(score=0.1)).record(outcome())["objects"]) == 3


def test_a_wished_precision():
    known = reading(BoxCalibration(thresholds=((0.9, 0.8),)))
    assert len(BoxRecords(known, Wanted(precision=0.9)).record(outcome())["objects"]) == 1
    with pytest.raises(UserError, match=r"0\.8, only for 0\.9"):
        BoxRecords(known, Wanted(precision=0.8))
    with pytest.raises(UserError, match="fitted on a validation part"):
        BoxRecords(reading(), Wanted(precision=0.8))
    with pytest.raises(UserError, match="finds objects"):
        BoxRecords(reading(), Wanted(coverage=0.9))


def test_files(tmp_path):
    written = files(tmp_path / "out", reading(), Wanted(score=0.5))
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "one.png"
        Image.new("RGB", (200, 100)).save(path)
        written.add(str(path), outcome())
    written.finish()
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {
        *("one.boxes.png", "one-2.boxes.png", "labels/one.txt", "labels/one-2.txt"),
        *("boxes.csv", "coco.json", "classes.json"),
    }
    rows = list(csv.DictReader((tmp_path / "out/boxes.csv").read_text().splitlines()))
    assert len(rows) == 4 and rows[1]["label"] == "cat" and rows[1]["x1"] == "5.0"
    document = json.loads((tmp_path / "out/coco.json").read_text())
    assert [one["bbox"] for one in document["annotations"][:2]] == [[10, 20, 50, 50], [0, 0, 5, 5]]
    assert document["annotations"][0]["score"] == 0.9
    assert [one["file_name"] for one in document["images"]] == ["a/one.png", "b/one.png"]
    assert (tmp_path / "out/labels/one.txt").read_text().splitlines()[0].split()[:5] == [
        *("1", "0.175000", "0.450000", "0.250000", "0.500000")
    ]


def test_coco_names_pictures_in_their_folder(tmp_path, monkeypatch):
    """However they were given: beside them, the file is data again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some/pictures").mkdir(parents=True)
    written = files(tmp_path / "out", reading(), Wanted(score=0.5))
    for given in ("some/pictures/a.png", str(tmp_path / "some/pictures/b.png"), "out/../some/pictures/c.png"):
        Image.new("RGB", (200, 100)).save(given)
        written.add(given, outcome())
    written.finish()
    (tmp_path / "out/coco.json").rename(tmp_path / "some/pictures/coco.json")
    (read,) = open_sources(str(tmp_path / "some/pictures")).values()
    assert [Path(read.where(index)).name for index in range(len(read))] == ["a.png", "b.png", "c.png"]
    assert [len(read.targets.of(index).boxes) for index in range(3)] == [2, 2, 2]


def test_labels_beside_images_are_data_again(tmp_path):
    (tmp_path / "images").mkdir()
    written = files(tmp_path, reading(), Wanted(score=0.5))
    Image.new("RGB", (200, 100)).save(tmp_path / "images" / "a.png")
    written.add(str(tmp_path / "images" / "a.png"), outcome())
    written.finish()
    (tmp_path / "coco.json").unlink()
    (read,) = open_sources(str(tmp_path)).values()
    assert read.classes == tuple(reading().classes)
    np.testing.assert_allclose(read.targets.of(0).boxes, [one.box for one in outcome().objects(0.5)], atol=0.01)


def test_none_of_it_knows_torch():
    code = "import sys; sys.modules['torch'] = None; import vitreous.prediction.files, vitreous.prediction.outcomes"
    subprocess.run([sys.executable, "-c", code], check=True)
