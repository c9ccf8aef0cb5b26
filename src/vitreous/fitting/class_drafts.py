"""Drafts of classifiers: from random weights, small to large, or from trained ones."""

import math
import os
from dataclasses import replace
from typing import Literal

from vitreous.data.augmentation import Augmentation, CropSettings, EraseSettings, MixSettings, WarpSettings
from vitreous.data.check import DataReport
from vitreous.data.sources import DataSettings
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.fitting.budget import Budget, Pace, budget, pace_of
from vitreous.fitting.choices import Choice
from vitreous.fitting.class_choices import BALANCE, IMBALANCE, STRONG_EPOCHS, balance_of, class_choices
from vitreous.fitting.course import COOLDOWN
from vitreous.fitting.drafts import Drafts
from vitreous.fitting.transfer import Found, Start
from vitreous.fitting.wishes import SMALL_PX, Hardware, Wishes
from vitreous.models import ModelSettings, ViTSettings, model_settings
from vitreous.models.vit import BlockSettings
from vitreous.recipes.recipe import Recipe, batch_for, short_name
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import AdamWSettings, MuonSettings, OptimizerSettings, SGDSettings
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.trained import Trained

SHRINK = 1.5  # times the model's picture size: what large training pictures are shrunk to, to crop from
ENOUGH_EPOCHS, ENOUGH_PICTURES, PLENTY_EPOCHS = 20, 250_000, 100  # to see before a larger model pays off


class ClassDrafts(Drafts):
    """For one class per picture, or several labels."""

    def recipes(self, start: Start | None) -> list[Recipe]:
        """There is only one from trained weights."""
        report, hardware, wishes, data = self.report, self.hardware, self.wishes, self.data()
        if start is not None:
            recipes = [_finetuning(start, report, data, hardware, wishes)]
        else:
            models = _new_models(report, hardware)
            if wishes.gives("model"):
                models = models[:1]
            if "model" in wishes.changes:
                models = _named(wishes.changes["model"], models[0].picture_px[0], hardware)
            recipes = [_from_scratch(model, report, _shrunk(data, model, report), hardware, wishes) for model in models]
        recipes = [self.with_its_length(self.changed(recipe)) for recipe in recipes]
        _check_balance(recipes[0], wishes)
        return recipes

    def data(self) -> DataSettings:
        """Balanced if that is due or asked for."""
        data = super().data()
        if self.wishes.gives(*BALANCE):
            return data
        return replace(data, order=replace(data.order, balance=_balances(self.report, self.wishes, "sampling")))

    def is_enough(self, epochs: float) -> bool:
        seen = epochs * self.report.num_train
        return epochs >= PLENTY_EPOCHS or (epochs >= ENOUGH_EPOCHS and seen >= ENOUGH_PICTURES)

    def foreseen(self, recipe: Recipe, start: Start) -> Pace:
        return pace_of(recipe, start.picture_s)

    def most_steps(self, usual: int, start: Start | None) -> int | None:
        """Too many passes spoil trained weights; random ones keep learning."""
        return usual if self.wishes.seconds is None else 2 * usual if start is not None else None

    def budget(self, total_s: float, pace: Pace, before_s: float, first_s: float = 0.0) -> Budget:
        return budget(total_s, self.report, pace, before_s, first_s=first_s)

    def of_length(self, recipe: Recipe, epochs: float) -> Recipe:
        strong = epochs >= STRONG_EPOCHS
        return replace(
            super().of_length(recipe, epochs), augmentation=_augmentation(recipe.model, self.report, strong=strong)
        )

    def choices(self, recipe: Recipe, start: Found, kept: Budget | None) -> tuple[Choice, ...]:
        return class_choices(recipe, self.problem, start, kept)


def _shrunk(data: DataSettings, model: ModelSettings, report: DataReport) -> DataSettings:
    """Pictures much larger than the model's are kept smaller: decoded once, they are cropped in a fraction of the
    time."""
    px, side = round(SHRINK * min(model.picture_px)), min(report.heights[1], report.widths[1])
    gb = report.num_train * 3 * px * px * max(report.aspects[1], 1 / report.aspects[1]) / 1e9
    if data.shrink_px is not None or side < SHRINK * px or gb > data.keep_gb:
        return data
    return replace(data, shrink_px=px)


