"""The two scripts that look into runs without labels: what they are given wrong, and which weights they show."""

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

import vitreous
from promises import shrunk
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import SwinSettings, ViTSettings
from vitreous.objectives.mae import MAESettings
from vitreous.objectives.simmim import SimMIMSettings
from vitreous.recipes.masked import cifar10_mae, cifar10_simmim
from vitreous.training.averages import AverageSettings
from vitreous.training.run import RunDirectory
from vitreous.weights import own
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

VIT = ViTSettings(picture_px=(16, 16), patch=8, width=16, depth=1, heads=2)


@pytest.fixture
def script(monkeypatch):
    """A script of benchmarks/ as a module, and its command line."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))

    def opened(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        return import_module(name)

    return opened


def test_attention_without_its_pictures(script, tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"oxford_pets/test.parquet: no such file.*or give --data rendered:size"):
        script("dino_attention", "run").main()


def test_attention_makes_its_folder(script, tmp_path, capsys):
    torch.manual_seed(0)
    weights = VIT.build().state_dict(prefix="encoder.")
    Trained(Card(model=VIT, preprocessing=Preprocessing(size_px=(16, 16))), weights, "").save(tmp_path / "run")
    out = tmp_path / "no" / "such" / "x.json"
    script("dino_attention", tmp_path / "run", "--data", "rendered:size", "--num", 2, "--out", out).main()
    assert json.loads(out.read_text())["pictures"] == 2


@pytest.mark.parametrize("name", ["dino_attention", "redrawn"])
def test_no_pictures(script, name, tmp_path):
    with pytest.raises(UserError, match="--num is 0: it must be at least 1"):
        script(name, tmp_path / "run", "--num", 0, "--out", tmp_path / "out").main()


@pytest.mark.parametrize("kind", ["none", "ema"])
def test_averaged_weights_are_drawn_where_there_are_some(script, tmp_path, monkeypatch, kind):
    recipe = replace(
        shrunk(cifar10_mae(), steps=4, lr=0.1),
        objective=MAESettings(decoder_depth=1, decoder_width=16, decoder_heads=2),
        average=AverageSettings(kind=kind),
    )
    vitreous.train(recipe, tmp_path / "run", read_test=False)
    redrawn, used = script("redrawn", tmp_path / "run", "--num", 2, "--out", tmp_path / "out"), {}

    def watched(objective, *rest, rows=redrawn.rows):
        used.update({name: value.clone() for name, value in objective.encoder.state_dict(prefix="encoder.").items()})
        return rows(objective, *rest)

    monkeypatch.setattr(redrawn, "rows", watched)
    redrawn.main()
    assert (tmp_path / "out" / "redrawn_run.png").is_file()
    left, raw = own.load_model(tmp_path / "run" / "model")[0], RunDirectory(tmp_path / "run").latest_checkpoint()
    assert used.keys() == left.keys() and all(torch.equal(used[name], left[name]) for name in left)
    same = all(torch.equal(raw.tensors["objective"][name], left[name]) for name in left)
    assert same == (kind == "none")


def test_squares_that_simmim_painted(script, tmp_path):
    swin = SwinSettings(picture_px=(28, 28), patch=4, width=8, depths=(1,), heads=(1,), window=4)
    recipe = replace(shrunk(cifar10_simmim(picture_px=28), steps=1), model=swin, objective=SimMIMSettings(mask_px=4))
    vitreous.train(recipe, tmp_path / "run", read_test=False)
    script("redrawn", tmp_path / "run", "--num", 2, "--out", tmp_path / "out").main()
    assert (tmp_path / "out" / "redrawn_run.png").is_file()
