"""Drafts of a segmenter for some data on some machine: from small pictures to large ones."""

import os
from dataclasses import replace

from vitreous.data.augmentation import Augmentation, ColourSettings, CropSettings
from vitreous.data.check import DataReport
from vitreous.data.transforms import Preprocessing
from vitreous.fitting.budget import Budget
from vitreous.fitting.choices import Choice, length, reason_for_length, scored_choice, start_choice
from vitreous.fitting.course import COOLDOWN
from vitreous.fitting.drafts import Drafts
from vitreous.fitting.transfer import Found, Start
from vitreous.fitting.wishes import Hardware
from vitreous.models import ModelSettings, ViTSettings, model_settings
from vitreous.recipes.recipe import Recipe, batch_for, short_name
from vitreous.tasks.segment import SegmentSettings
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import AdamWSettings, MuonSettings, OptimizerSettings
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.trained import Trained

SIDES = {"cpu": (96, 128, 192, 256), "cuda": (192, 256, 384, 512)}  # px of pictures of the same area, side by side
BATCH = {"cpu": 8, "cuda": 16}
ENOUGH_EPOCHS = 12  # seen before larger pictures pay
SEEN = {"cpu": 12_000, "cuda": 100_000}  # pictures, where no time is given


class PixelDrafts(Drafts):
    """Of one model, from small pictures to large ones; one where the size was given."""

    scoring_s = 0.06  # the outlines of a picture, and its counts

    def recipes(self, start: Start | None) -> list[Recipe]:
        model, normalise = _model(start, self.report)
        if "model" in self.wishes.changes:
            model = model_settings(self.wishes.changes["model"])
        drafted = [
            self._draft(replace(model, picture_px=size), normalise, start)
            for size in _sizes(self.report, model, self.hardware)
        ]
        changed = [self.with_its_length(self.changed(one)) for one in drafted]
        return changed[:1] if self.wishes.gives("model.picture_px") else changed

    def _draft(self, model: ModelSettings, normalise: Preprocessing, start: Start | None) -> Recipe:
        data = self.data()
        batch = batch_for(self.report.num_train, BATCH[self.hardware.kind])
        epochs = min(max(SEEN[self.hardware.kind] / self.report.num_train, 5.0), 200.0)
        optimizer: OptimizerSettings = MuonSettings(lr=2e-3, weight_decay=0.2, adam_lr=2e-3)
        if start is not None:
            optimizer = AdamWSettings(lr=5e-4, weight_decay=0.05, layer_decay=0.8)
        training = TrainingSettings(epochs=round(epochs, 4), batch_size=batch, log_every_steps=20)
        if self.hardware.kind == "cuda":
            training = replace(training, precision="bf16", workers=min(8, os.cpu_count() or 1))
        return Recipe(
            name=f"fit-{short_name(data.where)}",
            data=data,
            model=model,
            start=None if start is None else start.where,
            objective=SegmentSettings(depth=1),
            normalise=normalise,
            augmentation=Augmentation(
                crop=CropSettings(scale=(0.35, 1.0)),
                colour=ColourSettings(brightness=0.2, contrast=0.2, saturation=0.2),
            ),
            optimizer=optimizer,
            schedule=ScheduleSettings(warmup_fraction=0.1, decay="constant", cooldown_fraction=COOLDOWN),
            training=training,
        )

    def is_enough(self, epochs: float) -> bool:
        return epochs >= ENOUGH_EPOCHS

    def choices(self, recipe: Recipe, start: Found, kept: Budget | None) -> tuple[Choice, ...]:
        report, wishes, (height, width) = self.report, self.wishes, recipe.model.picture_px

        def choice(name: str, value: str, reason: str, *given: str) -> Choice:
            return Choice(name=name, value=value, reason="as you asked" if wishes.gives(*given) else reason)

        decoder = getattr(recipe.objective, "decoder", "")
        return (
            choice("task", "segmentation", f"the pictures have masks, of {len(report.classes)} classes"),
            choice("hardware", self.hardware.name, "what is here", "training.device"),
            start_choice(start),
            choice(
                "model",
                recipe.model.describe(),
                "that of the weights it starts from" if recipe.start else "small patches: little things are seen",
                "model",
            ),
            choice("decoder", decoder, "a token per class among the patches", "objective"),
            choice(
                "resolution", f"{width} x {height} px", "the largest that can be seen often enough", "model.picture_px"
            ),
            choice(
                "length",
                length(recipe, report),
                reason_for_length(report, wishes, kept),
                "training.epochs",
                "training.steps",
            ),
            choice(
                "batch", f"{recipe.training.batch_size} pictures", "small sets need many steps", "training.batch_size"
            ),
            *scored_choice(report, kept),
        )


def _model(start: Start | None, report: DataReport) -> tuple[ModelSettings, Preprocessing]:
    """Small patches: what is smaller than one is hardly seen."""
    if start is not None:
        card = Trained.load(start.where).card
        return card.model, replace(card.preprocessing, crop="squash")
    model = ViTSettings(patch=8, width=192, depth=6, heads=6, pool="mean", num_prefix=0, positions="sincos")
    return model, Preprocessing(crop="squash", mean=report.mean, std=report.std)


def _sizes(report: DataReport, model: ModelSettings, hardware: Hardware) -> list[tuple[int, int]]:
    """In the proportions of the pictures, in whole cells, and never much larger than they are."""
    height, width, cell = report.heights[1], report.widths[1], model.cell_px
    own = (height * width) ** 0.5
    sides = [side for side in SIDES[hardware.kind] if side < 1.25 * own] or [SIDES[hardware.kind][0]]
    found = []
    for side in sides:
        scale = side / own
        whole = [max(2, round(px * scale / step)) * step for px, step in zip((height, width), cell, strict=True)]
        found.append((whole[0], whole[1]))
    return list(dict.fromkeys(found))