def _new_models(report: DataReport, hardware: Hardware) -> list[ModelSettings]:
    """From small to large. Mean pooling and no class token: better on small data sets, and cheaper."""
    side = min(report.heights[1], report.widths[1])
    on_cpu = hardware.kind == "cpu"
    if side > SMALL_PX:
        sizes = (64,) if on_cpu else (64, 96, 128, 224)
        side = max(size for size in sizes if size <= max(side, sizes[0]))
    coarse, fine = (_patch(side, cells) for cells in (4, 8 if side < 128 else 14))
    shapes = (
        ((64, 5, 4, coarse), (96, 6, 4, coarse), (128, 6, 4, fine), (192, 8, 6, fine))
        if on_cpu
        else ((256, 8, 8, fine), (384, 12, 6, fine))
    )
    return [
        ViTSettings(
            picture_px=(_whole(side, patch), _whole(side, patch)),
            patch=patch,
            width=width,
            depth=depth,
            heads=heads,
            pool="mean",
            num_prefix=0,
            positions="learned" if on_cpu else "sincos",
            stochastic_depth=0.0 if on_cpu else 0.1,
            block=BlockSettings(gelu="erf" if on_cpu else "tanh"),
        )
        for width, depth, heads, patch in shapes
    ]


def _patch(side: int, cells: int) -> int:
    """The patch that divides a side into about `cells`, exactly if one does."""
    near = sorted(range(1, side + 1), key=lambda patch: (abs(side / patch - cells), patch))
    exact = [patch for patch in near if side % patch == 0 and 0.75 <= side / patch / cells <= 1.5]
    return (exact or near)[0]


def _whole(side: int, patch: int) -> int:
    """The side in whole patches."""
    return max(1, round(side / patch)) * patch


def _named(name: str, side: int, hardware: Hardware) -> list[ModelSettings]:
    """Coarser maps first for small pictures, for which a CPU may be too slow for maps as fine as they should be."""
    model, px = model_settings(name), max(side, 32)
    return list(dict.fromkeys(model.for_side(px, places) for places in ((2, 4) if hardware.kind == "cpu" else (4,))))


def most_in_batch(hardware: Hardware, *, finetunes: bool) -> int:
    """Smaller for fine-tuning: in the same time, more steps are better than larger batches."""
    return 32 if finetunes else 128 if hardware.kind == "cpu" else 256


def _from_scratch(
    model: ModelSettings, report: DataReport, data: DataSettings, hardware: Hardware, wishes: Wishes
) -> Recipe:
    on_cpu = hardware.kind == "cpu"
    batch = batch_for(report.num_train, most_in_batch(hardware, finetunes=False))
    seen = 345_000 if on_cpu else 10_000_000
    epochs = min(max(seen / report.num_train, 20.0), 300.0)
    return Recipe(
        name=f"fit-{short_name(data.where)}",
        data=data,
        model=model,
        objective=_objective(report, wishes),
        normalise=Preprocessing(crop=_crop(report), mean=report.mean, std=report.std),
        optimizer=MuonSettings(lr=2e-3, weight_decay=0.2 if on_cpu else 0.5, adam_lr=2e-3 if on_cpu else 1e-3),
        schedule=_schedule(0.05),
        training=_training(batch, epochs, hardware),
    )


def _finetuning(start: Start, report: DataReport, data: DataSettings, hardware: Hardware, wishes: Wishes) -> Recipe:
    card = Trained.load(start.where).card
    model = replace(card.model, picture_px=start.picture_px)
    data = _shrunk(data, model, report)
    batch = batch_for(report.num_train, most_in_batch(hardware, finetunes=True))
    epochs = min(max(32_000 / report.num_train, 10.0), 50.0)
    return Recipe(
        name=f"fit-{short_name(data.where)}",
        data=data,
        model=model,
        start=start.where,
        # Not smoothed: the head it starts from is not, and the first steps would only make it less confident.
        objective=replace(_objective(report, wishes), label_smoothing=0.0),
        normalise=replace(card.preprocessing, crop=_crop(report)),
        optimizer=_suited(model),
        schedule=_schedule(0.1),
        training=_training(batch, epochs, hardware),
    )


