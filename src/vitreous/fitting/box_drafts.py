"""Drafts of a detector for some data on some machine."""

from typing import ClassVar

from vitreous.data.augmentation import Augmentation, ColourSettings, CropSettings
from vitreous.fitting.budget import TRAINING_PASSES
from vitreous.fitting.choices import Choice
from vitreous.fitting.placed_drafts import PlacedDrafts
from vitreous.fitting.transfer import Start
from vitreous.models import ModelSettings
from vitreous.recipes.recipe import Recipe
from vitreous.tasks import ObjectiveSettings
from vitreous.tasks.detect import DetectSettings
from vitreous.tasks.detect_loss import LossSettings
from vitreous.training.optim import AdamWSettings, OptimizerSettings

# Queries: some to spare, as each finds one object at most; and not too few to choose from where pictures have few.
QUERIES_PER_OBJECT, LEAST_QUERIES, MOST_QUERIES = 2, 30, 300
RATES = {"cpu": 1e-3, "cuda": 7e-4}  # the wider decoder wants a lower one
ENLARGED_PX = 256  # up to which the map of a plain ViT is enlarged: beyond, it has places enough
SIZES = {"cpu": (128, 4, 256), "cuda": (256, 8, 1024)}  # width, heads, width of the MLP


class BoxDrafts(PlacedDrafts):
    crop = "letterbox"
    augmentation = Augmentation(
        crop=CropSettings(method="zoom", zoom=(0.7, 1.6)),
        colour=ColourSettings(brightness=0.2, contrast=0.2, saturation=0.2),
    )
    enough_epochs = 20
    passes = enough_epochs * TRAINING_PASSES  # frozen features find nothing: the decoder has to learn, with all of it
    usual_seen: ClassVar = {"cpu": 16_000, "cuda": 150_000}
    scoring_s = 0.01  # matching, and drawing pictures again

    def objective(self, model: ModelSettings) -> ObjectiveSettings:
        """Few layers, and boxes proposed by the encoder: a detector that has to learn in minutes."""
        width, heads, mlp_width = SIZES[self.hardware.kind]
        return DetectSettings(
            queries=self._queries(),
            width=width,
            heads=heads,
            mlp_width=mlp_width,
            encoder_depth=1,
            decoder_depth=3,
            dropout=0.0,
            levels=3,
            two_stage=True,
            weights=LossSettings(hints=1.0, quality=True),
            finest=2 if max(model.picture_px) <= ENLARGED_PX else 1,
        )

    def _queries(self) -> int:
        most = max((part.boxes.most for part in self.report.parts if part.boxes is not None), default=0)
        return min(max(QUERIES_PER_OBJECT * most, LEAST_QUERIES), MOST_QUERIES)

    def optimizer(self, start: Start | None) -> OptimizerSettings:
        lr = RATES[self.hardware.kind]
        return AdamWSettings(lr=lr if start is None else 0.7 * lr, weight_decay=0.05, layer_decay=0.8)

    def own_choices(self, recipe: Recipe) -> tuple[Choice, Choice]:
        num, most = len(self.report.classes), max(part.boxes.most for part in self.report.parts if part.boxes)
        described = f"{getattr(recipe.objective, 'decoder', '')}, {getattr(recipe.objective, 'queries', 0)} queries"
        return (
            self.choice("task", "detection", f"the pictures have boxes, of {num} class{'es' if num > 1 else ''}"),
            self.choice("decoder", described, f"at most {most} objects in a picture", "objective"),
        )
