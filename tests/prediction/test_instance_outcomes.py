"""From masks by queries to the shapes of objects: scores and shapes against torch, files read again."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image

from instances import blobs
from vitreous.batch import Batch
from vitreous.data.names import Layout
from vitreous.data.outlines import polygon_mask, run_mask
from vitreous.data.panoptic import Panoptic, Segment, merged
from vitreous.data.placement import Placement, placed
from vitreous.data.polygons import one_ring
from vitreous.data.runs import Runs
from vitreous.data.sources import open_sources
from vitreous.errors import UserError
from vitreous.evaluation.panoptic import panoptic_quality
from vitreous.prediction import pixels
from vitreous.prediction.files import files
from vitreous.prediction.instance_outcomes import InstanceOutcome
from vitreous.prediction.instances import instance_scores, shape_of
from vitreous.prediction.outcomes import outcomes
from vitreous.prediction.reading import Fitting, Reading
from vitreous.prediction.records import Wanted, records
from vitreous.tasks import instance_metric
from vitreous.tasks.predictions import InstanceMasks
from vitreous.weights.calibration import BoxCalibration

CLASSES = ("cat", "dog")
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
    return Reading(kind="instances", classes=CLASSES, fitting=FITTING, calibration=calibration)


def raw(seed=0, num=9):
    logits = torch.randn(2, num, 3, generator=torch.Generator().manual_seed(seed))
    masks = torch.stack([blobs(num, 16, 24, seed), blobs(num, 16, 24, seed + 1)])
    for query in range(num):
        masks[:, query, :, :query] = -4  # no two have the same box
    masks[0, 3] = -4
    return logits, masks


def found(size, calibration=None):
    logits, masks = raw()
    outputs = {"logits": logits.numpy(), "masks": masks.numpy()}
    return outcomes(outputs, reading(calibration), [size, size])


def test_scores_are_those_of_the_metric_and_calibrated():
    logits, masks = raw()
    expected, classes = instance_metric.instance_scores(InstanceMasks(logits, masks))
    scores = instance_scores(logits.numpy(), masks.numpy())
    np.testing.assert_allclose(scores.max(axis=-1), expected.numpy(), atol=1e-6)
    assert (scores > 0).sum() == 17 and scores[0, 3].max() == 0  # one per query, none of an empty mask
    assert np.array_equal(scores.argmax(axis=-1)[scores.max(axis=-1) > 0], classes.numpy()[expected.numpy() > 0])
    calibration = BoxCalibration(shift=-0.5, slopes=(0.7,))
    said = scores[scores > 0].astype(np.float64)
    moved = instance_scores(logits.numpy(), masks.numpy(), calibration)
    np.testing.assert_allclose(
        moved[scores > 0], 1 / (1 + np.exp(0.5 - 0.7 * (np.log(said) - np.log1p(-said)))), atol=1e-5
    )


@pytest.mark.parametrize("size", [(100, 200), (333, 41), (64, 96), (9, 9)])
@pytest.mark.parametrize("fit", ["letterbox", "squash"])
def test_shapes_are_those_of_the_metric(size, fit):
    """At the size of the picture: every part of a shape, and nothing beside."""
    logits, masks = raw(5)
    place = placed((64, 96), fit, 1.0, size)
    shapes = [shape_of(mask, place) for mask in masks[0].numpy()]
    batch = Batch(
        (torch.zeros(2, 3, 64, 96),),
        {},
        *(torch.zeros(2, dtype=torch.int64),) * 2,
        size=torch.tensor([size, size]),
        extent=torch.tensor([place.extent, place.extent]),
    )
    best, *_ = instance_metric._best(InstanceMasks(logits, masks), batch)
    order = instance_metric.instance_scores(InstanceMasks(logits, masks))[0][0].topk(9).indices.tolist()
    expected = dict(zip([query for query in order if shapes[query].area], best.masks.numpy(), strict=True))
    assert len(expected) >= 2
    for query, mask in expected.items():
        assert (shapes[query].mask() != mask).mean() < 2e-4  # the last digit of 32 bits decides


def test_the_letterbox_is_undone():
    """A square in the middle of a wide picture comes back as that square, whatever the canvas."""
    mask = np.full((16, 24), -5.0, np.float32)
    mask[4:8, 8:16] = 5  # of the 12 rows of cells that show the picture
    shape = shape_of(mask, placed((64, 96), "letterbox", 1.0, (200, 400)))
    x0, y0, x1, y1 = shape.box
    assert abs(x0 - 400 / 3) < 3 and abs(x1 - 800 / 3) < 3 and abs(y0 - 200 / 3) < 3 and abs(y1 - 400 / 3) < 3
    whole = shape_of(np.full((16, 24), 1.0, np.float32), placed((64, 96), "letterbox", 1.0, (50, 50)))
    assert whole.area == 2500
    nothing = shape_of(np.full((4, 4), -1.0, np.float32), Placement((8, 8), 0, 0, 8, 8, (8, 8)))
    assert nothing.area == 0 and nothing.box == (0, 0, 0, 0)


def test_an_outcome_says_what_it_shows():
    one = found((100, 200), BoxCalibration(threshold=0.3))[0]
    assert isinstance(one, InstanceOutcome) and len(one.shapes) == len(one.boxes) == 8
    listed = one.objects()
    assert 0 < len(listed) < 8 and all(each.shape is shape for each, shape in zip(listed, one.shapes, strict=False))
    assert all(each.box == tuple(map(float, each.shape.box)) for each in listed)
    assert one.words != "nothing found" and "<img" in one.html().markup
    numbers = one.numbered()
    assert numbers.shape == (100, 200) and (numbers == 1).sum() == listed[0].shape.area  # the surest lies on top
    picture = np.full((100, 200, 3), 128, np.uint8)
    drawn = one.drawn(picture)
    assert drawn.shape == (400, 800, 3)
    touched = (drawn != 128).any(axis=2).reshape(100, 4, 200, 4).any(axis=(1, 3))
    assert touched[numbers > 0].all() and (one.drawn(picture, 0.999) == 128).all()


def overlapping():
    """A sure cat, a dog over its right edge, a second cat that lies nearly whole under the first, a third of which
    nobody is sure; in a canvas of which a wide picture takes the upper half."""
    logits, masks = np.full((1, 4, 3), -9, np.float32), np.full((1, 4, 16, 24), -6, np.float32)
    for query, (label, sure, columns) in enumerate(
        [(0, 5, (4, 12)), (1, 3, (10, 20)), (0, 1, (2, 12)), (0, -8, (0, 24))]
    ):
        logits[0, query, label], masks[0, query, 2:6, slice(*columns)] = sure - 5, 6
        logits[0, query, 2] = -5
    return outcomes({"logits": logits, "masks": masks}, reading(), [(120, 240)])[0]


def test_one_segment_per_pixel_in_the_picture_as_given():
    one = overlapping()
    merging = one.panoptic()
    assert merging.numbers.shape == (120, 240)
    assert [(s.number, one.classes[s.category]) for s in merging.segments] == [(1, "cat"), (2, "dog")]
    row = merging.numbers[40]  # 10 px per column of cells
    assert row[[30, 60, 110, 130, 190, 220]].tolist() == [0, 1, 1, 2, 2, 0]
    assert not merging.numbers[100].any()
    assert [s.score for s in merging.segments] == [found.score for found in one.objects()[:2]]
    only = one.panoptic(one.scores[0])
    assert np.array_equal(only.numbers == 1, one.shapes[0].mask()) and len(only.segments) == 1
    nothing = one.panoptic(1.1)
    assert nothing.segments == () and not nothing.numbers.any()


def test_stuff_is_one_segment():
    logits, masks = np.full((1, 3, 3), -9, np.float32), np.full((1, 3, 16, 24), -6, np.float32)
    for query, label in enumerate((0, 1, 0)):
        logits[0, query, label], masks[0, query, :, 8 * query : 8 * query + 7] = 0, 6
    (one,) = outcomes({"logits": logits, "masks": masks}, reading(), [(64, 96)])
    assert len(one.panoptic().segments) == 3
    merging = one.panoptic(stuff=["cat"])
    number = merging.numbers[30, 10]
    assert len(merging.segments) == 2 and number == merging.numbers[30, 80] != merging.numbers[30, 45]
    with pytest.raises(UserError, match="no class is called sky; there are cat, dog"):
        one.panoptic(stuff=["sky"])


@pytest.mark.parametrize("size", [(100, 200), (333, 241), (64, 96)])
def test_the_map_is_that_of_masks_enlarged_as_for_the_metric(size, monkeypatch):
    logits, masks = raw()
    for query in range(9):  # beside each other, nearly
        row, column = query % 3 * 5, query // 3 * 8
        apart = torch.full((16, 24), 6.0)
        apart[row : row + 6, column : column + 9] = 0
        masks[:, query] -= apart
    one = outcomes({"logits": logits.numpy(), "masks": masks.numpy()}, reading(), [size, size])[0]
    shown, place = one.objects(0.1), placed((64, 96), "letterbox", 1.0, size)
    shares = [place.extent[axis] / (64, 96)[axis] for axis in (0, 1)]
    masks = instance_metric.enlarged(masks[0][[each.query for each in shown]], size, shares)
    numbers, scores = [each.number for each in shown], [each.score for each in shown]
    expected = merged(numbers, scores, [masks.numpy()], size)
    merging = one.panoptic(0.1)
    assert len(merging.segments) > 1 and merging.segments == expected.segments
    assert (merging.numbers != expected.numbers).mean() < 1e-3  # the last digit of 32 bits decides
    assert panoptic_quality([merging], [expected], 2)[0].pq > 0.99
    monkeypatch.setattr(pixels, "STRIP_VALUES", 3000)
    assert np.array_equal(one.panoptic(0.1).numbers, merging.numbers)


def test_what_is_hardly_likely_is_not_merged():
    one = found((100, 200))[0]
    assert len(one.masks.logits) == (one.scores >= 0.1).sum() < len(one.scores)
    assert np.array_equal(one.panoptic(0.0).numbers, one.panoptic(0.1).numbers)


def test_panoptic_files_are_read_again(tmp_path):
    pictures, out = tmp_path / "pictures", tmp_path / "pictures" / "out"
    pictures.mkdir()
    written, said = files(out, reading(), Wanted(score=0.2)), [*found((100, 200)), overlapping()]
    for name, one in zip("abc", said, strict=True):
        Image.new("RGB", one.size[::-1]).save(pictures / f"{name}.png")
        written.add(str(pictures / f"{name}.png"), one)
    written.finish()
    document = json.loads((out / "panoptic.json").read_text())
    assert document["categories"] == [
        {"id": 1, "name": "cat", "isthing": 1},
        {"id": 2, "name": "dog", "isthing": 1},
    ]
    names = {image["id"]: image["file_name"] for image in document["images"]}
    assert [names[one["image_id"]] for one in document["annotations"]] == ["a.png", "b.png", "c.png"]
    for annotation, one in zip(document["annotations"], said, strict=True):
        with Image.open(out / "panoptic" / annotation["file_name"]) as image:
            numbers = np.asarray(image).astype(np.int32) @ [1, 256, 256**2]
        segments = annotation["segments_info"]
        areas = {each["id"]: each["area"] for each in segments}
        assert areas == {number: (numbers == number).sum() for number in np.unique(numbers).tolist() if number}
        read = Panoptic(numbers, tuple(Segment(s["id"], s["category_id"] - 1, s["score"]) for s in segments))
        assert np.array_equal(numbers, one.panoptic(0.2).numbers) and segments
        assert panoptic_quality([read], [one.panoptic(0.2)], 2)[0].pq == 1
    # The maps have the names of their pictures, and are not taken for them.
    (coco,) = open_sources(str(out / "coco.json"), Layout(targets="instances")).values()
    assert coco.read(0).max() == 0 and len(coco) == 3


def test_records():
    one, wanted = found((100, 200))[0], Wanted(score=0.3)
    kind = records(reading(), wanted)
    record = kind.record(one)
    first = record["objects"][0]
    assert np.array_equal(run_mask(first["mask"]), one.shapes[0].mask()) and first["area"] == one.shapes[0].area
    assert json.loads(json.dumps(record)) == record
    assert len(kind.columns) == len(kind.cells(record)) and first["label"] in kind.line("a.png", record)


@pytest.mark.parametrize("seed", range(4))
def test_one_ring_has_all_pieces_and_holes(seed):
    mask = blobs(1, 40, 50, seed)[0].numpy() > 0.5
    mask[10:30, 10:30] = True
    mask[15:20, 12:20] = False
    ring = np.array(one_ring(Runs.of(mask, mask.shape)), np.float64)
    assert (polygon_mask(ring, 40, 50) != mask).mean() < 2e-3


def test_files_are_read_again(tmp_path):
    """What was written for other programs is read by ours, as data."""
    pictures, out = tmp_path / "out" / "images", tmp_path / "out"
    pictures.mkdir(parents=True)
    written, said = files(out, reading(), Wanted(score=0.3)), found((100, 200))
    for name, one in zip(("a", "b"), said, strict=True):
        Image.new("RGB", (200, 100)).save(pictures / f"{name}.png")
        written.add(str(pictures / f"{name}.png"), one)
    written.finish()
    names = {path.name for path in out.iterdir()}
    assert names >= {"a.objects.png", "a.overlay.png", "a.polygons.json", "objects.csv", "coco.json", "classes.json"}
    listed = said[0].objects(0.3)
    with Image.open(out / "a.objects.png") as image:
        assert np.array_equal(np.asarray(image), said[0].numbered(0.3))
    rows = list(csv.DictReader((out / "objects.csv").read_text().splitlines()))
    assert int(float(rows[0]["area"])) == listed[0].shape.area
    pieces = json.loads((out / "a.polygons.json").read_text())["objects"][0]["polygons"]
    assert sum(piece["area"] for piece in pieces) == listed[0].shape.area
    (coco,) = open_sources(str(out / "coco.json"), Layout(targets="instances")).values()
    assert all(
        np.array_equal(*pair) for pair in zip(coco.targets.shapes(0), (s.shape.mask() for s in listed), strict=True)
    )
    (out / "data.yaml").write_text("train: images\nnames: [cat, dog]\n")
    (yolo,) = open_sources(str(out / "data.yaml"), Layout(targets="instances")).values()
    for shape, expected in zip(yolo.targets.shapes(0), coco.targets.shapes(0), strict=True):
        assert (shape != expected).mean() < 2e-3
