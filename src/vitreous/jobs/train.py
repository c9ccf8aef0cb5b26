"""Train: a recipe goes in, a run directory comes out."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.data.base import Source
from vitreous.data.sources import DataSettings, check_classes
from vitreous.data.splits import Splits
from vitreous.display.words import percent
from vitreous.errors import UserError, in_plain_words
from vitreous.evaluation.score import score
from vitreous.jobs import resuming
from vitreous.jobs.build import (
    build_loop,
    build_objective,
    check_models,
    class_order,
    eval_batches,
    numbered,
    with_batch_that_fits,
)
from vitreous.jobs.data import OpenData
from vitreous.jobs.words import check_tokenizer, with_words
from vitreous.nn.shards import fitted, whole
from vitreous.objectives.base import Objective
from vitreous.recipes.recipe import Recipe
from vitreous.storage import atomic
from vitreous.tasks import task_settings
from vitreous.tasks.base import Task
from vitreous.terminal import note
from vitreous.training.devices import World, autocast
from vitreous.training.loop import Course, Evaluate, Loop
from vitreous.training.ranks import gathered
from vitreous.training.run import RunDirectory
from vitreous.weights import own
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained
from vitreous.words.tokenizer import Tokenizer

BEST = "best"  # folder of the weights that scored best on the validation part, if these are kept


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    read_test: bool = True,
    open_data: OpenData = DataSettings.build,
    until: int | None = None,
    *,
    course: Course | None = None,
    into: str = "model",
) -> dict[str, Any]:
    """Run a recipe to its end, resuming if its directory has checkpoints. Returns its results.

    `read_test=False`, for choosing settings, leaves the test set unread. `open_data` lets several runs in one process
    share decoded pictures. A run `until` a step before its end is saved there, and returns {}. `course` may change
    schedule and length during the run. The trained model is saved `into` this folder of the run.
    """
    path = Path(out) if out is not None else Path("runs") / recipe.name
    recipe = recipe.located()
    if recipe.rates:
        return _train_at_best_rate(recipe, path, read_test, open_data)
    return _train(recipe, path, read_test, open_data, until=until, course=course, into=into)


def _train_at_best_rate(recipe: Recipe, path: Path, read_test: bool, open_data: OpenData) -> dict[str, Any]:
    """The paper's protocol (B.1.1): choose the rate on a held-out part of train, then train on all of it."""
    if recipe.data.val_fraction == 0:
        raise UserError(
            "a rate is chosen on a held-out part of train: set --data.val_fraction above 0, or leave out --rates"
        )
    if task_settings(recipe.objective) is None:
        raise UserError(
            f"{recipe.name} learns without labels, so it has no score to choose a rate by: leave out --rates"
        )
    world, scores = World.join(recipe.training.device), {}
    with RunDirectory(path, owner=world.is_first):
        pass  # claims the folder of the trials as a run's
    for rate in recipe.rates:
        trial = replace(recipe, rates=(), optimizer=replace(recipe.optimizer, lr=rate))
        found = _train(trial, path / f"rate-{rate:g}", False, open_data)
        scores[rate] = found["val"][found["headline"]]
        if world.is_first:
            print(
                f"learning rate {rate:g}: {found['headline']} {percent(scores[rate], 2)} on the held-out part",
                flush=True,
            )
    best = max(scores, key=lambda rate: scores[rate])
    final = replace(
        recipe,
        rates=(),
        optimizer=replace(recipe.optimizer, lr=best),
        data=replace(recipe.data, val_fraction=0.0),
    )
    choice = {"rate": best, "held_out_scores": {f"{rate:g}": value for rate, value in scores.items()}}
    return _train(final, path, read_test, open_data, about=choice)


def _train(
    recipe: Recipe,
    path: Path,
    read_test: bool,
    open_data: OpenData,
    *,
    about: dict[str, Any] | None = None,
    until: int | None = None,
    course: Course | None = None,
    into: str = "model",
) -> dict[str, Any]:
    """`about` is added to the results."""
    world = World.join(recipe.training.device)
    with world.together(), in_plain_words(), RunDirectory(path, owner=world.is_first) as directory:
        finished = directory.results()
        if world.is_first:
            resuming.claim(directory, recipe)
            if finished is None:
                directory.write_environment()
        world.wait()  # until the first has prepared the directory
        if finished is not None:
            if world.is_first:
                print(f"{path}: this run has finished; these are its results")
            return finished
        recipe = resuming.as_begun(directory, recipe)
        check_models(recipe)
        check_tokenizer(recipe)
        splits = open_data(recipe.data)
        resuming.check_pictures(directory, recipe.data.where, splits, owner=world.is_first)
        if world.is_first:
            note(*splits.notes)
        recipe = with_batch_that_fits(recipe, splits.train, world)
        splits = numbered(splits, class_order(recipe, splits.train.classes))
        recipe, splits, tokenizer = with_words(recipe, splits, world, directory)
        objective = build_objective(recipe, splits.train.classes)
        _check_scored(recipe, splits.train)
        loop = build_loop(recipe, splits, objective, world)
        if not directory.checkpoints.paths():
            objective.look(eval_batches(splits.train, recipe, world))
            if (missing := objective.encoder.missing()) is not None:
                raise UserError(missing)
        began = time.monotonic()
        loop.run(directory, _validation(recipe, splits, directory, world), until, course)
        if until is not None and until < loop.num_steps:
            return {}
        train_s = time.monotonic() - began
        found = _finish(recipe, path / into, loop, splits, read_test=read_test, tokenizer=tokenizer)
        results = {"train_s": round(train_s, 1)} | found | (about or {})
        results |= directory.timing()
        if len(splits.train.bad):
            results["unreadable"] = splits.train.bad.listed()
        if world.is_first:
            atomic.write_json(results, path / "results.json")
    return results


