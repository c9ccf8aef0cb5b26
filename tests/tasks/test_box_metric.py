"""Average precision against pycocotools, and what the metric makes of batches."""

import contextlib
import io
import sys

import numpy as np
import pytest
import torch

from detections import made_up
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.tasks import box_precision
from vitreous.tasks.box_metric import BoxMetric, best_detections
from vitreous.tasks.predictions import Detections


def by_pycocotools(truth, found, num_classes, pictures):
    """The twelve numbers, AP first."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def sides(box):
        return [*box[:2].tolist(), *(box[2:] - box[:2]).tolist()]

    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = {
            "images": [{"id": number + 1} for number in range(pictures)],
            "categories": [{"id": number + 1} for number in range(num_classes)],
            "annotations": [
                {"id": row + 1, "image_id": int(picture) + 1, "category_id": int(label) + 1, "bbox": sides(box)}
                | {"area": float(np.prod(box[2:] - box[:2])), "iscrowd": int(crowd)}
                for row, (picture, label, box, crowd) in enumerate(
                    zip(truth.picture, truth.classes, truth.boxes, truth.crowd, strict=True)
                )
            ],
        }
        known.createIndex()
        rows = zip(found.picture, found.classes, found.boxes, found.scores, strict=True)
        results = [
            {"image_id": int(picture) + 1, "category_id": int(label) + 1, "bbox": sides(box), "score": float(score)}
            for picture, label, box, score in rows
        ]
        measured = COCOeval(known, known.loadRes(results), "bbox")
        measured.evaluate()
        measured.accumulate()
        measured.summarize()
    return measured.stats


@pytest.mark.parametrize("seed", range(3))
def test_as_pycocotools(seed):
    truth, found = made_up(seed=seed)
    theirs = by_pycocotools(truth, found, 3, 40)
    measured = box_precision.evaluator(truth, found, 3, 40)
    ours = box_precision.precisions(measured)
    means = [ours[..., 0], ours[0, :, 0], ours[5, :, 0], *(ours[..., size] for size in (1, 2, 3))]
    np.testing.assert_allclose([box_precision.mean(one) for one in means], theirs[:6], atol=1e-12)
    np.testing.assert_allclose(box_precision.mean(box_precision.recalls(measured)[..., 0]), theirs[8], atol=1e-12)


def batch_of(boxes, classes, size, extent, canvas=(64, 64)):
    num = len(boxes)
    targets = {"boxes": torch.tensor(boxes), "classes": torch.tensor(classes)}
    targets["crowd"] = torch.zeros(targets["classes"].shape, dtype=torch.bool)
    numbers = torch.arange(num)
    return Batch((torch.zeros(num, 3, *canvas),), targets, numbers, numbers, torch.tensor(size), torch.tensor(extent))


def perfect(softmax):
    """Two pictures of other sizes on one canvas; queries that say what is there, in shares of each picture's part."""
    boxes = [[[0.0, 0, 32, 16], [8, 8, 24, 32]], [[16.0, 16, 48, 64], [0, 0, 0, 0]]]
    batch = batch_of(boxes, [[0, 1], [1, -1]], size=[[320, 640], [64, 48]], extent=[[32, 64], [64, 48]])
    wholes = torch.tensor([[64.0, 32, 64, 32], [48, 64, 48, 64]])[:, None]
    shares = torch.tensor(boxes) / wholes
    said = torch.cat([(shares[..., :2] + shares[..., 2:]) / 2, shares[..., 2:] - shares[..., :2]], dim=-1)
    logits = torch.full((2, 2, 3 if softmax else 2), -9.0)
    for picture, query, label in ((0, 0, 0), (0, 1, 1), (1, 0, 1)):
        logits[picture, query, label] = 9.0
    return Detections(logits, said), batch


@pytest.mark.parametrize("softmax", [False, True])
def test_what_is_right_is_right_whatever_the_size(softmax):
    metric = BoxMetric(2)
    metric.update(*perfect(softmax))
    found = metric.compute()
    assert found["AP"] == pytest.approx(1) and found["AR"] == 1 and found["pictures"] == 2
    # Sizes are of the pictures as they came: the first was shrunk tenfold.
    assert {name for name in found if name.startswith("AP_")} == {"AP_medium", "AP_large"}


def test_batches_add_up():
    prediction, batch = perfect(softmax=False)
    once, twice = BoxMetric(2), BoxMetric(2)
    once.update(prediction, batch)
    for at in range(2):
        part = batch.parts(2)[at]
        twice.update(Detections(prediction.logits[at : at + 1], prediction.boxes[at : at + 1]), part)
    assert once.compute() == twice.compute()


def test_a_query_stands_for_one_object_or_for_one_per_class():
    boxes = torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(0))
    logits = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(1))
    scores, classes, _ = best_detections(Detections(logits, boxes), 3)
    assert scores.shape == (1, 12) and (scores.diff() <= 0).all() and set(classes[0].tolist()) == {0, 1, 2}
    scores, classes, chosen = best_detections(Detections(logits, boxes), 2)
    assert scores.shape == (1, 4) and set(classes[0].tolist()) <= {0, 1}
    expected = logits.softmax(-1)[0, :, :2].max(-1)
    order = expected.values.argsort(descending=True)
    torch.testing.assert_close(scores[0], expected.values[order])
    torch.testing.assert_close(chosen[0], boxes[0, order])
    assert len(best_detections(Detections(logits, boxes), 3, most=5)[0][0]) == 5


def test_nothing_to_score_and_no_library(monkeypatch):
    truth, found = made_up()
    nothing = type(truth)(*(getattr(truth, name)[:0] for name in ("picture", "classes", "boxes", "crowd")))
    with pytest.raises(UserError, match="no objects to score"):
        box_precision.evaluator(nothing, found, 3, 40)
    monkeypatch.setitem(sys.modules, "hotcoco", None)
    with pytest.raises(UserError, match="pip install hotcoco"):
        box_precision.evaluator(truth, found, 3, 40)
