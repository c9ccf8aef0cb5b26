"""Detections measured as they are predicted: against training's metric, and with an oracle that knows the truth."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from detections import PREPROCESSING, Oracle
from vitreous.data.base import Subset
from vitreous.data.loader import EvalLoader
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.evaluation.figures import drawn
from vitreous.evaluation.score import score
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.objects import evaluate_objects, fitted_calibration, measured
from vitreous.models import ViTSettings
from vitreous.nn.detr import Decoded
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.tasks.detect import DetectSettings
from vitreous.weights.calibration import BoxCalibration
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained


@pytest.fixture(scope="module")
def splits():
    found = DataSettings(where="rendered:objects", train_limit=10).build()
    return replace(found, val=Subset(found.val, np.arange(40)), test=Subset(found.test, np.arange(25)))


def test_an_oracle_is_measured_calibrated_and_drawn(splits):
    oracle = Oracle(splits.val, splits.test)
    found = evaluate_objects(oracle, splits.val, splits.test)
    assert found.scores.pictures == len(splits.test) and found.scores.ap50.value > 0.6
    assert found.scores.recall.value > 0.5 and found.validation_pictures == len(splits.val)
    assert found.scores.ece.value < found.ece_before.value
    assert found.calibration.thresholds and found.scores.threshold == found.calibration.threshold
    figures = drawn(found)
    assert set(figures) == {"per_class", "precision_recall", "errors", "reliability"}
    given = evaluate_objects(oracle, splits.val, splits.test, calibration=BoxCalibration(threshold=0.4))
    assert given.scores.ap == found.scores.ap and given.scores.threshold == 0.4  # the order of scores stays
    # What a card carries is for predictions: it is measured as it was trained.
    carrying = Oracle(splits.val, splits.test)
    carrying.reading = replace(carrying.reading, calibration=BoxCalibration(shift=-3.0))
    np.testing.assert_array_equal(
        measured(carrying, splits.test).found.scores, measured(oracle, splits.test).found.scores
    )


def test_pictures_with_masks_are_no_data_for_a_detector(tmp_path):
    """Said before their classes are compared."""
    model = ViTSettings(picture_px=(32, 32), patch=16, width=16, depth=1, heads=2)
    task = DetectSettings(decoder="centres", width=16, heads=2, encoder_depth=1)
    weights = task.build(model.build(), ("a", "b")).state_dict()
    card = Card(model=model, task=task, classes=("a", "b"), preprocessing=PREPROCESSING)
    Trained(card, weights, "here").save(tmp_path / "model")
    with pytest.raises(UserError, match="its pictures have masks, and this model predicts objects: give pictures with"):
        evaluate(tmp_path / "model", "rendered:segment", device="cpu")


def test_the_same_average_precision_as_in_training(splits):
    """Of a model that says something about one picture in two ways: as training scores it, and as it predicts."""
    torch.manual_seed(0)
    model = ViTSettings(picture_px=(48, 96), patch=16, width=16, depth=1, heads=2)
    sizes = {"queries": 30, "width": 16, "heads": 2, "mlp_width": 16, "encoder_depth": 1, "decoder_depth": 1}
    task, classes = DetectSettings(decoder="detr", **sizes), splits.test.classes
    card = Card(model=model, task=task, classes=classes, preprocessing=PREPROCESSING)
    detector = task.build(model.build(), classes).eval()
    predictor = TorchPredictor(Trained(card, detector.state_dict(), "here"))
    oracle, shown = Oracle(splits.test), {}
    for index in range(len(splits.test)):
        picture = splits.test.read(index)
        shown[predictor.inputs(picture).numpy().tobytes()] = picture

    class Sees(nn.Module):
        """In place of the decoder: looks up what the oracle says. Queries that say nothing are sure of no object."""

        def forward(self, maps, extent, size):
            said = oracle.outputs([shown[one.numpy().tobytes()] for one in self.images])
            logits = torch.from_numpy(np.pad(said["logits"], ((0, 0), (0, 0), (0, 1)), constant_values=2.0))
            # Of the picture's part of the canvas, as a real one would: where it is not told the part, of all of it.
            assert extent.tolist() == [[48, 48]] * len(logits)
            return Decoded(logits[None], torch.from_numpy(said["boxes"])[None])

    for one in (detector, predictor.task):
        one.head = Sees()
        one.encoder.register_forward_pre_hook(lambda _, images, head=one.head: setattr(head, "images", images[0]))
    ours = evaluate_objects(predictor, None, splits.test).scores
    with torch.inference_mode():
        theirs = score(detector, EvalLoader(splits.test, PREPROCESSING, batch_size=7))
    assert theirs["AP"] > 0.3
    assert ours.ap.value == pytest.approx(theirs["AP"], abs=1e-9)
    assert ours.ar.value == pytest.approx(theirs["AR"], abs=1e-9)


def test_validation_pictures_without_objects_and_pictures_without_boxes(splits):
    oracle = Oracle(splits.test)
    classes = DataSettings(where="fashion", train_limit=100).build()
    with pytest.raises(UserError, match="have no boxes"):
        measured(oracle, classes.test)
    empty = [index for index in range(len(splits.test)) if not len(splits.test.targets.of(index))]
    if empty:
        assert fitted_calibration(oracle, Subset(splits.test, np.array(empty))) == BoxCalibration()
