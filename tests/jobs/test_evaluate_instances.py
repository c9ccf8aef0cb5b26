"""Shapes measured as they are predicted: against training's metric, and with an oracle that knows the truth."""

import pytest
import torch

from instances import PREPROCESSING, ShapeOracle, rendered
from vitreous.data.loader import EvalLoader
from vitreous.data.sources import open_sources
from vitreous.errors import UserError
from vitreous.evaluation.figures import drawn
from vitreous.evaluation.full import evaluation_of
from vitreous.jobs.by_picture import BY_PICTURE
from vitreous.jobs.objects import measured
from vitreous.tasks.instance_metric import InstanceMetric
from vitreous.tasks.predictions import InstanceMasks

evaluate = BY_PICTURE["instances"]


def test_an_oracle_is_measured_calibrated_and_drawn():
    val, test = rendered("val", 30), rendered("test", 16)
    oracle = ShapeOracle(val, test)
    found = evaluate(oracle, val, test)
    assert found.by == "masks" and found.scores.pictures == 16 and 0.6 < found.scores.ap50.value < 1
    assert found.scores.ece.value < found.ece_before.value and found.calibration.thresholds
    assert {one.kind for one in found.scores.errors if one.number} >= {"background"} or found.scores.alarms
    assert "overlap of masks" in found.summary() and set(drawn(found)) >= {"per_class", "errors"}
    assert evaluation_of(found.to_json(), "here") == found


def test_the_same_average_precision_as_in_training():
    test = rendered("test", 12)
    oracle, metric = ShapeOracle(test), InstanceMetric(len(test.classes))
    for batch in EvalLoader(test, PREPROCESSING, 5):
        outputs = oracle.outputs([test.read(index) for index in batch.ids.tolist()])
        metric.update(InstanceMasks(*map(torch.tensor, outputs.values())), batch)
    found = measured(oracle, test)
    scores = found.scores(found.found.scores, 0.5)
    assert metric.compute()["AP"] == pytest.approx(scores.ap.value, abs=2e-3)
    assert metric.compute()["AP50"] == pytest.approx(scores.ap50.value, abs=2e-3)


def test_shapes_are_scored_against_shapes():
    boxes = open_sources("rendered:objects")["test"]
    oracle = ShapeOracle(rendered("test", 2))
    with pytest.raises(UserError, match="targets instances"):
        evaluate(oracle, None, boxes)
