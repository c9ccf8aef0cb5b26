"""What the verbs do: train, fine-tune, evaluate. A recipe goes in, a run directory comes out."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitreous import settings
from vitreous.batch import Batch
from vitreous.data.loader import EvalLoader, TrainLoader
from vitreous.data.sources import DataSettings, Source, Splits
from vitreous.errors import UserError
from vitreous.evaluate.score import score
from vitreous.objectives.base import Objective
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.base import Task
from vitreous.train.devices import World, autocast
from vitreous.train.loop import Evaluate, Loop
from vitreous.train.run import RunDirectory
from vitreous.trained import Card, Trained


def train(recipe: Recipe, out: str | Path | None = None) -> dict[str, Any]:
    """Run a recipe to its end, from wherever its directory stands. Answers its results."""
    path = Path(out) if out is not None else Path("runs") / recipe.name
    if recipe.rates:
        return _train_at_best_rate(recipe, path)
    return _train(recipe, path, read_test=True)


def _train_at_best_rate(recipe: Recipe, path: Path) -> dict[str, Any]:
    """The paper's protocol (B.1.1): choose the rate on a held-out part of train, then train on all of it."""
    if recipe.data.val_fraction == 0:
        raise UserError(
            "a rate is chosen on a held-out part of train: give --data.val_fraction more than 0, or no --rates"
        )
    accuracies = {}
    for rate in recipe.rates:
        trial = replace(recipe, rates=(), optimizer=replace(recipe.optimizer, lr=rate))
        accuracies[rate] = _train(trial, path / f"rate-{rate:g}", read_test=False)["val"]["accuracy"]
        print(f"learning rate {rate:g}: {accuracies[rate]:.2%} on the held-out part", flush=True)
    best = max(accuracies, key=lambda rate: accuracies[rate])
    final = replace(
        recipe,
        rates=(),
        optimizer=replace(recipe.optimizer, lr=best),
        data=replace(recipe.data, val_fraction=0.0),
    )
    results = _train(final, path, read_test=True)
    return results | {"rate": best, "held_out_accuracies": {f"{rate:g}": value for rate, value in accuracies.items()}}


def _train(recipe: Recipe, path: Path, read_test: bool) -> dict[str, Any]:
    world = World.join(recipe.training.device)
    with RunDirectory(path, owner=world.is_first) as directory:
        finished = path / "results.json"
        if world.is_first:
            _claim(directory, recipe)
            if not finished.is_file():
                directory.write_environment()
        if finished.is_file():
            return json.loads(finished.read_text())  # type: ignore[no-any-return]
        splits = recipe.data.build()
        objective = build_objective(recipe, splits.train.classes).to(world.device)
        loop = build_loop(recipe, splits, objective, world)
        loop.run(directory, _validation(recipe, splits, world))
        results = _finish(recipe, directory, loop, splits, read_test)
        if world.is_first:
            finished.write_text(json.dumps(results, indent=2) + "\n")
    return results


def _claim(directory: RunDirectory, recipe: Recipe) -> None:
    """A run directory belongs to one recipe: the same one resumes, another is refused."""
    path = directory.path / "recipe.json"
    if not path.is_file():
        settings.save(recipe, path)
        return
    there, here = settings.fields(settings.load(Recipe, path)), settings.fields(recipe)
    values = {field.name: field.value for field in there}
    differing = [f"{f.name} {values.get(f.name)} there, {f.value} here" for f in here if values.get(f.name) != f.value]
    if differing:
        raise UserError(
            f"{directory.path} holds another run ({'; '.join(differing[:3])}). "
            "Give another --out, or the same settings to go on with it"
        )


def build_objective(recipe: Recipe, classes: tuple[str, ...]) -> Objective:
    torch.manual_seed(recipe.training.seed)
    encoder = Trained.load(recipe.start).encoder(recipe.model) if recipe.start else recipe.model.build()
    encoder.checkpointing = recipe.training.checkpointing
    return recipe.objective.build(encoder, classes)


