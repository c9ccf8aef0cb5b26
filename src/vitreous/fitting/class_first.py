"""The first models of classifiers: linear heads on pixels and on pooled features of a frozen encoder."""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.batch import Batch
from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.base import Source, Subset
from vitreous.data.splits import Splits
from vitreous.evaluation.baseline import spread_out
from vitreous.evaluation.features import FeatureSet, pooled_features
from vitreous.evaluation.full import fitted_calibration
from vitreous.evaluation.heads import FittedHead, judges, least_squares_head, limited, logistic_head
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.pixels import PixelRegression
from vitreous.evaluation.probes import LINEAR_TOLERANCE
from vitreous.fitting.budget import Clock
from vitreous.fitting.first import FIRST, FIRST_MODEL, ON_PIXELS, PIXELS, FirstModel, save_both
from vitreous.fitting.transfer import Start
from vitreous.jobs.build import build_encoder, build_loader, eval_batches
from vitreous.models.base import Encoder
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.devices import World, autocast
from vitreous.weights.calibration import Calibration
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

MOST_S = 0.4  # share of the time for the features of training pictures, which are subsampled if they take more
VIEWS_SHARE = 0.05  # share of the time for augmented views of the training pictures
MOST_VIEWS = 8
LEAST_PICTURES = 64  # to embed, whatever the time


def pixel_model(regression: PixelRegression, out: Path, *, clock: Clock) -> FirstModel:
    """A model within seconds, whatever the pictures: the result until there is a better one."""
    card = Card(
        model=regression.model,
        task=linear_task(has_many_labels=regression.has_many_labels),
        classes=regression.classes,
        preprocessing=regression.preprocessing,
    )
    model = with_head(regression.model.build(), regression.head, card, str(out))
    save_both(model, _calibration(regression.val), out, PIXELS)
    found = FirstModel(
        name=ON_PIXELS,
        folder=PIXELS,
        start="pixels",
        digest="",
        picture_px=regression.model.picture_px,
        head=regression.head.kind,
        penalty=regression.head.penalty,
        log_loss=regression.head.log_loss,
        headline=_headline(has_many_labels=regression.has_many_labels),
        score=regression.head.score,
        val_score=regression.val_score,
        pictures=regression.pictures,
        views=0,
        picture_s=regression.picture_s,
        ready_s=round(clock(), 2),
    )
    print(found.words(), flush=True)
    return found


def first_model(
    start: Start, recipe: Recipe, splits: Splits, out: Path, *, bar: float, seconds: float, clock: Clock
) -> tuple[FirstModel | None, FeatureSet | None]:
    """Saved and announced as soon as there is one, and again if the next head is better. Returned with the features of
    the validation part. None if no head could be fitted. `bar`: the score of the result so far; `seconds`: what is left
    of the command's time."""
    encoder, classes = build_encoder(recipe), splits.train.classes
    found = embed(encoder, recipe, splits, seconds, start.picture_s)
    best: FirstModel | None = None
    least = math.inf
    for head in fitted_heads(found, len(classes), getattr(recipe.objective, "class_weights", ())):
        if best is not None and head.log_loss >= least:
            continue
        least = head.log_loss
        said = None if found.val is None else _said(head, found.val, classes)
        model = with_head(encoder, head, card_of(recipe, classes), str(out))
        save_both(model, _calibration(said), out, FIRST, delivers=head.score >= bar)
        best = FirstModel(
            name=FIRST_MODEL,
            folder=FIRST,
            start=start.where,
            digest=start.digest,
            picture_px=recipe.model.picture_px,
            head=head.kind,
            penalty=head.penalty,
            log_loss=head.log_loss,
            headline=_headline(has_many_labels=found.train.labels.ndim == 2),
            score=head.score,
            val_score=None if said is None else said.score(),
            pictures=len(found.train),
            views=0 if found.views is None else round(len(found.views) / len(found.train)),
            picture_s=found.picture_s,
            ready_s=round(clock(), 2),
        )
        print(best.words(), flush=True)
    return best, found.val


@dataclass(frozen=True)
class Embedded:
    """Features of the training and validation pictures from a frozen encoder."""

    train: FeatureSet  # one view of every picture
    views: FeatureSet | None  # augmented ones
    val: FeatureSet | None
    picture_s: float  # seconds per picture