def _check_scored(recipe: Recipe, train: Source) -> None:
    """A task needs targets of its kind; an objective without a task has no score to choose by."""
    task = task_settings(recipe.objective)
    if task is not None:
        check_classes(train)
        if (train.targets.task == "match") != (task.task_kind == "match"):
            raise UserError(f"{train.name}: its pictures have captions, and {recipe.name} does not learn from captions")
        if task.task_kind == "classify" and train.targets.task == "label":
            raise UserError(f"{train.name}: its pictures have several labels each: set --objective.loss sigmoid")
        if train.targets.has_places and recipe.normalise.crop not in ("squash", "letterbox"):
            raise UserError(
                f"normalise.crop is {recipe.normalise.crop}, which cuts off part of every picture, but whole pictures "
                "are scored: give --normalise.crop squash or letterbox"
            )
    elif recipe.training.keep == "best":
        raise UserError(
            f"{recipe.name} learns without labels, so it has no score to keep the best by: give --training.keep last"
        )


def _validation(recipe: Recipe, splits: Splits, directory: RunDirectory, world: World) -> Evaluate | None:
    keeps_best = recipe.training.keep == "best"
    if splits.val is None:
        if keeps_best:
            raise UserError("the best weights are chosen on a validation part: set --data.val_fraction above 0")
        return None
    if world.is_first and not directory.checkpoints.paths():
        atomic.remove(directory.path / BEST)  # left by a run that ended before its first checkpoint
    batches = eval_batches(splits.val, recipe, world)

    def evaluate(objective: Objective) -> dict[str, float]:
        if not isinstance(objective.task, Task):
            return {}
        scores = score(objective.task, batches)
        if keeps_best:
            state = whole(objective.state_dict())
            if world.is_first:
                _keep_if_best(directory.path / BEST, state, scores, objective.task.metric().headline)
        return scores

    return evaluate


def _keep_if_best(folder: Path, state: dict[str, Tensor], scores: dict[str, float], headline: str) -> None:
    """A run that resumes from an earlier step reaches its best weights again, and they stay."""
    if not folder.is_dir() or scores[headline] > atomic.read_json(folder / "model.json")[headline]:
        own.save_model(folder, state, scores)


def _finish(
    recipe: Recipe, folder: Path, loop: Loop, splits: Splits, *, read_test: bool, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """Save the model (averaged if the run averages) to the folder, and score the test set once."""
    objective, world = loop.objective.eval(), loop.world
    results: dict[str, Any] = {
        "recipe": recipe.name,
        "steps": loop.num_steps,
        "batch_size": recipe.training.batch_size,
        "parameters": sum(p.numel() for p in objective.parameters()),
    }
    with loop.average.swapped(), torch.no_grad(), autocast(world.device, recipe.training.precision):
        task = objective.task
        if isinstance(task, Task):
            results["headline"] = task.metric().headline
            if recipe.training.keep == "best":
                objective.load_state_dict(fitted(own.load_model(folder.parent / BEST)[0], objective.state_dict()))
            with gathered(objective):
                if splits.val is not None:
                    known = loop.final_scores if recipe.training.keep == "last" else None
                    results["val"] = known or score(task, eval_batches(splits.val, recipe, world))
                if read_test and splits.test is not None:
                    results["test"] = score(task, eval_batches(splits.test, recipe, world))
        result = trained(recipe, objective, splits.train.classes, str(folder.parent), tokenizer)
        if world.is_first:
            result.save(folder)
    return results


def trained(
    recipe: Recipe, objective: Objective, classes: tuple[str, ...], where: str, tokenizer: Tokenizer | None = None
) -> Trained:
    """The result of a run: a task with its head, or the encoder alone."""
    task = objective.task
    weights = whole(objective.encoder.state_dict(prefix="encoder.") if task is None else task.state_dict())
    card = Card(
        model=recipe.model,
        task=None if task is None else task_settings(recipe.objective),
        classes=() if task is None else classes,
        preprocessing=recipe.preprocessing,
    )
    return Trained(card, weights, where, words=None if tokenizer is None else lambda: tokenizer)
