"""A few drawn pictures with captions, as a table, for tests."""

import csv
from dataclasses import replace
from functools import cache

from PIL import Image

from vitreous.data.rendered_captions import Pairs
from vitreous.models import ViTSettings
from vitreous.recipes.recipe import Recipe

PX = 32


@cache
def pairs():
    return Pairs("val")


def draw_captions(folder, splits=(("train", 64), ("val", 16)), captions=3):
    """The path of a table: a row per caption."""
    folder.mkdir(parents=True, exist_ok=True)
    table, number = folder / "captions.csv", 0
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "caption", "split"])
        for split, num in splits:
            for _ in range(num):
                Image.fromarray(pairs().picture(number, PX)).save(folder / f"{number}.png")
                writer.writerows([f"{number}.png", text, split] for text in pairs().captions(number)[:captions])
                number += 1
    return table


def shrunk_words(recipe: Recipe, table, steps: int = 24, **changes) -> Recipe:
    """The recipe on such pictures, with towers of a layer each, for the CPU."""
    text = replace(recipe.objective.text, vocabulary=560, context=40, width=24, depth=1, heads=2)
    return replace(
        recipe,
        data=replace(recipe.data, where=str(table), test_fraction=0.0),
        start=None,
        model=ViTSettings(picture_px=(PX, PX), patch=8, width=24, depth=1, heads=2, pool="mean", num_prefix=0),
        objective=replace(recipe.objective, text=text, width=16, **changes),
        optimizer=replace(recipe.optimizer, lr=3e-3, layer_decay=1.0),
        training=replace(
            recipe.training,
            steps=steps,
            batch_size=32,
            precision="fp32",
            compile=False,
            cuda_graph=False,
            log_every_steps=6,
            evaluate_every_epochs=0,
            workers=0,
        ),
    )
