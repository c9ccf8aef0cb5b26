"""A checkpoint becomes a model, averaged where its run keeps averages. (In shares: training/test_training_ranks.)"""

from dataclasses import replace

import pytest
import torch

import vitreous
from vitreous import train
from vitreous.conversion.convert import convert
from vitreous.errors import UserError
from vitreous.jobs.checkpoints import is_checkpoint
from vitreous.recipes import find_recipe
from vitreous.training.averages import AverageSettings
from vitreous.weights import own


def test_the_last_one_is_what_the_run_left(tmp_path):
    small = {"model.width": "16", "model.depth": "1", "model.heads": "2", "training.batch_size": "8"}
    recipe = find_recipe("fashion_vit", {**small, "training.steps": "4", "data.train_limit": "40"})
    recipe = replace(recipe, average=AverageSettings(kind="ema", factor=0.5))
    train(recipe, tmp_path / "run", read_test=False)
    folder = tmp_path / "run" / "checkpoints" / "step-00000004"
    assert is_checkpoint(folder) and not is_checkpoint(tmp_path / "run" / "model")
    convert(str(folder), tmp_path / "model")
    left, made = own.load_model(tmp_path / "run" / "model"), own.load_model(tmp_path / "model")
    assert made[1] == left[1]
    assert left[0].keys() == made[0].keys()
    assert all(torch.equal(made[0][name], tensor) for name, tensor in left[0].items())
    with pytest.raises(UserError, match=r"a checkpoint, not a model; `vitreous convert .*step-00000004 OUT`"):
        vitreous.load(folder)
    with pytest.raises(UserError, match="convert it to vitreous first"):
        convert(str(folder), tmp_path / "other", picture_px=56)
