"""What segmenters bring to a fit: a first model of patches, and the calibration of pixels."""

from vitreous.data.sources import Splits
from vitreous.fitting.base import Measured, NoAccount, TaskFit
from vitreous.fitting.begun import Begun
from vitreous.fitting.candidates import Kept
from vitreous.fitting.first import FIRST, FIRST_MODEL, FirstModel, calibrated, save_both
from vitreous.fitting.pixel_drafts import PixelDrafts
from vitreous.fitting.pixel_first import patch_head
from vitreous.fitting.transfer import Start
from vitreous.jobs.pixels import evaluate_pixels, pixel_temperature
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.pixel_metric import PixelMetric
from vitreous.training.devices import World
from vitreous.weights.calibration import PixelCalibration
from vitreous.weights.trained import Trained


class PixelFit(TaskFit[NoAccount]):
    drafts, account = PixelDrafts, NoAccount

    def first(self, start: Start, draft: Recipe, floor: FirstModel | None) -> FirstModel | None:
        splits, out = self.job.parts.of(draft), self.job.out
        found = patch_head(start, draft, splits, out, max(1.0, self.job.seconds_left))
        if found is None:
            return None
        save_both(found.model, _calibration(found.model, draft, splits), out, FIRST)
        said = self.seen(FIRST_MODEL, found.model, draft)
        first = FirstModel(
            name=FIRST_MODEL,
            folder=FIRST,
            start=start.where,
            digest=start.digest,
            picture_px=draft.model.picture_px,
            head=found.head.kind,
            penalty=found.head.penalty,
            log_loss=found.head.log_loss,
            headline=PixelMetric.headline,
            score=None if said is None else said.score(),
            val_score=None if said is None else said.score(),
            pictures=found.pictures,
            views=0,
            picture_s=found.picture_s,
            ready_s=round(self.job.clock(), 2),
        )
        print(first.words(), flush=True)
        return first

    def evaluated(self, kept: Kept, begun: Begun) -> Measured[NoAccount]:
        splits, device = self.job.scored(begun.plan), World.join(begun.plan.recipe.training.device).device
        assert splits.test is not None
        evaluation = evaluate_pixels(TorchPredictor(kept.model, device), splits.val, splits.test)
        return Measured(calibrated(kept.model, evaluation.calibration), evaluation, NoAccount())


def _calibration(model: Trained, recipe: Recipe, splits: Splits) -> PixelCalibration | None:
    if splits.val is None:
        return None
    predictor = TorchPredictor(model, World.join(recipe.training.device).device)
    return PixelCalibration(temperature=pixel_temperature(predictor, splits.val))
