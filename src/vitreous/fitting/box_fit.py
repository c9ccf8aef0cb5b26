"""What models that find objects bring to a fit: of boxes, a first model. What they predict for the validation part
says which of them is best, and calibrates that one.
"""

from dataclasses import replace

from vitreous.evaluation.box_scores import Measured
from vitreous.fitting.base import ByPictureFit
from vitreous.fitting.box_drafts import BoxDrafts
from vitreous.fitting.box_first import centre_head
from vitreous.fitting.candidates import Kept
from vitreous.fitting.choices import Plan
from vitreous.fitting.first import FIRST, Made
from vitreous.fitting.instance_drafts import InstanceDrafts
from vitreous.fitting.transfer import Start
from vitreous.jobs.objects import calibration_by, judged
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.box_metric import BoxMetric
from vitreous.tasks.detect import DetectSettings
from vitreous.weights.calibration import BoxCalibration
from vitreous.weights.trained import Trained


class ObjectFit(ByPictureFit):
    def judged(self, name: str, model: Trained, recipe: Recipe) -> Measured | None:
        val = self.job.parts.of(recipe).val
        return None if val is None else judged(self.predictor(model, recipe), val)

    def calibration(self, kept: Kept) -> BoxCalibration | None:
        return calibration_by(kept.said) if isinstance(kept.said, Measured) else None


class BoxFit(ObjectFit):
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


class InstanceFit(ObjectFit):
    drafts = InstanceDrafts
