"""What segmenters bring to a fit."""

from vitreous.fitting.base import Measured, NoAccount, TaskFit
from vitreous.fitting.begun import Begun
from vitreous.fitting.candidates import Kept
from vitreous.fitting.first import calibrated
from vitreous.fitting.pixel_drafts import PixelDrafts
from vitreous.jobs.pixels import evaluate_pixels
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.training.devices import World


class PixelFit(TaskFit[NoAccount]):
    drafts, account = PixelDrafts, NoAccount

    def evaluated(self, kept: Kept, begun: Begun) -> Measured[NoAccount]:
        splits, device = self.job.scored(begun.plan), World.join(begun.plan.recipe.training.device).device
        assert splits.test is not None
        evaluation = evaluate_pixels(TorchPredictor(kept.model, device), splits.val, splits.test)
        return Measured(calibrated(kept.model, evaluation.calibration), evaluation, NoAccount())
