"""Drafts of a model that finds shapes, for some data on some machine."""

from vitreous.fitting.box_drafts import SIZES, BoxDrafts
from vitreous.fitting.budget import TRAINING_PASSES
from vitreous.fitting.choices import Choice
from vitreous.models import ModelSettings
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.mask_loss import PointSettings
from vitreous.tasks.mask_queries import MaskQuerySettings, PixelSettings

CELLS_PER_POINT = 2  # cells of a mask for each point at which masks are compared
LEAST_POINTS = 256


class InstanceDrafts(BoxDrafts):
    """As for boxes, with another decoder: what helps to find objects helps to find their shapes."""

    passes = BoxDrafts.enough_epochs * TRAINING_PASSES  # frozen features find nothing: the whole model has to learn
    scoring_s = judging_s = 0.05  # masks at the pictures' size, matching, and drawing pictures again

    def objective(self, model: ModelSettings) -> MaskQuerySettings:
        """Few layers: the decoder has to learn in minutes."""
        width, heads, mlp_width = SIZES[self.hardware.kind]
        height, across = model.picture_px
        points = max(LEAST_POINTS, height * across // 16 // CELLS_PER_POINT)
        return MaskQuerySettings(
            output="instances",
            queries=self._queries(),
            width=width,
            heads=heads,
            mlp_width=mlp_width,
            decoder_depth=3,
            pixel=PixelSettings(mask_width=width, mlp_width=mlp_width, depth=1),
            points=PointSettings(number=points),
        )

    @property
    def is_by_centres(self) -> bool:
        return False

    def own_choices(self, recipe: Recipe) -> tuple[Choice, Choice]:
        _, decoder = super().own_choices(recipe)
        num = len(self.report.classes)
        words = f"you asked for the shapes of objects of {num} class{'es' if num > 1 else ''}"
        return self.choice("task", "instances", words), decoder
