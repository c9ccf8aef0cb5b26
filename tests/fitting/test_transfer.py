"""Which encoder a fit starts from, and that it does: with two small ones in place of those that ship."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from test_plan import CPU, report

from scenes import write_scenes
from vitreous.data.transforms import Preprocessing
from vitreous.fitting import starts, transfer
from vitreous.fitting.first import FIRST_MODEL, ON_PIXELS
from vitreous.fitting.fit import fit
from vitreous.fitting.transfer import Scratch, Start, reconsidered, starting
from vitreous.fitting.wishes import Wishes
from vitreous.models import ViTSettings
from vitreous.prediction.predictor import Predictor
from vitreous.weights import shipped
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained


@pytest.fixture
def encoders(tmp_path, monkeypatch):
    folder = tmp_path / "encoders"
    for name, width in (("vitreous-s", 24), ("vitreous-xs", 12)):
        torch.manual_seed(0)
        model = ViTSettings(
            picture_px=(64, 64), patch=16, width=width, depth=1, heads=2, pool="mean", num_prefix=0, positions="sincos"
        )
        weights = {name: value.half() for name, value in model.build().state_dict(prefix="encoder.").items()}
        Trained(Card(model=model, preprocessing=Preprocessing(size_px=(64, 64))), weights, name).save(folder / name)
    monkeypatch.setattr(shipped, "ENCODERS", folder)
    return folder


def start(data, monkeypatch, picture_s, **wishes):
    """As if a picture of 64 px took so long."""
    monkeypatch.setattr(transfer, "_timed", lambda trained, hardware: picture_s[trained.where])
    return starting(data, CPU, Wishes(**{"changes": {}, **wishes}), 0.0, print)


@pytest.mark.parametrize(
    ("side", "ms", "expected"),
    [
        (224, 1, ("vitreous-s", 128)),
        (224, 8, ("vitreous-s", 64)),
        (224, 100, ("vitreous-xs", 48)),
        (28, 1, ("vitreous-s", 64)),
    ],
)
def test_the_largest_that_the_time_allows(side, ms, expected, encoders, monkeypatch):
    pace = {"vitreous-s": ms / 1000, "vitreous-xs": ms / 4000}
    found = start(report(side=side), monkeypatch, pace, seconds=300.0)
    assert (found.where, found.picture_px[0]) == expected and found.is_chosen and len(found.digest) == 64


@pytest.mark.parametrize(("seconds", "expected"), [(60.0, "vitreous-s"), (25.0, "vitreous-xs"), (9.0, None)])
def test_the_features_of_a_first_model_have_to_fit_into_the_time(seconds, expected, encoders, monkeypatch):
    """200 training pictures, but 1,000 to validate on, and the report."""
    found = start(report(num=200), monkeypatch, {"vitreous-s": 0.02, "vitreous-xs": 0.005}, seconds=seconds)
    assert (found.where if isinstance(found, Start) else None) == expected
    if expected is None:
        assert "9 s are left; --minutes gives more" in found.why


@pytest.mark.parametrize("picture_s", [0.01, 0.02, 0.04])
def test_however_large_the_test_part_is_an_encoder_is_tried(picture_s, encoders, monkeypatch):
    """Half of 90 s is gone, and 10,000 test pictures alone would take longer than all of it."""
    pace = {"vitreous-s": 3 * picture_s, "vitreous-xs": picture_s}
    train, val, test = report(num=4500, side=32).parts
    parts = (train, replace(val, pictures=500), replace(test, pictures=10_000))
    found = start(report(side=32, parts=parts), monkeypatch, pace, seconds=45.0)
    assert (found.where, found.picture_px[0]) == ("vitreous-xs", 48)


def test_time_for_a_part_of_the_training_pictures_takes_a_part(encoders, tmp_path, monkeypatch, capsys):
    """As if a picture took 50 ms: 40 % of the time that is left is not enough for all."""
    root = write_scenes(tmp_path / "pictures", {"dark": 150, "light": 150}, size=(20, 20))
    monkeypatch.setattr(transfer, "_timed", lambda *given: 0.05)
    monkeypatch.setattr(transfer, "LEAST_EMBEDDED", 20)
    monkeypatch.setattr("vitreous.fitting.stages.Stages.__call__", lambda clock: 40.0)
    monkeypatch.setattr("vitreous.fitting.class_first.MOST_S", 0.2)
    found = fit(str(root), tmp_path / "out", minutes=1.0, changes={"training.device": "cpu"})
    told = next(one for one in found.plan.choices if one.name == "first model")
    assert found.first.start == "vitreous-xs" and told.value == "a head on 80 of 243 training pictures"
    assert told.value in capsys.readouterr().out
    assert "of 243 training pictures" in (tmp_path / "out" / "plan.json").read_text()


def test_trouble_with_the_hub_is_said_with_what_a_fit_goes_on_with(encoders, monkeypatch, capsys):
    away = starts.Found(None, "no start from the hub: it is away", "the hub is away")
    monkeypatch.setattr(transfer, "best_start", lambda work, say: away)
    start(report(), monkeypatch, {"vitreous-s": 0.001, "vitreous-xs": 0.001})
    assert capsys.readouterr().out == "the hub is away; going on with vitreous-s\n"


def test_what_the_user_says_goes(encoders, monkeypatch):
    pace = {"vitreous-s": 0.001, "vitreous-xs": 0.001}
    assert isinstance(start(report(), monkeypatch, pace, start="none"), Scratch)
    assert isinstance(start(report(), monkeypatch, pace, changes={"model.width": "16"}), Scratch)
    given = start(report(), monkeypatch, pace, start="vitreous-xs", changes={"model.picture_px": "80,80"})
    assert (given.where, given.picture_px, given.is_chosen) == ("vitreous-xs", (80, 80), False)


def test_features_that_tell_no_more_than_pixels_are_no_start():
    encoder = Start(where="vitreous-s", why="", digest="", picture_px=(64, 64), picture_s=0.01, is_chosen=True)
    assert isinstance(reconsidered(encoder, 0.86, 0.85, report(), 900.0), Scratch)
    assert reconsidered(encoder, 0.95, 0.85, report(), 900.0) is encoder
    few = report(num=500)
    assert reconsidered(encoder, 0.86, 0.85, few, 900.0) is encoder, "too few pictures to learn better ones from"
    given = replace(encoder, is_chosen=False)
    assert reconsidered(given, 0.86, 0.85, report(), 900.0) is given


def test_features_that_cannot_be_fine_tuned_in_the_time_have_to_tell_more():
    encoder = Start(where="vitreous-s", why="", digest="", picture_px=(64, 64), picture_s=0.003, is_chosen=True)
    clothes = (0.871, 0.821, report(num=10_800))
    assert isinstance(reconsidered(encoder, *clothes, 180.0), Scratch), "not two passes"
    assert reconsidered(encoder, *clothes, 300.0) is encoder
    assert reconsidered(encoder, 0.90, 0.40, report(num=10_800), 10.0) is encoder, "far ahead of the pixels"


def test_a_fit_of_a_few_pictures_in_no_time_is_a_model(encoders, tmp_path, capsys):
    """Five pictures per class, and less time than reading them takes: a linear model of the pixels is delivered."""
    root = write_scenes(tmp_path / "pictures", {"dark": 5, "grey": 5, "light": 5}, size=(30, 20))
    found = fit(str(root), tmp_path / "out", minutes=0.01, changes={"training.device": "cpu"})
    assert not found.plan.trains and found.results["steps"] == 0
    assert "No further training" in (said := capsys.readouterr().out) and "Training on" not in said
    assert [one.name for one in found.candidates] == [ON_PIXELS] and found.candidates[0].is_kept
    assert "features of vitreous-xs would take about" in found.plan.choices[1].reason
    assert Predictor.load(tmp_path / "out")(root / "dark" / "0000.png").best in ("dark", "grey", "light")
    again = fit(str(root), tmp_path / "out", minutes=0.01, changes={"training.device": "cpu"})
    assert again.resumed and again.evaluation.to_json() == found.evaluation.to_json()


def test_a_loss_that_is_no_number_leaves_the_first_model(encoders, tmp_path, capsys):
    root = write_scenes(tmp_path / "pictures", {"dark": 40, "light": 40}, size=(30, 20))
    changes = {"training.device": "cpu", "training.steps": "6", "optimizer.lr": "1e38", "training.log_every_steps": "1"}
    found = fit(str(root), tmp_path / "out", changes=changes)
    assert "training was given up: the loss or its gradient became NaN" in capsys.readouterr().out
    assert found.results["steps"] == 0
    assert [(one.name, one.is_kept) for one in found.candidates] == [(ON_PIXELS, False), (FIRST_MODEL, True)]
    assert found.first.start == "vitreous-s" and found.plan.choices[1].value.startswith("vitreous-s (sha256 ")


SLOW_FIT = """
import sys, time
from pathlib import Path
from vitreous.weights import shipped
shipped.ENCODERS = Path(sys.argv[3])
from vitreous.fitting import fit
from vitreous.training.loop import Loop
step = Loop.step
Loop.step = lambda self, *inputs: (step(self, *inputs), time.sleep(0.5))[0]
fit.fit(sys.argv[1], sys.argv[2], changes={"training.device": "cpu", "training.steps": "1000"})
"""


def test_killed_while_it_is_fine_tuned_there_is_a_model(encoders, tmp_path):
    root, out = write_scenes(tmp_path / "pictures", {"dark": 30, "light": 30}, size=(30, 20)), tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", SLOW_FIT, str(root), str(out), str(encoders)])
    try:
        deadline = time.monotonic() + 120
        while not (out / "environment.json").is_file() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    assert not (out / "results.json").exists()
    recipe = json.loads((out / "recipe.json").read_text())
    assert recipe["start"] == str(out / "first") and recipe["start_head"]
    assert Predictor.load(out)(root / "dark" / "0000.png").best == "dark"