def _suited(model: ModelSettings) -> OptimizerSettings:
    suits = model.finetuning
    if suits.optimizer == "SGD":
        return SGDSettings(lr=suits.lr, weight_decay=suits.weight_decay)
    return AdamWSettings(lr=suits.lr, weight_decay=suits.weight_decay, layer_decay=suits.layer_decay)


def _objective(report: DataReport, wishes: Wishes) -> ClassifySettings:
    """What the targets ask for: one class per picture, or several labels that are predicted independently."""
    if report.task == "label":
        share = sum(report.train_counts) / (len(report.classes) * report.parts[0].pictures)  # of labels that apply
        share = min(max(share, 1e-4), 0.5)
        return ClassifySettings(loss="sigmoid", start_bias=round(math.log(share / (1 - share)), 3))
    return ClassifySettings(label_smoothing=0.1, class_weights=_weights(report, wishes))


def _schedule(warmup: float) -> ScheduleSettings:
    """A constant rate that falls in the second half (Hagele et al. 2024): the first half does not depend on the
    length."""
    return ScheduleSettings(warmup_fraction=warmup, decay="constant", cooldown_fraction=COOLDOWN)


def _training(batch: int, epochs: float, hardware: Hardware) -> TrainingSettings:
    plain = TrainingSettings(epochs=round(epochs, 4), batch_size=batch, precision="auto", log_every_steps=20)
    if hardware.kind == "cpu":
        return replace(plain, log_every_steps=5)  # of a few dozen: there is no GPU that would wait
    return replace(plain, workers=min(8, os.cpu_count() or 1))


def _augmentation(model: ModelSettings, report: DataReport, strong: bool) -> Augmentation:
    side = min(model.picture_px)
    if min(report.heights[1], report.widths[1]) <= SMALL_PX:
        light = Augmentation(crop=CropSettings(method="pad", pad_px=max(1, side // 28)))
    else:
        light = Augmentation(crop=CropSettings(method="random-resized", scale=(0.35, 1.0)))
    if not strong:
        return light
    return replace(
        light,
        crop=replace(light.crop, pad_px=max(2, side // 8), padding="reflect"),
        warp=WarpSettings(ops=2, magnitude=10, spread=True),
        erase=EraseSettings(probability=0.25),
        mix=MixSettings(mixup=0.8, cutmix=1.0, probability=0.5),
    )


def _crop(report: DataReport) -> Literal["squash", "centre"]:
    low, _, high = report.aspects
    return "squash" if high / low < 1.25 else "centre"


# ---- class balance


def _check_balance(recipe: Recipe, wishes: Wishes) -> None:
    if wishes.balance not in ("auto", balance_of(recipe)):
        others = [name for name in wishes.changes if name in BALANCE or name.startswith("objective.")]
        given = " ".join(f"--{name} {wishes.changes[name]}" for name in others)
        raise UserError(f"--balance {wishes.balance} and {given} contradict each other: leave one of them out")


def _balances(report: DataReport, wishes: Wishes, way: Literal["sampling", "weights"]) -> bool:
    if wishes.balance == "auto":  # given weights balance already
        is_due = report.imbalance > IMBALANCE and not wishes.gives("objective.class_weights")
        is_due &= report.task == "classify"  # a picture with several labels cannot be shown for just one
        return way == "sampling" and is_due
    return wishes.balance == way


def _weights(report: DataReport, wishes: Wishes) -> tuple[float, ...]:
    """Every class has the same total weight; the mean weight of a picture is 1."""
    if not _balances(report, wishes, "weights"):
        return ()
    counts = report.train_counts
    share = sum(counts) / sum(count > 0 for count in counts)
    return tuple(round(share / count, 6) if count else 1.0 for count in counts)
