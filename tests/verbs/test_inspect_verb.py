"""vitreous inspect, from a run to the files it leaves."""

import argparse
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.inspection.rollout import rollout
from vitreous.jobs.train import train
from vitreous.models import ResNetSettings, SwinSettings, ViTSettings
from vitreous.prediction.predictor import Predictor
from vitreous.recipes.fashion import fashion_vit
from vitreous.training.optim import SGDSettings
from vitreous.verbs import inspect as verb

FILES = {f"{name}.{kind}" for name in ("figure6", "figure7", "layers", "heads", "receptive") for kind in ("png", "svg")}
MODEL = ViTSettings(picture_px=(16, 16), patch=4, width=16, depth=2, heads=2, num_registers=1)


def trained(where, folder, model=MODEL):
    recipe = fashion_vit()
    recipe = replace(
        recipe,
        data=DataSettings(where=str(folder), val_fraction=0.0),
        model=model,
        optimizer=SGDSettings(lr=0.05),
        training=replace(recipe.training, steps=2, batch_size=8, log_every_steps=1, evaluate_every_epochs=0),
    )
    train(recipe, where)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Pictures in two classes, and a run trained on them."""
    folder = tmp_path_factory.mktemp("made")
    random = np.random.default_rng(0)
    for part in ("train", "test"):
        for name in ("dark", "light"):
            (folder / "data" / part / name).mkdir(parents=True)
            for number in range(8):
                pixels = random.integers(0, 128, (20, 24, 3)) + (127 if name == "light" else 0)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / "data" / part / name / f"{number}.png")
    trained(folder / "run", folder / "data")
    return folder


def run(*words):
    parser = argparse.ArgumentParser()
    verb.add(parser)
    verb.run(parser.parse_args([str(word) for word in words]))


def test_pictures_of_the_runs_own_data(made, tmp_path, capsys):
    run(made / "run", "--out", tmp_path, "--pictures", 12)
    numbers = np.load(tmp_path / "numbers.npz")
    assert {path.name for path in tmp_path.iterdir()} == FILES | {"numbers.npz"}
    assert numbers["distances_px"].shape == (12, 2, 2) and numbers["maps"].shape == (9, 4, 4)
    assert set(numbers["names"]) == {"dark", "light"} and numbers["num_prefix"] == 2
    assert f"{tmp_path / 'figure6'}.png" in capsys.readouterr().out


def test_given_pictures_and_one_that_is_none(made, tmp_path, capsys):
    bad, first = tmp_path / "bad.png", made / "data/test/dark/3.png"
    bad.write_bytes(b"no picture")
    run(made / "run", first, bad, made / "data/test/light", "--out", tmp_path / "out")
    numbers = np.load(tmp_path / "out/numbers.npz")
    assert "bad.png: skipped, not a picture" in capsys.readouterr().err
    assert list(numbers["names"][:3]) == ["3.png", "0.png", "1.png"] and len(numbers["names"]) == 9
    predictor = Predictor.load(made / "run")
    expected = rollout(predictor.task.encoder, predictor.inputs(first))[:, 2:].reshape(4, 4)
    torch.testing.assert_close(torch.from_numpy(numbers["maps"][0]), expected)


def test_a_layer_a_head_and_a_token(made, tmp_path):
    run(made / "run", made / "data/test/dark/0.png", "--out", tmp_path, "--layer", 1, "--head", 2, "--token", "3,0")
    numbers = np.load(tmp_path / "numbers.npz")
    np.testing.assert_array_equal(numbers["maps"], numbers["heads"][:, 0, 1])


def test_what_is_refused(made, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"")
    for words, message in {
        ("--layer", 1, "--method", "rollout"): "are for raw",
        ("--token", "left"): "--token left: give a prefix token's number",
        ("--token", "9,9"): "no patch",
        ("--head", 3): "no head 3",
        ("--pictures", 0): "at least 1",
        (tmp_path / "nowhere.png",): "no such picture",
        (bad,): "none of the given pictures",
        (tmp_path / "bad.png", tmp_path): "none of the given pictures",
    }.items():
        with pytest.raises(UserError, match=message):
            run(made / "run", *words, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pictures_are_spread_evenly():
    assert verb._spread(list(range(100)), 5) == [0, 25, 50, 74, 99]
    assert verb._spread([4, 5], 3) == [4, 5] and verb._spread([4, 5], 1) == [4]


def test_a_network_without_attention_beside_one_that_has_some(made, tmp_path, capsys):
    trained(tmp_path / "run", made / "data", ResNetSettings(depths=(1,), base_width=8, picture_px=(16, 16)))
    run(tmp_path / "run", "--out", tmp_path / "out", "--compare", made / "run")
    names = {"figure7", "receptive", "compared"}
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == names
    said = capsys.readouterr().out
    assert "Not drawn: this model has no attention over patches" in said
    assert "Half of what a map depends on lies within stage 1: " in said
    assert np.load(tmp_path / "out/numbers.npz")["receptive_stage_1"].shape == (16, 16)
    text = (tmp_path / "out/compared.svg").read_text()
    assert "stage 1: " in text and "layer 2: " in text and "ViT of" in text
    with pytest.raises(UserError, match="this model has no attention over patches"):
        run(tmp_path / "run", "--layer", 1, "--out", tmp_path / "asked")


def test_windows(made, tmp_path):
    model = SwinSettings(picture_px=(24, 24), patch=2, width=8, depths=(2, 1), heads=(1, 2), window=4)
    trained(tmp_path / "run", made / "data", model)
    run(tmp_path / "run", made / "data/test/dark/0.png", "--out", tmp_path / "out", "--layer", 2, "--token", "3,0")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES | {"numbers.npz"}
    numbers = np.load(tmp_path / "out/numbers.npz")
    seen = np.argwhere(numbers["maps"][0])  # the patch's window, which is shifted by two
    assert seen.min(axis=0).tolist() == [2, 0] and seen.max(axis=0).tolist() == [5, 1]
    assert numbers["heads_layer_3"].shape == (1, 2, 6, 6)
    with pytest.raises(UserError, match="look at one layer instead"):
        run(tmp_path / "run", "--method", "rollout", "--out", tmp_path / "asked")
