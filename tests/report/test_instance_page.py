"""What a report shows of a model that finds shapes: the sections of boxes, with shapes drawn and named."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from instances import ShapeOracle, rendered
from vitreous.data.outlines import run_mask
from vitreous.jobs.objects import evaluate_objects
from vitreous.prediction.predictor import Predictor
from vitreous.report import box_page, boxed_data
from vitreous.report.kinds import KINDS
from vitreous.settings import from_json, to_json


@pytest.fixture(scope="module")
def result():
    val, test = rendered("val", 12), rendered("test", 10)
    oracle = ShapeOracle(val, test)
    evaluation = evaluate_objects(oracle, val, test)
    oracle.reading = replace(oracle.reading, calibration=evaluation.calibration)
    return SimpleNamespace(
        evaluation=evaluation,
        splits=SimpleNamespace(test=test),
        out=oracle,
        card=SimpleNamespace(classes=test.classes),
        data=SimpleNamespace(where="rendered:objects"),
    )


def test_shapes_are_shown_and_told_of(result, monkeypatch):
    monkeypatch.setattr(Predictor, "load", staticmethod(lambda oracle: oracle))
    kind, test = KINDS["instances"], result.splits.test
    sections = {name: content.markup for name, _, content in (*kind.results(result), *kind.trust(result))}
    shown = sum(1 for one in result.evaluation.scores.per_picture if one.objects or one.shown)
    assert shown == 7 and sections["examples"].count("<img") == 2 * 3 * 2, "two of each kind"
    assert "AP of masks" in kind.lead(result) and "a mask need only" in kind.lead(result)
    options, lines = kind.usage(result)
    assert options == " --out masks" and "one.shape.area" in lines
    compile(lines, "usage", "exec")
    index = next(one.id for one in result.evaluation.scores.per_picture if one.objects)
    drawn = boxed_data.labelled_objects(test, index, test.read(index))
    times = drawn.shape[0] // test.read(index).shape[0]
    changed = (drawn != test.read(index).repeat(times, axis=0).repeat(times, axis=1)).any(axis=2)
    covered = sum(test.targets.shapes(index)).astype(bool).repeat(times, axis=0).repeat(times, axis=1)
    assert changed[covered].mean() > 0.98 and not changed[~covered].any()


def test_mistakes_are_painted_where_the_shapes_lie_that_were_compared(result, monkeypatch):
    scores, test, crops = result.evaluation.scores, result.splits.test, []
    read = from_json(type(scores), to_json(scores))  # a report may be written from what was saved
    assert read.alarms == scores.alarms and len(read.alarms) > 3
    monkeypatch.setattr(box_page, "drawn", lambda crop, *_: crops.append(crop) or crop)
    box_page.mistakes(read.alarms, test, read, "here")
    for one, crop in zip(read.alarms, crops, strict=False):
        pixels = test.read(one.picture)
        shape = run_mask({"size": pixels.shape[:2], "counts": one.shape})
        boxes = np.array([each for each in (one.box, one.object_box) if each is not None])
        left, top, right, bottom = box_page._around(boxes, pixels.shape)
        inside = shape[top:bottom, left:right]
        changed = (crop != pixels[top:bottom, left:right]).any(axis=2)
        assert inside.sum() == shape.sum() and changed[inside].mean() > 0.95 and not changed[~inside].any()
