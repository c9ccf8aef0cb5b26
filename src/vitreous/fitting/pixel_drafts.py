"""Drafts of a segmenter for some data on some machine."""

from typing import ClassVar

from vitreous.data.augmentation import Augmentation, ColourSettings, CropSettings
from vitreous.display.words import counted
from vitreous.fitting.choices import Choice
from vitreous.fitting.placed_drafts import PlacedDrafts
from vitreous.fitting.transfer import Start
from vitreous.models import ModelSettings
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.segment import SegmentSettings
from vitreous.training.optim import AdamWSettings, MuonSettings, OptimizerSettings


class PixelDrafts(PlacedDrafts):
    crop = "squash"
    augmentation = Augmentation(
        crop=CropSettings(scale=(0.35, 1.0)), colour=ColourSettings(brightness=0.2, contrast=0.2, saturation=0.2)
    )
    enough_epochs = 12
    usual_seen: ClassVar = {"cpu": 12_000, "cuda": 100_000}
    scoring_s = 0.06  # the outlines and counts of a picture

    def objective(self, model: ModelSettings) -> SegmentSettings:
        return SegmentSettings(depth=1)

    def optimizer(self, start: Start | None) -> OptimizerSettings:
        if start is None:
            return MuonSettings(lr=2e-3, weight_decay=0.2, adam_lr=2e-3)
        return AdamWSettings(lr=5e-4, weight_decay=0.05, layer_decay=0.8)

    def own_choices(self, recipe: Recipe) -> tuple[Choice, Choice]:
        decoder = getattr(recipe.objective, "decoder", "")
        return (
            self.choice(
                "task",
                "segmentation",
                f"the pictures have masks of {counted(len(self.report.classes), 'class', 'classes')}",
            ),
            self.choice("decoder", decoder, "a token per class among the patches", "objective"),
        )
