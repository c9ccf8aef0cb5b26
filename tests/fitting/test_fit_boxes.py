"""Pictures with boxes from end to end: fit, the same again, its report, evaluate."""

import json
from dataclasses import replace

import pytest

from detections import write_shapes
from vitreous.commands import account_for, redraw
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.fitting import base
from vitreous.fitting.box_drafts import BoxDrafts
from vitreous.fitting.drafts import Problem
from vitreous.fitting.fit import ending, fit
from vitreous.fitting.transfer import Start
from vitreous.fitting.wishes import Hardware, Wishes
from vitreous.jobs.evaluate import evaluate
from vitreous.models import ViTSettings
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.weights.calibration import BoxCalibration

TINY = {
    "model.picture_px": "48,48",
    "model.width": "24",
    "model.depth": "1",
    "model.heads": "2",
    "objective.width": "32",
    "objective.mlp_width": "32",
    "objective.heads": "2",
    "objective.decoder_depth": "1",
    "training.epochs": "2",
    "training.device": "cpu",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("made") / "shapes", {"train": 40, "val": 8, "test": 12})


@pytest.fixture(scope="module")
def fitted(folder, tmp_path_factory):
    result = fit(str(folder), tmp_path_factory.mktemp("runs") / "fit", start="none", changes=TINY)
    account_for(result)
    return result


def test_maps_of_large_pictures_are_fine_enough_as_they_are(fitted):
    problem = Problem(fitted.data, DataSettings(where="made"), Hardware(kind="cuda", name="one"), Wishes(changes={}))
    model = ViTSettings(patch=8, width=24, depth=1, heads=2)
    small, large = (BoxDrafts(problem).objective(replace(model, picture_px=(px, px))) for px in (256, 384))
    assert (small.finest, large.finest) == (2, 1)


def test_a_first_model_leaves_time_for_what_comes_after(fitted):
    """40 training pictures, 8 of validation, 12 of test."""
    wishes, cpu = Wishes(seconds=60.0, changes={}), Hardware(kind="cpu", name="two cores")
    large = replace(fitted.data, heights=(640,) * 3, widths=(640,) * 3)
    drafts = BoxDrafts(Problem(large, DataSettings(where="made"), cpu, wishes))
    start = Start(where="made", why="", digest="", picture_px=(128, 128), picture_s=0.5, is_chosen=True)
    model = ViTSettings(patch=8, width=24, depth=1, heads=2)
    smaller = drafts.first_size(model, start)
    assert smaller < drafts.first_size(model, replace(start, picture_s=0.3)), "20 s to see pictures, 14 s to score them"
    recipe = fitted.plan.recipe
    slow_s, fast_s = (drafts.learning_s(recipe, picture_s, 40.0) for picture_s in (0.25, 0.05))
    assert (slow_s, fast_s) == pytest.approx((40 - 14 - 28 * 0.25, 40 - 14 - 28 * 0.05)), "as fast as they were seen"


def test_large_pictures_are_known_to_take_longer_than_their_area(fitted):
    """Attention grows with the square of it."""
    drafts = BoxDrafts(Problem(fitted.data, DataSettings(), Hardware(kind="cpu", name="one"), Wishes(changes={})))
    start = Start(where="made", why="", digest="", picture_px=(64, 64), picture_s=0.1, is_chosen=True)
    model = ViTSettings(patch=8, width=24, depth=1, heads=2)
    seconds = [
        drafts.foreseen(replace(fitted.plan.recipe, model=replace(model, picture_px=(px, px))), start).picture_s
        for px in (64, 256)
    ]
    assert seconds[0] == pytest.approx(0.1) and 16 * seconds[0] < seconds[1] < 256 * seconds[0]


def test_boxes_are_recognised_and_said(fitted):
    task, decoder = (next(one for one in fitted.plan.choices if one.name == name) for name in ("task", "decoder"))
    assert task.value == "detection" and "boxes" in task.reason
    assert decoder.value == "centres, 100 queries"
    assert "Test AP" in ending(fitted, 60.0)


def test_validation_pictures_are_predicted_once(folder, tmp_path, monkeypatch):
    """After training: what chose the model calibrates it."""
    read, predict = [], TorchPredictor.seen
    monkeypatch.setattr(TorchPredictor, "seen", lambda self, some: read.append(len(some)) or predict(self, some))
    monkeypatch.setattr(base, "score", lambda *words: pytest.fail("they are scored by another way, too"))
    found = fit(str(folder), tmp_path / "fit", start="none", changes=TINY)
    assert [num for num in read if num > 1] == [8, 12], "validation and test; then the cost of one is measured"
    assert found.evaluation.calibration != BoxCalibration() and found.candidates[0].score is not None


def test_a_part_without_objects_is_refused_before_anything_is_learned(tmp_path):
    root = write_shapes(tmp_path / "shapes", {"train": 8, "val": 2, "test": 2})
    for file in root.rglob("*val*.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"annotations": []}))
    with pytest.raises(UserError, match="no picture of val has an object: add some"):
        fit(str(root), tmp_path / "run", start="none", changes=TINY)


def test_the_same_call_again_goes_on(fitted, folder):
    again = fit(str(folder), fitted.out, start="none", changes=TINY)
    assert again.resumed and again.evaluation == fitted.evaluation and again.plan.recipe == fitted.plan.recipe


def test_the_report_is_of_objects_and_drawn_again(fitted, tmp_path):
    page = (fitted.out / "report.html").read_text()
    for words in ("Kinds of error", "AP50", "Missed objects", "The surest false alarms", "outcome.objects()"):
        assert words in page
    assert fitted.findings.attention == "no picture was to be shown", "it took half the time of looking inside"
    again = redraw(fitted.out, tmp_path / "again.html", device="cpu").read_text()
    assert again.count("<svg") == page.count("<svg")


def test_evaluate_finds_the_same(fitted):
    found = evaluate(fitted.out, device="cpu").evaluation
    assert found.scores == fitted.evaluation.scores and found.calibration == fitted.evaluation.calibration
