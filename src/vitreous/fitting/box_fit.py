"""What detectors bring to a fit: the calibration of scores."""

from vitreous.fitting.base import Measured, NoAccount, TaskFit
from vitreous.fitting.begun import Begun
from vitreous.fitting.box_drafts import BoxDrafts
from vitreous.fitting.candidates import Kept
from vitreous.fitting.first import calibrated
from vitreous.jobs.boxes import evaluate_boxes
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.training.devices import World


class BoxFit(TaskFit[NoAccount]):
    drafts, account = BoxDrafts, NoAccount

    def evaluated(self, kept: Kept, begun: Begun) -> Measured[NoAccount]:
        splits, device = self.job.scored(begun.plan), World.join(begun.plan.recipe.training.device).device
        assert splits.test is not None
        evaluation = evaluate_boxes(TorchPredictor(kept.model, device), splits.val, splits.test)
        return Measured(calibrated(kept.model, evaluation.calibration), evaluation, NoAccount())
