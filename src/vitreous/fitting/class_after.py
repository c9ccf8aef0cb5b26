"""Predictions of classifiers, with the features behind them; and few-shot probes."""

import numpy as np
import torch

from vitreous.data.base import Source, Subset
from vitreous.evaluation.features import FeatureSet, pooled_features
from vitreous.evaluation.logits import LabelledLogits, collect_logits
from vitreous.evaluation.probes import FewShot, few_shot
from vitreous.fitting.after import spread
from vitreous.jobs.build import eval_batches
from vitreous.models.base import Features
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify, LinearHead
from vitreous.training.devices import World


def seen(
    task: Task, source: Source, recipe: Recipe, classes: tuple[str, ...], features: FeatureSet | None = None
) -> tuple[LabelledLogits, FeatureSet]:
    """Logits and features. With a linear head, both come from one pass over the pictures, or from none if there are
    features already."""
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
    """Few-shot accuracies from a part of train, spread evenly over each class, with all pictures of rare ones."""
    world = World.join(recipe.training.device)
    if train.targets.task != "classify":
        return ()
    of_classes = [np.flatnonzero(train.labels == label) for label in range(len(train.classes))]
    some = Subset(train, np.sort(np.concatenate([spread(places, num) for places in of_classes])))
    return few_shot(pooled_features(task.encoder, eval_batches(some, recipe, world), world.device), test)
