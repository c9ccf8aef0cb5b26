"""After training, for every kind of task: the test pictures to score, the cost of a prediction, a look inside."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from vitreous.data.base import Labels, Source, Subset
from vitreous.data.images import BadPicture, Picture
from vitreous.data.kinds import TaskKind
from vitreous.data.splits import Splits
from vitreous.fitting.costs import Costs, costs
from vitreous.inspection.findings import Findings, look_inside
from vitreous.jobs.build import eval_batches
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.base import Task
from vitreous.training.devices import World
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

NUM_INSPECTED = 128  # pictures to average attention distances over, as in the paper's figure 7,
INSPECTED_PX = 128  # of this side; fewer of larger ones: the cost, which grows with the square of the area, is the same
NUM_SHOWN = 8  # pictures whose attention is kept,
ATTENDED: tuple[TaskKind, ...] = ("classify", "label")  # where one prediction comes of the whole picture


def scored_part(splits: Splits, num: int | None, seed: int) -> Splits:
    """The splits with `num` test pictures, drawn from a seed; None: all. The number was recorded before any is read."""
    if splits.test is None or num is None:
        return splits
    drawn = np.random.default_rng(seed).permutation(len(splits.test))[:num]
    return replace(splits, test=Subset(splits.test, np.sort(drawn)))


def costs_of(model: Trained, splits: Splits) -> Costs:
    """Measured on the first test picture that can be read."""
    assert splits.test is not None
    return costs(TorchPredictor(model), next(_readable(splits.test)))


def _readable(source: Source) -> Iterator[Picture]:
    for index in range(len(source)):
        with contextlib.suppress(BadPicture):
            yield source.read(index)


def shown_as(recipe: Recipe, card: Card) -> Recipe:
    """The recipe with the preprocessing of a model, which need not be the one that it trains."""
    return replace(recipe, model=card.model, normalise=card.preprocessing)


def inspected_findings(task: Task, recipe: Recipe, splits: Splits) -> Findings:
    assert splits.test is not None
    num_shown = NUM_SHOWN if splits.test.targets.task in ATTENDED else 0
    return look_inside(task.encoder, inspected_images(splits.test, recipe), num_shown=num_shown, num=NUM_INSPECTED)


def inspected(source: Source, recipe: Recipe) -> Source:
    """The pictures to look into, spread evenly over the source to include all classes. The first ones, which are shown,
    are spread evenly over these."""
    height, width = recipe.model.picture_px
    num = min(NUM_INSPECTED, max(NUM_SHOWN, NUM_INSPECTED * INSPECTED_PX**4 // (height * width) ** 2))
    places = spread(np.arange(len(source)), num)
    shown = spread(places, NUM_SHOWN)
    return Subset(source, np.concatenate([shown, np.setdiff1d(places, shown)]))


def spread(places: Labels, num: int) -> Labels:
    """`num` of the places, evenly spread; all if there are fewer."""
    return places[np.unique(np.linspace(0, len(places) - 1, num).round().astype(np.int64))] if len(places) else places


def inspected_images(source: Source, recipe: Recipe) -> torch.Tensor:
    """(P, 3, h, w): the readable pictures, preprocessed."""
    batches = eval_batches(inspected(source, recipe), recipe, World(0, 1, torch.device("cpu")))
    return torch.cat([batch.images for batch in batches])
