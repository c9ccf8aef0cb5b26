"""The tasks that are evaluated through their predictor, picture by picture, each at its own size: one line each."""

from typing import Any, Protocol

from vitreous.data.base import Source
from vitreous.data.kinds import TaskKind
from vitreous.evaluation.full import Evaluation
from vitreous.jobs.objects import evaluate_objects
from vitreous.jobs.pixels import evaluate_pixels
from vitreous.prediction.predictor import Predictor


class ByPicture(Protocol):
    def __call__(
        self, predictor: Predictor, val: Source | None, test: Source, *, calibration: Any = None
    ) -> Evaluation:
        """`val` fits the calibration, unless one is given, and may be None; `test` is measured."""


BY_PICTURE: dict[TaskKind, ByPicture] = {
    "segment": evaluate_pixels,
    "detect": evaluate_objects,
    "instances": evaluate_objects,
}
