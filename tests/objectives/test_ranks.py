"""Objectives that compare or count the samples of a batch: two ranks, real processes, learn what one does."""

import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from boxes import write_boxes
from captions import draw_captions, shrunk_words
from promises import WORLD, shrunk
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.jobs.build import build_loop, build_objective
from vitreous.jobs.train import train
from vitreous.models import ViTSettings
from vitreous.recipes import RECIPES
from vitreous.recipes.segment import rendered_segmenter
from vitreous.settings import save
from vitreous.tasks.mask_loss import PointSettings
from vitreous.tasks.mask_queries import MaskQuerySettings, PixelSettings
from vitreous.tasks.segment import SegmentSettings
from vitreous.training.loop import MemorySettings
from vitreous.training.optim import SGDSettings
from vitreous.training.run import RunDirectory

# A line a recipe, with what makes the heads of its objective small.
COMPARING = {
    "cifar10_simclr": {"hidden": 32},
    "cifar10_mocov3": {"hidden": 32, "out": 16},
    "cifar10_byol": {"hidden": 32, "out": 16},
}
MASKS = {"mask2former": "mask2former", "eomt": "eomt"}
WORDS = {"rendered_clip": {}, "flickr8k_siglip": {"chunk": 8}}  # of captions, which are drawn on the spot

DATA = DataSettings(where="fashion", train_limit=120)

# What every rank runs: one pair of processes for all recipes.
RANK = """
import sys
from pathlib import Path
from vitreous import settings
from vitreous.jobs.train import train
from vitreous.recipes.recipe import Recipe
folder = Path(sys.argv[1])
recipes = {path.stem: settings.load(Recipe, path) for path in sorted(folder.glob("*.json"))}
opened = {recipe.data: recipe.data.build() for recipe in recipes.values()}
for name, recipe in recipes.items():
    train(recipe, folder / "two" / name, read_test=False, open_data=opened.__getitem__)
"""


def tiny_words(name, table):
    recipe = shrunk_words(RECIPES[name](), table, steps=6, **WORDS[name])
    training = replace(recipe.training, batch_size=24, log_every_steps=1)
    return replace(recipe, optimizer=SGDSettings(lr=0.1), training=training)


def tiny(name):
    recipe = shrunk(RECIPES[name](), steps=6)
    crops = [replace(view, size_px=(14, 14)) if view.size_px else view for view in recipe.more_views]
    return replace(
        recipe,
        data=DATA,
        more_views=tuple(crops),
        objective=replace(recipe.objective, **COMPARING[name]),
        optimizer=SGDSettings(lr=0.02),  # the others make much of a rounding error where a gradient is small
        training=replace(recipe.training, batch_size=24, log_every_steps=1),
    )


def tiny_segmenter(where):
    """Pixels count by how many are labelled on all ranks, which see different numbers of them."""
    recipe = rendered_segmenter(start=None)
    return replace(
        recipe,
        data=DataSettings(where=where, val_fraction=0.0, test_fraction=0.0),
        model=ViTSettings(picture_px=(32, 40), patch=8, width=16, depth=1, heads=2, pool="mean", num_prefix=0),
        objective=SegmentSettings(decoder="linear", class_weights=(1.0, 4.0, 2.0)),
        optimizer=SGDSettings(lr=0.02),
        training=replace(recipe.training, epochs=1.0, steps=6, batch_size=24, log_every_steps=1, workers=0),
    )


def tiny_masks(decoder, where):
    """So do masks and classes."""
    sizes = {"queries": 5, "width": 16, "heads": 2, "mlp_width": 16, "decoder_depth": 1, "blocks": 1}
    pixel = PixelSettings(mask_width=16, mlp_width=16, depth=1, looks=2)
    points = PointSettings(number=32)
    objective = MaskQuerySettings(decoder=decoder, **sizes, pixel=pixel, points=points)
    return replace(tiny_segmenter(where), objective=objective, optimizer=SGDSettings(lr=0.002))


def start_ranks(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(folder)],
            env=shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


@pytest.fixture(scope="module")
def splits():
    return DATA.build()


@pytest.fixture(scope="module")
def runs(tmp_path_factory, splits):
    """The folder of all runs, of one rank and of two."""
    folder = tmp_path_factory.mktemp("ranks")
    table = draw_captions(folder / "captioned")
    recipes = {name: tiny(name) for name in COMPARING} | {name: tiny_words(name, table) for name in WORDS}
    where = str(write_boxes(folder / "boxes", 48))
    recipes |= {name: tiny_masks(decoder, where) for name, decoder in MASKS.items()}
    recipes["segmenter"] = tiny_segmenter(where)
    for name, recipe in recipes.items():
        save(recipe, folder / f"{name}.json")
    ranks = start_ranks(folder)
    try:
        for name, recipe in recipes.items():
            open_data = (lambda _: splits) if name in COMPARING else DataSettings.build
            train(recipe, folder / "one" / name, read_test=False, open_data=open_data)
        ended = [process.communicate(timeout=100) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], ended
    return folder


@pytest.mark.parametrize("name", [*COMPARING, *WORDS, *MASKS, "segmenter"])
def test_two_ranks_equal_one(runs, name):
    one, two = ([row for row in RunDirectory(runs / n / name).rows() if "loss" in row] for n in ("one", "two"))
    assert [row["step"] for row in one] == [row["step"] for row in two] == [1, 2, 3, 4, 5, 6]
    assert one[0]["loss"] != pytest.approx(one[-1]["loss"], abs=1e-4)  # something was learned, so gradients count
    # Where a query may look is decided by the sign of a number, which rounding turns near zero: after the first step.
    losses, gradients = (2, 1) if name == "mask2former" else (6, 6)
    for expected, found in zip(one[:losses], two[:losses], strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6, abs=1e-5), expected["step"]
    for expected, found in zip(one[:gradients], two[:gradients], strict=True):
        assert found["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-4), expected["step"]


@pytest.mark.parametrize("name", ["cifar10_simclr", "cifar10_mocov3", "cifar10_byol"])
def test_a_batch_is_neither_cut_nor_of_one_sample(splits, name):
    recipe = tiny(name)
    for changes in ({"memory": MemorySettings(accumulate=2)}, {"batch_size": 1}):
        cut = replace(recipe, training=replace(recipe.training, **changes))
        objective = build_objective(cut, splits.train.classes)
        with pytest.raises(UserError, match="compares the samples of a batch") as raised:
            build_loop(cut, splits, objective, WORLD)
        assert "\n" not in str(raised.value)
