"""After training: calibration, the one look at the test part, few-shot probes, a look inside."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vitreous.data.base import Labels
from vitreous.data.sources import Source, Splits, Subset
from vitreous.evaluation.features import FeatureSet, pooled_features
from vitreous.evaluation.full import Evaluation, evaluate_fully
from vitreous.evaluation.logits import LabelledLogits, collect_logits
from vitreous.evaluation.probes import FewShot, few_shot
from vitreous.fitting.costs import Costs, costs
from vitreous.inspection.findings import Findings, look_inside
from vitreous.jobs.build import eval_batches
from vitreous.models.base import Features
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify, LinearHead
from vitreous.training.devices import World, autocast
from vitreous.weights.trained import Trained

NUM_INSPECTED = 128  # pictures over which attention distances are means, as in the paper's figure 7
NUM_SHOWN = 8  # pictures whose attention is kept


@dataclass(frozen=True)
class Measured:
    task: Task
    val: LabelledLogits | None
    test: LabelledLogits
    evaluation: Evaluation
    few_shot: tuple[FewShot, ...]


def evaluated(
    model: Trained, val: LabelledLogits | None, recipe: Recipe, splits: Splits, num_probed: int
) -> tuple[Trained, Measured]:
    """Temperature and sets are fitted on what it says of `val` and go into the model's card; test is measured. `recipe`
    shows pictures as the model takes them."""
    assert splits.test is not None
    world = World.join(recipe.training.device)
    task = model.task().to(world.device)
    with autocast(world.device, recipe.training.precision):
        test, features = seen(task, splits.test, recipe, model.card.classes)
        shots = probed(task, recipe, splits.train, features, num_probed)
    evaluation = evaluate_fully(val, test)
    card = replace(model.card, calibration=evaluation.calibration)
    return replace(model, card=card), Measured(task, val, test, evaluation, shots)


def scored_part(splits: Splits, num: int | None, seed: int) -> Splits:
    """With so many of the test pictures, drawn from a seed; None: all. A number that was noted before any is read."""
    if splits.test is None or num is None:
        return splits
    drawn = np.random.default_rng(seed).permutation(len(splits.test))[:num]
    return replace(splits, test=Subset(splits.test, np.sort(drawn)))


def seen(
    task: Task, source: Source, recipe: Recipe, classes: tuple[str, ...], features: FeatureSet | None = None
) -> tuple[LabelledLogits, FeatureSet]:
    """Logits and features; with a linear head both come of one pass over the pictures, and of none where the features
    are there already."""
    world = World.join(recipe.training.device)
    if features is None:
        features = pooled_features(task.encoder, eval_batches(source, recipe, world), world.device)
    if isinstance(task, Classify) and isinstance(task.head, LinearHead):
        with torch.no_grad(), torch.autocast("cpu", enabled=False):  # the head decides, and costs next to nothing
            logits = task.head.cpu()(Features(maps=(), prefix=None, pooled=features.values))
        task.to(world.device)
        return LabelledLogits(logits.float(), features.labels, features.ids, classes), features
    return collect_logits(task, eval_batches(source, recipe, world), classes), features


def probed(task: Task, recipe: Recipe, train: Source, test: FeatureSet, num: int) -> tuple[FewShot, ...]:
    """Few-shot accuracies from a part of train, spread evenly over each class: a rare one must not give less than it
    has."""
    world = World.join(recipe.training.device)
    if train.targets.task != "classify":
        return ()
    of_classes = [np.flatnonzero(train.labels == label) for label in range(len(train.classes))]
    some = Subset(train, np.sort(np.concatenate([_spread(places, num) for places in of_classes])))
    return few_shot(pooled_features(task.encoder, eval_batches(some, recipe, world), world.device), test)


def costs_of(out: Path, splits: Splits, test: LabelledLogits) -> Costs:
    assert splits.test is not None
    return costs(TorchPredictor(Trained.load(out)), splits.test.read(int(test.ids[0])))


def inspected_findings(task: Task, recipe: Recipe, splits: Splits) -> Findings:
    assert splits.test is not None
    return look_inside(task.encoder, inspected_images(splits.test, recipe), num_shown=NUM_SHOWN, num=NUM_INSPECTED)


def inspected(source: Source) -> Source:
    """The pictures that are looked into: spread evenly over the source, so that all classes are among them. The first
    ones, which are shown, are spread evenly over these."""
    places = _spread(np.arange(len(source)), NUM_INSPECTED)
    shown = _spread(places, NUM_SHOWN)
    return Subset(source, np.concatenate([shown, np.setdiff1d(places, shown)]))


def _spread(places: Labels, num: int) -> Labels:
    """So many of them, evenly; all where they are fewer."""
    return places[np.unique(np.linspace(0, len(places) - 1, num).round().astype(np.int64))] if len(places) else places


def inspected_images(source: Source, recipe: Recipe) -> torch.Tensor:
    """(P, 3, h, w): those that can be read, as the model takes them."""
    batches = eval_batches(inspected(source), recipe, World(0, 1, torch.device("cpu")))
    return torch.cat([batch.images for batch in batches])
