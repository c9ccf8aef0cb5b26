"""bfloat16 on a CPU, which `fit` takes where there are instructions for it: learns alike, and resumes exactly."""

from dataclasses import replace

import pytest
import torch

from vitreous.jobs.train import train
from vitreous.models import ViTSettings
from vitreous.recipes.fashion import fashion_vit
from vitreous.training.run import RunDirectory
from vitreous.weights import own


def recipe(precision):
    plain = fashion_vit()
    return replace(
        plain,
        data=replace(plain.data, train_limit=300, val_fraction=0.1),
        model=ViTSettings(picture_px=(28, 28), patch=4, width=32, depth=2, heads=2),
        training=replace(plain.training, steps=30, batch_size=30, precision=precision, log_every_steps=10, workers=0),
    )


def test_stopped_and_resumed_it_is_the_same_run_and_it_learns_as_in_float32(tmp_path):
    for name, precision, *stops in (("fp32", "fp32"), ("one", "bf16"), ("two", "bf16", 13)):
        for until in (*stops, None):
            train(recipe(precision), tmp_path / name, read_test=False, until=until)
    rows = {name: RunDirectory(tmp_path / name).rows() for name in ("fp32", "one", "two")}
    assert rows["one"] == rows["two"]
    (weights, _), (again, _) = (own.load_model(tmp_path / name / "model") for name in ("one", "two"))
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    losses, exact = ([row["loss"] for row in rows[name] if "loss" in row] for name in ("one", "fp32"))
    assert losses[-1] < 0.95 * losses[0]
    assert losses == pytest.approx(exact, rel=0.02) and losses != exact