def embed(encoder: Encoder, recipe: Recipe, splits: Splits, seconds: float, picture_s: float | None = None) -> Embedded:
    """`seconds`: what is left of the command's time; `picture_s`: how long a picture will take, if known: then the
    training pictures are subsampled if they take too long, and more so if it turns out slower."""
    world = World.join(recipe.training.device)
    encoder = encoder.to(world.device)
    train, most_s = splits.train, math.inf
    if picture_s is not None:
        most_s = MOST_S * seconds
        train = spread_out(train, max(LEAST_PICTURES, len(train.classes), int(most_s / picture_s)))
        train = Subset(train, np.random.default_rng(0).permutation(len(train)))  # so that any first part is fair
    with autocast(world.device, recipe.training.precision):
        began = time.monotonic()
        batches = beginning(eval_batches(train, recipe, world), began + most_s, least=_least(train))
        plain = pooled_features(encoder, batches, world.device)
        took_s = time.monotonic() - began
        val = None
        if splits.val is not None:
            val = pooled_features(encoder, eval_batches(splits.val, recipe, world), world.device)
        num_views = min(MOST_VIEWS, int(VIEWS_SHARE * seconds / max(took_s, 0.05)))
        views = _altered(encoder, recipe, train, num_views, world) if num_views else None
    return Embedded(plain, views, val, took_s / len(plain))


def beginning(
    batches: Iterable[Batch], deadline: float, *, least: int, clock: Clock = time.monotonic
) -> Iterator[Batch]:
    """Batches until time is up, but at least this many pictures."""
    num = 0
    for batch in batches:
        if num >= least and clock() > deadline:
            return
        num += len(batch.ids)
        yield batch


def _least(train: Source) -> int:
    return max(LEAST_PICTURES, 4 * len(train.classes))


def _altered(encoder: Encoder, recipe: Recipe, train: Source, num_views: int, world: World) -> FeatureSet:
    """Crops, shifts and flips as in training, in this many passes over the pictures."""
    crop = recipe.augmentation.crop
    crop = CropSettings(method=crop.method, scale=crop.scale, zoom=crop.zoom, pad_px=crop.pad_px)
    light = Augmentation(crop=crop, flip=recipe.augmentation.flip)
    batch = min(recipe.training.batch_size, len(train))
    altered = replace(recipe, augmentation=light, training=replace(recipe.training, batch_size=batch))
    loader = build_loader(altered, train, world)
    return pooled_features(encoder, loader.batches(0, num_views * loader.steps_per_epoch), world.device)


def fitted_heads(
    found: Embedded, num_classes: int, class_weights: tuple[float, ...] = (), tolerance: float = LINEAR_TOLERANCE
) -> Iterator[FittedHead]:
    """Least squares first, for one label per picture; then logistic regression, if it converges."""
    val, weights = judges(found.val), torch.tensor(class_weights) if class_weights else None
    train = limited(found.train)
    if train.labels.ndim == 1:
        yield least_squares_head(train, val, num_classes)
    seen = train if found.views is None else limited(_joined(train, found.views))
    logistic = logistic_head(seen, val, num_classes, weights, tolerance=tolerance)
    if logistic is not None:
        yield logistic


def _joined(one: FeatureSet, other: FeatureSet) -> FeatureSet:
    return FeatureSet(*(torch.cat(pair) for pair in zip(_tensors(one), _tensors(other), strict=True)))


def _tensors(features: FeatureSet) -> tuple[Tensor, Tensor, Tensor]:
    return features.values, features.labels, features.ids


def _said(head: FittedHead, features: FeatureSet, classes: tuple[str, ...]) -> LabelledLogits:
    return LabelledLogits(head.linear(features.values).float(), features.labels, features.ids, classes)


def card_of(recipe: Recipe, classes: tuple[str, ...]) -> Card:
    """The card of a recipe's encoder with a linear head."""
    task = linear_task(has_many_labels=getattr(recipe.objective, "loss", "") == "sigmoid")
    return Card(model=recipe.model, task=task, classes=classes, preprocessing=recipe.preprocessing)


def linear_task(*, has_many_labels: bool) -> ClassifySettings:
    return ClassifySettings(head="linear", loss="sigmoid" if has_many_labels else "softmax")


def with_head(encoder: Encoder, head: FittedHead, card: Card, where: str) -> Trained:
    """An ordinary classifier."""
    weights = {
        **encoder.state_dict(prefix="encoder."),
        "head.weight": head.linear.weights.T.float().contiguous(),
        "head.bias": head.linear.bias.float(),
    }
    return Trained(card, {name: value.detach().cpu() for name, value in weights.items()}, where)


def _calibration(val: LabelledLogits | None) -> Calibration | None:
    return None if val is None else fitted_calibration(val)


def _headline(*, has_many_labels: bool) -> str:
    return "mAP" if has_many_labels else "accuracy"
