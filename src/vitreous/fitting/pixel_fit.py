"""What segmenters bring to a fit: a first model of patches."""

from dataclasses import replace

from vitreous.fitting.base import ByPictureFit
from vitreous.fitting.choices import Plan, usual_steps
from vitreous.fitting.first import FIRST, Made
from vitreous.fitting.pixel_drafts import PixelDrafts
from vitreous.fitting.pixel_first import patch_head
from vitreous.fitting.transfer import Start
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.pixel_metric import PixelMetric
from vitreous.tasks.segment import SegmentSettings

FEW_STEPS = 500  # of training: a new decoder would not come as far as the first model is


class PixelFit(ByPictureFit):
    drafts = PixelDrafts

    def made(self, start: Start, draft: Recipe) -> Made | None:
        found = patch_head(start, draft, self.job.parts.of(draft), self.job.out, max(1.0, self.job.seconds_left))
        if found is None:
            return None
        return Made(
            model=found.model,
            recipe=draft,
            head=found.head.kind,
            penalty=found.head.penalty,
            log_loss=found.head.log_loss,
            headline=PixelMetric.headline,
            pictures=found.pictures,
            picture_s=found.picture_s,
        )

    def continued(self, plan: Plan, start: Start) -> Plan:
        """With its linear decoder, where training is short."""
        recipe = plan.recipe
        if usual_steps(recipe, self.job.report) >= FEW_STEPS or self.job.problem.wishes.gives("objective"):
            return plan
        task = SegmentSettings(decoder="linear")
        recipe = replace(recipe, objective=task, start=str(self.job.out / FIRST), start_head=True)
        reason = f"that of the first model: with fewer than {FEW_STEPS} steps a new one would not come as far"
        return replace(plan, recipe=recipe).with_choice("decoder", task.decoder, reason)
