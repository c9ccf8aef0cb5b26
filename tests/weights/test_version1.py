"""Folders that version 0.2.0 wrote, one of each kind, and what it predicted with them: see version1/README.md."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from vitreous import settings
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.export.usage import Usage
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.train import train
from vitreous.objectives.beit import BEiTSettings
from vitreous.objectives.mae import MAESettings
from vitreous.objectives.masked import MaskedSettings
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.recipes import find_recipe
from vitreous.recipes.recipe import read_recipe
from vitreous.tasks.distill import DistillSettings
from vitreous.training.loop import MemorySettings
from vitreous.weights import own
from vitreous.weights.calibration import ClassCalibration, ManyCalibration
from vitreous.weights.card import Card, read_card
from vitreous.weights.trained import Trained

FOLDER = Path(__file__).parent / "version1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
PICTURE = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_folder_of_version_1_predicts_as_it_did(kind, tmp_path):
    trained = Trained.load(FOLDER / kind)
    _same(trained, EXPECTED[kind])
    trained.save(tmp_path / "again")  # in today's version
    assert json.loads((tmp_path / "again" / "model.json").read_text())["format"] == 2
    again = Trained.load(tmp_path / "again")
    assert again.card == trained.card
    _same(again, EXPECTED[kind])


@torch.inference_mode()
def _same(trained, expected):
    if "pooled" in expected:
        preprocessing = trained.card.preprocessing
        images = preprocessing.normalised(preprocessing.resized(PICTURE)[None])
        found = trained.encoder().eval()(images).pooled[0].numpy()
        np.testing.assert_allclose(found, expected["pooled"], atol=1e-5)
        return
    outcome = TorchPredictor(trained)(PICTURE)
    np.testing.assert_allclose(outcome.probabilities, expected["probabilities"], atol=1e-6)
    if expected["sets"]:
        assert [list(outcome.prediction_set(coverage)) for coverage, _ in outcome.sets] == expected["sets"]


def test_what_was_fitted_after_training_is_carried_over():
    assert Trained.load(FOLDER / "softmax").card.calibration == ClassCalibration(
        temperature=1.7, sets=((0.9, 0.21), (0.99, 0.03))
    )
    assert Trained.load(FOLDER / "sigmoid").card.calibration == ManyCalibration(temperature=0.8)
    assert Trained.load(FOLDER / "hybrid").card.calibration is None


def test_a_later_version_is_refused_in_one_line(tmp_path):
    weights, card = own.load_model(FOLDER / "softmax")
    own.save_model(tmp_path / "later", weights, {**card, "format": 3})
    with pytest.raises(UserError, match=r"model\.json: written by a later version of vitreous \(format 3;") as caught:
        Trained.load(tmp_path / "later")
    assert "\n" not in str(caught.value)


def test_damaged_numbers_are_refused_as_today(tmp_path):
    weights, card = own.load_model(FOLDER / "softmax")
    own.save_model(tmp_path / "cold", weights, {**card, "temperature": -1.0})
    with pytest.raises(UserError, match="it must be above 0"):
        Trained.load(tmp_path / "cold")


def test_the_recipe_of_a_run_is_read_as_todays(tmp_path):
    old = json.loads((FOLDER / "run" / "recipe.json").read_text())
    old["augmentation"] |= {"randaugment_ops": 2, "jitter": 0.8, "erase": 0.3, "mix_probability": 0.5}
    old["more_views"] = [{"augmentation": old["augmentation"] | {"crop": "pad", "solarize": 0.2}, "times": 2}]
    old["data"] |= {"label_column": "breed"}
    (tmp_path / "recipe.json").write_text(json.dumps(old))
    found = read_recipe(tmp_path / "recipe.json")
    was, now, view = old["augmentation"], found.augmentation, found.more_views[0].augmentation
    assert (now.crop.method, now.crop.scale) == (was["crop"], tuple(was["scale"])) and now.flip == was["flip"]
    assert (now.warp.ops, now.colour.probability, now.erase.probability, now.mix.probability) == (2, 0.8, 0.3, 0.5)
    assert (view.crop.method, view.colour.solarize, found.more_views[0].times) == ("pad", 0.2, 2)
    assert found.data.layout.label_column == "breed"
    settings.save(found, tmp_path / "recipe.json")
    assert read_recipe(tmp_path / "recipe.json") == found
    assert json.loads((tmp_path / "recipe.json").read_text())["format"] == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"kind": "MAE", "drop": 0.5}, MAESettings(mask_ratio=0.5)),
        ({"kind": "Masked", "corrupt": 0.15}, MaskedSettings(mask_ratio=0.15)),
        ({"kind": "BEiT", "share": 0.3}, BEiTSettings(mask_ratio=0.3)),
        ({"kind": "Distill", "answers": "there"}, DistillSettings(stored="there")),
    ],
)
def test_what_objectives_called_otherwise(tmp_path, old, new):
    document = json.loads((FOLDER / "run" / "recipe.json").read_text()) | {"objective": old}
    document["training"] |= {"accumulate": 4, "checkpointing": True}
    (tmp_path / "recipe.json").write_text(json.dumps(document))
    found = read_recipe(tmp_path / "recipe.json")
    assert found.objective == new
    assert found.training.memory == MemorySettings(accumulate=4, recompute=True)


@pytest.mark.parametrize(("fixed_windows", "small_maps"), [(False, "shrink"), (True, "shift")])
def test_a_swin_keeps_its_rule_for_small_maps(fixed_windows, small_maps, tmp_path):
    """It had another name while there were two."""
    swin = find_recipe("cifar10_swin", {})
    card, recipe = (settings.to_json(one) for one in (Card(model=swin.model, preprocessing=swin.preprocessing), swin))
    for document in (card, recipe):
        del document["model"]["small_maps"]
        document["model"]["fixed_windows"] = fixed_windows
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    assert read_card(card, "here").model == swin.model.changed(small_maps=small_maps)
    assert read_recipe(tmp_path / "recipe.json").model == swin.model.changed(small_maps=small_maps)


def test_a_run_is_evaluated_as_it_was(tmp_path):
    """What version 0.2.0 measured of it."""
    shutil.copytree(FOLDER / "run", tmp_path / "run")
    found = evaluate(tmp_path / "run", device="cpu").evaluation
    assert (found.scores.top1.value, found.scores.pictures) == (0.2615, 2000)
    assert found.scores.log_loss.value == pytest.approx(2.236545790670759, rel=1e-5)
    assert found.after.ece.value == pytest.approx(0.14308233986217972, rel=1e-3)
    assert [one.threshold for one in found.sets] == pytest.approx(
        [0.09352658884841117, 0.08747984341586308, 0.08118189770568388], rel=1e-4
    )


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("run.json", {"format": "vitreous run 2"}, "its format is 'vitreous run 2'"),
        ("recipe.json", {"format": 3}, "written by a later version of vitreous (format 3;"),
    ],
)
def test_a_later_run_is_refused_in_one_line(file, change, words, tmp_path):
    shutil.copytree(FOLDER / "run", tmp_path / "run")
    path = tmp_path / "run" / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    recipe = read_recipe(FOLDER / "run" / "recipe.json")
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        train(recipe, tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_an_exported_file_of_version_1_says_how_it_is_used():
    fitting = vars(Preprocessing(size_px=(8, 8)))
    old = {"input": "tensors", "precision": "fp32", "fitting": json.loads(json.dumps(fitting)), "classes": ["a", "b"]}
    for loss, kind, calibration in (
        ("softmax", "classify", ClassCalibration(temperature=2.0, sets=((0.9, 0.1),))),
        ("sigmoid", "label", ManyCalibration(temperature=2.0)),
    ):
        found = Usage.read({**old, "loss": loss, "temperature": 2.0, "sets": [[0.9, 0.1]]}, "here")
        assert (found.reading.kind, found.reading.calibration) == (kind, calibration)
        assert found.fitting.size_px == (8, 8)
    with pytest.raises(UserError, match=r"here: written by a later version of vitreous \(format 3"):
        Usage.read({**old, "format": 3}, "here")