def build_loop(recipe: Recipe, splits: Splits, objective: Objective, world: World) -> Loop:
    loader = TrainLoader(
        splits.train,
        recipe.augmentation,
        recipe.preprocessing,
        batch_size=recipe.training.batch_size,
        seed=recipe.training.seed,
        device=world.device,
        workers=recipe.training.workers,
        rank=world.rank,
        world=world.size,
    )
    return Loop(
        objective,
        loader,
        optimizer=recipe.optimizer.build(objective),
        schedule=recipe.schedule,
        average=recipe.average.build(objective),
        settings=recipe.training,
        world=world,
    )


def _validation(recipe: Recipe, splits: Splits, world: World) -> Evaluate | None:
    if splits.val is None:
        return None
    batches = eval_batches(splits.val, recipe, world)

    def evaluate(objective: Objective) -> dict[str, float]:
        return score(objective, batches) if isinstance(objective, Task) else {}

    return evaluate


def eval_batches(source: Source, recipe: Recipe, world: World) -> Iterable[Batch]:
    return EvalLoader(
        source,
        recipe.preprocessing,
        batch_size=min(recipe.training.batch_size, 512),
        device=world.device,
        workers=recipe.training.workers,
    )


def _finish(recipe: Recipe, directory: RunDirectory, loop: Loop, splits: Splits, read_test: bool) -> dict[str, Any]:
    """Keep the model (averaged where averages were kept) and read the test set, once."""
    objective, world = loop.objective.eval(), loop.world
    results: dict[str, Any] = {
        "recipe": recipe.name,
        "steps": loop.num_steps,
        "parameters": sum(p.numel() for p in objective.parameters()),
    }
    with loop.average.swapped(), torch.no_grad(), autocast(world.device, recipe.training.precision):
        if isinstance(objective, Task):
            if splits.val is not None:
                results["val"] = score(objective, eval_batches(splits.val, recipe, world))
            if read_test and splits.test is not None:
                results["test"] = score(objective, eval_batches(splits.test, recipe, world))
        if world.is_first:
            trained(recipe, objective, splits.train.classes, str(directory.path)).save(directory.path / "model")
    return results | directory.timing()


def trained(recipe: Recipe, objective: Objective, classes: tuple[str, ...], where: str) -> Trained:
    """What a run leaves behind: a task with its head, or the encoder alone."""
    is_task = isinstance(objective, Task)
    weights = objective.state_dict() if is_task else objective.encoder.state_dict(prefix="encoder.")
    card = Card(
        model=recipe.model,
        task=recipe.objective if is_task else None,
        classes=classes if is_task else (),
        preprocessing=recipe.preprocessing,
    )
    return Trained(card, weights, where)


def evaluate(where: str | Path, data: str | None = None, split: str = "test", device: str = "auto") -> dict[str, float]:
    """A trained model's scores on a split of its own data, or of other data with the same classes."""
    model = Trained.load(where)
    world = World.join(device)
    recipe_path = Path(where) / "recipe.json"
    if data is None and not recipe_path.is_file():
        raise UserError(f"{where} does not say what it was trained on; name the data to evaluate on")
    data_settings = DataSettings(where=data) if data is not None else settings.load(Recipe, recipe_path).data
    source = getattr(data_settings.build(), split)
    if source is None:
        raise UserError(f"{data_settings.where} has no {split} part")
    if source.classes != model.card.classes:
        raise UserError(
            f"{where} knows {len(model.card.classes)} classes ({', '.join(model.card.classes[:3])} ...), but "
            f"{data_settings.where} has {len(source.classes)} ({', '.join(source.classes[:3])} ...)"
        )
    task = model.task().to(world.device)
    return score(task, EvalLoader(source, model.card.preprocessing, batch_size=256, device=world.device, workers=2))
