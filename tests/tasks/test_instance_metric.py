"""Average precision of masks against pycocotools, and what the metric makes of batches."""

import contextlib
import io

import numpy as np
import pytest
import torch

from instances import PREPROCESSING, ShapeOracle, blobs, rendered
from vitreous.batch import Batch
from vitreous.data.loader import EvalLoader
from vitreous.tasks import box_precision
from vitreous.tasks.box_precision import Found, Truth
from vitreous.tasks.instance_metric import InstanceMetric
from vitreous.tasks.predictions import InstanceMasks


def made_up(seed, pictures=12, size=(60, 80)):
    """Blobs, found roughly, and others that are not there."""
    rng, truth, found = np.random.default_rng(seed), [], []
    for picture in range(pictures):
        for number, shape in enumerate(blobs(4, *size, seed=100 * seed + picture).numpy() > 0):
            label = int(rng.integers(2))
            truth.append((picture, label, number == 0, shape))
            moved = np.roll(shape, rng.integers(0, 5, 2), axis=(0, 1))
            found.append((picture, label if rng.random() < 0.8 else 1 - label, rng.random(), moved))
        found.append((picture, 0, 0.4 * rng.random(), blobs(1, *size, seed=7777 + picture)[0].numpy() > 1))
    return (columns(rows) for rows in (truth, found))


def columns(rows):
    picture, classes, third, shapes = zip(*rows, strict=True)
    masks = box_precision.encoded(np.stack(shapes))
    return np.array(picture), np.array(classes), box_precision.bounds(masks), np.array(third), masks


def by_pycocotools(truth, found, pictures):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        rows = zip(truth.picture, truth.classes, truth.crowd, truth.masks, truth.areas, strict=True)
        known.dataset = {
            "images": [{"id": number + 1, "height": 60, "width": 80} for number in range(pictures)],
            "categories": [{"id": 1}, {"id": 2}],
            "annotations": [
                {"id": row + 1, "image_id": int(picture) + 1, "category_id": int(label) + 1, "segmentation": dict(mask)}
                | {"area": float(area), "iscrowd": int(crowd), "bbox": [0, 0, 1, 1]}
                for row, (picture, label, crowd, mask, area) in enumerate(rows)
            ],
        }
        known.createIndex()
        results = [
            {"image_id": int(picture) + 1, "category_id": int(label) + 1, "segmentation": dict(mask), "score": score}
            for picture, label, mask, score in zip(found.picture, found.classes, found.masks, found.scores, strict=True)
        ]
        measured = COCOeval(known, known.loadRes(results), "segm")
        measured.evaluate()
        measured.accumulate()
        measured.summarize()
    return measured.stats


@pytest.mark.parametrize("seed", range(2))
def test_as_pycocotools(seed):
    truth, found = made_up(seed)
    truth, found = Truth(*truth), Found(*found)
    theirs = by_pycocotools(truth, found, 12)
    measured = box_precision.evaluator(truth, found, 2, 12)
    ours = box_precision.precisions(measured)
    means = [ours[..., 0], ours[0, :, 0], ours[5, :, 0]]
    assert 0.1 < theirs[0] < 0.9
    np.testing.assert_allclose([box_precision.mean(one) for one in means], theirs[:3], atol=1e-12)
    np.testing.assert_allclose(box_precision.mean(box_precision.recalls(measured)[..., 0]), theirs[8], atol=1e-12)
    from pycocotools import mask as their_masks

    rows, objects = np.arange(5), np.arange(4)
    shares = their_masks.iou([found.masks[row] for row in rows], [truth.masks[row] for row in objects], [0] * 4)
    np.testing.assert_allclose(box_precision.overlaps(found, rows, truth, objects), shares)


def test_what_is_right_is_right_and_batches_add_up():
    source = rendered("val", 14)
    oracle, metrics = ShapeOracle(source), {}
    for size in (3, 14):
        metrics[size] = InstanceMetric(len(source.classes))
        for batch in EvalLoader(source, PREPROCESSING, size):
            outputs = oracle.outputs([source.read(index) for index in batch.ids.tolist()])
            outputs["logits"][:, 1::2, :-1] = -9  # only what is there
            metrics[size].update(InstanceMasks(*map(torch.tensor, outputs.values())), batch)
    found = metrics[3].compute()
    assert found == metrics[14].compute() and found["pictures"] == 14
    assert found["AP50"] > 0.95 and found["AP"] > 0.6 and set(found) >= {"AP75", "AR", "AP_small"}


def test_crowds_do_not_count_and_nothing_found_is_nothing():
    bits = torch.zeros(1, 16, 16, 1, dtype=torch.uint8)
    bits[0, :8, :8] = 1
    bits[0, 8:, 8:] = 2
    targets = {"masks": bits, "classes": torch.tensor([[0, 0]]), "crowd": torch.tensor([[False, True]])}
    batch = Batch((torch.zeros(1, 3, 16, 16),), targets, torch.zeros(1, dtype=torch.int64), torch.zeros(1))
    masks = torch.full((1, 3, 4, 4), -5.0)
    masks[0, 0, :2, :2], masks[0, 1, 2:, 2:] = 5, 5
    logits = torch.tensor([[[3.0, -3.0], [4.0, -3.0], [9.0, -9.0]]])
    metric = InstanceMetric(1)
    metric.update(InstanceMasks(logits, masks), batch)
    assert len(metric.found_masks) == 2  # the third query takes no cell
    assert metric.compute()["AP"] == pytest.approx(1.0)
    empty = InstanceMetric(1)
    empty.update(InstanceMasks(logits, torch.full_like(masks, -5)), batch)
    assert empty.compute()["AP"] == 0
