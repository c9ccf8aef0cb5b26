"""What models that find objects bring to a fit: of boxes, a first model. Scores are calibrated as they are measured."""

from dataclasses import replace

from vitreous.fitting.base import ByPictureFit
from vitreous.fitting.box_drafts import BoxDrafts
from vitreous.fitting.box_first import centre_head
from vitreous.fitting.choices import Plan
from vitreous.fitting.first import FIRST, Made
from vitreous.fitting.instance_drafts import InstanceDrafts
from vitreous.fitting.transfer import Start
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.box_metric import BoxMetric
from vitreous.tasks.detect import DetectSettings
from vitreous.weights.trained import Trained


class BoxFit(ByPictureFit):
    drafts = BoxDrafts

    def made(self, start: Start, draft: Recipe) -> Made | None:
        drafts, out = self.drafts(self.job.problem), self.job.out
        recipe = drafts.first(draft, start)
        found = centre_head(
            recipe,
            self.job.parts.of(recipe).train,
            out,
            looking_s=drafts.looking_s(self.job.seconds_left),
            learning_s=lambda picture_s: drafts.learning_s(recipe, picture_s, self.job.seconds_left),
        )
        if found is None:
            return None
        return Made(
            model=found.model,
            recipe=recipe,
            head="a box and a class at every place",
            headline=BoxMetric.headline,
            pictures=found.seen.pictures,
            views=found.seen.views,
            picture_s=found.seen.picture_s,
        )

    def continued(self, plan: Plan, start: Start) -> Plan:
        """Where its decoder is the same."""
        recipe, task = plan.recipe, plan.recipe.objective
        first = Trained.load(self.job.out / FIRST).card
        if not isinstance(task, DetectSettings) or first.task != task or first.model != recipe.model:
            return plan
        return replace(plan, recipe=replace(recipe, start=str(self.job.out / FIRST), start_head=True))


class InstanceFit(ByPictureFit):
    drafts = InstanceDrafts
