"""What every objective promises, held on a tiny model and a few real pictures. A new one calls `keep_promises`."""

import json
from dataclasses import replace

import torch

from vitreous import settings
from vitreous.jobs.build import build_loop, build_objective, eval_batches
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.train import train
from vitreous.jobs.words import with_words
from vitreous.models import ViTSettings
from vitreous.recipes import finetune_recipe
from vitreous.recipes.recipe import Recipe
from vitreous.studies.grid import DecodedOnce
from vitreous.tasks.base import Task
from vitreous.training.devices import World
from vitreous.training.run import RunDirectory
from vitreous.weights import own
from vitreous.weights.trained import Trained

OPEN = DecodedOnce()  # the same pictures for all who promise
WORLD = World(rank=0, size=1, device=torch.device("cpu"))


def shrunk(recipe: Recipe, steps: int = 40, lr: float = 2e-3) -> Recipe:
    """The recipe on some embedded pictures, with a model of two small layers, for the CPU."""
    model = recipe.model
    if isinstance(model, ViTSettings):
        model = replace(model, picture_px=(28, 28), patch=7, width=32, depth=2, heads=2)
    return replace(
        recipe,
        data=replace(recipe.data, where="fashion", train_limit=320, val_fraction=0.25),
        model=model,
        optimizer=replace(recipe.optimizer, lr=lr),
        training=replace(
            recipe.training,
            steps=steps,
            batch_size=40,
            precision="fp32",
            compile=False,
            cuda_graph=False,
            log_every_steps=10,
            workers=0,
        ),
    )


def keep_promises(
    recipe: Recipe, tmp_path, falls_to: float = 0.95, finetune: bool = True, probe: bool = True
) -> list[dict[str, float]]:
    """Train it in one go and in two; fine-tune and probe what remains. Returns what was logged."""
    assert settings.from_json(Recipe, json.loads(json.dumps(settings.to_json(recipe)))) == recipe
    one, two = tmp_path / "one", tmp_path / "two"
    train(recipe, one, read_test=False, open_data=OPEN)
    rows = [row for row in RunDirectory(one).rows() if "loss" in row]
    assert rows[-1]["loss"] < falls_to * rows[0]["loss"], [row["loss"] for row in rows]

    # Stopped halfway, it goes on as if nothing had happened: teachers, queues and centres included.
    train(recipe, two, read_test=False, open_data=OPEN, until=recipe.training.steps // 2 + 3)
    train(recipe, two, read_test=False, open_data=OPEN)
    assert RunDirectory(two).rows() == RunDirectory(one).rows()
    (weights, _), (again, _) = (own.load_model(run / "model") for run in (one, two))
    assert weights.keys() == again.keys()
    assert all(torch.equal(weights[name], again[name]) for name in weights)

    # No gradient is forgotten, and the whole of it is one graph: torch.compile and CUDA graphs need that.
    recipe, splits, _ = with_words(recipe, OPEN(recipe.data), WORLD)
    objective = build_objective(recipe, splits.train.classes)
    objective.look(eval_batches(splits.train, recipe, WORLD))
    loop = build_loop(recipe, splits, objective, WORLD)
    batch = next(iter(loop.data.batches(0, 1)))
    whole = torch.compile(objective, backend="eager", fullgraph=True, dynamic=False)
    losses = whole(batch, torch.tensor(0.5))
    losses["loss"].backward()
    assert all(number.ndim == 0 for number in losses.values())
    lacking = [name for name, p in objective.named_parameters() if p.requires_grad and p.grad is None]
    assert not lacking, lacking

    # What remains is a model like any other.
    trained = Trained.load(one)
    if probe:
        (probed,) = evaluate(one, split="val", probes=("knn",), open_data=OPEN).probes
        assert probed.knn[0].accuracy.value > 0.2  # chance is 0.1
    assert (trained.card.task is not None) == isinstance(objective.task, Task)
    if finetune:
        changes = {"training.steps": "2", "training.batch_size": "20", "picture_px": "28"}
        changes |= {"data.train_limit": "80", "data.val_fraction": "0.25"}  # of the pictures that are open
        tuned = finetune_recipe(str(one), "fashion", changes)
        assert "val" in train(tuned, tmp_path / "tuned", read_test=False, open_data=OPEN)
    return rows
