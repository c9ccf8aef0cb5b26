"""What benchmarks/speedrun.py times is the run that `train` makes: its warm-up leaves no trace, whatever the seed."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import torch

from vitreous.data.sources import DataSettings
from vitreous.jobs.train import train
from vitreous.models import ViTSettings
from vitreous.recipes.cifar10 import cifar10_vit
from vitreous.weights.trained import Trained

spec = importlib.util.spec_from_file_location("speedrun", Path(__file__).parents[2] / "benchmarks" / "speedrun.py")
speedrun = importlib.util.module_from_spec(spec)
spec.loader.exec_module(speedrun)


def recipe(seed=0):
    own = cifar10_vit(epochs=2)
    return replace(
        own,
        data=DataSettings(where="fashion", train_limit=80, val_fraction=0.01),
        model=ViTSettings(picture_px=(28, 28), patch=14, width=16, depth=2, heads=2, stochastic_depth=0.2),
        training=replace(own.training, batch_size=20, seed=seed, device="cpu", compile=False),
    )


def test_it_times_what_train_does(tmp_path):
    splits = recipe().data.build()
    runner = speedrun.Runner(recipe(), splits)
    for seed in (3, 0):  # and what one run leaves is nothing to the next
        found = runner.run(seed, "val")
        results = train(recipe(seed), tmp_path / str(seed), read_test=False, open_data=lambda _: splits)
        assert found["accuracy"] == results["val"]["accuracy"] and found["steps"] == results["steps"]
        with runner.loop.average.swapped():
            ours = runner.loop.objective.task.state_dict()
            expected = Trained.load(tmp_path / str(seed)).weights
            assert all(torch.equal(ours[name], value) for name, value in expected.items())


def test_a_target_is_reached_by_the_mean_of_the_seeds():
    runs = [
        {"epochs": epochs, "seed": seed, "seconds": 10.0 * epochs + seed, "accuracy": accuracy}
        for epochs, accuracies in ((1, (0.91, 0.92)), (2, (0.95, 0.935)))
        for seed, accuracy in enumerate(accuracies)
    ]
    short, long = speedrun.summary(runs)
    assert (short["reaches"], long["reaches"]) == ([0.90], [0.90, 0.94])
    assert (short["seconds"], long["seconds"]) == (10.5, 20.5)
