"""The first answer: a linear head on frozen features, within seconds. A whole model, which later ones have to beat."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.base import Source
from vitreous.data.sources import Splits
from vitreous.evaluation.answers import Answers
from vitreous.evaluation.baseline import spread_out
from vitreous.evaluation.calibration import fit_temperature
from vitreous.evaluation.conformal import COVERAGES, fit_threshold
from vitreous.evaluation.features import FeatureSet, pooled_features
from vitreous.evaluation.heads import FittedHead, judges, least_squares_head, limited, logistic_head
from vitreous.fitting.budget import Clock
from vitreous.fitting.transfer import Found, Start
from vitreous.jobs.build import build_encoder, build_loader, eval_batches
from vitreous.models.base import Encoder
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.devices import World, autocast
from vitreous.weights.calibration import ClassCalibration
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

FIRST = "first"  # its folder in the run directory
MOST_S = 0.4  # share of the time, for the features of the training pictures: of more, some are taken
VIEWS_SHARE = 0.05  # of the time, for altered views of the training pictures
MOST_VIEWS = 8
LEAST_PICTURES = 64  # that are embedded whatever the time


@dataclass(frozen=True, kw_only=True)
class FirstAnswer:
    start: str  # the encoder, as --from takes it; "random weights" for none
    digest: str  # sha256 of its tensors; empty for random ones
    picture_px: tuple[int, int]
    head: str  # how its linear head was fitted
    penalty: float
    log_loss: float  # on pictures the head has not seen, by which it was chosen
    accuracy: float  # on the same
    val_accuracy: float | None  # on the validation part
    pictures: int  # of train that it was fitted to
    views: int  # altered ones of each, beside the picture itself
    answer_s: float  # a picture takes
    ready_s: float  # since the command began

    def words(self) -> str:
        score = self.accuracy if self.val_accuracy is None else self.val_accuracy
        on = "training pictures left out in turn" if self.val_accuracy is None else "the validation part"
        return (
            f"first answer after {self.ready_s:.0f} s: {score:.1%} on {on} ({self.head} on frozen features of "
            f"{self.start}, {self.pictures:,} pictures)"
        )


def first_answer(
    start: Found, recipe: Recipe, splits: Splits, out: Path, *, seconds: float, clock: Clock
) -> FirstAnswer:
    """Saved, and said, as soon as there is one; and again where the next head is better. `seconds` are those of the
    whole command."""
    encoder, classes = build_encoder(recipe), splits.train.classes
    found = embed(encoder, recipe, splits, seconds, start.answer_s if isinstance(start, Start) else None)
    best: FirstAnswer | None = None
    for head in fitted_heads(found, len(classes), getattr(recipe.objective, "class_weights", ())):
        if best is not None and head.log_loss >= best.log_loss:
            continue
        said = None if found.val is None else _said(head, found.val, classes)
        save_both(with_head(encoder, head, recipe, classes, str(out)), said, out)
        best = FirstAnswer(
            start=start.where if isinstance(start, Start) else "random weights",
            digest=start.digest if isinstance(start, Start) else "",
            picture_px=recipe.model.picture_px,
            head=head.kind,
            penalty=head.penalty,
            log_loss=head.log_loss,
            accuracy=head.accuracy,
            val_accuracy=None if said is None else float(said.right().double().mean()),
            pictures=len(found.train),
            views=0 if found.views is None else round(len(found.views) / len(found.train)),
            answer_s=found.answer_s,
            ready_s=round(clock(), 2),
        )
        print(best.words(), flush=True)
    assert best is not None
    return best


@dataclass(frozen=True)
class Embedded:
    """Features of the training and validation pictures, from an encoder that stays as it is."""

    train: FeatureSet  # one view of every picture
    views: FeatureSet | None  # altered ones
    val: FeatureSet | None
    answer_s: float  # a picture took


def embed(encoder: Encoder, recipe: Recipe, splits: Splits, seconds: float, answer_s: float | None = None) -> Embedded:
    """`seconds` are those of the whole command; `answer_s` is what a picture will take, where that is known."""
    world = World.join(recipe.training.device)
    encoder = encoder.to(world.device)

    def features(source: Source) -> FeatureSet:
        return pooled_features(encoder, eval_batches(source, recipe, world), world.device)

    train = splits.train
    if answer_s is not None:
        train = spread_out(train, max(LEAST_PICTURES, len(train.classes), int(MOST_S * seconds / answer_s)))
    with autocast(world.device, recipe.training.precision):
        began = time.monotonic()
        plain = features(train)
        took_s = time.monotonic() - began
        val = None if splits.val is None else features(splits.val)
        num_views = min(MOST_VIEWS, int(VIEWS_SHARE * seconds / max(took_s, 0.05)))
        views = _altered(encoder, recipe, train, num_views, world) if num_views else None
    return Embedded(plain, views, val, took_s / len(plain))


def _altered(encoder: Encoder, recipe: Recipe, train: Source, num_views: int, world: World) -> FeatureSet:
    """Crops, shifts and flips as in training, so many passes over the pictures."""
    crop = recipe.augmentation.crop
    crop = CropSettings(method=crop.method, scale=crop.scale, pad_px=crop.pad_px)
    light = Augmentation(crop=crop, flip=recipe.augmentation.flip)
    batch = min(recipe.training.batch_size, len(train))
    altered = replace(recipe, augmentation=light, training=replace(recipe.training, batch_size=batch))
    loader = build_loader(altered, train, world)
    return pooled_features(encoder, loader.batches(0, num_views * loader.steps_per_epoch), world.device)


def fitted_heads(found: Embedded, num_classes: int, class_weights: tuple[float, ...] = ()) -> Iterator[FittedHead]:
    """Least squares at once; then logistic regression, where it converges."""
    val, weights = judges(found.val), torch.tensor(class_weights) if class_weights else None
    train = limited(found.train)
    yield least_squares_head(train, val, num_classes)
    seen = train if found.views is None else limited(_joined(train, found.views))
    logistic = logistic_head(seen, val, num_classes, weights)
    if logistic is not None:
        yield logistic


def _joined(one: FeatureSet, other: FeatureSet) -> FeatureSet:
    return FeatureSet(*(torch.cat(pair) for pair in zip(_tensors(one), _tensors(other), strict=True)))


def _tensors(features: FeatureSet) -> tuple[Tensor, Tensor, Tensor]:
    return features.values, features.labels, features.ids


def _said(head: FittedHead, features: FeatureSet, classes: tuple[str, ...]) -> Answers:
    return Answers(head.linear(features.values).float(), features.labels, features.ids, classes)


def with_head(encoder: Encoder, head: FittedHead, recipe: Recipe, classes: tuple[str, ...], where: str) -> Trained:
    """An ordinary classifier: the encoder with a linear head."""
    card = Card(
        model=recipe.model, task=ClassifySettings(head="linear"), classes=classes, preprocessing=recipe.preprocessing
    )
    weights = {
        **encoder.state_dict(prefix="encoder."),
        "head.weight": head.linear.weights.T.float().contiguous(),
        "head.bias": head.linear.bias.float(),
    }
    return Trained(card, {name: value.detach().cpu() for name, value in weights.items()}, where)


def calibrated(trained: Trained, val: Answers | None) -> Trained:
    """With temperature and prediction sets from the validation part."""
    if val is None:
        return trained
    temperature = fit_temperature(val)
    sets = tuple((coverage, fit_threshold(val, coverage, temperature)) for coverage in COVERAGES)
    fitted = ClassCalibration(temperature=temperature, sets=sets)
    return replace(trained, card=replace(trained.card, calibration=fitted))


def save_both(trained: Trained, val: Answers | None, out: Path) -> None:
    """As it is, to go on from; and calibrated, as what the run delivers so far."""
    trained.save(out / FIRST)
    calibrated(trained, val).save(out / "model")
