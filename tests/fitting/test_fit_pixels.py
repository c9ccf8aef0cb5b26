"""Pictures with masks from end to end: fit, the same again, its report, evaluate, predict, export."""

import argparse
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from boxes import CLASSES, box_picture, write_boxes
from vitreous.commands import account_for, redraw
from vitreous.errors import UserError
from vitreous.export.job import export
from vitreous.fitting.fit import ending, fit
from vitreous.fitting.fitted import Fitted
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.train import train
from vitreous.prediction.pixel_outcomes import PixelOutcome
from vitreous.prediction.predictor import Predictor
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.recipes import finetune_recipe
from vitreous.tasks import ClassifySettings, SegmentSettings
from vitreous.verbs import predict
from vitreous.weights.trained import Trained

TINY = {
    "model.picture_px": "32,40",
    "model.width": "24",
    "model.depth": "1",
    "model.heads": "2",
    "objective.heads": "2",
    "optimizer.lr": "0.01",
    "training.epochs": "12",
    "training.device": "cpu",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_boxes(tmp_path_factory.mktemp("boxes"), 64)


@pytest.fixture(scope="module")
def fitted(folder, tmp_path_factory):
    result = fit(str(folder), tmp_path_factory.mktemp("runs") / "fit", start="none", changes=TINY)
    account_for(result)
    return result


def test_the_layout_is_recognised_and_said(fitted):
    assert isinstance(fitted, Fitted) and fitted.card.classes == CLASSES
    task = fitted.plan.choices[0]
    assert (task.name, task.value) == ("task", "segmentation") and "masks" in task.reason
    assert "Test mIoU" in ending(fitted, 60.0)
    assert fitted.evaluation.headline.value > 0.3  # all ground has about 0.2


def test_the_same_call_again_goes_on(fitted, folder):
    again = fit(str(folder), fitted.out, start="none", changes=TINY)
    assert again.resumed and again.evaluation == fitted.evaluation and again.plan.recipe == fitted.plan.recipe
    with pytest.raises(UserError, match="a different fit"):
        fit(str(folder), fitted.out, start="none", changes=TINY | {"model.width": "16"})


def test_the_report_shows_overlays_and_is_drawn_again(fitted, tmp_path):
    page = (fitted.out / "report.html").read_text()
    for words in (
        "The best",
        "The typical",
        "The worst",
        "as predicted",
        "boundary F-score",
        "Most frequent confusions",
    ):
        assert words in page
    assert page.count("<img") >= 9
    again = redraw(fitted.out, tmp_path / "again.html", device="cpu").read_text()
    assert again.count("<img") == page.count("<img") and "mIoU" in again


def test_evaluate_finds_the_same(fitted):
    found = evaluate(fitted.out, device="cpu").evaluation
    assert found.scores == fitted.evaluation.scores and found.temperature == fitted.evaluation.temperature


def test_predict_writes_files_in_the_pictures_own_sizes(fitted, tmp_path, capsys):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number, size in enumerate([(32, 40), (61, 90), (20, 17)]):
        Image.fromarray(box_picture(number, size)[0]).save(pictures / f"{number}.png")
    (pictures / "broken.png").write_bytes(b"\x89PNG")
    parser = argparse.ArgumentParser()
    predict.add(parser)
    words = [str(fitted.out), str(pictures), "--out", str(tmp_path / "masks"), "--format", "csv", "--device", "cpu"]
    predict.run(parser.parse_args(words))
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split(",")[:5] == ["picture", "width", "height", "confidence", "ground"] and len(rows) == 5
    for number, size in enumerate([(32, 40), (61, 90), (20, 17)]):
        with Image.open(tmp_path / "masks" / f"{number}.mask.png") as mask:
            assert mask.mode == "P" and mask.size == size[::-1] and np.asarray(mask).max() < 3
        with Image.open(tmp_path / "masks" / f"{number}.overlay.png") as overlay:
            assert overlay.size == size[::-1]
        found = json.loads((tmp_path / "masks" / f"{number}.polygons.json").read_text())
        assert sum(one["area"] for one in found["polygons"]) == size[0] * size[1]
    shares = (tmp_path / "masks" / "shares.csv").read_text().splitlines()
    assert shares[0] == "picture,name,ground,bright,dark" and len(shares) == 4
    assert [one["name"] for one in json.loads((tmp_path / "masks" / "classes.json").read_text())] == list(CLASSES)


@pytest.mark.parametrize("given", ["pictures", "tensors"])
def test_an_exported_segmenter_agrees(fitted, tmp_path, given):
    done = export(str(fitted.out), "onnx", input=given, out=str(tmp_path / "boxes.onnx"), num_checks=8)
    near = done.certificate["agreement"]
    assert near["pixel_agreement"] >= 0.999 and "pixels" in near["summary"]
    picture = box_picture(5, (50, 33))[0]
    ours, theirs = (Predictor.load(where)(picture) for where in (fitted.out, done.path))
    assert isinstance(theirs, PixelOutcome) and theirs.labels.shape == (50, 33)
    assert (ours.labels == theirs.labels).mean() > 0.999
    np.testing.assert_allclose(ours.confidence, theirs.confidence, atol=1e-3)


def test_windows_see_a_wide_picture_piece_by_piece(fitted):
    trained = Trained.load(fitted.out)
    card = replace(trained.card, task=replace(trained.card.task, inference="windows", overlap=0.5))
    through = TorchPredictor(replace(trained, card=card))
    wide = np.concatenate([box_picture(number)[0] for number in range(4)], axis=1)  # four pictures side by side
    found, whole = through(wide), Predictor.load(fitted.out)(wide)
    assert found.labels.shape == whole.labels.shape == (32, 160)
    apart = np.concatenate([Predictor.load(fitted.out)(box_picture(number)[0]).labels for number in range(4)], axis=1)
    assert (found.labels == apart).mean() > (whole.labels == apart).mean()  # at once it is squashed to a quarter


def test_what_an_outcome_shows(fitted):
    outcome = Predictor.load(fitted.out)(box_picture(2)[0])
    assert sum(share for _, share in outcome.shares) == pytest.approx(1)
    assert outcome.words.startswith(outcome.shares[0][0]) and "<img" in outcome._repr_html_()
    assert np.asarray(Image.open(io.BytesIO(outcome.mask_png()))).shape == (32, 40)


def test_fine_tuning_goes_on_with_the_decoder_or_starts_one(fitted, folder, tmp_path):
    changes = {"picture_px": "40", "steps": "2", "training.batch_size": "8", "training.workers": "0"}
    recipe = finetune_recipe(str(fitted.out), str(folder), changes)
    assert recipe.objective == fitted.card.task and recipe.preprocessing.crop == "squash"
    assert "mIoU" in train(recipe, tmp_path / "tuned")["val"]
    encoder = finetune_recipe("vitreous-xs", str(folder), changes)
    assert isinstance(encoder.objective, SegmentSettings) and encoder.start == "vitreous-xs"
    assert isinstance(finetune_recipe("vitreous-xs", "fashion", {}).objective, ClassifySettings)
