"""A checkpoint as a model: the one that its run would have saved if it had ended there."""

import re
from pathlib import Path

from vitreous.jobs.build import build_objective, class_order
from vitreous.jobs.train import trained
from vitreous.jobs.words import begun_with, for_tokenizer
from vitreous.recipes.recipe import read_recipe
from vitreous.storage import atomic
from vitreous.tasks import ImageTextSettings
from vitreous.training.checkpoint import Checkpoints
from vitreous.weights.trained import Trained

NAME = re.compile(r"step-(\d+)")


def is_checkpoint(folder: Path) -> bool:
    return NAME.fullmatch(folder.name) is not None and (folder.parents[1] / "recipe.json").is_file()


def model_at(folder: Path) -> Trained:
    """The model of runs/x/checkpoints/step-00000123, saved by any number of ranks; averaged if the run averages."""
    match, run = NAME.fullmatch(folder.name), folder.parents[1]
    assert match is not None
    saved = Checkpoints(folder.parent).read(int(match[1]))
    recipe = read_recipe(run / "recipe.json").located()
    tokenizer = None
    if isinstance(recipe.objective, ImageTextSettings):
        tokenizer = begun_with(run)
        recipe = for_tokenizer(recipe, recipe.objective, tokenizer)
    classes = class_order(recipe, tuple(atomic.read_json(run / "pictures.json")["train"]["classes"]))
    objective = build_objective(recipe, classes)
    averages = {name: tensor for name, tensor in saved.tensors["average"].items() if name != "updates"}
    objective.load_state_dict({**saved.tensors["objective"], **averages})
    return trained(recipe, objective.eval(), classes, str(folder), tokenizer)
