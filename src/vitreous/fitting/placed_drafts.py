"""Drafts of models that say where things are (areas, boxes): one model, from small pictures to large ones."""

import os
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

from vitreous.data.augmentation import Augmentation
from vitreous.data.placement import Fit
from vitreous.data.transforms import Preprocessing
from vitreous.display.words import counted
from vitreous.fitting.budget import Budget
from vitreous.fitting.choices import Choice, length, reason_for_length, scored_choice, start_choice
from vitreous.fitting.course import COOLDOWN
from vitreous.fitting.drafts import Drafts
from vitreous.fitting.transfer import Found, Start
from vitreous.models import ModelSettings, ViTSettings, model_settings
from vitreous.recipes.recipe import Recipe, batch_for, short_name
from vitreous.tasks import ObjectiveSettings
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import OptimizerSettings
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.trained import Trained

SIDES = {"cpu": (96, 128, 192, 256), "cuda": (192, 256, 384, 512)}  # px: sides of squares with the area of the pictures
LARGEST = 1.25  # times the side of the pictures themselves
BATCH = {"cpu": 8, "cuda": 16}


class PlacedDrafts(Drafts):
    """Just one size if it was given."""

    crop: ClassVar[Fit]  # how a picture is fitted to the model's input: all of it is scored
    augmentation: ClassVar[Augmentation]
    enough_epochs: ClassVar[float]  # to see before larger pictures pay off
    usual_seen: ClassVar[dict[str, int]]  # pictures to see, if no time is given

    @abstractmethod
    def objective(self, model: ModelSettings) -> ObjectiveSettings: ...

    @abstractmethod
    def optimizer(self, start: Start | None) -> OptimizerSettings: ...

    @abstractmethod
    def own_choices(self, recipe: Recipe) -> tuple[Choice, Choice]:
        """The task and its decoder."""

    def recipes(self, start: Start | None) -> list[Recipe]:
        model, normalise = self._model(start)
        if start is None and "model" in self.wishes.changes:
            model = model_settings(self.wishes.changes["model"])
        drafted = [self._draft(replace(model, picture_px=size), normalise, start) for size in self.sizes(model, start)]
        changed = [self.with_its_length(self.changed(one)) for one in drafted]
        return changed[:1] if self.wishes.gives("model.picture_px") else changed

    def _model(self, start: Start | None) -> tuple[ModelSettings, Preprocessing]:
        """Small patches: things smaller than a patch are hardly seen."""
        if start is not None:
            card = Trained.load(start.where).card
            return card.model, replace(card.preprocessing, crop=self.crop)
        model = ViTSettings(patch=8, width=192, depth=6, heads=6, pool="mean", num_prefix=0, positions="sincos")
        return model, Preprocessing(crop=self.crop, mean=self.report.mean, std=self.report.std)

    def _draft(self, model: ModelSettings, normalise: Preprocessing, start: Start | None) -> Recipe:
        data, kind = self.data(), self.hardware.kind
        epochs = min(max(self.usual_seen[kind] / self.report.num_train, 5.0), 200.0)
        batch = batch_for(self.report.num_train, BATCH[kind])
        every = 5 if kind == "cpu" else 20  # a GPU would wait
        training = TrainingSettings(epochs=round(epochs, 4), batch_size=batch, precision="auto", log_every_steps=every)
        if kind == "cuda":
            # Not compiled, which would take too long: as a CUDA graph, a step does not wait for launches either.
            training = replace(training, workers=min(8, os.cpu_count() or 1))
        return Recipe(
            name=f"fit-{short_name(data.where)}",
            data=data,
            model=model,
            start=None if start is None else start.where,
            objective=self.objective(model),
            normalise=normalise,
            augmentation=self.augmentation,
            optimizer=self.optimizer(start),
            schedule=ScheduleSettings(warmup_fraction=0.1, decay="constant", cooldown_fraction=COOLDOWN),
            training=training,
        )

    def sizes(self, model: ModelSettings, start: Start | None) -> list[tuple[int, int]]:
        """From small to large, and never much larger than the pictures are."""
        own, known = self.own_side, SIDES[self.hardware.kind]
        found = [self.of_side(side, model) for side in [side for side in known if side < LARGEST * own] or known[:1]]
        return list(dict.fromkeys(found))

    @property
    def why_this_size(self) -> str:
        return "the largest that can be seen often enough in this time"

    @property
    def own_side(self) -> float:
        """The side of a square with the area of the median picture, in px."""
        return float((self.report.heights[1] * self.report.widths[1]) ** 0.5)

    def of_side(self, side: float, model: ModelSettings) -> tuple[int, int]:
        """The area of a square of this side in the pictures' proportions, in whole places of the coarsest map."""
        scale, place = side / self.own_side, model.coarsest_px
        rows, columns = (
            max(2, round(px * scale / step)) * step
            for px, step in zip((self.report.heights[1], self.report.widths[1]), place, strict=True)
        )
        return rows, columns

    def is_enough(self, epochs: float) -> bool:
        return epochs >= self.enough_epochs

    def choice(self, name: str, value: str, reason: str, *given: str) -> Choice:
        return Choice(name=name, value=value, reason="as you asked" if self.wishes.gives(*given) else reason)

    def choices(self, recipe: Recipe, start: Found, kept: Budget | None) -> tuple[Choice, ...]:
        choice, (height, width) = self.choice, recipe.model.picture_px
        task, decoder = self.own_choices(recipe)
        of_start = "the one that the starting weights are for" if recipe.start else "small patches, to see small things"
        why_long = reason_for_length(self.report, self.wishes, kept)
        return (
            task,
            choice("hardware", self.hardware.name, "what this machine has", "training.device"),
            start_choice(start),
            choice("model", recipe.model.describe(), of_start, "model"),
            decoder,
            choice("resolution", f"{width} x {height} px", self.why_this_size, "model.picture_px"),
            choice("length", length(recipe, self.report), why_long, "training.epochs", "training.steps"),
            choice(
                "batch",
                counted(recipe.training.batch_size, "picture"),
                "small data sets need many steps",
                "training.batch_size",
            ),
            *scored_choice(self.report, kept),
        )
