"""Teach: run a recipe's teacher on every view, and store its predictions in a folder."""

from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from vitreous.batch import Batch
from vitreous.jobs.build import build_loader, with_batch_that_fits
from vitreous.recipes.recipe import Recipe
from vitreous.teaching import stored
from vitreous.teaching.lessons import load_teacher, storable, teacher_of, views_of
from vitreous.training.devices import World, autocast
from vitreous.weights.trained import found_at


def teach(recipe: Recipe, out: str | Path, epochs: int | None = None, samples: int = stored.SAMPLES) -> dict[str, int]:
    """Run a recipe's teacher on every view of `epochs` epochs (default: all of the recipe's) and store its predictions;
    a folder that holds some already is completed. `samples`: how many per file."""
    objective, world, folder = storable(recipe), World.join(recipe.training.device), Path(out)
    found_at(teacher_of(recipe))  # before any picture is read
    train = recipe.data.build().train
    recipe = with_batch_that_fits(recipe, train, world)
    loader = build_loader(recipe, train, World(rank=0, size=1, device=world.device))  # every rank takes whole batches
    teacher = load_teacher(recipe, train.classes).to(world.device)
    whose = {"where": recipe.teacher, "fingerprint": int(teacher.fingerprint)}
    document = stored.about(views_of(recipe, train), whose, loader, samples)
    if epochs is None:
        epochs = -(-recipe.training.num_steps(loader.steps_per_epoch) // loader.steps_per_epoch)

    def ask(batch: Batch) -> Tensor:
        with torch.no_grad(), autocast(world.device, recipe.training.precision):
            return objective.kept(teacher(batch.images))

    with stored.claimed(folder, document) if world.is_first else nullcontext():
        world.wait()  # until the first has prepared the folder
        asked = torch.tensor(stored.store(folder, loader, ask, epochs, rank=world.rank, world=world.size)).double()
        asked = world.mean(asked)  # waits for the others, so that the folder stays claimed until all have ended
    views = epochs * loader.steps_per_epoch * loader.order.batch_size
    return {"epochs": epochs, "views": views, "asked": round(float(asked) * world.size)}
