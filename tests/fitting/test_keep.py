"""What is kept: never less than a linear model, of features or of pixels."""

import pytest
import torch

from scenes import write_scenes
from vitreous.batch import Batch
from vitreous.export.job import export
from vitreous.fitting.candidates import FINE_TUNED, FROM_SCRATCH, Scored, chosen
from vitreous.fitting.class_first import beginning
from vitreous.fitting.class_fit import BETWEEN, NEW_HEAD
from vitreous.fitting.first import FIRST_MODEL, ON_PIXELS
from vitreous.fitting.fit import fit
from vitreous.models import PixelsSettings
from vitreous.prediction.predictor import Predictor
from vitreous.weights.trained import Trained

OF = 40  # validation pictures


def kept(scores, floor, num_train=500, **changes):
    right = {name: None if num is None else Scored(num / OF, OF) for name, num in scores.items()}
    is_continued = FINE_TUNED in scores
    return chosen(right, floor, **{"is_continued": is_continued, "num_train": num_train, **changes})[0]


@pytest.mark.parametrize(("learned", "expected"), [(29, ON_PIXELS), (31, ON_PIXELS), (32, FROM_SCRATCH)])
def test_random_weights_have_to_be_ahead_of_the_pixels_by_more_than_chance(learned, expected):
    assert kept({ON_PIXELS: 30, FROM_SCRATCH: learned}, ON_PIXELS) == expected


def test_what_goes_on_from_the_first_model_has_to_be_better_than_it():
    assert kept({ON_PIXELS: 20, FIRST_MODEL: 30, FINE_TUNED: 30, BETWEEN: 29}, FIRST_MODEL) == FIRST_MODEL
    assert kept({ON_PIXELS: 20, FIRST_MODEL: 30, FINE_TUNED: 31, BETWEEN: 32}, FIRST_MODEL) == BETWEEN
    assert kept({ON_PIXELS: 20, FIRST_MODEL: 30, FINE_TUNED: 18, NEW_HEAD: 33}, FIRST_MODEL) == NEW_HEAD


def test_few_validation_pictures_do_not_decide_between_linear_models():
    """They were compared on more pictures before: the floor is given."""
    assert kept({ON_PIXELS: 35, FIRST_MODEL: 30, FINE_TUNED: 29}, FIRST_MODEL) == FIRST_MODEL
    assert kept({ON_PIXELS: 30, FIRST_MODEL: 35, FINE_TUNED: 31}, ON_PIXELS) == ON_PIXELS
    assert kept({ON_PIXELS: 30, FIRST_MODEL: 29, FINE_TUNED: 36}, ON_PIXELS) == FINE_TUNED


def test_without_validation_pictures_few_training_pictures_are_not_trusted():
    nothing = {ON_PIXELS: None, FROM_SCRATCH: None}
    assert kept(nothing, ON_PIXELS) == ON_PIXELS
    assert kept(nothing, ON_PIXELS, num_train=5000) == FROM_SCRATCH


def test_pixels_that_are_kept_are_a_model_like_another(tmp_path):
    """Brightness is all that tells these classes apart: two steps of training cannot beat a linear model of it."""
    root = write_scenes(tmp_path / "pictures", {"dark": 60, "light": 60}, size=(30, 20))
    changes = {"model.width": "16", "model.depth": "1", "model.heads": "2", "training.steps": "2"}
    found = fit(str(root), tmp_path / "run", start="none", changes={**changes, "training.device": "cpu"})
    assert [one.name for one in found.candidates if one.is_kept] == [ON_PIXELS]
    assert found.evaluation.scores.top1.value == found.account.baseline.score > 0.9
    assert isinstance(found.findings.attention, str) and isinstance(Trained.load(found.out).card.model, PixelsSettings)
    export(found.out, out=tmp_path / "model.onnx")
    picture = root / "light" / "0004.png"
    ours, theirs = Predictor.load(found.out)(picture), Predictor.load(tmp_path / "model.onnx")(picture)
    assert ours.best == theirs.best == "light"
    assert ours.probabilities == pytest.approx(theirs.probabilities, abs=1e-4)


def test_features_are_taken_of_as_many_pictures_as_there_is_time_for():
    batches = [Batch(views=(torch.zeros(8, 3, 1, 1),), targets={}, ids=torch.arange(8), keys=torch.arange(8))] * 10
    ticks = iter(range(100))
    assert len(list(beginning(batches, 4.5, least=8, clock=lambda: next(ticks)))) == 6
    assert len(list(beginning(batches, -1.0, least=24, clock=lambda: 0.0))) == 3, "some there must be"


def test_random_weights_that_have_learned_nothing_get_no_new_head(tmp_path):
    root = write_scenes(tmp_path / "pictures", {"dark": 60, "grey": 60, "light": 60}, size=(20, 20))
    changes = {"model.width": "16", "model.depth": "1", "model.heads": "2", "training.steps": "1"}
    unmoved = {"optimizer.lr": "0", "optimizer.adam_lr": "0", "training.device": "cpu"}
    found = fit(str(root), tmp_path / "run", start="none", changes={**changes, **unmoved})
    assert [one.name for one in found.candidates] == [ON_PIXELS, FROM_SCRATCH]
